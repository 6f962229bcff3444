"""How long conversations are, measured on real observations with the real tokenizer."""

import math
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vagen.config import ExperimentConfig, InfraConfig
from vagen.config.infra import EnvironmentsConfig
from vagen.config.schema import EnvSpec, context_window
from vagen.envs import parse_env_config
from vagen.envs.base import Observation
from vagen.envs.config import EnvConfig
from vagen.envs.images import png_bytes
from vagen.envs.parsing import tags_in
from vagen.models.families import family_of
from vagen.models.files import check_model
from vagen.models.processor import Processor, load_processor
from vagen.models.published import IMAGE_TOKEN, PUBLISHED
from vagen.models.tiny import TINY_MODELS
from vagen.models.tiny_policy import build_tiny_policy, sampled_levels
from vagen.rollout.contexts import DROPPED, SUMMARY_REQUEST
from vagen.rollout.conversation import ChatRenderer
from vagen.rollout.thoughts import END as END_THINK
from vagen.rollout.thoughts import THINK, Thoughts
from vagen.service import EnvironmentRaised, HereEnv, SyncEnv, environments_of

SAMPLED_LEVELS = 8
PIECES = re.compile(r"<\|[a-z_]+\|>| ?[^\W\d_]+|\d| ?[^\w\s]|_|\n+|\s+")
LONG_WORD = 10
"""Letters from which on a word counts twice."""
END, TEXT = 1, 2


@dataclass(frozen=True, slots=True)
class ConversationSize:
    """Tokens of an environment's conversations; the most among a few levels."""

    prompt: int = 0
    """System prompt, first observation and the header of the first answer."""
    observation: int = 0
    """A later observation with the template around it; 0 if every episode ended at once."""
    response: int = 0
    """An expert's response, with the token that ends it."""
    image_tokens: int = 0
    """Image tokens of one observation."""
    patches: int = 0
    """Patches of one observation's images, as the vision tower reads them."""
    later_prompt: int = 0
    """Like `prompt`, with a later observation; 0 if every episode ended at once."""
    resized: str = ""
    """Which frames the image processor resizes, and to what; empty if none."""
    reserved: tuple[str, ...] = ()
    """Tags of the prompt that are one added token of the tokenizer."""
    thoughts: Thoughts | None = None
    """What the chat template does with thoughts; None if it knows none."""
    request: int = 0
    """The request of a summary, with the template around it."""
    frame_bytes: int = 0
    """Bytes of one observation's images as they are stored."""
    dropped: int = 0
    """What stands for an observation that was dropped, likewise."""

    @property
    def drops(self) -> bool:
        """Whether the chat template takes thoughts out of earlier answers."""
        return self.thoughts is not None and self.thoughts.drops

    def rows_of(self, experiment: ExperimentConfig, response: int | None = None) -> list[int]:
        """Tokens of each row of an episode that uses every turn.

        Args:
            experiment: Context and number of turns are read from it.
            response: Tokens of a response; None is an expert's.
        """
        response = self.response if response is None else response
        context, window = experiment.rollout_manager.context, context_window(experiment)
        rows = []
        for number, shown in enumerate(shown_turns(experiment, drops=self.drops)):
            summaries = context == "compact" and window is not None
            # A later row begins with a summary, which counts as a turn.
            turns = shown + (summaries and number > 0)
            tokens = self.prompt + turns * response + (turns - 1) * self.observation
            if summaries:
                tokens += self.request + response
            elif context == "gate":
                tokens += shown * max(self.dropped - self.observation, 0)
            elif number and window is not None:
                tokens += max(self.later_prompt - self.prompt, 0)
            rows.append(tokens)
        return rows

    def trajectory_of(self, experiment: ExperimentConfig) -> int:
        """Tokens of such an episode in all its rows."""
        return sum(self.rows_of(experiment))


