"""Rollout servers with GPUs of their own: here processes, and weights sent over gloo."""

from typing import Any

import numpy as np
import pytest
from verl_stories import kill_while_playing, started, two_iterations

from vagen.config import ConfigError
from vagen.engines.base import Images
from vagen.engines.columns import add_columns
from vagen.engines.verl.precomputed import PrecomputedOutputs
from vagen.engines.verl.rows import digest_of
from vagen.metrics import PROBABILITY_CORRELATION, UPDATE_KL
from vagen.rollout.episodes import training_specs
from vagen.rollout.types import TokenRow
from vagen.stages.build import load_levels
from vagen.train import iterate

pytestmark = pytest.mark.slow

RANKS = "verl.n_gpus_per_node=2"
APART = (RANKS, "verl.rollout_gpus=1")
FULL = (
    "preset=vagen_full",
    "data.max_response_length=32",
    "actor_rollout_ref.rollout.max_concurrency=2",  # episodes end one after the other
)
OFF = (
    "preset=grpo_mask",
    "rollout_manager.n_trajectory=2",
    "data.train_batch_size=3",
    "rollout_manager.one_step_off=true",
    "actor_rollout_ref.actor.tis_imp_ratio_cap=2.0",
)
OF_THE_MACHINE = ("timing_s/", "perf/")
"""Metrics that tell how long something took."""
JUDGED = (
    "judge.use_state_reward=true",
    "envs.game.env_config.prompt_format=grounding_worldmodeling",
)
CASES = {
    "synchronous": ((*FULL, *JUDGED, "algorithm.overlong.buffer_len=31"), RANKS),
    "one_step_off": (OFF, "verl.n_gpus_per_node=1"),
}
"""What is learnt, and the ranks that it is compared with: rounding reaches what is played next."""


@pytest.mark.parametrize("case", CASES)
def test_servers_apart_play_and_learn_as_shared_ones(run_of, tmp_path, monkeypatch, case) -> None:
    """Two ranks and one server that has no rank, against ranks with a server each.

    The former, where they play alone, read episodes that have ended while others are played.
    """
    early = []
    answer = PrecomputedOutputs.answer
    monkeypatch.setattr(
        PrecomputedOutputs, "answer", lambda *given: (early.append(given), answer(*given))
    )
    runs = []
    words, ranks = CASES[case]
    for name, layout in {"apart": APART, "shared": (ranks,)}.items():
        infra = [*layout, f"output_dir={tmp_path / name}"]
        runs.append(run_of(*words, "trainer.total_training_steps=2", infra=infra))
    for batch, other in zip(*map(two_iterations, runs), strict=True):
        assert batch.policy_version == other.policy_version
        for a, b in zip(batch.trajectories, other.trajectories, strict=True):
            assert [t.response_text for t in a.turns] == [t.response_text for t in b.turns]
            for row, same in zip(a.rows, b.rows, strict=True):
                np.testing.assert_array_equal(row.input_ids, same.input_ids)
                for name, column in row.columns.items():
                    np.testing.assert_allclose(column, same.columns[name], atol=1e-3, err_msg=name)
    assert early
    for found, expected in zip(*(run.iteration_metrics() for run in runs), strict=True):
        for name in expected.keys() - {key for key in expected if key.startswith(OF_THE_MACHINE)}:
            assert found[name] == pytest.approx(expected[name], rel=1e-2, abs=1e-3), name


def asked(engine: Any, rows: list[TokenRow], images: Images) -> dict[str, list[Any]]:
    """What a learner asks about rows."""
    values, last = engine.values(rows, images)
    return {
        "logprobs": engine.logprobs(rows, images),
        "reference": engine.logprobs(rows, images, reference=True),
        "values": values,
        "last": [last],
    }


