"""Evaluations against true servers with tiny models: `transformers serve`, and vLLM on a CPU.

Where the server is greedy, its answers and tokens are those of the engine here, for the same model.
vLLM, and pictures in `transformers serve`, have an environment of their own: `make test-vllm`.
"""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from free_ports import free_ports
from small_experiment import experiment_tree
from warm_process import WarmProcess, preload

from vagen.evaluation.evaluate import TABLE
from vagen.rollout.batch import TrajectoryBatch

pytestmark = pytest.mark.slow
preload()

GREEDY = "actor_rollout_ref.rollout.val_kwargs.temperature=0"
SITE = Path(__file__).parents[2] / "vagen/engines/verl/site"
NEEDS = {"transformers": ("fastapi", "uvicorn", "openai", "accelerate"), "vllm": ("vllm",)}
CASES = [(kind, model) for kind in NEEDS for model in ("tiny:text", "tiny:vl")]


class Server:
    """A server of a model, at a port that stays when it is killed and begun again."""

    def __init__(self, kind: str, model: Path, log: Path) -> None:
        [port] = free_ports(1)
        self.url, self.log = f"http://127.0.0.1:{port}", log
        self._command = [sys.executable, "-m", *_words(kind, model), "--port", str(port)]
        self.spec = f"openai:{model}@{self.url}/v1"

    def start(self) -> None:
        offline = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
        path = os.pathsep.join([str(SITE), str(SITE.parents[3]), os.environ.get("PYTHONPATH", "")])
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env={**os.environ, **offline, "PYTHONPATH": path},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait(self) -> None:
        """Until it answers."""
        end = time.monotonic() + 300
        while time.monotonic() < end and self._process.poll() is None:
            try:
                with urllib.request.urlopen(f"{self.url}/health"):
                    return
            except OSError:
                time.sleep(0.1)
        raise AssertionError(self.log.read_text()[-3000:])

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    @property
    def answered(self) -> int:
        """Requests that it has answered, by its own log."""
        return self.log.read_text().count('"POST /v1/chat/completions HTTP/1.1" 200')


def _words(kind: str, model: Path) -> list[str]:
    if kind == "transformers":
        return ["transformers.cli.transformers", "serve", str(model), "--device", "cpu"]
    more = '--enforce-eager --limit-mm-per-prompt \'{"image": 4, "video": 0}\''
    own = ["--name", str(model), "--context", "512", "infra.dtype=float32"]
    return ["vagen.cli.main", "serve", str(model), "--vllm", more, *own]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join(case))
def case(request: pytest.FixtureRequest) -> tuple[str, str]:
    kind, model = request.param
    needed = [*NEEDS[kind], *(["torchvision"] if model == "tiny:vl" else [])]
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed: `make test-vllm` has all that is needed")
    return kind, model


@pytest.fixture(scope="module")
def server(case, warm_runs, tmp_path_factory) -> Iterator[Server]:
    kind, model = case
    log = tmp_path_factory.mktemp("server") / "server.log"
    running = Server(kind, warm_runs[model].warm_start / "policy", log)
    running.start()
    try:
        running.wait()
        yield running
    finally:
        running.kill()


Command = Callable[..., WarmProcess]


@pytest.fixture
def command(case, tmp_path: Path) -> Command:
    """Begins `vagen eval` on six levels, greedy."""
    (tmp_path / "lake.yaml").write_text(yaml.safe_dump(experiment_tree(case[1])))
    return lambda *words: WarmProcess("eval", *words, cwd=tmp_path)


def lines(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / TABLE).read_text())["lines"]


def journal(folder: Path) -> list[dict[str, Any]]:
    file = folder / "journal.jsonl"
    whole = file.read_text().rpartition("\n")[0] if file.exists() else ""
    return [json.loads(line) for line in whole.splitlines()]


def test_greedy_answers_and_tokens_are_those_of_the_engine(
    case, server: Server, command: Command, warm_runs, tmp_path: Path
) -> None:
    policy = warm_runs[case[1]].warm_start / "policy"
    models = ("--model", server.spec, "--model", str(policy))
    process = command("lake.yaml", *models, "--to", "e", GREEDY)
    assert process.wait() == 0, process.output
    folders = sorted(
        (tmp_path / "e" / "rows").glob("*/*"), key=lambda path: "openai" not in path.name
    )
    served, here = (TrajectoryBatch.load(path).trajectories for path in folders)
    assert [one.trajectory_id for one in served] == [f"test-game-{i}" for i in range(6)]
    for one, other in zip(served, here, strict=True):
        assert [t.response_text for t in one.turns] == [t.response_text for t in other.turns]
        assert (one.success, one.level_hash) == (other.success, other.level_hash)
    assert len({one.turns[0].response_text for one in served}) > 1, "it sees the level"
    told = [entry["reply"]["tokens"] for entry in journal(tmp_path / "e")]
    masks = [row.loss_mask for one in here for row in one.rows]
    assert sum(reply["output"] for reply in told) == sum(int(mask.sum()) for mask in masks)
    # A turn's prompt ends where its answer begins.
    begins = [i for mask in masks for i in range(1, len(mask)) if mask[i] and not mask[i - 1]]
    assert sum(reply["input"] for reply in told) == sum(begins)
    [line] = [line for line in lines(tmp_path / "e") if line["model"] == server.spec]
    assert line["tokens"]["input"] == sum(begins) and line["failed"] == 0
    warm = command("lake.yaml", "--model", server.spec, "--to", "w", "eval.endpoint.temperature=1")
    assert warm.wait() == 0, warm.output
    said = [[entry["reply"]["text"] for entry in journal(tmp_path / name)] for name in "ew"]
    assert sorted(said[0]) != sorted(said[1]), "it samples"


def test_a_kill_of_either_side_loses_nothing_and_asks_nothing_twice(
    server: Server, command: Command, tmp_path: Path
) -> None:
    words = ("lake.yaml", "--model", server.spec, "--attempts", "4", GREEDY)
    words += ("eval.episodes=2", "eval.endpoint.retries=100", "eval.endpoint.backoff=0.02")
    assert command(*words, "--to", "whole").wait() == 0
    before, turns = server.answered, len(journal(tmp_path / "whole"))
    killed = tmp_path / "killed"
    first = after(command(*words, "--to", "killed"), killed, turns // 4)
    os.killpg(first.pid, signal.SIGKILL)
    evaluation = after(command("killed"), killed, turns // 2)
    server.kill()
    time.sleep(2)
    assert evaluation.poll() is None, evaluation.output
    server.start()
    server.wait()
    assert evaluation.wait() == 0, evaluation.output
    assert lines(killed) == lines(tmp_path / "whole")
    answers = [(entry["episode"], entry["turn"]) for entry in journal(killed)]
    assert len(answers) == len(set(answers)) == turns
    assert turns <= server.answered - before <= turns + 4, "those under way at the two kills"


def after(evaluation: WarmProcess, folder: Path, answers: int) -> WarmProcess:
    """The evaluation, at work, once it has so many answers."""
    while len(journal(folder)) < answers and evaluation.poll() is None:
        time.sleep(0.005)
    assert evaluation.poll() is None, evaluation.output
    return evaluation
