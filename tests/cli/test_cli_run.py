"""The commands on a real run, from the first step to its report."""

import io
import json
import re
import shutil
from pathlib import Path

import pytest

from vagen.cli.common import RunNotFoundError, find_run, run_of
from vagen.cli.main import USER_ERROR, main
from vagen.cli.run import summary_table
from vagen.cli.view import find_report
from vagen.run.run import Run

EXPERIMENT = """\
name: lake
preset: vagen_full
envs:
  lake:
    env_name: FrozenLake
    env_config: {prompt_detail: brief, max_actions_per_step: 1}
    train_size: 32
    val_size: 4
    test_size: 4
data: {train_batch_size: 4, max_prompt_length: 128, max_response_length: 24,
       max_trajectory_length: 320}
rollout_manager: {max_turns: 2}
actor_rollout_ref:
  actor: {ppo_mini_batch_size: 4}
warm_start: {steps: 1, batch_size: 2}
trainer: {total_training_steps: 1}
"""


def folder_like_a_run(path: Path) -> Path:
    (path / "config").mkdir(parents=True)
    (path / "config" / "experiment.yaml").write_text(EXPERIMENT)
    (path / "config" / "infra.yaml").write_text("output_dir: outputs\n")
    return path


@pytest.fixture
def outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "outputs"


def test_runs_are_found_by_path_name_and_link(outputs: Path) -> None:
    run = folder_like_a_run(outputs / "lake-1")
    (outputs / "latest").symlink_to("lake-1")
    assert find_run("lake-1") == find_run("latest") == find_run("outputs/lake-1") == run
    with pytest.raises(RunNotFoundError, match="unknown run `lake-2`; did you mean `lake-1`"):
        find_run("lake-2")
    trial = folder_like_a_run(outputs / "seeds" / "runs" / "seeds-001")
    assert find_run("seeds-001") == trial
    inside = run / "iterations" / "0000" / "rollout"
    inside.mkdir(parents=True)
    assert run_of(inside) == run


