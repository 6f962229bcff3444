"""What an experiment and an infra cannot do together, with the nearest that they can."""

from pathlib import Path

import pytest

from vagen.cli.main import USER_ERROR, main
from vagen.config import ConfigError, ExperimentConfig, InfraConfig
from vagen.experiment.checks_infra import check_infra
from vagen.experiment.load import load_experiment, load_infra

LAKE = "name: lake\nenvs:\n  lake:\n    env_name: FrozenLake\n"
WEIGHTED = ["actor_rollout_ref.actor.tis_imp_ratio_cap=2"]
OFF = [*WEIGHTED, "rollout_manager.one_step_off=true"]
VERL = ["engine=verl", "verl.n_gpus_per_node=4"]
PARTIAL = [*WEIGHTED, "rollout_manager.over_sampling_batch_size=192"]
NODES = [*VERL, "verl.nnodes=2"]
CLUSTER = ["verl.ray_address=auto", "device=cuda"]
TORCH = [*VERL, "verl.rollout=torch"]

CASES = [
    (OFF, [], "`rollout_manager.one_step_off`: the local engine does one thing at a time", VERL),
    (PARTIAL, [], "`rollout_manager.over_sampling_batch_size`: the local engine plays every", VERL),
    ([], ["store=outputs/store"], "`infra.store`: outputs/store is no store", ["store=s3://a"]),
    ([], ["store=gs://bucket"], "write s3://bucket/prefix or file:///folder", ["store=s3://a/b"]),
    (
        [],
        ["output_dir=/data", "store=file:///data/"],
        "`infra.store`: it is infra.output_dir, where runs are anyway",
        ["output_dir=/data", "store=file:///store"],
    ),
    ([], NODES, "`infra.verl.ray_address`", [*NODES, *CLUSTER]),
    ([], [*VERL, *CLUSTER[:1]], "`infra.device`: auto looks at this machine", [*VERL, *CLUSTER]),
    (
        [],
        [*VERL, "verl.tensor_model_parallel_size=3"],
        "`infra.verl.tensor_model_parallel_size`: 3 does not divide infra.verl.n_gpus_per_node = 4",
        [*VERL, "verl.tensor_model_parallel_size=2"],
    ),
    (
        [],
        [*NODES, *CLUSTER, "verl.rollout_gpus=3"],
        "`infra.verl.rollout_gpus`: infra.verl.nnodes = 2 does not divide 3",
        [*NODES, *CLUSTER, "verl.rollout_gpus=2"],
    ),
    (
        [],
        [*NODES, *CLUSTER, "verl.rollout_gpus=6", "verl.tensor_model_parallel_size=2"],
        "2 does not divide infra.verl.rollout_gpus / infra.verl.nnodes = 3",
        # Ranks are no multiple of what a server takes: they hold none.
        [*NODES, *CLUSTER, "verl.rollout_gpus=6", "verl.tensor_model_parallel_size=3"],
    ),
    (
        [],
        [*NODES, *CLUSTER, "verl.n_gpus_per_node=2", "verl.rollout_gpus=6", "verl.fsdp_size=3"],
        "3 does not divide the 4 ranks",
        [*NODES, *CLUSTER, "verl.n_gpus_per_node=2", "verl.rollout_gpus=6", "verl.fsdp_size=4"],
    ),
    (
        [],
        [*TORCH, "verl.tensor_model_parallel_size=2"],
        "the torch rollout does not split a model",
        TORCH,
    ),
    (
        [],
        [*VERL, "verl.gpu_memory_utilization=0"],
        "vLLM needs memory",
        [*VERL, "verl.gpu_memory_utilization=0.1"],
    ),
    (
        [],
        [*VERL, "verl.max_token_len_per_gpu=2399"],
        "2399 cannot hold one trajectory of data.max_trajectory_length = 2400",
        [*VERL, "verl.max_token_len_per_gpu=2400"],
    ),
    ([], [*VERL, "device=cuda:1"], "`infra.device`: cuda:1 is one GPU", [*VERL, "device=cuda"]),
]


def both(
    tmp_path: Path, words: list[str], infra: list[str]
) -> tuple[ExperimentConfig, InfraConfig]:
    path = tmp_path / "lake.yaml"
    path.write_text(LAKE)
    return load_experiment(path, words), load_infra(None, infra)


@pytest.mark.parametrize(("words", "infra", "message", "instead"), CASES)
def test_refusals_and_the_nearest_that_runs(
    tmp_path: Path, words: list[str], infra: list[str], message: str, instead: list[str]
) -> None:
    with pytest.raises(ConfigError) as refusal:
        check_infra(*both(tmp_path, words, infra))
    assert message in str(refusal.value)
    check_infra(*both(tmp_path, words, instead))


def test_the_command_line_refuses_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lake.yaml"
    path.write_text(LAKE)
    words = [*OFF, f"infra.output_dir={tmp_path / 'outputs'}"]
    assert main(["run", str(path), *words]) == USER_ERROR
    assert "`rollout_manager.one_step_off`: the local engine" in capsys.readouterr().err
    assert not (tmp_path / "outputs").exists()
