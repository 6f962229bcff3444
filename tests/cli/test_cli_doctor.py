"""Each finding of the doctor's, good and bad, on the real thing."""

import http.server
import importlib.util
import json
import shutil
import sqlite3
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from vagen.cli import doctor_machine, doctor_model
from vagen.cli.findings import CheckOutcome, CheckResult
from vagen.cli.main import main
from vagen.config import ExperimentConfig, InfraConfig
from vagen.experiment.load import load_experiment
from vagen.models.files import missing_files
from vagen.plan.sizes import model_directory

LAKE = """\
name: lake
envs:
  lake:
    env_name: FrozenLake
    env_config: {prompt_detail: brief}
"""


def experiment_of(folder: Path, *overrides: str) -> ExperimentConfig:
    path = folder / "lake.yaml"
    path.write_text(LAKE)
    return load_experiment(path, overrides)


@pytest.fixture(scope="module")
def whole_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from vagen.models.loading import load_model

    folder = tmp_path_factory.mktemp("tiny")
    with model_directory(experiment_of(folder)) as directory:
        load_model(directory).save(folder / "model")
    return folder / "model"


@pytest.fixture
def model(whole_model: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return shutil.copytree(whole_model, tmp_path / "model")


def only(findings: Iterator[CheckResult]) -> CheckResult:
    (finding,) = findings
    return finding


def test_this_machine_is_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    experiment_of(tmp_path)
    assert main(["doctor", str(tmp_path / "lake.yaml"), f"infra.output_dir={tmp_path}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    subjects = [line.split()[1] for line in lines]
    assert subjects == [
        "python", "packages", "outputs", "temporary", "cpu", "device", "mlflow", "environment",
        "model", "tags", "conversation",
    ]  # fmt: skip
    assert not [line for line in lines if line.startswith("✗")]


def test_one_bad_finding_is_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    experiment_of(tmp_path)
    words = [f"infra.output_dir={tmp_path}", "infra.device=cuda:99"]
    assert main(["doctor", str(tmp_path / "lake.yaml"), *words]) == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("✗")]
    assert "cuda:99 is asked for" in line
    assert "infra.device=auto" in line


def test_versions_are_compared_with_the_tested_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "constraints").mkdir()
    (tmp_path / doctor_machine.CONSTRAINTS).write_text("# pins\nnumpy==1.0\ntorch==2.13.0\n")
    monkeypatch.chdir(tmp_path)
    assert doctor_machine.read_pins() == {"numpy": "1.0", "torch": "2.13.0"}
    findings = {finding.subject: finding for finding in doctor_machine.versions()}
    assert findings["packages"].verdict is CheckOutcome.WARNING
    assert "(tested: 1.0)" in findings["packages"].text
    monkeypatch.setattr(doctor_machine, "PACKAGES", ("no-such-package",))
    findings = {finding.subject: finding for finding in doctor_machine.versions()}
    assert findings["packages"].verdict is CheckOutcome.BAD


@pytest.mark.parametrize(("kept", "compiled"), [(True, False), (False, False), (False, True)])
def test_libraries_that_every_command_compiles_are_told(kept, compiled, tmp_path, monkeypatch):
    library = importlib.util.find_spec("torch")
    library.cached = __file__ if compiled else str(tmp_path / "torch.pyc")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: library)
    monkeypatch.setattr(sys, "dont_write_bytecode", not kept)
    told = "bytecode" in {finding.subject for finding in doctor_machine.versions()}
    assert told is (not kept and not compiled)


def test_a_file_where_the_output_folder_should_be(tmp_path: Path) -> None:
    file = tmp_path / "outputs"
    file.write_text("")
    finding, _ = doctor_machine.folders(InfraConfig(output_dir=str(file)))
    assert finding.verdict is CheckOutcome.BAD
    assert "is a file" in finding.text


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    # /proc refuses new files to everyone, root included.
    finding, _ = doctor_machine.folders(InfraConfig(output_dir="/proc/outputs"))
    assert finding.verdict is CheckOutcome.BAD
    assert "/proc cannot be written" in finding.text


def test_a_new_output_folder_is_not_made(tmp_path: Path) -> None:
    finding, _ = doctor_machine.folders(InfraConfig(output_dir=str(tmp_path / "a" / "b")))
    assert finding.verdict is not CheckOutcome.BAD
    assert not list(tmp_path.iterdir())


def test_more_threads_than_cores() -> None:
    finding, _ = doctor_machine.devices(InfraConfig(threads=10_000))
    assert finding.verdict is CheckOutcome.WARNING


def mlflow(uri: str | None, folder: Path) -> CheckResult:
    infra = InfraConfig(output_dir=str(folder), mlflow_tracking_uri=uri)
    return only(doctor_machine.mlflow_store(infra))


def test_mlflow_databases(tmp_path: Path) -> None:
    assert mlflow(None, tmp_path).verdict is CheckOutcome.GOOD
    path = tmp_path / "mlflow.db"
    path.write_text("this is no database, however long it may be")
    assert mlflow(None, tmp_path).verdict is CheckOutcome.BAD
    path.unlink()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE songs (name TEXT)")
    connection.close()
    assert "another program's" in mlflow(None, tmp_path).text
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE alembic_version (version_num TEXT)")
    assert mlflow(None, tmp_path).verdict is CheckOutcome.GOOD
    connection.isolation_level = None
    connection.execute("BEGIN IMMEDIATE")
    doctor_machine.TIMEOUT, before = 0.2, doctor_machine.TIMEOUT
    try:
        assert "locked" in mlflow(None, tmp_path).text
    finally:
        doctor_machine.TIMEOUT = before
        connection.close()
    assert mlflow("banana://x", tmp_path).verdict is CheckOutcome.BAD


