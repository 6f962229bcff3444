"""Calibration: the rule judge is as good as it has to be, a bad judge is found out."""

import html
import json
from pathlib import Path
from typing import Any

import pytest

from vagen.cli.main import USER_ERROR, main
from vagen.config import ConfigError
from vagen.config.judge_options import JudgeConfig
from vagen.judge.calibration import TextKind, writer_of
from vagen.judge.calibration.report import disagreements, write_report
from vagen.judge.calibration.run import (
    calibrate,
    judge_digest,
    shortcomings,
    subject_named,
    write_json,
)
from vagen.judge.calibration.samples import sample_statements
from vagen.stages.build import build

GROUNDED = {"prompt_format": "grounding_worldmodeling"}
GRIDS = ("FrozenLake", "Sokoban")


def test_a_judge_without_a_gate_falls_short_and_its_mistakes_are_shown(tmp_path: Path) -> None:
    subject = subject_named("FrozenLake")
    found = calibrate(JudgeConfig(gate=False), [subject], statements=300)
    lake = found["FrozenLake"]
    assert lake.precision < 0.98
    shown = disagreements(lake.judged)
    assert shown and all(each.is_mistake for each in shown)
    page = write_report(tmp_path, "A judge", found).read_text()
    assert html.escape(shown[0].sample.text.splitlines()[0]) in page
    assert "data:image/png" in page


@pytest.mark.parametrize("env_name", GRIDS)
def test_statements_are_a_function_of_the_seed_and_of_every_kind(env_name: str) -> None:
    writer = writer_of(env_name)
    one = sample_statements(writer, writer.env_configs, 200, 3)
    assert one == sample_statements(writer, writer.env_configs, 200, 3)
    assert one != sample_statements(writer, writer.env_configs, 200, 4)
    assert {sample.kind for sample in one} == set(TextKind)
    assert {sample.section for sample in one} == {"observation", "prediction"}


def test_false_statements_are_true_of_another_state() -> None:
    """What is called false is false: none is what the writer could say of the state itself."""
    writer_class = writer_of("FrozenLake")
    samples = sample_statements(writer_class, ({"prompt_detail": "brief"},), 400, 0)
    for sample in samples:
        if sample.kind is TextKind.FALSE and sample.wording == "sentences":
            state = sample.scene.state
            rows, columns = (
                there - here for there, here in zip(state["target"], state["player"], strict=True)
            )
            vertical = "below" if rows > 0 else "above" if rows < 0 else "same row"
            horizontal = "right" if columns > 0 else "left" if columns < 0 else "same column"
            said = sample.text.lower()
            assert not (vertical in said and horizontal in said), said


def test_a_scene_is_drawn_as_it_was_described() -> None:
    sample = sample_statements(writer_of("Sokoban"), ({},), 100, 0)[0]
    picture = sample.scene.picture("Sokoban")
    assert picture is not None and picture.shape == (192, 192, 3)


def test_command_line_writes_the_report(tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "calibration"
    command = ["judge", "calibrate", "--env", "Sokoban", "--statements", "100", "--out", str(out)]
    assert main(command) == 0
    assert "Sokoban: precision 1.0000" in capsys.readouterr().out
    stored = json.loads((out / "calibration.json").read_text())
    assert stored["judge_digest"] == judge_digest(JudgeConfig())
    assert (out / "calibration.html").is_file()
    assert main(command) == USER_ERROR
    assert "exists already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--env", "Chess"], "no environment is named 'Chess'"),
        (["--env", "SVG"], "a judge can be calibrated on"),
        (["--env", "FrozenLake", "trainer.total_training_steps=3"], "only judge.<key>=<value>"),
        (["--env", "FrozenLake", "judge.tpye=llm"], "tpye"),
        (["--env", "FrozenLake", "frozenlake-tiny"], "an experiment, or --env, not both"),
        (["--env", "FrozenLake", "--statements", "3"], "must be at least 100"),
        (["frozenlake-tiny", "judge.use_state_reward=false"], "has no judge"),
    ],
)
def test_command_line_refuses(words: list[str], message: str, tmp_path: Path, capsys: Any) -> None:
    assert main(["judge", "calibrate", *words, "--out", str(tmp_path / "x")]) == USER_ERROR
    assert message in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    judge = JudgeConfig()
    found = calibrate(judge, [subject_named("FrozenLake")], statements=100)
    return write_json(tmp_path, judge, found, seed=0)


RULE = ("judge.use_state_reward=true",)


def test_a_run_starts_with_a_judge_that_is_good_enough(
    measured: Path, make_experiment: Any
) -> None:
    named = f"judge.calibration.path={measured}"
    assert shortcomings(make_experiment(*RULE, **GROUNDED)) == []
    assert shortcomings(make_experiment(*RULE, named, **GROUNDED)) == []
    (other,) = shortcomings(make_experiment(*RULE, named, "judge.gate=false", **GROUNDED))
    assert "is of another judge" in other
    stored = json.loads(measured.read_text())
    stored["environments"]["FrozenLake"]["recall"] = 0.5
    measured.write_text(json.dumps(stored))
    (low,) = shortcomings(make_experiment(*RULE, named, **GROUNDED))
    assert low == "recall on FrozenLake is 0.500, below judge.calibration.min_recall = 0.95"
    stored["environments"]["FrozenLake"]["env_name"] = "Sokoban"
    measured.write_text(json.dumps(stored))
    (missing,) = shortcomings(make_experiment(*RULE, named, **GROUNDED))
    assert "does not cover FrozenLake" in missing
    measured.write_text("{}")
    with pytest.raises(ConfigError, match="is no file that `vagen judge calibrate` wrote"):
        shortcomings(make_experiment(*RULE, named, **GROUNDED))
    measured.unlink()
    with pytest.raises(ConfigError, match=r"there is no file .*vagen judge calibrate EXPERIMENT"):
        shortcomings(make_experiment(*RULE, named, **GROUNDED))


@pytest.mark.slow
def test_the_build_step_refuses_or_warns(measured: Path, make_run: Any) -> None:
    stored = json.loads(measured.read_text())
    stored["environments"]["FrozenLake"]["precision"] = 0.5
    measured.write_text(json.dumps(stored))
    options = (*RULE, f"judge.calibration.path={measured}")
    with pytest.raises(ConfigError, match=r"not good enough to start: precision on FrozenLake"):
        build(make_run(*options, **GROUNDED))
    run = make_run(*options, "judge.calibration.on_failure=warn", **GROUNDED)
    assert build(run)["metrics"]
