"""Episodes with scripted answers: budgets, ends, failures. The environments are the real ones."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scripted_episodes import LIMITS, WALK, ScriptedPolicy, environment, play, runner_for, spec

from vagen.envs.images import decode_png, image_digest
from vagen.rollout.conversation import ChatRenderer, RenderError
from vagen.rollout.runner import EpisodeSpec, derive_seed, run_episodes, run_to_end, turn_seed
from vagen.rollout.scripted import ExpertPolicy
from vagen.rollout.types import CONTEXT, Status, Trajectory
from vagen.service import LocalEnv


@pytest.fixture(scope="module")
def processor(vl_model):
    return vl_model.processor


def turn_lengths(trajectory: Trajectory) -> list[int]:
    row = trajectory.rows[0]
    return [
        int((row.loss_mask & (row.turn_index == k)).sum()) for k in range(len(trajectory.turns))
    ]


def test_the_turn_budget_truncates(processor):
    policy = ScriptedPolicy(processor, [WALK])
    trajectory = play(policy)
    assert len(trajectory.turns) == LIMITS.max_turns == len(policy.requests)
    assert (trajectory.truncated, trajectory.terminated) == (True, False)
    assert trajectory.status is Status.OK
    row = trajectory.rows[0]
    assert row.turn_index[-1] == LIMITS.max_turns, "the state it stopped in is shown to the critic"
    assert not row.loss_mask[row.turn_index == LIMITS.max_turns].any()
    assert policy.released == ["e/0"]


def test_sampling_is_seeded_per_turn_and_bounded(processor):
    policy = ScriptedPolicy(processor, [WALK])
    play(policy)
    samplings = [sampling for *_, sampling in policy.requests]
    assert [s.seed for s in samplings] == [turn_seed(11, k) for k in range(4)]
    assert {s.max_new_tokens for s in samplings} == {16}
    assert {(s.temperature, s.top_p, s.top_k) for s in samplings} == {(0.7, 0.9, 5)}


def test_the_environments_end_terminates(processor):
    env = environment()
    policy = ExpertPolicy(ChatRenderer(processor))
    policy.envs["e"] = LocalEnv(env)
    trajectory = play(policy, replace(LIMITS, max_turns=9, max_trajectory_length=2000), env)
    assert trajectory.success and trajectory.terminated and not trajectory.truncated
    assert trajectory.rows[0].input_ids[-1] == processor.eos_id
    assert trajectory.rows[0].turn_index[-1] == len(trajectory.turns) - 1
    assert trajectory.score == sum(t.rewards.env + t.rewards.format for t in trajectory.turns)
    assert trajectory.score > 10


def test_the_last_turn_that_terminates_is_not_truncated(processor):
    env = environment(size=2, min_distance=1, max_distance=1)
    policy = ExpertPolicy(ChatRenderer(processor))
    policy.envs["e"] = LocalEnv(env)
    trajectory = play(policy, replace(LIMITS, max_turns=1), env)
    assert trajectory.terminated and not trajectory.truncated


def test_a_full_token_budget_holds_the_closing_token(processor):
    """An answer that runs to the end of the budget is closed within it."""
    babble = [7] * 50
    limits = replace(LIMITS, max_response_length=50)
    probe = ScriptedPolicy(processor, [WALK])
    play(probe)
    prompt = len(probe.requests[0][1])
    for room in (9, 20, 50, 51, 60):
        budget = prompt + room
        trajectory = play(
            ScriptedPolicy(processor, [babble]), replace(limits, max_trajectory_length=budget)
        )
        row = trajectory.rows[0]
        assert len(row.input_ids) <= budget
        assert turn_lengths(trajectory) == [min(50, room - 1)]


def test_a_turn_begins_where_a_whole_answer_has_room(processor):
    """With one token less there is no second turn; without the option it is begun and cut."""
    babble = [7] * 50
    limits = replace(LIMITS, max_turns=2, max_response_length=20)
    probe = ScriptedPolicy(processor, [WALK, babble])
    play(probe, limits)
    enough = len(probe.requests[1][1]) + 21
    for budget, whole, lengths in (
        (enough, True, 20),
        (enough - 1, True, None),
        (enough - 1, False, 19),
    ):
        trajectory = play(
            ScriptedPolicy(processor, [WALK, babble]),
            replace(limits, max_trajectory_length=budget, whole_turns=whole),
        )
        assert turn_lengths(trajectory)[1:] == ([] if lengths is None else [lengths])
        ended = Status.TRUNCATED_TOKENS if lengths is None else Status.OK
        assert trajectory.status is ended and trajectory.truncated


def test_an_answer_cut_at_its_limit_is_closed_but_not_learnt(processor):
    trajectory = play(ScriptedPolicy(processor, [[7] * 99, WALK]), replace(LIMITS, max_turns=2))
    row = trajectory.rows[0]
    first = np.flatnonzero(row.turn_index == 0)
    assert [t.length_cut for t in trajectory.turns] == [True, False]
    sampled = first[:16]
    assert row.loss_mask[sampled].all()
    closing = first[16]
    assert row.input_ids[closing] == processor.eos_id
    assert not row.loss_mask[closing] and row.rollout_logprobs[closing] == 0
    assert (row.rollout_logprobs[row.loss_mask] == np.float32(-0.25)).all()
    second = np.flatnonzero((row.turn_index == 1) & row.loss_mask)
    assert row.input_ids[second[-1]] == processor.eos_id, "a sampled end of turn is learnt"


def test_sampled_ids_are_never_tokenised_again(processor):
    """Ids that no tokenizer would give for their text, and broken UTF-8."""
    tokenizer = processor.tokenizer
    letters = [tokenizer.convert_tokens_to_ids(c) for c in "<answer"]
    byte = tokenizer.convert_tokens_to_ids("Ł")
    odd = [*letters, byte, *letters]
    trajectory = play(ScriptedPolicy(processor, [odd]), replace(LIMITS, max_turns=1))
    row = trajectory.rows[0]
    assert row.input_ids[row.loss_mask].tolist() == odd
    text = trajectory.turns[0].response_text
    assert text == tokenizer.decode(odd) and tokenizer.encode(text) != odd
    assert not trajectory.turns[0].parsed.format_correct


def test_special_tokens_of_an_answer_are_no_text(processor):
    eot = processor.tokenizer.convert_tokens_to_ids("<|endoftext|>")
    ids = [eot, *processor.tokenizer.encode(WALK), eot]
    trajectory = play(ScriptedPolicy(processor, [ids]), replace(LIMITS, max_turns=1))
    assert trajectory.turns[0].response_text == WALK


def test_turns_record_what_happened(processor):
    env = environment()
    trajectory = play(ScriptedPolicy(processor, [WALK, "nonsense"]), env=env)
    states = [turn.state for turn in trajectory.turns]
    assert states[1:] == [turn.next_state for turn in trajectory.turns[:-1]]
    assert trajectory.turns[0].parsed.actions and not trajectory.turns[1].parsed.actions
    assert [len(turn.images) for turn in trajectory.turns] == [1] * 4
    assert [d for t in trajectory.turns for d in t.images] == trajectory.rows[0].images[:4]
    assert all(turn.rewards.judge_observation is None for turn in trajectory.turns)


def test_a_first_prompt_that_is_too_long_is_refused(processor):
    policy = ScriptedPolicy(processor, [WALK])
    with pytest.raises(RenderError, match=r"data.max_prompt_length=20.*prompt_detail"):
        play(policy, replace(LIMITS, max_prompt_length=20))


class BreakingEnv:
    """An environment that fails in a chosen call."""

    waits = False

    def __init__(self, where: str, turn: int = 0):
        self.inner = environment()
        self.where, self.turn, self.steps = where, turn, 0
        self.closed = False

    def reset(self, **options: Any):
        if self.where == "reset":
            raise ConnectionError("no level")
        return self.inner.reset(**options)

    def step(self, response: str):
        if self.where == "step" and self.steps == self.turn:
            raise RuntimeError("simulator died")
        *answer, info = self.inner.step(response)
        if self.where == "info" and self.steps == self.turn:
            del info["rewards"]["format"]
        if self.where == "reward" and self.steps == self.turn:
            info["rewards"]["env"] = float("nan")
        self.steps += 1
        return *answer, info

    def system_prompt(self):
        return self.inner.system_prompt()

    def close(self):
        self.closed = True


@pytest.mark.parametrize("turn", [0, 2])
@pytest.mark.parametrize("where", ["step", "info", "reward"])
def test_a_failing_environment_leaves_no_training_signal(processor, where, turn):
    policy = ScriptedPolicy(processor, [WALK])
    trajectory = play(policy, env=BreakingEnv(where, turn))
    assert trajectory.status is Status.ENV_ERROR
    assert not (trajectory.terminated or trajectory.truncated or trajectory.success)
    assert len(trajectory.turns) == turn
    row = trajectory.rows[0]
    assert row.input_ids.size and not row.loss_mask.any() and not row.rollout_logprobs.any()
    expected = {
        "step": "RuntimeError: simulator died",
        "info": "AnswerError: BreakingEnv.step()'s info['rewards'] holds env; it must hold "
        "env, format",
        "reward": "AnswerError: BreakingEnv.step()'s reward env is nan (builtins.float); it must "
        "be one finite number",
    }
    assert trajectory.error == expected[where]
    assert policy.released == ["e/0"]


def test_a_failing_reset_has_no_row(processor):
    trajectory = play(ScriptedPolicy(processor, [WALK]), env=BreakingEnv("reset"))
    assert trajectory.status is Status.ENV_ERROR and trajectory.rows == []
    assert trajectory.error == "ConnectionError: no level"


def test_one_failing_environment_does_not_hold_the_others(processor):
    envs: list[Any] = [environment(), BreakingEnv("step", 1), environment(), BreakingEnv("reset")]
    made: list[Any] = []

    async def make_env(episode: EpisodeSpec) -> LocalEnv:
        made.append(envs[int(episode.trajectory_id)])
        return LocalEnv(made[-1])

    specs = [spec(str(i), seed=i) for i in range(4)]
    finished: list[str] = []
    trajectories = run_to_end(
        run_episodes(
            runner_for(ScriptedPolicy(processor, [WALK])),
            specs,
            make_env,
            max_concurrency=2,
            on_finish=lambda t: finished.append(t.trajectory_id),
        )
    )
    assert [t.trajectory_id for t in trajectories] == ["0", "1", "2", "3"]
    assert sorted(finished) == ["0", "1", "2", "3"]
    assert [t.status for t in trajectories] == [
        Status.OK,
        Status.ENV_ERROR,
        Status.OK,
        Status.ENV_ERROR,
    ]
    assert envs[1].closed and envs[3].closed


def test_no_more_episodes_than_allowed_are_under_way(processor):
    live, most = 0, 0

    class Counting:
        def __init__(self) -> None:
            nonlocal live, most
            self.inner = environment()
            live += 1
            most = max(most, live)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        def close(self) -> None:
            nonlocal live
            live -= 1

    async def make_env(_: EpisodeSpec) -> LocalEnv:
        return LocalEnv(Counting())

    specs = [spec(str(i)) for i in range(7)]
    runner = runner_for(ScriptedPolicy(processor, [WALK]))
    run_to_end(run_episodes(runner, specs, make_env, max_concurrency=3))
    assert (live, most) == (0, 3)


def test_frames_are_kept_once_by_digest(processor):
    runner = runner_for(ScriptedPolicy(processor, ["nothing"]))
    trajectory = run_to_end(runner.run(spec(), LocalEnv(environment())))
    row = trajectory.rows[0]
    assert len(row.images) == 5 and len(set(row.images)) == 1 == len(runner.images)
    assert all(image_digest(png) == key for key, png in runner.images.items())
    assert row.turn_index[0] == CONTEXT


def test_frames_are_kept_no_larger_than_the_model_reads_them(processor):
    limits = replace(LIMITS, max_turns=1, max_prompt_length=400, max_trajectory_length=600)
    runner = runner_for(ScriptedPolicy(processor, [WALK]), limits)
    trajectory = run_to_end(runner.run(spec(), LocalEnv(environment(tile_size=200))))
    (png,) = {runner.images[digest] for digest in trajectory.rows[0].images}
    assert decode_png(png).shape == (512, 512, 3)  # 800 pixels a side as it was drawn
    blocks = trajectory.rows[0].input_ids == processor.image_token_id
    assert blocks.sum() == 2 * processor.shape_of((800, 800)).tokens


def test_seeds_depend_on_their_parts_alone():
    assert derive_seed(1, "a") == 6885665436231814845, "another value would change every run"
    seeds = {derive_seed(*parts) for parts in [(1, 2), (2, 1), (12,), (1, 20), (1, 2, 3)]}
    assert len(seeds) == 5 and all(0 <= seed < 2**63 for seed in seeds)
