"""`vagen serve` at work: what `vagen eval` plays over HTTP is what it plays with the weights."""

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import psutil
import pytest
from free_ports import free_ports
from warm_process import WarmProcess, preload

from vagen.cli.main import USER_ERROR, main
from vagen.envs import make
from vagen.experiment.load import load_experiment
from vagen.rollout.batch import TrajectoryBatch
from vagen.run.layout import EXPERIMENT
from vagen.serve.client import AgentClient, AgentError

pytestmark = pytest.mark.slow
preload()

GREEDY = "actor_rollout_ref.rollout.val_kwargs.temperature=0"
TOKEN = "0123456789abcdef"


@pytest.fixture(params=["tiny:text", "tiny:vl"])
def run(request, warm_runs) -> Path:
    return warm_runs[request.param].path


@contextmanager
def serving(run: Path, folder: Path, *more: str) -> Iterator[tuple[str, WarmProcess]]:
    words = ["serve", str(run), "--name", "it", "--port", "0", "infra.threads=1", *more]
    (folder / "commands.log").touch()
    process = WarmProcess(*words, cwd=folder, environment={"VAGEN_SERVE_TOKEN": TOKEN})
    try:
        while not (found := re.search(r"it at (http://\S+)\n", process.output)):
            assert process.poll() is None, process.output
            time.sleep(0.05)
        yield found[1], process
    finally:
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait() == -signal.SIGTERM, process.output


@pytest.fixture
def address(run: Path, tmp_path: Path) -> Iterator[str]:
    with serving(run, tmp_path) as (address, _):
        yield address


