"""The GPU checks on this machine's CPU with models of half a million weights.

Each runs as its command does. What needs a GPU to be so (kernels, speed) is not asked for here.
"""

import importlib.util
import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
from warm_process import WarmProcess, preload

from vagen.engines.verl.env_vars import is_installed
from vagen.metrics import PROBABILITY_CORRELATION, RATIO_MEAN

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


def test_g3_rollouts_agree_with_the_trainer(run):
    found = run("g3", "--rollouts", "local,vllm")  # torch: before the updates of g4
    assert found["passed"]
    assert set(found["rollouts"]) >= {"local, all weights"}
    assert ("vllm" in found["absent"]) is (importlib.util.find_spec("vllm") is None)
    for figures in found["rollouts"].values():
        assert figures[PROBABILITY_CORRELATION] >= 0.995
        assert abs(figures[RATIO_MEAN] - 1) < 0.02
        assert 3 * 2 <= figures["sampled"] <= 3 * 2 * 12


def test_g4_no_cache_outlives_the_weights(run):
    found = run("g4", "--rollouts", "torch")
    assert found["passed"] and len(found["rollouts"]) == 2
    for figures in found["rollouts"].values():
        assert min(figures["moved"]) >= 0.02
        for stage in figures["stages"].values():
            assert stage[PROBABILITY_CORRELATION] >= 0.995


def test_g5_peaks_beside_the_plan(run):
    # Memory is that of the check's own processes: neither a cluster's nor forks, which share it.
    found = run("g5", "--rollouts", "torch", cluster="verl.ray_address=null", WARM_RAY="")
    for phase in ("rollout", "update"):
        assert found["planned_gib"][phase] > 2 and found["measured_gib"][phase] > 2
    ratios = found["measured_over_planned"].values()
    assert found["passed"] is all(0.75 <= ratio <= 1.25 for ratio in ratios)
    assert found["step"]["rollout"] == "torch"
    phases_took_time(found["step"]["phases"], "rollout")


def test_g6_a_step_of_each_context(run):
    found = run("g6", "--rollouts", "none")
    concat, no_concat = (found["steps"][name] for name in ("concat", "no_concat"))
    names = ("logprobs", "reference", "values", "critic update", "update")
    for step in (concat, no_concat):
        phases_took_time(step["phases"], *names)
        assert step["rollout"] == "none" and step["mfu"] is None
        assert step["step_seconds"] == pytest.approx(
            sum(value for name, value in step["seconds"].items() if name != "update"), abs=0.01
        )
        assert all(speed > 0 for speed in step["tokens_per_second"].values())
        assert step["petaflop"]["actor update"] == pytest.approx(3 * step["petaflop"]["logprobs"])
    assert (concat["rows"], no_concat["rows"]) == (3, 6)
    assert no_concat["tokens"] > concat["tokens"], "every row has the prompt again"


def test_g7_ours_and_verls_own_on_the_same_rows(run, ray_workers, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(ray_workers / "python"))  # of its two commands
    found = run("g7")
    for name in ("ours", "verl"):
        phases_took_time(found[name]["phases"], "logprobs", "update")
        assert 0 < found[name]["grad_norm"] < 1000
    ratios = found["ours_over_verl"]
    assert found["passed"] is (max(ratios.values()) <= 1.1)


def test_g8_servers_have_the_weights_after_sleep(run):
    found = run("g8", "--rollouts", "torch")
    assert found["passed"] and set(found["rollouts"]) == {"torch, all weights", "torch, adapters"}
    for figures in found["rollouts"].values():
        phases_took_time(figures["phases"], "sleep", "wake and synchronise")
        assert figures["gb_per_second"] > 0


def test_g9_a_checkpoint_says_the_same_when_read(run):
    found = run("g9")
    assert found["passed"] and found["difference_after_reading"]["max"] == 0
    # Policy in float32, and of actor and critic weights and both moments.
    weights = 4 * 420_064
    assert 7 * weights < found["gb"] * 1e9 < 8 * weights
    assert set(found["gb_per_second"]) >= {"copy", "write and hash", "read"}


def test_g10_the_tiny_agent_learns_as_on_the_cpu(run):
    found = run(
        "g10",
        "data.train_batch_size=4",
        "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        "critic.ppo_mini_batch_size=4",
        "envs.frozenlake.train_size=8",
        "envs.frozenlake.val_size=1",
        "envs.frozenlake.test_size=6",
        "warm_start.steps=3",
        "trainer.total_training_steps=1",
    )
    first, second = found["devices"].values()
    assert found["passed"] and found["difference"] == 0
    assert first["success"] == second["success"], "the same seeds on the same device"
    assert first["agreement_at_the_end"]["rollout/logprob_difference_max"] < 1e-3
