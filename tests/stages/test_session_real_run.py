"""The session over a real run: with or without it a step does the same."""

from pathlib import Path

import pytest

from vagen.config.infra import InfraConfig
from vagen.config.schema import (
    ActorConfig,
    ActorRolloutRefConfig,
    DataConfig,
    EnvSpec,
    ExperimentConfig,
    TrainerConfig,
)
from vagen.stages.progress import read_events
from vagen.stages.run import Run
from vagen.stages.session import StageError, call
from vagen.stages.session_process import Session


@pytest.fixture
def run(make_outputs) -> Run:
    return make_run(make_outputs())


def make_run(output: Path) -> Run:
    lake = EnvSpec(
        env_name="FrozenLake",
        env_config={"render_mode": "text"},
        train_size=6,
        val_size=3,
        test_size=3,
    )
    experiment = ExperimentConfig(
        name="small",
        envs={"lake": lake},
        data=DataConfig(train_batch_size=4),
        actor_rollout_ref=ActorRolloutRefConfig(actor=ActorConfig(ppo_mini_batch_size=4)),
        trainer=TrainerConfig(total_training_steps=1),
    )
    return Run.create(experiment, InfraConfig(output_dir=str(output), device="cpu"), name="run")


@pytest.mark.slow
def test_a_step_writes_the_same_alone_and_in_a_session_and_is_not_done_again(
    run: Run, make_outputs
):
    other = make_run(make_outputs())
    alone = call(str(run.path), "build")
    with Session(other.path) as session:
        served = session.call("build")
        written = (other.levels / "manifest.json").stat().st_mtime_ns
        assert session.call("build") == served
    assert alone["sha256"] == served["sha256"]
    assert alone["metrics"] == served["metrics"] != {}
    assert call(str(other.path), "build") == served
    assert (other.levels / "manifest.json").stat().st_mtime_ns == written
    for folder, times in ((run.path, 1), (other.path, 3)):
        stages = [e["stage"] for e in read_events(folder) if e["event"] == "stage_finished"]
        assert stages == ["build"] * times


def test_a_step_refuses_what_was_changed_since_it_was_handed_on(run: Run):
    levels = call(str(run.path), "build")
    with pytest.raises(StageError, match="is not what the step before wrote"):
        call(str(run.path), "warm_start", source_uri=levels["uri"], source_sha256="0" * 64)


def test_a_stage_that_does_not_exist_is_refused(run: Run):
    with pytest.raises(ValueError, match="no stage is named 'fly'"):
        call(str(run.path), "fly")


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path):
    with (
        Session(tmp_path) as session,
        pytest.raises(StageError, match=r"is no run: it has no config/experiment\.yaml"),
    ):
        session.call("build")