def differences(found: dict[str, list[Any]], expected: dict[str, list[Any]]) -> dict[str, float]:
    """The largest one of each."""
    return {
        name: max(float(np.abs(a - b).max()) for a, b in zip(found[name], arrays, strict=True))
        for name, arrays in expected.items()
    }


def test_finished_episodes_are_read_while_others_are_played(
    make_experiment, warm_runs, vl_dir, ray_cluster
) -> None:
    """What was computed meanwhile is what is computed at the end, until the weights change.

    A frozen tower is shown each picture once, whatever changes beside it.
    """
    experiment = make_experiment(*FULL, "actor_rollout_ref.model.freeze_vision_tower=true")
    specs = training_specs(experiment, load_levels(warm_runs["tiny:vl"]), 0)
    sampling = experiment.actor_rollout_ref.rollout
    with started(experiment, vl_dir, ray_cluster, *APART) as engine:
        put, seen = [], []
        store, encode = engine._rows.put, engine._rows.encode
        engine._rows.put = lambda entry: put.append(entry) or store(entry)
        engine._rows.encode = lambda frames: seen.extend(frames) or encode(frames)
        played, images = engine.play(specs, sampling=sampling, split="train")
        rows = [row for trajectory in played for row in trajectory.rows]
        early = engine._early
        answered = {call: sum(c == call for c, _ in early._outputs) for call, _ in early._outputs}
        assert answered.keys() == {"logprobs", "reference", "values"}
        assert min(answered.values()) >= len(engine.groups.policy.workers)
        assert max(answered.values()) < len(rows)  # the last one ended with nothing to wait for
        engine.performance.take()
        found = asked(engine, rows, images)
        assert engine.performance.take().keys() >= {
            f"perf/{call}/tokens_per_second" for call in answered
        }
        early.forget()
        assert max(differences(found, asked(engine, rows, images)).values()) < 1e-5
        engine.play(specs, sampling=sampling, split="train")
        assert early._outputs
        add_columns(experiment, engine, played, images)
        learnt = [row for row in rows if row.loss_mask.any()]
        engine.update(learnt, images, seed=3)
        changed = asked(engine, rows, images)
        assert not early._outputs
        different = differences(changed, found)
        assert min(different["logprobs"], different["values"]) > 1e-3
        assert different["reference"] < 1e-5
        # Each row was stored once, in whatever parts it came, and each picture.
        assert len(put) == len({digest_of(row) for row in rows})
        assert sorted(seen) == sorted({images[digest] for row in rows for digest in row.images})
        greedy = sampling.model_copy(update={"temperature": 0.0})
        engine.play(specs, sampling=greedy, split="train")
        assert not early._outputs
        kill_while_playing(engine, "rollout server 0", specs, sampling)


def test_adapters_trained_in_bfloat16_play_apart_as_they_were_learnt(run_of) -> None:
    """Merged and rounded for the servers: after an update their policy is that of the ranks.

    The reference, which is the policy with its adapters switched off, is read early as well.
    """
    words = ("preset=grpo_mask", "rollout_manager.n_trajectory=2", "trainer.total_training_steps=2")
    words += ("actor_rollout_ref.model.lora_rank=4", "actor_rollout_ref.actor.optim.lr=1e-2")
    run = run_of(*words, "trainer.agreement.enable=false", infra=[*APART, "dtype=bfloat16"])
    with run.session():
        iterate(run, 0, 2)
    metrics = run.iteration_metrics()
    assert min(m[PROBABILITY_CORRELATION] for m in metrics) > 0.99
    assert abs(metrics[0][UPDATE_KL]) > 0.01


def test_a_cluster_with_too_few_gpus_is_refused(make_experiment, vl_dir, ray_cluster) -> None:
    settings = (ray_cluster, "verl.n_gpus_per_node=6", "verl.rollout_gpus=3")
    with (
        pytest.raises(ConfigError, match="has 8 GPUs, and the run asks for 9"),
        started(make_experiment(*FULL), vl_dir, *settings),
    ):
        pass
