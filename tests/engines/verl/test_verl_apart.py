"""Rollout servers with GPUs of their own: here processes, and weights sent over gloo."""

import numpy as np
import pytest
import ray
from verl_stories import ray_files

from vagen.config import ConfigError
from vagen.config.load import load_infra
from vagen.engines.verl.launch import start
from vagen.rollout.batch import TrajectoryBatch
from vagen.run.run import Run
from vagen.train import iterate

pytestmark = pytest.mark.slow

RANKS = "verl.n_gpus_per_node=2"
APART = (RANKS, "verl.rollout_gpus=1")
FULL = ("preset=vagen_full", "data.max_response_length=32")
OFF = (
    "preset=grpo_mask",
    "rollout_manager.n_trajectory=2",
    "data.train_batch_size=3",
    "rollout_manager.one_step_off=true",
    "actor_rollout_ref.actor.tis_imp_ratio_cap=2.0",
)
OF_THE_MACHINE = ("timing_s/", "perf/")
"""Metrics that tell how long something took."""
CASES = {"synchronous": FULL, "one_step_off": OFF}


def trained(run: Run) -> list[TrajectoryBatch]:
    """Two iterations; the batches that were learnt from."""
    with run.at_work():
        iterate(run, 0, 2)
    return [TrajectoryBatch.load(run.step(i, "advantage")) for i in range(2)]


@pytest.mark.parametrize("case", CASES)
def test_servers_apart_play_and_learn_as_shared_ones(run_of, tmp_path, case) -> None:
    """Two ranks and one server that has no rank, against two ranks with a server each."""
    runs = []
    for name, layout in {"apart": APART, "shared": (RANKS,)}.items():
        infra = [*layout, f"output_dir={tmp_path / name}"]
        runs.append(run_of(*CASES[case], "trainer.total_training_steps=2", infra=infra))
    for batch, other in zip(*map(trained, runs), strict=True):
        assert batch.policy_version == other.policy_version
        for a, b in zip(batch.trajectories, other.trajectories, strict=True):
            assert [t.response_text for t in a.turns] == [t.response_text for t in b.turns]
            for row, same in zip(a.rows, b.rows, strict=True):
                np.testing.assert_array_equal(row.input_ids, same.input_ids)
                for name, column in row.columns.items():
                    np.testing.assert_allclose(column, same.columns[name], atol=1e-3, err_msg=name)
    for found, expected in zip(*(run.iteration_metrics() for run in runs), strict=True):
        for name in expected.keys() - {key for key in expected if key.startswith(OF_THE_MACHINE)}:
            assert found[name] == pytest.approx(expected[name], rel=1e-2, abs=1e-3), name


def test_a_cluster_with_too_few_gpus_is_refused(make_experiment, vl_dir) -> None:
    infra = load_infra(None, ["engine=verl", "device=cpu", "verl.rollout=torch", *APART])
    with ray_files():
        ray.init(num_gpus=2, num_cpus=4, include_dashboard=False)
        try:
            with pytest.raises(ConfigError, match="has 2 GPUs, and the run asks for 3"):
                start(make_experiment(*FULL), infra, vl_dir)
        finally:
            ray.shutdown()
