"""A whole iteration in each context: two levels, three turns."""

from typing import Any

import numpy as np
import pytest
import torch

from vagen.engines.columns import add_columns
from vagen.engines.local.engine import LocalEngine
from vagen.experiment.load import load_infra
from vagen.rollout.batch import TrajectoryBatch
from vagen.rollout.types import Trajectory
from vagen.run.run import Run
from vagen.stages.advantage import advantage
from vagen.stages.build import build
from vagen.stages.judge import judge
from vagen.stages.rollout import rollout
from vagen.stages.update import update
from vagen.stages.warm_start import warm_start
from vagen.stages.weights import engine_at
from vagen.storage import read_manifest
from vagen.train import iterate

CONTEXTS = {
    "no_concat": ("rollout_manager.context=no_concat",),
    "window": ("rollout_manager.context=window", "rollout_manager.window_size=2"),
    "compact": ("rollout_manager.context=compact", "rollout_manager.window_size=2"),
    "gate": (
        "rollout_manager.context=gate",
        "rollout_manager.window_size=1",
        "rollout_manager.keep_cost=0.5",
        "actor_rollout_ref.rollout.temperature=0.7",
        "warm_start.steps=30",
        "data.max_response_length=96",
    ),
}
ROWS = {"no_concat": 4, "window": 3, "compact": 2, "gate": 4}
ESTIMATORS = {
    "masked_gae": ("algorithm.truncation_bootstrap=true", "algorithm.gamma=0.97"),
    "masked_grpo": ("rollout_manager.n_trajectory=2",),
}
SMALL = (
    "data.train_batch_size=2",
    "data.max_prompt_length=160",
    "rollout_manager.n_trajectory=2",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "warm_start.steps=1",
    "trainer.total_training_steps=1",
)


CASES = [
    pytest.param(
        (context, estimator),
        id=f"{context}-{estimator}",
        marks=() if (context, estimator) == ("no_concat", "masked_gae") else pytest.mark.slow,
    )
    for context in CONTEXTS
    for estimator in ESTIMATORS
]


@pytest.fixture(scope="module", params=CASES)
def iteration(request, make_experiment, vl_dir, make_outputs) -> tuple[Run, str, dict[str, Any]]:
    """A run after its first iteration, its context, and what the update measured."""
    context, estimator = request.param
    config = make_experiment(
        *SMALL,
        f"actor_rollout_ref.model.path={vl_dir}",
        *CONTEXTS[context],
        f"algorithm.adv_estimator={estimator}",
        *ESTIMATORS[estimator],
    )
    infra = load_infra(None, [f"output_dir={make_outputs()}", "device=cpu", "threads=1"])
    run = Run.create(config, infra)
    build(run)
    warm_start(run)
    for stage in (rollout, judge, advantage):
        stage(run, 0)
    return run, context, update(run, 0)["metrics"]


def fresh_engine(run: Run) -> LocalEngine:
    """At the warm start; the run does not keep it."""
    run.engine = None
    engine = engine_at(run, "warm_start")
    run.engine = None
    assert isinstance(engine, LocalEngine)
    return engine


def trained(trajectory: Trajectory) -> list[Any]:
    return [row for row in trajectory.rows if row.loss_mask.any()]


def test_an_iteration_runs_through_all_steps(iteration):
    run, context, metrics = iteration
    batch = TrajectoryBatch.load(run.step(0, "advantage"))
    assert len(batch.trajectories) == 4
    assert metrics["actor/skipped_steps"] == 0 and np.isfinite(metrics["actor/loss"])
    assert metrics["actor/ratio_mean"] == pytest.approx(1, abs=1e-4)
    measured = batch.metrics
    assert measured["rollout/logprob_difference_max"] <= 1e-4
    assert max(len(t.rows) for t in batch.trajectories) == ROWS[context]
    summaries = [turn for t in batch.trajectories for turn in t.turns if turn.summary]
    assert bool(summaries) == (context == "compact")
    turns = sum(len(t.turns) for t in batch.trajectories) - len(summaries)
    played = TrajectoryBatch.load(run.step(0, "rollout")).metrics
    assert played["train/turns"] == pytest.approx(turns / 4), "summaries are not counted"
    total = sum(turn.rewards.total for t in batch.trajectories for turn in t.turns)
    if context == "gate":
        kept = [turn.parsed.memory != "drop" for t in batch.trajectories for turn in t.turns]
        assert not all(kept)
        assert played["train/context_saved"] < 0, "the stub is longer, in letters, than a picture"
        tags = [turn.parsed.memory for t in batch.trajectories for turn in t.turns]
        tags = [tag == "keep" for tag in tags if tag is not None]
        assert played["train/observations_kept"] == np.mean(tags) < 1
        total -= 0.5 * sum(kept)
    placed = sum(row.columns["rewards"].sum() for t in batch.trajectories for row in t.rows)
    assert placed == pytest.approx(total, abs=1e-4), "there is no divergence from the start yet"
    for trajectory in batch.trajectories:
        found = [k for row in trained(trajectory) for k in np.unique(row.turn_index[row.loss_mask])]
        assert found == list(range(len(trajectory.turns)))
        for row in trajectory.rows:
            assert not row.columns["advantages"][~row.loss_mask].any()
            assert not row.columns["old_logprobs"][~row.loss_mask].any()


