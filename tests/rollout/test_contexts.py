"""What the policy sees at each turn, against the definition; the environments are the real ones."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_episodes import LIMITS, WALK, ScriptedPolicy, environment, play, runner_for, spec

from vagen.envs.base import IMAGE_PLACEHOLDER
from vagen.rollout.batch_tables import BatchError, check_consistency
from vagen.rollout.contexts import DROPPED, SUMMARY_REQUEST, context_tokens
from vagen.rollout.runner import MIN_NEW_TOKENS, EpisodeLimits, run_to_end
from vagen.rollout.types import CONTEXT, Status, TokenRow, Trajectory
from vagen.service import LocalEnv

KEEP, DROP = (f"{WALK}<memory>{memory}</memory>" for memory in ("keep", "drop"))
WIDE = replace(LIMITS, max_trajectory_length=4000, max_prompt_length=400)


class Recording:
    """An environment that keeps what it shows."""

    def __init__(self, inner: Any, fails_at: int | None = None, padding: str = ""):
        self.inner, self.fails_at, self.padding = inner, fails_at, padding
        self.observations: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def reset(self, **options: Any):
        observation, info = self.inner.reset(**options)
        self.observations.append(observation)
        return observation, info

    def step(self, response: str):
        if len(self.observations) - 1 == self.fails_at:
            raise RuntimeError("simulator died")
        observation, *rest = self.inner.step(response)
        observation = {**observation, "text": observation["text"] + self.padding}
        self.observations.append(observation)
        return observation, *rest


@pytest.fixture(scope="module")
def processor(vl_model):
    return vl_model.processor


def consistent(policy: Any, limits: EpisodeLimits, env: Any = None) -> Trajectory:
    """Plays an episode, as a batch of its own would take it."""
    runner = runner_for(policy, limits)
    trajectory = run_to_end(runner.run(spec(), LocalEnv(env or environment())))
    check_consistency([trajectory], runner.images)
    return trajectory


def expected_prompt(
    processor, env: Recording, answers: list[list[int]], turn: int, window: int | None
) -> list[int]:
    """Ids of turn's context: of the turns in the window."""
    first = 0 if window is None else max(0, turn - window + 1)
    return rendered(processor, env, env.observations[: turn + 1], answers[:turn], first)


def rendered(
    processor, env: Recording, observations: list[Any], answers: list[list[int]], first: int
) -> list[int]:
    """Ids of a conversation from a turn on: rendered at once, answers put in as ids.

    The pieces between two answers are tokenised apart, as each of them was when it was new.
    """
    turn = len(observations) - 1
    messages: list[dict[str, Any]] = [{"role": "system", "content": env.system_prompt()}]
    frames: list[Any] = []
    for k in range(first, turn + 1):
        shown = observations[k]
        content: list[dict[str, str]] = []
        for i, piece in enumerate(shown["text"].split(IMAGE_PLACEHOLDER)):
            content += [{"type": "image"}] if i else []
            content += [{"type": "text", "text": piece}] if piece else []
        messages.append({"role": "user", "content": content if shown["images"] else shown["text"]})
        frames += shown["images"]
        if k < turn:
            messages.append({"role": "assistant", "content": "ANSWER"})
    text = processor.tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )
    eos = processor.tokenizer.decode([processor.eos_id])
    pieces = text.split(f"ANSWER{eos}")
    ids = processor.tokenizer.encode(pieces[0], add_special_tokens=False)
    for answer, piece in zip(answers[first:turn], pieces[1:], strict=True):
        ids += answer + processor.tokenizer.encode(piece, add_special_tokens=False)
    lengths = [processor.shape_of(frame.shape[1::-1]).tokens for frame in frames]
    out: list[int] = []
    for token in ids:
        out += [token] * lengths.pop(0) if token == processor.image_token_id else [token]
    assert not lengths
    return out


