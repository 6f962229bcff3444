"""Models that think: contexts are what the template renders, each token is learnt once."""

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted_episodes import LIMITS, environment, runner_for, spec
from thinking_templates import DROPS, QWEN3_THINKING, REST, TEMPLATES, template, with_template

from vagen.models.families import Family
from vagen.models.processor import Processor
from vagen.models.tiny import CHAT_TEMPLATE, build_tokenizer
from vagen.rollout.batch_tables import check_consistency, decode, encode
from vagen.rollout.carried import carry_on, read_carried, write_carried
from vagen.rollout.contexts import DROPPED, SUMMARY_REQUEST
from vagen.rollout.conversation import ChatRenderer, RenderError
from vagen.rollout.runner import EpisodeLimits, run_to_end, turn_seed
from vagen.rollout.thoughts import without_thought
from vagen.rollout.types import Generation, Trajectory
from vagen.service import LocalEnv

WIDE = replace(LIMITS, max_prompt_length=2000, max_trajectory_length=9000, max_response_length=24)
CORPUS = ["You are on a frozen lake.", "<answer>Left</answer>", "target is below and right"] * 3


def make_processor(*tags: str) -> Any:
    tokenizer = build_tokenizer(CORPUS, tags=tags, vocab_size=400)
    return Processor(tokenizer, None, Family(SimpleNamespace(model_type="qwen3")))


ONE_TOKEN = make_processor("<think>", "</think>")
SEVERAL_TOKENS = make_processor()
PROCESSORS = {
    (tokens, name): with_template(processor, text)
    for tokens, processor in (("one", ONE_TOKEN), ("several", SEVERAL_TOKENS))
    for name, text in TEMPLATES.items()
}


class Sampler:
    """Samples scripted ids, a script for each turn, however often it is asked in one."""

    def __init__(self, processor: Any, scripts: list[list[int]]):
        self.processor, self.scripts = processor, scripts
        self.starts = {turn_seed(spec().sampling_seed, k): k for k in range(99)}
        self.left: list[int] = []
        self.turn = -1
        self.drawn = 0
        self.prompts: dict[int, list[int]] = {}
        self.asked: list[tuple[int, list[int], int, int]] = []
        self.released: list[str] = []

    async def generate(self, *, request_id, prompt_ids, images, sampling) -> Generation:
        if sampling.seed in self.starts:
            self.turn = self.starts[sampling.seed]
            self.left = [*self.scripts[self.turn % len(self.scripts)]]
            self.prompts[self.turn] = [*prompt_ids]
        self.asked.append((self.turn, [*prompt_ids], sampling.max_new_tokens, sampling.seed))
        ids, self.left = (
            self.left[: sampling.max_new_tokens],
            self.left[sampling.max_new_tokens :],
        )
        while len(ids) < sampling.max_new_tokens and ids[-1:] != [self.processor.eos_id]:
            ids.append(self.processor.tokenizer.encode("x")[0])
        logprobs = [-(self.drawn + i + 1) / 64 for i in range(len(ids))]
        self.drawn += len(ids)
        stop = ids[-1] == self.processor.eos_id
        return Generation(ids, logprobs, "stop" if stop else "length")

    def release(self, request_id: str) -> None:
        self.released.append(request_id)


PIECES = ["</think>", "</think>", "<think>", "Hm", "\n", "\n\n", " ", "é", "<answer>Left</answer>"]


@st.composite
def scripts(draw: Any, processor: Any) -> list[list[int]]:
    """Ids of five responses, piece by piece, so that no tokenizer would split them so."""
    found = []
    for _ in range(5):
        ids: list[int] = []
        for piece in draw(st.lists(st.sampled_from(PIECES), max_size=6)):
            ids += processor.tokenizer.encode(piece, add_special_tokens=False)
        found.append([*ids, processor.eos_id] if draw(st.booleans()) else ids)
    return found


def played(policy: Sampler, limits: EpisodeLimits, **options: Any) -> tuple[Trajectory, Any]:
    runner = runner_for(policy, limits)
    env = Shown(environment(render_mode="text", **options))
    trajectory = run_to_end(runner.run(spec(), LocalEnv(env)))
    check_consistency([trajectory], runner.images)
    return trajectory, env


