"""Rollouts that end before all of their episodes do: a tiny policy, real environments, updates.

The local engine, which finishes whatever it begins, is given the gate that a player has.
"""

from collections import Counter
from concurrent.futures import Future
from itertools import chain

import numpy as np
import pytest

from vagen.engines.local import engine as engine_module
from vagen.engines.local.engine import LocalEngine
from vagen.rollout.batch import TrajectoryBatch
from vagen.rollout.episodes import training_specs
from vagen.rollout.play import make_environment, make_runner
from vagen.rollout.runner import run_episodes, run_to_end
from vagen.rollout.types import Status
from vagen.run import layout
from vagen.run.run import Run
from vagen.service import environments_of
from vagen.stages import build
from vagen.stages.execute import execute
from vagen.stages.rollout import rollout
from vagen.steps import version_before
from vagen.storage import read_manifest
from vagen.train import iterate

WORDS = (
    *("preset=grpo_mask", "rollout_manager.n_trajectory=2", "data.train_batch_size=3"),
    *("rollout_manager.max_turns=4", "data.max_trajectory_length=400"),
    *("actor_rollout_ref.actor.tis_imp_ratio_cap=2", "actor_rollout_ref.actor.optim.lr=1e-2"),
    *("actor_rollout_ref.rollout.max_concurrency=6", "trainer.total_training_steps=4"),
)
OVER = "rollout_manager.over_sampling_batch_size"


class Gated(LocalEngine):
    """Stops the others once so many groups are finished."""

    def play(self, specs, *, sampling, split, groups=None, on_finish=None):  # type: ignore[override]
        missing = Counter(spec.group_id for spec in specs)
        runner = make_runner(
            self.config,
            policy=self.policy(slots=6),
            processor=self.processor,
            sampling=sampling,
            stopped=lambda: groups is not None and list(missing.values()).count(0) >= groups,
        )

        def finish(trajectory):
            if trajectory.status is not Status.UNFINISHED:
                missing[trajectory.group_id] -= 1

        made = environments_of(self.environments)
        episodes = run_episodes(
            runner,
            specs,
            lambda spec: make_environment(self.config, spec, split, made),
            max_concurrency=6,
            on_finish=finish,
        )
        return run_to_end(episodes), runner.images

    def play_in_background(self, work):
        """At once: the weights are those from before the update that comes next."""
        done: Future = Future()
        done.set_result(work(self.play))
        return done


@pytest.fixture
def trained(make_started_run, monkeypatch):
    """A training of four iterations: `trained("...")`."""
    monkeypatch.setattr(engine_module, "LocalEngine", Gated)

    def make(*overrides: str):
        run = make_started_run(*WORDS, *overrides)
        with run.session():
            iterate(run, 0, 4)
        return run

    return make


def batches(run) -> list[TrajectoryBatch]:
    return [TrajectoryBatch.load(run.step(i, "advantage")) for i in range(4)]


@pytest.mark.slow
def test_with_nothing_carried_on_it_is_the_synchronous_training(trained):
    plain, partial = trained(), trained(f"{OVER}=3")
    for batch, other in zip(batches(plain), batches(partial), strict=True):
        assert batch.images == other.images
        for a, b in zip(batch.trajectories, other.trajectories, strict=True):
            assert {turn.policy_version for turn in b.turns} == {batch.policy_version}
            for row, same in zip(a.rows, b.rows, strict=True):
                np.testing.assert_array_equal(row.input_ids, same.input_ids)
                assert row.columns.keys() == same.columns.keys()
                for name, column in row.columns.items():
                    np.testing.assert_array_equal(column, same.columns[name], err_msg=name)
    for found, expected in zip(partial.iteration_metrics(), plain.iteration_metrics(), strict=True):
        assert found["rollout/carried"] == found["rollout/staleness"] == 0
        same = {k for k in expected if not k.startswith(("timing_s/", "perf/"))}
        assert {k: found[k] for k in same} == {k: expected[k] for k in same}


@pytest.mark.slow
@pytest.mark.parametrize("behind", [0, 1])
def test_groups_are_carried_on_whole_and_each_turn_is_of_one_policy(trained, behind):
    """Also where the weights that play are one update behind (`one_step_off`)."""
    run = trained(f"{OVER}=5", f"rollout_manager.one_step_off={bool(behind)}".lower())
    seen: Counter[str] = Counter()
    mixed = 0
    for iteration, batch in enumerate(batches(run)):
        groups = Counter(t.group_id for t in batch.trajectories)
        assert set(groups.values()) == {2} and len(groups) == 3
        seen += groups
        lags, carried = [], []
        for t in batch.trajectories:
            versions = [turn.policy_version for turn in t.turns]
            updates = [0 if v == "warm_start" else int(v[-4:]) + 1 for v in versions]
            assert updates == sorted(updates) and updates[-1] <= max(0, iteration - behind)
            mixed += len(set(versions)) > 1
            carried.append(updates[0] < iteration)
            for row in t.rows:
                current = row.loss_mask & (np.array([*updates, 0])[row.turn_index] == iteration)
                stale = row.loss_mask & ~current
                gap = np.abs(row.rollout_logprobs - row.columns["old_logprobs"])
                assert gap[current].max(initial=0) < 1e-4, "of the weights that learn"
                if stale.any():
                    assert gap[stale].max() > 1e-3, "of those before"
                lags += [iteration - updates[k] for k in row.turn_index[row.loss_mask]]
        assert batch.policy_version == version_before(max(0, iteration - behind))
        metrics = run.iteration_metrics()[iteration]
        assert metrics["rollout/staleness"] == pytest.approx(np.mean(lags))
        assert metrics["rollout/staleness_max"] == max(lags)
        if not (behind and iteration):
            assert metrics["rollout/logprob_difference_max"] < 1e-4, "older ones are not compared"
        if not behind:  # the first two rollouts are of one policy
            assert metrics["rollout/carried"] == pytest.approx(np.mean(carried))
    assert mixed, "an episode that two policies played"
    # Every group that was begun was learnt from, in the end.
    asked = [s for i in range(4) for s in training_specs(run.experiment, build.load_levels(run), i)]
    assert seen == Counter(spec.group_id for spec in asked) and len(seen) == 12


@pytest.mark.slow
def test_a_run_that_ends_after_a_rollout_carries_the_same_on(trained, make_started_run):
    whole = trained(f"{OVER}=5")
    killed = make_started_run(*WORDS, f"{OVER}=5")
    with killed.session():
        iterate(killed, 0, 1)
        execute(killed, rollout, iteration=1)
    again = Run.open(killed.path)
    with again.session():
        iterate(again, 0, 4)
    for iteration in range(4):
        for name in ("rollout", "advantage"):
            folders = [run.step(iteration, name) for run in (whole, again)]
            first, second = (read_manifest(folder).files for folder in folders)
            assert first == second
    assert layout.CARRIED in read_manifest(whole.step(0, "rollout")).files


def test_levels_come_in_the_order_of_the_synchronous_training(make_experiment, warm_runs):
    levels = build.load_levels(warm_runs["tiny:vl"])
    for over, counts in ((3, [3, 3, 3, 3]), (5, [5, 3, 3, 1]), (30, [12, 0, 0, 0])):
        plain, partial = (
            [training_specs(make_experiment(*WORDS, *words), levels, i) for i in range(4)]
            for words in ((), (f"{OVER}={over}",))
        )
        assert [len(specs) // 2 for specs in partial] == counts
        ordered, same = ([s.level_seed for s in chain(*begun)] for begun in (plain, partial))
        assert same == ordered