def answers_of(trajectory: Trajectory, eos: int) -> list[list[int]]:
    """Ids of each answer with the token that closed it, from the row that sampled it."""
    found = []
    for turn in trajectory.turns:
        (row,) = sampling_rows(trajectory, turn.turn_index)
        places = np.flatnonzero((row.turn_index == turn.turn_index) & row.loss_mask)
        answer = row.input_ids[places].tolist()
        found.append([*answer, eos] if turn.length_cut else answer)
    return found


def sampling_rows(trajectory: Trajectory, turn: int) -> list[TokenRow]:
    return [row for row in trajectory.rows if (row.loss_mask & (row.turn_index == turn)).any()]


@settings(max_examples=40, deadline=None)
@given(
    window=st.none() | st.integers(1, 5),
    max_turns=st.integers(1, 5),
    script=st.lists(
        st.sampled_from([WALK, "<answer>Down</answer>", "Hm.", [7] * 99, [9, 9, 8] * 40]),
        min_size=5,
        max_size=5,
    ),
    render_mode=st.sampled_from(["vision", "text"]),
)
def test_rows_are_what_the_policy_saw_and_sampled(
    processor, window, max_turns, script, render_mode
):
    env = Recording(environment(render_mode=render_mode))
    policy = ScriptedPolicy(processor, script)
    trajectory = consistent(policy, replace(WIDE, max_turns=max_turns, window=window), env)
    answers = answers_of(trajectory, processor.eos_id)
    turns = len(trajectory.turns)
    restarts = 0 if window is None else max(0, turns - window)
    shows_the_end = trajectory.truncated and window is not None and turns >= window
    assert len(trajectory.rows) == 1 + restarts + shows_the_end
    assert len(policy.requests) == turns
    for k, (_, prompt, images, _) in enumerate(policy.requests):
        assert prompt == expected_prompt(processor, env, answers, k, window)
        kept = k + 1 if window is None else min(k + 1, window)
        assert images == (kept if render_mode == "vision" else 0)
        (row,) = sampling_rows(trajectory, k)
        assert row.row_index == (0 if window is None else max(0, k - window + 1))
        assert row.input_ids[: len(prompt) + len(answers[k])].tolist() == prompt + answers[k]
        own = np.flatnonzero(row.loss_mask & (row.turn_index == k))
        assert own[0] == len(prompt) and (np.diff(own) == 1).all()
        assert (row.rollout_logprobs[own] == np.float32(-0.25)).all()
    for row in trajectory.rows:
        assert not row.rollout_logprobs[~row.loss_mask].any()
        assert (np.diff(row.turn_index) >= 0).all() and row.turn_index[0] == CONTEXT
    last = trajectory.rows[-1]
    if trajectory.truncated:
        whole = expected_prompt(processor, env, answers, turns, window)
        assert last.input_ids.tolist() == whole, "the state it stopped in is shown to the critic"
        assert last.loss_mask.any() != shows_the_end
    else:
        assert last.loss_mask.any() and last.input_ids[-1] == processor.eos_id