def shown_turns(experiment: ExperimentConfig, *, drops: bool = False) -> list[int]:
    """Observations in each row of an episode, at most: with `gate` as if all were kept, and yet
    every row was as short as it can be.

    Args:
        experiment: Context and number of turns are read from it.
        drops: Whether the chat template takes thoughts out of earlier answers, which starts a row
            every turn; not counted with `compact` and `gate`.
    """
    turns, window = experiment.rollout_manager.max_turns, context_window(experiment)
    context = experiment.rollout_manager.context
    if drops and (window is None or context not in ("compact", "gate")):
        return [min(turn, window or turns) for turn in range(1, turns + 1)]
    if window is None:
        return [turns]
    if context == "gate":
        return [min(end + window, turns) for end in range(0, turns, window)]
    window = min(window, turns)
    return [window] * (-(-turns // window) if context == "compact" else 1 + turns - window)


@contextmanager
def model_directory(
    experiment: ExperimentConfig, environments: EnvironmentsConfig | None = None
) -> Iterator[str]:
    """The experiment's model as a path that can be loaded; a tiny one is built for the moment.

    It is the one that a run would begin with: same tokenizer, same weights.

    Raises:
        ModelError: If the path is meant for a folder that does not exist.
    """
    path = experiment.actor_rollout_ref.model.path
    if path in TINY_MODELS:
        import vagen.models.lean_transformers  # noqa: F401

        # isort: split
        from transformers import logging

        logging.disable_progress_bar()
        with tempfile.TemporaryDirectory() as folder:
            build_tiny_policy(experiment, sampled_levels(experiment), Path(folder), environments)
            yield folder
        return
    check_model(path)
    yield path


def environments_here(infra: InfraConfig) -> EnvironmentsConfig | None:
    """Where this machine opens environments: it cannot reach a cluster's service."""
    return None if infra.kubernetes is not None else infra.environments


def measure(
    experiment: ExperimentConfig, model: str, environments: EnvironmentsConfig | None = None
) -> dict[str, ConversationSize]:
    """Sizes by environment id.

    Args:
        experiment: With resolved environments.
        model: A model directory or hub id; if it is a published model that was not downloaded,
            text is counted by estimate (`CountingTokenizer`).
        environments: Where environments run; None is the default.

    Raises:
        ModelError: If tokenizer or image processor cannot be loaded.
        RenderError: If the model cannot read what an environment shows.
    """
    processor = counting_processor(model) if must_estimate(model) else load_processor(model)
    return {
        env_id: _measure(spec, processor, environments) for env_id, spec in experiment.envs.items()
    }


def _measure(
    spec: EnvSpec, processor: Processor, environments: EnvironmentsConfig | None
) -> ConversationSize:
    renderer = ChatRenderer(processor)
    env = environments_of(environments).open(spec.env_name, spec.env_config)
    most: Counter[str] = Counter()
    resized = ""
    for seed in range(SAMPLED_LEVELS):
        for turn, (observation, response) in enumerate(expert_turns(env, seed)):
            frames = [(frame.shape[1], frame.shape[0]) for frame in observation["images"]]
            shapes = [processor.shape_of(frame) for frame in frames]
            found = {
                "response": len(processor.tokenizer.encode(response, add_special_tokens=False)) + 1,
                "image_tokens": sum(shape.tokens for shape in shapes),
                "patches": sum(math.prod(shape.grid) for shape in shapes),
            }
            beginning = len(renderer.initial(env.system_prompt(), observation).ids)
            if turn:
                found["later_prompt"] = beginning
                found["observation"] = len(renderer.following(observation).ids)
            else:
                kept = renderer.fitted(observation)["images"]
                found["prompt"] = beginning
                found["frame_bytes"] = sum(len(png_bytes(frame)) for frame in kept)
            most |= Counter(found)  # the larger of each count
            for frame in frames:
                resized = resized or resizing(processor, frame)
    env.close()
    config = parse_env_config(spec.env_name, spec.env_config)
    return ConversationSize(
        **most,
        resized=resized,
        request=len(renderer.following(SUMMARY_REQUEST).ids),
        dropped=len(renderer.following(DROPPED).ids),
        reserved=tuple(reserved_tags(config, processor.tokenizer, renderer.thoughts)),
        thoughts=renderer.thoughts,
    )


def resizing(processor: Processor, size: tuple[int, int]) -> str:
    """What happens to frames of a size (width, height); empty if nothing."""
    assert processor.image_processor is not None
    family, shape = processor.family, processor.shape_of(size)
    if not family.patch_grids:
        tiles, rows, columns = shape.grid
        width, height = columns * family.patch_size, rows * family.patch_size
        return (
            f"{size[0]} x {size[1]} pixels are read as {tiles} tiles of {width} x {height}, "
            f"{shape.tokens} tokens; the model's preprocessor_config.json says into how many"
        )
    seen = processor.read_size(size)
    if seen == size:
        return ""
    if seen[0] * seen[1] < size[0] * size[1]:  # `Processor.fitted`
        return f"{size[0]} x {size[1]} pixels are scaled down to {seen[0]} x {seen[1]}"
    unit = family.patch_size * family.merge_size
    least = -(-(processor.image_processor.size["shortest_edge"] ** 0.5) // unit) * unit
    return (
        f"{size[0]} x {size[1]} pixels are resized to {seen[0]} x {seen[1]}; sides that are "
        f"multiples of {unit}, {least:g} or more, are left as they are. Rollout and trainer see "
        "the same picture only if their image processors resize alike"
    )


def learns_tags(experiment: ExperimentConfig) -> bool:
    """Whether the warm start teaches the tags, whatever the tokenizer reserves."""
    return experiment.warm_start.steps > 0 or experiment.actor_rollout_ref.model.path in TINY_MODELS


def reserved_tags(config: EnvConfig, tokenizer: Any, thoughts: Thoughts | None) -> list[str]:
    """Tags of the prompt that are one added token.

    Such a token stands for what it was added for, and a model may hardly ever write it elsewhere,
    whatever the prompt says: `<think>` of Qwen3-VL opens its own reasoning. With a chat template
    that opens thoughts or takes them out, that is what is asked for.
    """
    added = tokenizer.added_tokens_encoder
    own = thoughts is not None and (thoughts.begun or thoughts.drops)
    native = (THINK, END_THINK) if own else ()
    tags = tags_in(config.layout, config.tags)
    return [tag for tag in tags if tag in added and tag not in native]


def reserved_text(env_id: str, tags: Sequence[str]) -> str:
    """Advice for the user about such tags."""
    return (
        f"{', '.join(tags)}: one added token of the tokenizer each, which the model may hardly "
        f"ever write; rename them in `envs.{env_id}.env_config.tags`"
    )


def longest_context(experiment: ExperimentConfig, sizes: dict[str, ConversationSize]) -> int:
    """Most tokens a row of an episode can have."""
    response = experiment.data.max_response_length
    longest = max(max(size.rows_of(experiment, response)) for size in sizes.values())
    return min(longest, experiment.data.max_trajectory_length)


def expert_turns(env: HereEnv | SyncEnv, seed: int) -> Iterator[tuple[Observation, str]]:
    """Observation and response of each turn of an expert's episode."""
    observation, _ = env.reset(seed=seed)
    over = False
    while not over:
        response = env.expert_response()
        yield observation, response
        try:
            observation, _, terminated, truncated, _ = env.step(response)
        except EnvironmentRaised:  # the episode ends here; where it is played, that is counted
            return
        over = terminated or truncated


class CountingTokenizer:
    """As many ids as a text has tokens, by estimate; the ids themselves mean nothing.

    Text is cut as tokenizers of the Qwen family do: a word is one token, a long one two, digits and
    signs count singly. That is meant to be a little too many; it could not be compared with the
    real tokenizers here. Images are counted exactly, since their size alone decides.
    """

    eos_token_id = END
    pad_token_id = END
    all_special_tokens = ("<|im_start|>", "<|im_end|>", "<|image_pad|>", "<|endoftext|>")

    def __init__(self, added: Iterable[str] = ()) -> None:
        """Knows the tags that are one token, as `transformers` names them."""
        self.added_tokens_encoder = dict.fromkeys(added, TEXT)

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """One id per token; image tokens have their own."""
        ids = []
        for piece in PIECES.findall(text):
            if piece == "<|image_pad|>":
                ids.append(IMAGE_TOKEN)
            elif piece == "<|im_end|>":
                ids.append(END)
            else:
                ids += [TEXT] * (1 + (piece.strip().isalpha() and len(piece.strip()) > LONG_WORD))
        return ids

    def decode(self, ids: list[int]) -> str:
        """The text of the token that ends a turn; there is no other way back."""
        assert ids == [END]
        return "<|im_end|>"

    def apply_chat_template(
        self, messages: list[dict[str, Any]], *, tokenize: bool, add_generation_prompt: bool
    ) -> str:
        """The conversation as the Qwen family writes it."""
        assert not tokenize
        text, image = "", "<|vision_start|><|image_pad|><|vision_end|>"
        for message in messages:
            content = message["content"]
            if not isinstance(content, str):
                content = "".join(part.get("text", image) for part in content)
            text += f"<|im_start|>{message['role']}\n{content}<|im_end|>\n"
        return text + ("<|im_start|>assistant\n" if add_generation_prompt else "")


def must_estimate(model: str) -> bool:
    """Whether it is a published model whose tokenizer has not been downloaded."""
    from huggingface_hub import try_to_load_from_cache

    if model not in PUBLISHED:
        return False
    found = [try_to_load_from_cache(model, name) for name in ("config.json", "tokenizer.json")]
    return not all(isinstance(path, str) for path in found)


def counting_processor(model: str) -> Processor:
    """Counts tokens as the published model's own processor would, text by estimate."""
    published = PUBLISHED[model]
    return Processor(
        tokenizer=CountingTokenizer(published.added_tags),
        image_processor=published.image_processor(),
        family=family_of(published.config()),
    )