class Shown:
    """An environment that keeps what it shows and reads."""

    def __init__(self, inner: Any):
        self.inner = inner
        self.texts: list[str] = []
        self.read: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def reset(self, **options: Any):
        observation, info = self.inner.reset(**options)
        self.texts.append(observation["text"])
        return observation, info

    def step(self, response: str):
        self.read.append(response)
        observation, *rest = self.inner.step(response)
        self.texts.append(observation["text"])
        return observation, *rest


def responses(trajectory: Trajectory, processor: Any) -> list[str]:
    """Each response as the template is given it: with what the prompt has opened."""
    opening = ChatRenderer(processor).thoughts.opening
    found = []
    for k in range(len(trajectory.turns)):
        (row,) = [r for r in trajectory.rows if (r.loss_mask & (r.turn_index == k)).any()]
        places = np.flatnonzero(row.loss_mask & (row.turn_index == k))
        ids = row.input_ids[places[0] : places[-1] + 1].tolist()
        ids = ids[:-1] if ids[-1] == processor.eos_id else ids
        found.append(opening + processor.tokenizer.decode(ids))
    return found


def rendered(processor: Any, system: str, shown: list[str], said: list[str]) -> str:
    messages = [{"role": "system", "content": system}]
    for k, text in enumerate(shown):
        messages.append({"role": "user", "content": text})
        if k < len(said):
            messages.append({"role": "assistant", "content": said[k]})
    return processor.tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    data=st.data(),
    which=st.sampled_from(sorted(PROCESSORS)),
    budget=st.none() | st.integers(1, 12),
    context=st.sampled_from(["concat", "window", "compact"]),
)
def test_every_context_is_what_the_template_renders(data, which, budget, context):
    processor = PROCESSORS[which]
    policy = Sampler(processor, data.draw(scripts(processor)))
    window = None if context == "concat" else 2
    limits = replace(WIDE, thinking_budget=budget, window=window, compact=context == "compact")
    trajectory, env = played(policy, limits)
    said = responses(trajectory, processor)
    texts = iter(env.texts)
    shown = [SUMMARY_REQUEST["text"] if t.summary else next(texts) for t in trajectory.turns]
    summaries = [t.turn_index for t in trajectory.turns if t.summary]
    for k, prompt in policy.prompts.items():
        first = max([0, *(s for s in summaries if s < k)])
        first = max(0, k - 1) if context == "window" else first
        whole = rendered(processor, env.system_prompt(), shown[first : k + 1], said[first:k])
        assert processor.tokenizer.decode(prompt) == whole
        (row,) = [r for r in trajectory.rows if (r.loss_mask & (r.turn_index == k)).any()]
        assert row.input_ids[: len(prompt)].tolist() == prompt, "the row is what the policy saw"
        assert np.flatnonzero(row.loss_mask & (row.turn_index == k))[0] == len(prompt)
    learnt = [float(p) for row in trajectory.rows for p in row.rollout_logprobs[row.loss_mask]]
    assert learnt == [-(i + 1) / 64 for i in range(policy.drawn)], "each draw once, in order"
    for row in trajectory.rows:
        assert not row.rollout_logprobs[~row.loss_mask].any()
        assert (np.diff(row.turn_index) >= 0).all()
    stays = "</think>" not in "".join(said) or which[1] == "kept"
    if context == "concat" and stays:
        assert len(trajectory.rows) == 1


@pytest.mark.parametrize("which", sorted(PROCESSORS), ids="-".join)
def test_what_a_template_does_is_found_out(which):
    thoughts = ChatRenderer(PROCESSORS[which]).thoughts
    name = which[1]
    assert thoughts.drops == (name in DROPS)
    opens = {"qwen3": "", "qwen3-no-thinking": "<think>\n\n</think>\n\n"}
    assert thoughts.opening == opens.get(name, "<think>\n")
    assert thoughts.stripped == {"kept": "", "r1": "", "trimmed": None}.get(name, "\n")
    assert thoughts.instead == ("<think>\n\n</think>\n\n" if name == "emptied" else "")