@settings(max_examples=40, deadline=None)
@given(
    every=st.integers(1, 4),
    max_turns=st.integers(1, 6),
    script=st.lists(
        st.sampled_from([WALK, "<answer>Down</answer>", "Hm.", [7] * 99, [9, 9, 8] * 40]),
        min_size=8,
        max_size=8,
    ),
    render_mode=st.sampled_from(["vision", "text"]),
    budget=st.none() | st.integers(50, 400),
)
def test_a_summary_takes_the_place_of_the_turns_before_it(
    processor, every, max_turns, script, render_mode, budget
):
    env = Recording(environment(render_mode=render_mode))
    policy = ScriptedPolicy(processor, script)
    limits = replace(WIDE, max_turns=max_turns, window=every, compact=True, compact_budget=budget)
    trajectory = consistent(policy, limits, env)
    answers = answers_of(trajectory, processor.eos_id)
    observations = iter(env.observations)
    shown = [SUMMARY_REQUEST if t.summary else next(observations) for t in trajectory.turns]
    played = since = 0
    lengths = [
        len(request[1]) + len(a) for request, a in zip(policy.requests, answers, strict=True)
    ]
    for k, turn in enumerate(trajectory.turns):
        last = lengths[k - 1] - lengths[k - 2] if since > 1 else 0
        full = budget is not None and since > 0 and lengths[k - 1] + last >= budget
        assert turn.summary == (since == every or full), "after so many turns or tokens, not twice"
        since = 0 if turn.summary else since + 1
        played += not turn.summary
        if turn.summary:
            assert turn.rewards.total == 0 and turn.state == turn.next_state
            assert turn.observation_text == SUMMARY_REQUEST["text"] and not turn.images
            assert turn.state == trajectory.turns[turn.turn_index - 1].next_state
    assert not trajectory.turns[-1].summary, "what is over is not summed up"
    assert played <= max_turns and len(policy.requests) == len(trajectory.turns)
    summaries = [t.turn_index for t in trajectory.turns if t.summary]
    assert len(trajectory.rows) == 1 + len(summaries)
    for k, (_, prompt, images, _) in enumerate(policy.requests):
        before = [s for s in summaries if s < k]
        first = before[-1] if before else 0
        assert prompt == rendered(processor, env, shown[: k + 1], answers[:k], first)
        assert images == sum(len(o["images"]) for o in shown[first : k + 1])
        (row,) = sampling_rows(trajectory, k)
        assert row.row_index == len(before)
        own = np.flatnonzero(row.loss_mask & (row.turn_index == k))
        assert own[0] == len(prompt) and (np.diff(own) == 1).all(), "a summary is learnt as well"
        assert (row.rollout_logprobs[own] == np.float32(-0.25)).all()
    for s, row in zip(summaries, trajectory.rows[1:], strict=True):
        given_again = row.input_ids[row.turn_index == s].tolist()
        assert given_again[: len(answers[s])] == answers[s], "verbatim"
        assert not row.loss_mask[row.turn_index == s].any()
    last = trajectory.rows[-1]
    if trajectory.truncated:
        first = summaries[-1] if summaries else 0
        whole = rendered(processor, env, [*shown, env.observations[-1]], answers, first)
        assert last.input_ids.tolist() == whole, "the state it stopped in, without a summary"


@settings(max_examples=40, deadline=None)
@given(
    every=st.integers(1, 4),
    max_turns=st.integers(1, 6),
    script=st.lists(
        st.sampled_from([KEEP, DROP, DROP, WALK, f"{WALK}<memory>maybe</memory>", [7] * 99]),
        min_size=6,
        max_size=6,
    ),
    render_mode=st.sampled_from(["vision", "text"]),
)
def test_rows_after_it_are_rid_of_what_is_dropped(processor, every, max_turns, script, render_mode):
    env = Recording(environment(render_mode=render_mode, memory=True))
    policy = ScriptedPolicy(processor, script)
    limits = replace(WIDE, max_turns=max_turns, window=every, gate=True, max_response_length=32)
    trajectory = consistent(policy, limits, env)
    answers = answers_of(trajectory, processor.eos_id)
    turns = len(trajectory.turns)
    assert len(policy.requests) == turns
    dropped = {k for k in range(turns) if script[k] == DROP}
    begins, gone = 0, set()
    for k in range(turns + trajectory.truncated):
        if k - begins >= every and dropped & set(range(begins, k)):
            begins, gone = k, {j for j in dropped if j < k}
        shown = [DROPPED if j in gone else env.observations[j] for j in range(k + 1)]
        whole = rendered(processor, env, shown, answers[:k], 0)
        if k == turns:
            assert trajectory.rows[-1].input_ids.tolist() == whole, "the state it stopped in"
            assert trajectory.rows[-1].loss_mask.any() == (begins != k)
            break
        _, prompt, images, _ = policy.requests[k]
        assert prompt == whole
        assert images == sum(len(o["images"]) for o in shown)
        (row,) = sampling_rows(trajectory, k)
        assert row.input_ids[: len(prompt) + len(answers[k])].tolist() == prompt + answers[k]
        own = np.flatnonzero(row.loss_mask & (row.turn_index == k))
        assert own[0] == len(prompt) and (np.diff(own) == 1).all()
    seen, full = context_tokens(trajectory.rows)
    assert seen == sum(len(r[1]) + len(a) for r, a in zip(policy.requests, answers, strict=True))
    lengths = [
        len(rendered(processor, env, env.observations[: k + 1], answers[:k], 0)) + len(answers[k])
        for k in range(turns)
    ]
    assert full == sum(lengths)