def test_mlflow_servers(tmp_path: Path) -> None:
    class Server(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/health" else 401)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        assert mlflow(address, tmp_path).verdict is CheckOutcome.GOOD
        assert mlflow(f"{address}/", tmp_path).verdict is CheckOutcome.GOOD
        assert mlflow(f"{address}/behind", tmp_path).verdict is CheckOutcome.WARNING
        server.shutdown()
    finding = mlflow(address, tmp_path)
    assert finding.verdict is CheckOutcome.BAD
    assert "does not answer" in finding.text


def test_a_whole_model_directory_is_good(model: Path, tmp_path: Path) -> None:
    assert missing_files(model) == []
    findings = list(
        doctor_model.model(experiment_of(tmp_path, f"actor_rollout_ref.model.path={model}"))
    )
    assert [finding.subject for finding in findings] == ["model", "tags", "conversation"]
    verdicts = [finding.verdict for finding in findings]
    # A tiny model's tags are tokens of their own, that it has learnt in its warm start.
    assert verdicts == [CheckOutcome.GOOD, CheckOutcome.WARNING, CheckOutcome.GOOD]


@pytest.mark.parametrize(
    ("file", "missing"),
    [
        ("config.json", "config.json"),
        ("model.safetensors", "weights (model.safetensors)"),
        ("tokenizer.json", "a tokenizer (tokenizer.json)"),
        ("preprocessor_config.json", "an image processor (preprocessor_config.json)"),
    ],
)
def test_a_missing_file_is_named(model: Path, tmp_path: Path, file: str, missing: str) -> None:
    (model / file).unlink()
    assert missing_files(model) == [missing]
    experiment = experiment_of(tmp_path, f"actor_rollout_ref.model.path={model}")
    finding = only(doctor_model.model(experiment))
    assert finding.verdict is CheckOutcome.BAD
    assert missing in finding.text


def test_cut_weights_and_absent_shards_are_named(model: Path) -> None:
    weights = model / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[: len(content) // 2])
    assert missing_files(model) == ["a whole model.safetensors (it is cut short or damaged)"]
    weights.write_bytes(content)
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    assert missing_files(model) == ["model-2.safetensors"]


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    for path in (str(tmp_path / "none"), "tiny:huge", "name", "a/b/c"):
        experiment = experiment_of(tmp_path, f"actor_rollout_ref.model.path={path}")
        assert only(doctor_model.model(experiment)).verdict is CheckOutcome.BAD, path


def test_tags_that_the_tokenizer_swallows_are_bad(model: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<reason>", "</reason>"]})
    tokenizer.save_pretrained(model)
    path = f"actor_rollout_ref.model.path={model}"
    reserved = experiment_of(tmp_path, path, "envs.lake.env_config.tags.reasoning=reason")
    findings = {finding.subject: finding for finding in doctor_model.model(reserved)}
    assert findings["tags"].verdict is CheckOutcome.BAD
    assert "<reason>, </reason> do not survive" in findings["tags"].text
    assert findings["tags"].advice == "rename them in `envs.lake.env_config.tags`"
    renamed = experiment_of(tmp_path, path, "envs.lake.env_config.tags.reasoning=because")
    findings = {finding.subject: finding for finding in doctor_model.model(renamed)}
    assert findings["tags"].verdict is not CheckOutcome.BAD


def test_tags_that_are_a_token_of_their_own_are_warned_of(model: Path, tmp_path: Path) -> None:
    """As `<think>` is in Qwen3-VL's tokenizer: ordinary, so that it survives, but reserved."""
    from vagen.models.tiny import build_tokenizer

    words = ["The box is left of you. <thinking><observation><answer>Left</answer>"] * 50
    tokenizer = build_tokenizer(words, tags=["<think>", "</think>"])
    tokenizer.save_pretrained(model)
    config = json.loads((model / "config.json").read_text())
    config["image_token_id"] = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    (model / "config.json").write_text(json.dumps(config))
    path = f"actor_rollout_ref.model.path={model}"
    findings = {f.subject: f for f in doctor_model.model(experiment_of(tmp_path, path))}
    assert findings["tags"].verdict is CheckOutcome.WARNING
    assert "lake: <think>, </think>: one added token" in findings["tags"].text
    assert findings["tags"].advice == "rename them in `envs.lake.env_config.tags`"
    for words in (["envs.lake.env_config.tags.think=thinking"], ["warm_start.steps=1"]):
        experiment = experiment_of(tmp_path, path, *words)
        findings = {finding.subject: finding for finding in doctor_model.model(experiment)}
        assert findings["tags"].verdict is CheckOutcome.GOOD, words


def test_a_text_model_for_pictures_is_bad(tmp_path: Path) -> None:
    experiment = experiment_of(tmp_path, "actor_rollout_ref.model.path=tiny:text")
    findings = list(doctor_model.model(experiment))
    assert findings[-1].verdict is CheckOutcome.BAD
    assert "render_mode=text" in findings[-1].text