def test_the_answers_are_those_of_eval_with_the_weights(
    run: Path, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", TOKEN)
    spec = f"openai:it@{address}/v1"
    here, there = tmp_path / "here", tmp_path / "there"
    assert main(["eval", str(run), GREEDY, "--to", str(here)]) == 0
    asked = ["eval.endpoint.api_key_env=KEY", "--model", spec, "--to", str(there)]
    assert main(["eval", str(run), GREEDY, *asked]) == 0
    [row] = there.glob("rows/*/*")
    batches = [TrajectoryBatch.load(folder) for folder in (here, row)]
    own, served = (batch.trajectories for batch in batches)
    assert len(own) == len(served) == 6
    for one, other in zip(own, served, strict=True):
        assert (one.trajectory_id, one.level_hash) == (other.trajectory_id, other.level_hash)
        assert [t.response_text for t in one.turns] == [t.response_text for t in other.turns]
        assert [(t.parsed, t.rewards, t.length_cut, t.images) for t in one.turns] == [
            (t.parsed, t.rewards, t.length_cut, t.images) for t in other.turns
        ]
    assert any(len(t.turns) > 1 for t in own), "a context has earlier answers"
    assert len({t.turns[0].response_text for t in own}) > 1, "it sees the level"
    mine, theirs = (json.loads((folder / "results.json").read_text()) for folder in (here, row))
    for name in ("success", "ci95", "by_level", "levels"):
        assert mine[name] == theirs[name]
    numbers, over_http = (batch.metrics for batch in batches)
    assert numbers.items() - over_http.items() == {
        ("test/response_length", numbers["test/response_length"])
    }, "an evaluation over HTTP counts no tokens of single answers"
    # The prompts, too, are the same to the token.
    masks = [row.loss_mask for t in own for row in t.rows]
    begins = [i for mask in masks for i in range(1, len(mask)) if mask[i] and not mask[i - 1]]
    assert theirs["tokens"]["input"] == sum(begins)
    assert theirs["tokens"]["output"] == sum(int(mask.sum()) for mask in masks)
    assert theirs["tokens"]["cached"] > 0, "later turns continue the cache of earlier ones"
    # So does the agent, with the environment here.
    spec = load_experiment(run / EXPERIMENT, check=False).envs["game"]
    env = make(spec.env_name, spec.env_config, split="test")
    with AgentClient(address, "it", api_key=TOKEN) as agent:
        for t in own:
            observation, _ = env.reset(seed=t.seed)
            agent.reset(temperature=0)
            for i, turn in enumerate(t.turns, 1):
                said = agent.act(observation["text"], observation["images"])
                assert (said.turn, said.text) == (i, turn.response_text)
                assert (*said.actions,) == turn.parsed.actions
                assert (said.thought, said.format_correct) == (
                    turn.parsed.reasoning,
                    turn.parsed.format_correct,
                )
                observation, *_, info = env.step(said.text)
            assert info["success"] == t.success


def test_an_evaluation_gets_over_a_killed_server(warm_runs, tmp_path: Path) -> None:
    run, port = warm_runs["tiny:text"].path, free_ports(1)[0]
    more = [GREEDY, "envs.game.test_size=48"]
    here, there = tmp_path / "here", tmp_path / "there"
    assert main(["eval", str(run), *more, "--to", str(here)]) == 0
    (tmp_path / "commands.log").touch()

    def serve() -> WarmProcess:
        words = ["serve", str(run), "--name", "it", "--port", str(port), "infra.threads=1"]
        return WarmProcess(*words, cwd=tmp_path, environment={"VAGEN_SERVE_TOKEN": TOKEN})

    server = serve()
    spec = f"openai:it@http://127.0.0.1:{port}/v1"
    asked = ["eval.endpoint.api_key_env=KEY", "eval.endpoint.concurrency=2", "--model", spec]
    words = ["eval", str(run), *more, *asked, "--to", str(there)]
    asking = WarmProcess(*words, cwd=tmp_path, environment={"KEY": TOKEN})
    journal = there / "journal.jsonl"
    while not journal.exists() or journal.read_bytes().count(b"\n") < 4:
        assert asking.poll() is None, asking.output
        time.sleep(0.01)
    os.kill(server.pid, signal.SIGKILL)
    before = journal.read_bytes().count(b"\n")
    server.wait()
    server = serve()
    try:
        assert asking.wait() == 0, asking.output
    finally:
        os.kill(server.pid, signal.SIGTERM)
        server.wait()
    [row] = there.glob("rows/*/*")
    mine, theirs = (json.loads((folder / "results.json").read_text()) for folder in (here, row))
    assert mine["by_level"] == theirs["by_level"] and len(mine["by_level"]) == 48
    assert before < journal.read_bytes().count(b"\n"), "it was killed in the middle"


def test_several_workers_share_conversations_and_one_is_replaced(
    warm_runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = warm_runs["tiny:text"].path
    monkeypatch.setenv("KEY", TOKEN)
    here, there = tmp_path / "here", tmp_path / "there"
    assert main(["eval", str(run), GREEDY, "--to", str(here)]) == 0
    with serving(run, tmp_path, "--workers", "2") as (address, process):
        asked = ["--model", f"openai:it@{address}/v1", "--to", str(there)]
        assert main(["eval", str(run), GREEDY, "eval.endpoint.api_key_env=KEY", *asked]) == 0
        [row] = there.glob("rows/*/*")
        mine, theirs = (json.loads((at / "results.json").read_text()) for at in (here, row))
        assert mine["by_level"] == theirs["by_level"]
        assert theirs["tokens"]["cached"] > 0, "a conversation stays with its worker"

        def answered() -> dict[str, float]:
            text = httpx.get(f"{address}/metrics", timeout=60).text
            found = re.findall(r'serve_responses_total{status="200",worker="(.)"} (.*)', text)
            return {worker: float(number) for worker, number in found}

        assert set(answered()) == {"0", "1"}
        assert httpx.post(f"{address}/v1/agents/it/reset", json={}, timeout=60).status_code == 401
        with ExitStack() as stack:
            agents = [stack.enter_context(AgentClient(address, "it", TOKEN)) for _ in range(4)]
            for agent in agents:
                agent.reset(temperature=0)
            at = {agent.session[0]: agent for agent in agents}
            assert set(at) == {"0", "1"}
            [first, _] = psutil.Process(process.pid).children()
            first.kill()
            with pytest.raises(AgentError, match=r"503|404"):
                at["0"].act("Go.")
            at["0"].session = None
            assert at["1"].act("Go.").turn == 1
            assert set(answered()) == {"1"}
            while "0" not in answered():
                time.sleep(0.2)
            assert "worker 0 ended (-9)" in process.output
            while at["1"].session[0] == "1":
                at["1"].reset()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tiny:text"], "train one"),
        (["nowhere"], "there is no model 'nowhere'"),
        (["nowhere", "--vllm"], "vLLM is not installed"),
        (["frozenlake-tiny", "seed=1"], "infra.key=value"),
        (["tiny:text", "--host", "0.0.0.0"], "VAGEN_SERVE_TOKEN"),
        (["tiny:text", "--rows", "0"], "`rows` is 0"),
        (["models:/none@champion"], "models:/none@champion cannot be fetched"),
    ],
)
def test_what_cannot_be_served_is_said(words, said, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["serve", *words]) == USER_ERROR
    assert said in capsys.readouterr().err
