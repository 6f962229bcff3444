"""The GPU checks on this machine's CPU with models of half a million weights.

Each runs as its command does. What needs a GPU to be so (kernels, speed) is not asked for here.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from warm_process import WarmProcess, preload

from benchmarks.gpu.common import Setup
from benchmarks.gpu.model import build
from benchmarks.gpu.one import Measurement
from benchmarks.gpu.pack.pack import check_sizes
from vagen.engines.verl.env_vars import is_installed
from vagen.experiment.load import load_experiment
from vagen.metrics import PROBABILITY_CORRELATION, RATIO_MEAN
from vagen.models.processor import load_processor

TINY = ("--device", "cpu", "--trajectories", "3", "--turns", "2", "--response", "12")
TINY += ("--repeats", "1")
verl_installed = pytest.mark.skipif(
    not is_installed(), reason="verl is not installed (make test-verl)"
)

pytestmark = [pytest.mark.slow, verl_installed]
preload("benchmarks.gpu.__main__")


@pytest.fixture(scope="module")
def run(ray_cluster, tmp_path_factory) -> Callable[..., dict[str, Any]]:
    """Runs a check; gives its JSON."""
    folder = tmp_path_factory.mktemp("gpu")

    def check(
        name: str,
        *arguments: str,
        model: str = "qwen25vl-tiny",
        cluster: str = ray_cluster,
        **environment: str,
    ) -> dict[str, Any]:
        words = [name, f"infra.{cluster}", "--model", model, *TINY, *arguments]
        words += ["--scratch", str(folder), "--output", str(folder)]
        process = WarmProcess(
            *words, cwd=folder, module="benchmarks.gpu.__main__", environment=environment
        )
        code = process.wait()
        assert "Traceback" not in process.output, process.output[-3000:]
        found = json.loads((folder / f"gpu-{name}.json").read_text())
        assert code == (0 if found["passed"] else 1)
        assert found["check"] == name and found["device"] == "cpu" and found["model"] == model
        assert found["versions"]["torch"] and len(found["commit"]) == 40
        return found

    return check


def phases_took_time(phases: dict[str, dict[str, float]], *names: str) -> None:
    assert set(phases) >= set(names)
    assert all(0 < figures["seconds"] < 600 for figures in phases.values())
    assert all(0.1 < figures["used_gib"] < 64 for figures in phases.values())


def test_g1_kernels_and_both_attentions(run):
    found = run("g1")
    served = found["kernels"]["milliseconds"]
    assert served["MATH"] > 0 and served["FLASH_ATTENTION"] > 0
    assert served["CUDNN_ATTENTION"] is None and found["kernels"]["refused"]["CUDNN_ATTENTION"]
    assert found["kernels"]["picked"] in served
    names = [f"{kind}/{part}" for kind in ("packed", "sdpa") for part in ("logprobs", "update")]
    phases_took_time(found["phases"], *names)
    assert found["rows"] == 3 and found["tokens"] > 3 * 2 * 81
    assert found["difference"]["deviation"] > 0
    assert found["difference"]["max"] < 0.5  # after updates of weights that were the same


def test_g2_float32_is_exact_however_rows_lie(run):
    found = run("g2", model="qwen3vl-tiny")
    assert found["passed"]
    assert set(found["compared"]) == {
        "local/float32",
        "verl/float32/packed",
        "verl/float32/packed/shuffled",
        "verl/float32/sdpa",
        "verl/float32/sdpa/shuffled",
        "packed against sdpa",
        "shuffled against in order",
    }
    assert 3 * 2 * 6 <= found["sampled"] < 3 * 2 * 12
    for figures in found["compared"].values():
        assert figures["logprobs"]["max"] < 2e-3 and figures["values"]["max"] < 2e-3
        assert figures["values"]["deviation"] > 0.05, "the head says nothing"


@pytest.mark.parametrize("rollout", ["local", "none", "torch"])
@pytest.mark.parametrize("adapters", [(), ("actor_rollout_ref.model.lora_rank=4",)])
def test_one_engine_and_all_that_is_to_be_known(run, rollout, adapters):
    found = run("one", "--rollouts", rollout, *adapters)
    assert found["failed"] == {} and found["passed"], found["failed"] or found["checks"]
    assert found["rollout"] == rollout and found["mfu"] is None
    names = ["logprobs", "reference", "values", "critic update", "update"]
    names += [f"checkpoint: {part}" for part in ("copy", "write and hash", "read")]
    names += ["wake and synchronise", "sleep"] if rollout == "torch" else []
    phases_took_time(found["phases"], *names)
    assert len(found["checks"]) == (2 if rollout == "none" else 4)
    assert found["moved"] >= 0.02 and found["step_seconds"] > 0
    for figures in found.get("rollout against trainer", {}).values():
        assert figures[PROBABILITY_CORRELATION] >= 0.995 and abs(figures[RATIO_MEAN] - 1) < 0.02
    assert found["checkpoint"]["difference_after_reading"]["max"] == 0
    assert found["petaflop"]["actor update"] == pytest.approx(3 * found["petaflop"]["logprobs"])


def test_a_phase_that_fails_is_named_and_the_next_begins(tmp_path, monkeypatch):
    setup = Setup(
        **{"model": "qwen25vl-tiny", "device": "cpu", "gpus": 1, "trajectories": 2, "turns": 1},
        **{"response": 8, "repeats": 1, "rollouts": ("local",), "scratch": tmp_path},
    )
    measured = Measurement(setup)
    monkeypatch.setattr(measured, "_values", lambda engine: 1 / 0)
    *_, found = measured.run()
    assert list(found["failed"]) == ["values"] and "ZeroDivision" in found["failed"]["values"]
    assert "update" in found["phases"] and not found["passed"]


def test_nearly_all_tokens_of_the_vocabulary_have_a_text(tmp_path):
    """As published tokenizers; what has none is banned at every step."""
    build("qwen25vl-tiny", tmp_path, load_experiment("sokoban-qwen25vl-3b"), "cpu")
    processor = load_processor(tmp_path)
    assert 0 < len(processor.banned_ids) < 400 and processor.logits == 4096


def test_g7_ours_and_verls_own_on_the_same_rows(run, ray_workers, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(ray_workers / "python"))  # of its two commands
    found = run("g7")
    for name in ("ours", "verl"):
        phases_took_time(found[name]["phases"], "logprobs", "update")
        assert 0 < found[name]["grad_norm"] < 1000
    ratios = found["ours_over_verl"]
    assert found["passed"] is (max(ratios.values()) <= 1.1)


WITHOUT_MLFLOW = """
import runpy, sys
sys.modules["mlflow"] = None
runpy.run_module("benchmarks.gpu", run_name="__main__")
"""


@pytest.mark.parametrize(
    ("check", "arguments"),
    [
        ("one", ["--rollouts", "local"]),
        (
            "g10",
            [
                "data.train_batch_size=4",
                "actor_rollout_ref.actor.ppo_mini_batch_size=4",
                "critic.ppo_mini_batch_size=4",
                "envs.frozenlake.train_size=8",
                "envs.frozenlake.val_size=1",
                "envs.frozenlake.test_size=6",
                "warm_start.steps=3",
                "trainer.total_training_steps=1",
            ],
        ),
    ],
)
def test_the_local_engine_is_checked_without_mlflow(check, arguments, tmp_path):
    command = [sys.executable, "-c", WITHOUT_MLFLOW, check, "--model", "qwen25vl-tiny", *TINY]
    command += ["--scratch", str(tmp_path), "--output", str(tmp_path), *arguments]
    subprocess.run(command, check=True)
    found = json.loads((tmp_path / f"gpu-{check}.json").read_text())
    assert found["passed"]
    if check == "g10":  # the tiny agent learns as on the CPU
        first, second = found["devices"].values()
        assert found["difference"] == 0
        assert first["success"] == second["success"], "the same seeds on the same device"
        assert first["agreement_at_the_end"]["rollout/logprob_difference_max"] < 1e-3


def test_a_part_that_is_too_large_to_travel_is_refused(tmp_path):
    repository, part = tmp_path / "checkout", tmp_path / "checkout" / ".gpu" / "vllm"
    subprocess.run(["git", "init", "--quiet", repository], check=True)
    part.mkdir(parents=True)
    (repository / ".gitignore").write_text(".gpu/\n")
    (repository / "code.py").write_bytes(bytes(1000))
    (part / "site.tar.xz").write_bytes(bytes(3000))
    assert check_sizes(repository, [part], 4006) == {"vllm": 4006}
    with pytest.raises(ValueError, match=r"vllm \(.* MiB over .* of a call: name more in UNUSED"):
        check_sizes(repository, [part], 4005)
