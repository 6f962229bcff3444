"""How long conversations are, measured on real observations with the real tokenizer."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vagen.config import ExperimentConfig, InfraConfig
from vagen.config.checks import context_window
from vagen.config.environments import EnvironmentsConfig
from vagen.config.schema import EnvSpec
from vagen.envs import parse_env_config
from vagen.envs.base import Observation
from vagen.envs.config import EnvConfig
from vagen.envs.images import png_bytes
from vagen.envs.parsing import tags_in
from vagen.models import Processor, load_processor
from vagen.models.files import check_model
from vagen.models.tiny import TINY_MODELS
from vagen.models.tiny_policy import build_tiny_policy, sampled_levels
from vagen.plan.counting import counting_processor, must_estimate
from vagen.rollout.contexts import DROPPED, SUMMARY_REQUEST
from vagen.rollout.conversation import ChatRenderer
from vagen.service import EnvironmentRaised, HereEnv, SyncEnv, environments_of

SAMPLED_LEVELS = 8


@dataclass(frozen=True, slots=True)
class ConversationSize:
    """Tokens of an environment's conversations; the most among a few levels."""

    prompt: int
    """System prompt, first observation and the header of the first answer."""
    observation: int
    """A later observation with the template around it; 0 if every episode ended at once."""
    response: int
    """An expert's response, with the token that ends it."""
    image_tokens: int
    """Image tokens of one observation."""
    patches: int
    """Patches of one observation's images, as the vision tower reads them."""
    later_prompt: int = 0
    """Like `prompt`, with a later observation; 0 if every episode ended at once."""
    resized: str = ""
    """Which frames the image processor resizes, and to what; empty if none."""
    reserved: tuple[str, ...] = ()
    """Tags of the prompt that are one added token of the tokenizer."""
    request: int = 0
    """The request of a summary, with the template around it."""
    frame_bytes: int = 0
    """Bytes of one observation's images as they are stored."""
    dropped: int = 0
    """What stands for an observation that was dropped, likewise."""

    def trajectory(self, turns: int, response: int | None = None) -> int:
        """Tokens of an episode of `turns` turns whose responses take `response` tokens."""
        answers = turns * (self.response if response is None else response)
        return self.prompt + answers + (turns - 1) * self.observation

    def rows(self, turns: int, window: int | None, response: int | None = None) -> list[int]:
        """Tokens of each row of such an episode, whose prompts keep `window` turns (None: all)."""
        if window is None or window >= turns:
            return [self.trajectory(turns, response)]
        first = self.trajectory(window, response)
        later = first - self.prompt + max(self.prompt, self.later_prompt)
        return [first] + (turns - window) * [later]

    def compact_rows(self, turns: int, window: int, response: int | None = None) -> list[int]:
        """The same, at most, where every `window` turns become a summary as long as a response."""
        summary = self.request + (self.response if response is None else response)
        first = self.trajectory(window, response) + summary
        later = self.trajectory(window + 1, response) + summary
        return [first] + (-(-turns // window) - 1) * [later]

    def rows_of(self, experiment: ExperimentConfig, response: int | None = None) -> list[int]:
        """Tokens of each row of an episode in the experiment's context."""
        turns, window = experiment.rollout_manager.max_turns, context_window(experiment)
        if experiment.rollout_manager.context == "compact" and window is not None:
            return self.compact_rows(turns, window, response)
        if experiment.rollout_manager.context == "gate":
            longer = max(self.dropped - self.observation, 0)
            return [
                self.trajectory(shown, response) + shown * longer
                for shown in shown_turns(experiment)
            ]
        return self.rows(turns, window, response)


def shown_turns(experiment: ExperimentConfig) -> list[int]:
    """Observations in each row of an episode, at most: with `gate` as if all were kept, and yet
    every row was as short as it can be.
    """
    turns, window = experiment.rollout_manager.max_turns, context_window(experiment)
    if window is None:
        return [turns]
    context = experiment.rollout_manager.context
    if context == "gate":
        return [min(end + window, turns) for end in range(0, turns, window)]
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
            text is counted by estimate (`vagen.plan.counting`).
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
    prompt = later_prompt = later = longest = image_tokens = patches = 0
    resized, frame_bytes = "", 0
    for seed in range(SAMPLED_LEVELS):
        for turn, (observation, response) in enumerate(expert_turns(env, seed)):
            beginning = len(renderer.initial(env.system_prompt(), observation).ids)
            if turn:
                later = max(later, len(renderer.following(observation).ids))
                later_prompt = max(later_prompt, beginning)
            else:
                prompt = max(prompt, beginning)
            if not turn:
                kept = renderer.fitted(observation)["images"]
                stored = sum(len(png_bytes(frame)) for frame in kept)
                frame_bytes = max(frame_bytes, stored)
            shown = [(frame.shape[1], frame.shape[0]) for frame in observation["images"]]
            grids = [processor.image_grid(size) for size in shown]
            for size in shown:
                resized = resized or resizing(processor, size)
            image_tokens = max(image_tokens, sum(processor.image_length(grid) for grid in grids))
            patches = max(patches, sum(t * h * w for t, h, w in grids))
            ids = processor.tokenizer.encode(response, add_special_tokens=False)
            longest = max(longest, len(ids) + 1)
    env.close()
    config = parse_env_config(spec.env_name, spec.env_config)
    return ConversationSize(
        *(prompt, later, longest, image_tokens, patches, later_prompt),
        resized=resized,
        frame_bytes=frame_bytes,
        request=len(renderer.following(SUMMARY_REQUEST).ids),
        dropped=len(renderer.following(DROPPED).ids),
        reserved=tuple(reserved_tags(config, processor.tokenizer)),
    )


def resizing(processor: Processor, size: tuple[int, int]) -> str:
    """What happens to frames of a size (width, height); empty if nothing."""
    assert processor.image_processor is not None
    side, seen = processor.image_processor.patch_size, processor.read_size(size)
    if seen == size:
        return ""
    if seen[0] * seen[1] < size[0] * size[1]:  # `Processor.fitted`
        return f"{size[0]} x {size[1]} pixels are scaled down to {seen[0]} x {seen[1]}"
    unit = side * processor.merge_size
    least = -(-(processor.image_processor.size["shortest_edge"] ** 0.5) // unit) * unit
    return (
        f"{size[0]} x {size[1]} pixels are resized to {seen[0]} x {seen[1]}; sides that are "
        f"multiples of {unit}, {least:g} or more, are left as they are. Rollout and trainer see "
        "the same picture only if their image processors resize alike"
    )


def learns_tags(experiment: ExperimentConfig) -> bool:
    """Whether the warm start teaches the tags, whatever the tokenizer reserves."""
    return experiment.warm_start.steps > 0 or experiment.actor_rollout_ref.model.path in TINY_MODELS


def reserved_tags(config: EnvConfig, tokenizer: Any) -> list[str]:
    """Tags of the prompt that are one added token.

    Such a token stands for what it was added for, and a model may hardly ever write it elsewhere,
    whatever the prompt says: `<think>` of Qwen3-VL opens its own reasoning.
    """
    added = tokenizer.added_tokens_encoder
    return [tag for tag in tags_in(config.layout, config.tags) if tag in added]


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