def test_advantages_run_on_from_row_to_row(iteration):
    """Against the definition, token by token over each trajectory's sampled tokens."""
    run, _, _ = iteration
    config = run.experiment
    if config.algorithm.adv_estimator != "masked_gae":
        pytest.skip("group advantages are tested with their estimator")
    batch = TrajectoryBatch.load(run.step(0, "judge"))
    engine = fresh_engine(run)
    torch.nn.init.normal_(engine.critic.head.weight, generator=torch.Generator().manual_seed(1))
    add_columns(config, engine, batch.trajectories, batch.images)
    gamma, lam = config.algorithm.gamma, config.algorithm.lam
    raw, stored = [], []
    for trajectory in batch.trajectories:
        rewards, values, returns, advantages = (
            np.concatenate([row.columns[name][row.loss_mask] for row in trained(trajectory)])
            for name in ("rewards", "values", "returns", "advantages")
        )
        following = np.append(values[1:], np.float32(trajectory.bootstrap_value))
        assert (trajectory.bootstrap_value != 0) == trajectory.truncated
        running, out = 0.0, np.zeros(len(values))
        for t in reversed(range(len(values))):
            delta = float(rewards[t]) + gamma * float(following[t]) - float(values[t])
            running = out[t] = delta + gamma * lam * running
        np.testing.assert_allclose(returns, out + values, atol=1e-4)
        raw.append(out)
        stored.append(advantages)
    whole = np.concatenate(raw)
    assert whole.std() > 0.1
    expected = (whole - whole.mean()) / whole.std(ddof=1)
    np.testing.assert_allclose(np.concatenate(stored), expected, rtol=1e-3, atol=1e-3)


def test_a_summary_is_credited_with_what_comes_after_it(iteration):
    """In bi-level GAE it is a turn that earns nothing, and the chain of turns goes through it."""
    run, context, _ = iteration
    if context != "compact" or run.experiment.algorithm.adv_estimator != "masked_gae":
        pytest.skip("of summaries")
    update = {"adv_estimator": "bi_level_gae", "high_level_gamma": 0.9, "high_level_lam": 0.8}
    control = run.experiment.algorithm.kl_ctrl.model_copy(update={"kl_coef": 0.0})
    algorithm = run.experiment.algorithm.model_copy(update=update | {"kl_ctrl": control})
    config = run.experiment.model_copy(update={"algorithm": algorithm})
    batch = TrajectoryBatch.load(run.step(0, "judge"))
    engine = fresh_engine(run)
    torch.nn.init.normal_(engine.critic.head.weight, generator=torch.Generator().manual_seed(1))
    add_columns(config, engine, batch.trajectories, batch.images)
    stored, expected = [], []
    for trajectory in batch.trajectories:
        ends = [
            (row, int(np.flatnonzero(row.loss_mask & (row.turn_index == k))[-1]), k)
            for row in trained(trajectory)
            for k in np.unique(row.turn_index[row.loss_mask])
        ]
        values = [float(row.columns["values"][e]) for row, e, _ in ends]
        values.append(trajectory.bootstrap_value)
        running = 0.0
        for i in reversed(range(len(ends))):
            row, end, k = ends[i]
            reward = trajectory.turns[k].rewards.total
            assert not (trajectory.turns[k].summary and reward)
            running = reward + 0.9 * values[i + 1] - values[i] + 0.9 * 0.8 * running
            stored.append(float(row.columns["advantages"][end]))
            expected.append(running)
    # Whitening is one shift and one scale for all.
    slope, offset = np.polyfit(expected, stored, 1)
    assert slope > 0
    np.testing.assert_allclose(stored, slope * np.array(expected) + offset, atol=1e-3)
    assert any(turn.summary for t in batch.trajectories for turn in t.turns)


@pytest.mark.slow
def test_a_resumed_run_with_summaries_is_the_same(make_started_run):
    words = (*SMALL, *CONTEXTS["compact"], "trainer.total_training_steps=2")
    whole, stopped = make_started_run(*words), make_started_run(*words)
    with whole.session():
        iterate(whole, 0, 2)
    with stopped.session():
        iterate(stopped, 0, 1)
    again = Run.open(stopped.path)
    with again.session():
        iterate(again, 1, 2)
    for name in ("rollout", "judge", "advantage"):
        first, second = (read_manifest(run.step(1, name)).files for run in (whole, again))
        assert first == second
    batch = TrajectoryBatch.load(again.step(1, "advantage"))
    assert any(turn.summary for t in batch.trajectories for turn in t.turns)