def test_a_run_that_has_only_begun_has_a_page(
    outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = folder_like_a_run(outputs / "lake-1")
    assert find_report("lake-1") == run / "report" / "index.html"
    text = (run / "report" / "index.html").read_text()
    assert "0 of 1" in text and "Nothing has been evaluated yet" in text
    early = run / "evaluations" / "warm_start"
    early.mkdir(parents=True)
    (early / "report.html").write_text("<html>")
    assert (
        find_report(str(early)) == find_report(str(early / "report.html")) == early / "report.html"
    )


def test_a_run_without_a_policy_cannot_be_evaluated(
    outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder_like_a_run(outputs / "lake-1")
    assert main(["eval", "lake-1"]) == USER_ERROR
    assert "has no policy yet" in capsys.readouterr().err


def test_what_is_for_kubernetes_is_not_run_here(
    outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("lake.yaml").write_text(EXPERIMENT)
    infra = ["infra.kubernetes.namespace=vagen", "infra.store=s3://bucket/runs"]
    assert main(["run", "lake.yaml", *infra]) == USER_ERROR
    assert "send the training there with `vagen submit`" in capsys.readouterr().err
    run = folder_like_a_run(outputs / "lake-1")
    (run / "config" / "experiment.yaml").write_text(EXPERIMENT)
    (run / "config" / "infra.yaml").write_text("kubernetes: {namespace: vagen}\n")
    assert main(["resume", "lake-1"]) == USER_ERROR
    assert "`vagen submit --clone lake-1 --name lake-1`" in capsys.readouterr().err


def test_the_summary_tells_gain_and_interval(tmp_path: Path) -> None:
    from rich.console import Console

    part = {"success": 0.5, "ci95": [0.4, 0.6], "levels": 256, "split": "test"}
    summary = {
        "warm_start": part,
        "final": {**part, "success": 0.75, "ci95": None},
        "levels": 256,
        "paired_gain": {"gain": 0.25, "ci95": [0.2, 0.3]},
        "iterations": 40,
        "seconds": {"total": 754.2},
        "model_uri": "models:/lake/3",
        "alias": "champion",
    }
    text = io.StringIO()
    Console(width=100, file=text).print(summary_table(summary, tmp_path / "lake-1"))
    for words in ("0.500  [0.400, 0.600]", "+0.250  [+0.200, +0.300]", "12 min 34 s", "champion"):
        assert words in text.getvalue()


@pytest.mark.slow
def test_run_rerun_eval_view_and_resume(outputs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    Path("lake.yaml").write_text(EXPERIMENT)
    assert main(["run", "lake.yaml", "--name", "one", "infra.threads=1"]) == 0
    out, _ = capfd.readouterr()
    assert "paired gain" in out
    run = find_run("one")
    assert find_run("latest") == run
    before = json.loads((run / "summary.json").read_text())
    assert Run.open(run).newest_policy() == str(run / "checkpoints" / "0000" / "policy")

    assert main(["run", "lake.yaml", "--name", "one"]) == USER_ERROR
    assert "vagen resume one" in capfd.readouterr().err

    assert main(["view", "one", "--no-open"]) == 0
    page = run / "report" / "index.html"
    assert capfd.readouterr().out.strip() == str(page)
    links = re.findall(r'href="([^"#]+)', page.read_text())
    assert {"../evaluations/final/report.html", "levels-test.html"} <= set(links)
    assert all((page.parent / link).is_file() for link in links)
    final = page.parent / "../evaluations/final/report.html"
    assert 'href="../../report/index.html"' in final.read_text()
    assert main(["view", "one", "--no-open", "--follow"]) == 0
    assert capfd.readouterr().out.splitlines()[-1] == "one has ended"
    for step in ("rollout", "advantage"):
        assert main(["view", str(run / "iterations" / "0000" / step), "--no-open"]) == 0
        shown = Path(capfd.readouterr().out.strip())
        assert f"iterations/0000/{step}" in shown.read_text()
    assert main(["view", str(run / "iterations"), "--no-open"]) == USER_ERROR
    assert "holds no episodes" in capfd.readouterr().err

    batch = run / "iterations" / "0000" / "rollout"
    assert main(["run", "--stage", "judge", "--from", str(batch), "--to", "judged"]) == 0
    assert capfd.readouterr().out.splitlines()[-1] == "judged"
    again = ["run", "--stage", "judge", "--from", str(batch), "--to", "judged"]
    assert main(again) == USER_ERROR
    assert "judged exists already" in capfd.readouterr().err
    assert main(["run", "--stage", "update", "--from", str(batch)]) == USER_ERROR
    assert "needs one from 'advantage'" in capfd.readouterr().err

    damaged = Path(shutil.copytree(run, outputs / "two")) / "iterations" / "0000" / "rollout"
    (damaged / "tokens.parquet").write_bytes(b"not a table")
    assert main(["run", "--stage", "judge", "--from", str(damaged)]) == USER_ERROR
    assert "tokens.parquet" in capfd.readouterr().err

    assert main(["eval", "one", "--count", "2", "--to", "measured"]) == 0
    assert "on 2 levels" in capfd.readouterr().out
    assert main(["view", "measured", "--no-open"]) == 0

    capfd.readouterr()
    assert main(["resume", "one"]) == 0
    after = json.loads((run / "summary.json").read_text())
    for part in ("warm_start", "final", "paired_gain", "model_uri"):
        assert after[part] == before[part]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("infra.device=cuda", "no GPU is visible: use cpu or auto"),
        ("infra.mlflow_tracking_uri=http://127.0.0.1:9", "cannot be reached"),
        ("actor_rollout_ref.model.path=nobody/nothing", "is not on this machine and the hub"),
    ],
)
def test_what_is_missing_is_said_before_anything_is_made(
    option: str, message: str, outputs: Path, monkeypatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    Path("lake.yaml").write_text(EXPERIMENT)
    assert main(["run", "lake.yaml", option]) == USER_ERROR
    assert message in capsys.readouterr().err
    assert not outputs.exists()


def test_no_more_levels_are_drawn_than_there_are(
    outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("lake.yaml").write_text(EXPERIMENT)
    assert main(["eval", "lake.yaml", "--model", "expert", "--count", "1000000"]) == USER_ERROR
    assert "set envs.lake.test_size" in capsys.readouterr().err
    assert main(["run", "lake.yaml", "envs.lake.test_size=10000000"]) == USER_ERROR
    assert "less than or equal to 1000000" in capsys.readouterr().err