def test_who_keeps_everything_has_one_row(processor):
    limits = replace(WIDE, window=1, gate=True, max_response_length=32)
    env = environment(memory=True)
    kept = consistent(ScriptedPolicy(processor, [KEEP]), limits, env)
    concat = consistent(ScriptedPolicy(processor, [KEEP]), replace(limits, window=None), env)
    assert len(kept.rows) == 1
    assert kept.rows[0].input_ids.tolist() == concat.rows[0].input_ids.tolist()


def test_a_summary_that_has_no_room_ends_the_episode(processor):
    limits = replace(WIDE, max_turns=4, window=2, compact=True)
    whole = play(ScriptedPolicy(processor, [WALK]), limits)
    row = whole.rows[0]
    before = int(np.flatnonzero(row.turn_index == 1)[-1]) + 1
    asked = int(np.flatnonzero(row.loss_mask & (row.turn_index == 2))[0])
    for budget, turns in ((asked + MIN_NEW_TOKENS - 1, 2), (asked + MIN_NEW_TOKENS, 3)):
        cut = play(ScriptedPolicy(processor, [WALK]), replace(limits, max_trajectory_length=budget))
        assert cut.turns[: min(turns, 2)] == whole.turns[: min(turns, 2)]
        assert len(cut.turns) >= turns and (len(cut.turns) == 2) == (turns == 2)
        if turns == 2:
            assert cut.status is Status.TRUNCATED_TOKENS and len(cut.rows) == 1
            assert cut.rows[0].input_ids.tolist() == row.input_ids[:before].tolist()


@pytest.mark.parametrize("window", [4, 5, 9])
def test_a_window_that_is_never_full_is_the_whole_history(processor, window):
    limits = replace(WIDE, max_turns=3)
    plain = play(ScriptedPolicy(processor, [WALK, "Hm."]), limits)
    found = play(ScriptedPolicy(processor, [WALK, "Hm."]), replace(limits, window=window))
    (a,), (b,) = plain.rows, found.rows
    assert a.images == b.images
    for name in ("input_ids", "loss_mask", "turn_index", "rollout_logprobs"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))


@pytest.mark.parametrize("window", [1, 2])
def test_a_row_is_released_before_the_next_one_is_asked_for(processor, window):
    log: list[str] = []

    class Logging(ScriptedPolicy):
        async def generate(self, *, request_id, **options):
            log.append(request_id)
            return await super().generate(request_id=request_id, **options)

        def release(self, request_id):
            log.append(f"-{request_id}")

    play(Logging(processor, [WALK]), replace(WIDE, max_turns=3, window=window))
    assert (
        log
        == {
            1: ["e/0", "-e/0", "e/1", "-e/1", "e/2", "-e/2", "-e/3"],
            2: ["e/0", "e/0", "-e/0", "e/1", "-e/1", "-e/2"],
        }[window]
    ), "the state it stopped in is a row that nothing is sampled in"