@pytest.mark.parametrize("name", DROPS)
def test_an_old_answer_keeps_its_sampled_ids(name):
    """Ids that no tokenizer would give: letter by letter."""
    processor = PROCESSORS["one", name]
    encode_text = processor.tokenizer.encode
    answer = [i for letter in "<answer>Left</answer>" for i in encode_text(letter)]
    thought = encode_text("<think>a thought\n</think>" if name == "qwen3" else "a</think>")
    assert len(answer) > len(encode_text("<answer>Left</answer>"))
    rest = ChatRenderer(processor).rest([*thought, *answer, processor.eos_id])
    assert rest == [*answer, processor.eos_id]


def check(processor: Any, context: list[Any] | None = None) -> None:
    shown = [{"text": text, "images": ()} for text in ("a", "b", "c")]
    ChatRenderer(processor).check("Be good.", context or shown)


@pytest.mark.parametrize("which", sorted(PROCESSORS), ids="-".join)
def test_templates_that_can_be_followed_pass_the_check(which):
    check(PROCESSORS[which])
    check(PROCESSORS[which], [DROPPED, SUMMARY_REQUEST, DROPPED])


@pytest.mark.parametrize(
    "earlier",
    [
        "message['content'].split('</think>', 1)[-1]",
        f"('' if '</think>' not in message['content'] else {REST})",
        f"{REST}.lstrip(' ')",
        "message['content'].replace('Hm', '')",
    ],
    ids=["the first end", "thoughts without end", "other white space", "within"],
)
def test_templates_that_do_something_else_are_refused(earlier):
    with pytest.raises(RenderError, match=r"opens <think> can be followed.*everything up to"):
        check(with_template(ONE_TOKEN, template(earlier=earlier)))


def test_special_tags_are_refused():
    processor = with_template(ONE_TOKEN, QWEN3_THINKING)
    processor.tokenizer.add_special_tokens(
        {"additional_special_tokens": ["<think>", "</think>"]}, replace_extra_special_tokens=False
    )
    with pytest.raises(RenderError, match="special=false"):
        ChatRenderer(processor)


def ids_of(processor: Any, text: str, *, ends: bool = True) -> list[int]:
    ids = processor.tokenizer.encode(text, add_special_tokens=False)
    return [*ids, processor.eos_id] if ends else ids


def test_the_budget_closes_a_thought_and_the_answer_goes_on():
    processor = PROCESSORS["one", "qwen3-thinking"]
    script = ids_of(processor, "abcdefgh<answer>Left</answer>")
    policy = Sampler(processor, [script])
    trajectory, env = played(policy, replace(WIDE, max_turns=1, thinking_budget=3))
    (turn,) = trajectory.turns
    text = processor.tokenizer.decode
    closed = f"<think>\n{text(script[:3])}\n</think>\n\n{text(script[3:-1])}"
    assert turn.response_text == env.read[0] == closed
    assert turn.thought_cut and turn.thought_length == 3 and not turn.length_cut
    (_, prompt, most, seed), (_, again, left, other) = policy.asked
    closing = ids_of(processor, "\n</think>\n\n", ends=False)
    assert again == [*prompt, *script[:3], *closing]
    assert (most, left) == (3, WIDE.max_response_length - 3 - len(closing)) and seed != other
    row = trajectory.rows[0]
    forced = slice(len(prompt) + 3, len(prompt) + 3 + len(closing))
    assert not row.loss_mask[forced].any() and not row.rollout_logprobs[forced].any()
    assert (row.turn_index[forced] == 0).all()
    assert row.loss_mask.sum() == len(script)


@pytest.mark.parametrize(
    ("name", "text", "cut", "length"),
    [
        ("qwen3-thinking", "ab</think><answer>Left</answer>", False, 3),
        ("qwen3", "<think>abcdef", True, 4),
        ("qwen3", "<answer>Left</answer>", False, None),
        ("qwen3-no-thinking", "<answer>Left</answer>", False, None),
        ("qwen3-thinking", "ab", False, 3),
    ],
)
def test_the_budget_closes_only_thoughts(name, text, cut, length):
    processor = PROCESSORS["one", name]
    ids = [i for p in re.split(r"(</?think>)", text) for i in spelled(processor, p)]
    policy = Sampler(processor, [[*ids, processor.eos_id]])
    trajectory, _ = played(policy, replace(WIDE, max_turns=1, thinking_budget=4))
    turn = trajectory.turns[0]
    assert (turn.thought_cut, turn.thought_length) == (cut, length)
    assert not turn.length_cut or len(ids) > WIDE.max_response_length - 4
    sampled = trajectory.rows[0].input_ids[trajectory.rows[0].loss_mask].tolist()
    assert sampled == [*ids, processor.eos_id][: len(sampled)]


def spelled(processor: Any, text: str) -> list[int]:
    """Ids of a text letter by letter, of a tag as it is."""
    parts = [text] if text.endswith("think>") else list(text)
    return [i for part in parts for i in processor.tokenizer.encode(part)]


def test_without_room_for_an_answer_the_response_is_cut():
    processor = PROCESSORS["one", "qwen3-thinking"]
    policy = Sampler(processor, [ids_of(processor, "abcdefghij" * 9)])
    limits = replace(WIDE, max_turns=1, thinking_budget=22)
    trajectory, _ = played(policy, limits)
    assert trajectory.turns[0].length_cut and not trajectory.turns[0].thought_cut
    assert trajectory.rows[0].loss_mask.sum() == 22 and len(policy.asked) == 1


@pytest.mark.parametrize("name", sorted(TEMPLATES))
@pytest.mark.parametrize("prompt_format", ["free_think", "no_think"])
def test_a_native_thought_is_the_think_of_the_layout(name, prompt_format):
    """Without such a layout, the environment gets the answer alone."""
    processor = PROCESSORS["one", name]
    opened = not name.startswith("qwen3") or name == "qwen3-thinking"
    thought = "go\n</think>\n\n"
    text = (thought if opened else f"<think>{thought}") + "<answer>Left</answer>"
    policy = Sampler(processor, [ids_of(processor, text)])
    runner = runner_for(policy, replace(WIDE, max_turns=1))
    runner.hides_thought = ["game"] if prompt_format == "no_think" else []
    env = Shown(environment(render_mode="text", prompt_format=prompt_format))
    trajectory = run_to_end(runner.run(spec(), LocalEnv(env)))
    (turn,) = trajectory.turns
    assert turn.parsed.format_correct and turn.parsed.actions == ("Left",)
    assert turn.parsed.reasoning == ("go" if prompt_format == "free_think" else None)
    assert turn.response_text.startswith("<think>"), "the record has the thought"
    assert turn.response_text.endswith(env.read[0])


def test_thoughts_are_hidden_where_a_layout_has_none():
    assert without_thought("<think>\na</think>\n\n<answer>b</answer>") == "<answer>b</answer>"
    for whole in ("<think>a", "a</think>b", "<answer>b</answer>"):
        assert without_thought(whole) == whole


def test_what_is_carried_on_has_what_closed_its_thought(tmp_path):
    processor = PROCESSORS["one", "qwen3-thinking"]
    limits = replace(WIDE, max_turns=3, thinking_budget=3)
    script = [ids_of(processor, "abcdefgh<answer>Left</answer>"), [5] * 40]
    whole, _ = played(Sampler(processor, script), limits)
    assert any(turn.thought_cut for turn in whole.turns)
    write_carried(tmp_path / "carried", [carry_on(spec(), whole, "iteration-0000")])
    (again,) = read_carried(tmp_path / "carried")
    runner = runner_for(Sampler(processor, [[1]]), limits)
    replayed = run_to_end(runner.run(again, LocalEnv(environment(render_mode="text"))))
    assert runner.policy.drawn == 0, "nothing is sampled again"
    for a, b in zip(whole.rows, replayed.rows, strict=True):
        for name in ("input_ids", "loss_mask", "turn_index", "rollout_logprobs"):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    assert [t.thought_length for t in whole.turns] == [t.thought_length for t in replayed.turns]
    stored, _ = decode(encode([whole], {}))
    assert stored[0].turns == whole.turns


def test_a_template_without_thoughts_has_no_budget():
    processor = with_template(ONE_TOKEN, CHAT_TEMPLATE)
    assert ChatRenderer(processor).thoughts is None
    policy = Sampler(processor, [ids_of(processor, "<think>a</think><answer>Left</answer>")])
    trajectory, _ = played(policy, replace(WIDE, max_turns=1, thinking_budget=2))
    assert len(policy.asked) == 1 and trajectory.turns[0].thought_length is None