@pytest.mark.parametrize("window", [None, 1, 2])
def test_the_token_budget_of_a_row_cuts_whole_turns(processor, window):
    """Where there are later rows, they are longer: the budget is met in any of them."""
    limits = replace(WIDE, max_turns=4, window=window)
    padding = " wall" * 9

    def played(budget: int) -> tuple[Trajectory, ScriptedPolicy]:
        env = Recording(environment(), padding=padding)
        policy = ScriptedPolicy(processor, [WALK])
        return play(policy, replace(limits, max_trajectory_length=budget), env), policy

    whole, policy = played(4000)
    first = len(whole.rows[0].input_ids if window else policy.requests[1][1])
    longest = max(len(row.input_ids) for row in whole.rows)
    assert longest > first
    ends = set()
    for budget in range(first + 1, longest + MIN_NEW_TOKENS + 12):
        trajectory, _ = played(budget)
        turns = len(trajectory.turns)
        assert max(len(row.input_ids) for row in trajectory.rows) <= budget
        for row, full in zip(trajectory.rows, whole.rows, strict=False):
            assert row.input_ids.tolist() == full.input_ids[: len(row.input_ids)].tolist()
            pads = int((row.input_ids == processor.image_token_id).sum())
            assert pads == 16 * len(row.images), "never a part of an image"
        assert trajectory.truncated
        ends.add((turns, trajectory.status))
        if turns < 4:
            assert trajectory.status is Status.TRUNCATED_TOKENS
            assert trajectory.rows[-1].loss_mask.any()
            assert trajectory.rows[-1].input_ids[-1] == processor.eos_id
    assert (window or 1, Status.TRUNCATED_TOKENS) in ends and (4, Status.OK) in ends


def test_a_later_row_whose_beginning_is_too_long_ends_the_episode(processor):
    limits = replace(WIDE, window=1, max_turns=3)
    probe = ScriptedPolicy(processor, [WALK])
    play(probe, limits)
    first = len(probe.requests[0][1])
    env = Recording(environment(), padding=" wall" * 40)
    cut = replace(limits, max_prompt_length=first)
    trajectory = play(ScriptedPolicy(processor, [WALK]), cut, env)
    assert trajectory.status is Status.TRUNCATED_TOKENS and trajectory.truncated
    assert (len(trajectory.turns), len(trajectory.rows)) == (1, 1)
    whole = play(
        ScriptedPolicy(processor, [WALK]),
        replace(cut, window=None),
        Recording(environment(), padding=" wall" * 40),
    )
    assert len(whole.turns) == 3, "a later observation that follows an answer has no such limit"


@pytest.mark.parametrize("window", [1, 2, None])
@pytest.mark.parametrize("turn", [0, 1, 3])
def test_a_failing_environment_masks_every_row(processor, window, turn):
    env = Recording(environment(), fails_at=turn)
    policy = ScriptedPolicy(processor, [WALK])
    trajectory = consistent(policy, replace(WIDE, window=window), env)
    assert trajectory.status is Status.ENV_ERROR and len(trajectory.turns) == turn
    assert len(trajectory.rows) == 1 + (0 if window is None else max(0, turn - window + 1))
    for row in trajectory.rows:
        assert row.input_ids.size and not row.loss_mask.any() and not row.rollout_logprobs.any()


def test_a_turn_that_is_sampled_twice_or_out_of_order_is_refused(processor):
    text = environment(render_mode="text")
    trajectory = consistent(ScriptedPolicy(processor, [WALK]), replace(WIDE, window=2), text)
    given_again = trajectory.rows[1].turn_index == 1
    assert given_again.any()
    trajectory.rows[1].loss_mask[given_again] = True
    with pytest.raises(BatchError, match=r"turn 1 of trajectory 'e' is sampled in row 1, and turn"):
        check_consistency([trajectory], {})
    trajectory = consistent(ScriptedPolicy(processor, [WALK]), replace(WIDE, window=1), text)
    trajectory.rows[:2] = reversed(trajectory.rows[:2])
    for place, row in enumerate(trajectory.rows):
        row.row_index = place
    with pytest.raises(BatchError, match="turn 0 of trajectory 'e' is sampled in row 1"):
        check_consistency([trajectory], {})
