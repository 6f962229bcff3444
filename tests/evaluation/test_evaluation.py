"""Evaluations of hosted models against a real HTTP server, and what survives faults and kills."""

import base64
import io
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from chat_server import ANSWER, FORMS, PROMPT, ChatServer, digest_of
from markupsafe import escape
from PIL import Image

from vagen.cli.main import USER_ERROR, main
from vagen.clients import EndpointError
from vagen.config.base import ConfigError
from vagen.config.infra import InfraConfig
from vagen.envs import make
from vagen.evaluation import Evaluated, evaluate, load_evaluation, record
from vagen.evaluation.journal import JournalError
from vagen.experiment.load import load_experiment
from vagen.rollout.batch import TrajectoryBatch
from vagen.tracking import default_uri, open_client

LAKE = "frozenlake-tiny"
LEVELS = 4


def answers() -> tuple[str, ...]:
    """What an expert says on some level, so that the server's answers are moves."""
    spec = load_experiment(LAKE).envs["frozenlake"]
    env = make(spec.env_name, spec.env_config, "train")
    said = set()
    for seed in range(30):
        env.reset(seed=seed)
        said.add(env.expert_response())
    return tuple(sorted(said))


SAID = answers()


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with ChatServer(said=SAID) as running:
        yield running


def run(
    server: ChatServer, folder: Path, *, rerun_failed: bool = False, **changed: Any
) -> Evaluated:
    endpoint = {"timeout": 30, "backoff": 0.01, "retries": 12}
    options = {
        "environments": {"lake": LAKE},
        "models": [f"openai:m@{server.base_url}"],
        "count": LEVELS,
        **changed,
        "endpoint": endpoint | changed.get("endpoint", {}),
    }
    infra = InfraConfig(output_dir=str(folder.parent))
    return evaluate(load_evaluation(options), infra, folder, str, rerun_failed=rerun_failed)


def row_folder(folder: Path, name: str) -> Path:
    [found] = (folder / "rows" / "lake").glob(f"*{name}*")
    return found


def test_a_hosted_model_plays_the_same_levels_as_the_expert(
    server: ChatServer, tmp_path: Path
) -> None:
    spec = f"openai:m@{server.base_url}"
    found = run(server, tmp_path / "e", models=["expert", spec], attempts=2)
    expert, hosted = found.lines
    assert expert.success == 1.0 and expert.observation == 1.0 and expert.tokens is None
    assert hosted.episodes == 2 * LEVELS and hosted.format_correct == 1.0
    assert hosted.observation is not None and hosted.observation < 1.0
    assert hosted.against is not None and hosted.against.gain == hosted.success - 1.0
    assert hosted.against.levels == LEVELS
    low, high = hosted.ci95 or (0, 0)
    assert 0 <= low <= (hosted.success or 0) <= high <= 1
    assert [*hosted.pass_at] == ["1", "2"] and hosted.pass_at["2"] >= hosted.pass_at["1"]
    mine, its = (
        TrajectoryBatch.load(row_folder(tmp_path / "e", name)).trajectories
        for name in ("openai", "expert")
    )
    assert [t.level_hash for t in mine] == [t.level_hash for t in its]
    assert {t.turns[0].images[0] for t in mine} == {t.turns[0].images[0] for t in its}
    assert len(server.bodies) == sum(len(t.turns) for t in mine)
    assert hosted.tokens is not None and hosted.tokens.input == PROMPT * len(server.bodies)
    assert hosted.tokens.reasoning == 10 * len(server.bodies)
    longest = max(server.bodies, key=lambda body: len(body["messages"]))["messages"]
    roles = [message["role"] for message in longest]
    assert (
        roles[0] == "system" and set(roles[1::2]) == {"user"} and set(roles[2::2]) == {"assistant"}
    )
    assert longest[2]["content"] in SAID, "its own words, to the letter"
    [image] = [part for part in longest[1]["content"] if part["type"] == "image_url"]
    assert image["image_url"]["url"].startswith("data:image/png;base64,")


def test_faults_lose_nothing_and_nothing_is_paid_twice(server: ChatServer, tmp_path: Path) -> None:
    calm = run(server, tmp_path / "calm", count=16).lines
    server.bodies.clear()
    server.answered.clear()
    server.behaviour.fault_share = 0.2
    stormy = run(server, tmp_path / "stormy", count=16).lines
    assert len(server.endings) > 4, "faults of several kinds"
    assert stormy == calm
    assert len(server.answered) == len(set(server.answered)) < len(server.bodies)
    asked = len(server.bodies)
    server.behaviour.fault_share = 0.0
    assert run(server, tmp_path / "stormy", count=16).lines == stormy
    assert len(server.bodies) == asked, "all that was had is kept"


def test_what_an_endpoint_fails_in_does_not_count_and_can_be_asked_again(
    server: ChatServer, tmp_path: Path
) -> None:
    server.behaviour.fault_share, server.behaviour.faults = 0.3, ("server_error",)
    first = run(server, tmp_path / "e", endpoint={"retries": 0}).lines[0]
    assert 0 < first.failed <= LEVELS and first.failed + first.episodes == LEVELS
    again = run(server, tmp_path / "e", endpoint={"retries": 0}).lines[0]
    assert again == first, "without being told it asks for nothing again"
    server.behaviour.fault_share = 0.0
    paid = set(server.answered)
    before = len(server.answered)
    whole = run(server, tmp_path / "e", rerun_failed=True).lines[0]
    assert (whole.failed, whole.episodes) == (0, LEVELS)
    assert not paid & set(server.answered[before:])


def test_a_row_without_a_single_episode_is_no_failure_of_the_model(
    server: ChatServer, tmp_path: Path
) -> None:
    hosted = f"openai:m@{server.base_url}"
    nothing = run(server, tmp_path / "e", models=["expert", hosted], max_tokens=1)
    assert nothing.lines[1].success is None and nothing.lines[1].unplayed == LEVELS
    assert nothing.lines[1].against is None and nothing.stopped == "max_tokens = 1"
    assert not server.bodies
    server.behaviour.fault_share, server.behaviour.faults = 1.0, ("overloaded",)
    down = run(server, tmp_path / "e", models=["expert", hosted], endpoint={"retries": 0})
    assert down.lines[1].success is None and down.failed == LEVELS
    server.behaviour.fault_share = 0.0
    whole = run(server, tmp_path / "e", models=["expert", hosted], rerun_failed=True)
    assert whole.failed == 0 and whole.lines[1].episodes == LEVELS


@pytest.mark.parametrize("form", FORMS)
def test_an_answer_of_any_form_is_the_models_own(
    server: ChatServer, tmp_path: Path, form: str
) -> None:
    server.behaviour.form = form
    line = run(server, tmp_path / "e", count=2).lines[0]
    assert line.failed == 0 and line.episodes == 2
    told = {"refusal": "refusal", "empty": "empty", "tool_call": "tool_call", "filtered": "empty"}
    if form in told:
        assert line.forms == {told[form]: len(server.bodies)}
        assert line.format_correct == 0.0 and line.invalid == 1.0
        turn = TrajectoryBatch.load(row_folder(tmp_path / "e", "openai")).trajectories[0].turns[0]
        assert turn.response_text == ("I cannot help with that." if form == "refusal" else "")
    else:
        assert line.forms == {}
    lines = (tmp_path / "e" / "journal.jsonl").read_text().splitlines()
    assert {json.loads(line)["reply"]["reasoning"] for line in lines} == {
        "Let me see." if form == "reasoning" else ""
    }


@pytest.mark.parametrize(
    "usage",
    [
        None,
        "much",
        [1],
        {},
        {"prompt_tokens": None, "completion_tokens": "7", "prompt_tokens_details": "none"},
        {"prompt_tokens": -5, "completion_tokens": {"text": 3}, "prompt_tokens_details": [50]},
        {"prompt_tokens": "many", "completion_tokens": float("inf")},
        {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 90}},
    ],
)
def test_an_odd_usage_costs_no_answer(server: ChatServer, tmp_path: Path, usage: Any) -> None:
    server.behaviour.changed = {"usage": usage}
    prices = {"version": "x", "models": {"openai:m": {"input": 1.0, "output": 1.0}}}
    line = run(server, tmp_path / "e", count=1, prices=prices).lines[0]
    assert (line.failed, line.episodes) == (0, 1) and len(server.bodies) == line.turns
    assert line.tokens is not None and line.tokens.total >= 0 and (line.cost or 0.0) >= 0.0


QUOTA = {"message": "You exceeded your current quota. " + "x" * 300, "type": "insufficient_quota"}


@pytest.mark.parametrize(
    ("status", "content", "told"),
    [
        (402, {"error": {"message": "Insufficient credits"}}, "no credit left .*402 Insuf"),
        (429, {"error": QUOTA}, "no credit left .*429 insufficient_quota You exceeded"),
        (200, {"error": QUOTA}, "no credit left .*402 insufficient_quota You exceeded"),
        (200, {"error": {"code": 402, "message": "Add credits"}}, "no credit left .*Add credits"),
        (200, {"error": {"code": "invalid_api_key", "message": "bad"}}, "refuses the key"),
        (200, {"object": "error", "code": 404, "message": "no m"}, "does not serve 'm' .*no m"),
    ],
)
def test_what_no_request_can_pass_ends_the_evaluation(
    server: ChatServer, tmp_path: Path, status: int, content: Any, told: str
) -> None:
    server.behaviour.instead = status, content
    with pytest.raises(EndpointError, match=told):
        run(server, tmp_path / "e", episodes=1)
    assert len(server.bodies) == 1, "nothing is asked again"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"error": {"message": "model is warming up", "type": "odd"}}, "odd model is warming up"),
        ({"error": "no GPU left"}, "200 with an error: no GPU left"),
        ({"answer": "Left"}, 'no chat completion: {"answer": "Left"}'),
        ("plain", 'no chat completion: "plain"'),
    ],
)
def test_why_episodes_failed_stands_on_page_and_terminal(
    server: ChatServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    content: Any,
    reason: str,
) -> None:
    server.behaviour.instead = 200, content
    found = run(server, tmp_path / "e", count=1, endpoint={"retries": 0})
    assert found.lines[0].remark.startswith("1 episodes of openai:m@http")
    assert reason in found.lines[0].remark
    assert str(escape(reason)) in (tmp_path / "e" / "index.html").read_text()
    assert main(["eval", str(tmp_path / "e")]) == USER_ERROR
    printed = capsys.readouterr()
    assert reason in printed.out and "no episode counts of openai:m@" in printed.err


def test_an_address_where_nothing_answers_is_told_before_anything_is_played(
    server: ChatServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    monkeypatch.setattr("vagen.progress.note", notes.append)
    dead = "openai:x@http://127.0.0.1:9/v1"
    models = ["expert", {"model": dead, "name": "dead"}, f"openai:m@{server.base_url}"]
    found = run(server, tmp_path / "e", models=models)
    reason = "unreachable: http://127.0.0.1:9/v1, ConnectError"
    assert f"dead: {reason}" in notes[1] and notes[2] == "lake: expert"
    by_name = {line.model: line for line in found.lines}
    assert by_name["dead"].episodes == 0 and by_name["dead"].failed == LEVELS
    assert by_name["dead"].remark == f"{LEVELS} episodes of {dead} failed, {reason}"
    assert by_name["expert"].episodes == by_name[models[2]].episodes == LEVELS
    assert reason in (tmp_path / "e" / "index.html").read_text()
    assert dead not in (tmp_path / "e" / "journal.jsonl").read_text()


@pytest.mark.parametrize(
    ("cut", "form", "told"),
    [
        ("<think>", "text", "</think> without <think>: the server's chat template begins"),
        ("<think>.*</think>", "reasoning", "no <think>: the server removes its content"),
        ("<think>.*</think>", "text", "no <think>: the model does not write it, or the server"),
        ("nothing", "text", None),
    ],
)
def test_why_no_answer_has_the_layout_is_told(
    server: ChatServer, tmp_path: Path, cut: str, form: str, told: str | None
) -> None:
    server.behaviour.said = tuple(re.sub(cut, "", said, flags=re.DOTALL) for said in SAID)
    server.behaviour.form = form
    line = run(server, tmp_path / "e").lines[0]
    assert line.format_correct == (told is None)
    if told is None:
        assert line.remark == ""
    else:
        assert told in line.remark
        assert "envs.frozenlake.env_config.tags.think=thinking" in line.remark


def _play(url: str, folder: Path) -> None:
    server = ChatServer.__new__(ChatServer)
    server.base_url = url
    run(server, folder, attempts=2, episodes=3)


@pytest.mark.slow
def test_a_killed_evaluation_goes_on_and_gives_the_same_table(
    server: ChatServer, tmp_path: Path
) -> None:
    server.behaviour.delay = 0.01
    whole = run(server, tmp_path / "whole", attempts=2, episodes=3)
    requests = len(server.bodies)
    server.bodies.clear()
    rng, context = random.Random(1), multiprocessing.get_context("fork")
    journal, kills = tmp_path / "killed" / "journal.jsonl", 0
    for _ in range(6):
        before = len(server.bodies)
        known = _known(journal)
        process = context.Process(target=_play, args=(server.base_url, tmp_path / "killed"))
        process.start()
        wanted = before + rng.randrange(1, max(2, requests // 5))
        while len(server.bodies) < wanted and process.is_alive():
            time.sleep(0.002)
        if process.is_alive():
            os.kill(process.pid or 0, signal.SIGKILL)
            kills += 1
        process.join()
        assert not known & {digest_of(body) for body in server.bodies[before:]}
    assert kills >= 4
    with journal.open("a") as file:
        file.write('{"environment": "lake", "epis')  # as a kill may leave it
    known, before = _known(journal), len(server.bodies)
    again = run(server, tmp_path / "killed", attempts=2, episodes=3)
    assert not known & {digest_of(body) for body in server.bodies[before:]}
    assert again.tables == whole.tables
    assert len(server.bodies) <= requests + 3 * kills, "those in flight at each kill"


def _known(journal: Path) -> set[str]:
    if not journal.exists():
        return set()
    whole = journal.read_text().rpartition("\n")[0].splitlines()
    return {json.loads(line)["prompt"] for line in whole}


def test_two_rows_of_one_model_have_the_tokens_of_their_own_answers(
    server: ChatServer, tmp_path: Path
) -> None:
    spec = f"openai:m@{server.base_url}"
    models = [
        {"model": spec, "name": "first"},
        {"model": spec, "name": "again"},
        {"model": spec, "name": "colder", "endpoint": {"temperature": 0.5}},
    ]
    first, again, colder = run(server, tmp_path / "e", models=models).lines
    assert first.tokens is not None and colder.tokens is not None
    assert again.tokens == first.tokens
    paid = first.tokens.input + colder.tokens.input
    assert paid == PROMPT * len(server.bodies), "what is asked twice is paid once"


@pytest.mark.slow
def test_mlflow_has_a_run_for_each_row_and_the_levels_that_it_played(
    server: ChatServer, tmp_path: Path, mlflow_tables: Path
) -> None:
    spec = f"openai:m@{server.base_url}"
    options = {"environments": {"lake": LAKE}, "models": ["expert", spec], "count": 2}
    shutil.copy(mlflow_tables, tmp_path)
    infra = InfraConfig(output_dir=str(tmp_path))
    client = open_client(default_uri(tmp_path))

    def recorded(**changed: Any) -> dict[str, Any]:
        asked = load_evaluation({**options, **changed})
        found = evaluate(asked, infra, tmp_path / "e", str)
        record(found, asked, infra)
        [project] = {row.config.trainer.project_name for row in found.rows}
        experiment = client.get_experiment_by_name(project)
        assert experiment is not None
        return {run.info.run_id: run for run in client.search_runs([experiment.experiment_id])}

    runs = recorded()
    [parent] = [run for run in runs.values() if "mlflow.parentRunId" not in run.data.tags]
    assert {file.path for file in client.list_artifacts(parent.info.run_id)} == {
        "index.html",
        "table.json",
    }
    rows = {run.data.params["model"]: run for run in runs.values() if run is not parent}
    assert {run.data.tags["mlflow.parentRunId"] for run in rows.values()} == {parent.info.run_id}
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    assert rows["expert"].data.metrics["test/success"] == 1.0
    assert rows[spec].data.metrics["evaluation/input_tokens"] == PROMPT * len(server.bodies)
    assert client.search_traces(locations=[parent.info.experiment_id])
    levels = {run.inputs.dataset_inputs[0].dataset.digest for run in rows.values()}
    assert len(levels) == 1

    assert recorded().keys() == runs.keys(), "what is recorded is not recorded again"
    cut = next((tmp_path / "e" / "mlflow").rglob("done"))
    cut.unlink()
    assert recorded().keys() == runs.keys(), "what a kill has cut off goes on in its run"
    more = recorded(count=3)
    assert len(more) == len(runs) + 2
    inputs = [run.inputs.dataset_inputs for run in more.values()]
    assert len({levels[0].dataset.digest for levels in inputs if levels}) == 2
    twice = recorded(models=["expert"], matrix={"endpoint.detail": ["low", "high"]})
    assert len(twice) == len(more) + 2, "the same episodes in two environments are two rows"


def test_costs_stop_cleanly_and_more_money_goes_on(server: ChatServer, tmp_path: Path) -> None:
    prices = tmp_path / "prices.yaml"
    price = {"input": 1000.0, "output": 5000.0, "cached_input": 100.0}
    prices.write_text(yaml.safe_dump({"version": "today", "models": {"openai:m": price}}))
    each = (1000 * (PROMPT - 50) + 100 * 50 + 5000 * ANSWER) / 1e6
    options = {"prices": str(prices), "episodes": 2, "endpoint": {"max_tokens": ANSWER}}
    cut = run(server, tmp_path / "e", max_cost=6 * each, **options)
    line = cut.lines[0]
    assert line.unplayed > 0 and line.failed == 0 and cut.stopped.startswith("max_cost")
    assert line.cost == pytest.approx(each * len(server.bodies))
    assert 2 * each < line.cost <= 6 * each
    whole = run(server, tmp_path / "e", max_cost=1000, **options).lines[0]
    assert whole.unplayed == 0 and whole.episodes == LEVELS
    assert len(server.bodies) == len(set(map(digest_of, server.bodies)))
    assert whole.cost == pytest.approx(each * len(server.bodies))
    solved = round((whole.success or 0) * LEVELS)
    if solved:
        assert whole.cost_per_solved == pytest.approx((whole.cost or 0) / solved)
    tokens = run(server, tmp_path / "t", max_tokens=3000, **options).lines[0]
    assert tokens.unplayed > 0 and tokens.tokens is not None
    assert 3000 / 2 < tokens.tokens.total <= 3000


def test_a_matrix_of_prompts_and_a_mixture_of_options(server: ChatServer, tmp_path: Path) -> None:
    found = run(
        server,
        tmp_path / "e",
        count=1,
        matrix={"envs.*.env_config.prompt_format": ["free_think", "grounding_worldmodeling"]},
        models=[
            {"model": f"openai:m@{server.base_url}", "name": "small"},
            {
                "model": f"openai:m@{server.base_url}",
                "name": "large <i>&_",
                "endpoint": {"image_scale": 2, "detail": "low", "omit": ["seed", "temperature"]},
            },
        ],
    )
    assert [*found.tables] == [
        "lake prompt_format=free_think",
        "lake prompt_format=grounding_worldmodeling",
    ]
    assert {row["model"] for rows in found.tables.values() for row in rows} == {
        "small",
        "large <i>&_",
    }
    plain = [body for body in server.bodies if "seed" in body]
    other = [body for body in server.bodies if "seed" not in body]
    assert plain and other and all("temperature" not in body for body in other)
    small, large = (_first_image(body) for body in (plain[0], other[0]))
    assert "detail" not in small and large["detail"] == "low"
    for name in ("index.html", "table.csv", "table.md", "table.tex", "table.json"):
        assert "small" in (tmp_path / "e" / name).read_text()
    assert "large &lt;i&gt;&amp;_" in (tmp_path / "e" / "index.html").read_text()
    assert r"large <i>\&\_" in (tmp_path / "e" / "table.tex").read_text()


def test_a_matrix_of_pictures(server: ChatServer, tmp_path: Path) -> None:
    matrix = {
        "envs.*.env_config.tags.answer": ["answer", "action"],
        "endpoint.image_scale": [1, 2],
        "endpoint.detail": ["low"],
    }
    full = ["envs.frozenlake.env_config.prompt_detail=full"]
    lake = {"lake": {"experiment": LAKE, "overrides": full}}
    found = run(server, tmp_path / "e", count=1, environments=lake, matrix=matrix)
    assert [*found.tables] == [
        f"lake answer={tag} image_scale={scale} detail=low"
        for tag in ("answer", "action")
        for scale in (1, 2)
    ]
    sent = [_first_image(body) for body in server.bodies]
    assert {image["detail"] for image in sent} == {"low"}
    sizes = {_size(image["url"]) for image in sent}
    assert len(sizes) == 2 and max(sizes)[0] == 2 * min(sizes)[0]
    prompts = {body["messages"][0]["content"] for body in server.bodies}
    assert sum("<action>" in prompt for prompt in prompts) == 1 == len(prompts) - 1
    with pytest.raises(ConfigError, match="image_scal"):
        run(server, tmp_path / "f", count=1, matrix={"endpoint.image_scal": [1]})
    with pytest.raises(ConfigError, match="context = concat has no window"):
        run(server, tmp_path / "f", count=1, matrix={"rollout_manager.window_size": [1, 2]})


def _size(url: str) -> tuple[int, int]:
    png = base64.b64decode(url.partition("base64,")[2])
    return Image.open(io.BytesIO(png)).size


def _first_image(body: dict[str, Any]) -> dict[str, str]:
    return next(
        part["image_url"]
        for message in body["messages"]
        if isinstance(message["content"], list)
        for part in message["content"]
        if part["type"] == "image_url"
    )


def test_a_model_plays_the_environments_that_it_names(server: ChatServer, tmp_path: Path) -> None:
    found = run(
        server,
        tmp_path / "e",
        environments={"lake": LAKE, "cards": "blackjack-tiny"},
        models=[
            {"model": "expert", "environments": ["lake"]},
            "random",
            {"model": f"openai:m@{server.base_url}", "name": "own", "environments": ["lake"]},
            {"model": "blind", "name": "own", "environments": ["cards"]},
        ],
    )
    played = sorted((line.environment, line.model, line.spec[:6]) for line in found.lines)
    assert played == [
        ("cards", "own", "blind"),
        ("cards", "random", "random"),
        ("lake", "expert", "expert"),
        ("lake", "own", "openai"),
        ("lake", "random", "random"),
    ]
    compared = {(line.environment, line.model) for line in found.lines if line.against}
    assert compared == {("lake", "own"), ("lake", "random")}, "with the first, where it plays"


def test_limits_of_requests_are_kept(server: ChatServer, tmp_path: Path) -> None:
    server.behaviour.delay = 0.02
    run(server, tmp_path / "e", count=8, endpoint={"concurrency": 3})
    assert server.most_at_once == 3


def test_mistakes_are_told_before_anything_is_asked(
    server: ChatServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    hosted = f"openai:m@{server.base_url}"
    for changed, message in (
        ({"models": ["opena:m"]}, "did you mean `openai`"),
        ({"models": ["openai:"]}, "has no name: write openai:MODEL"),
        ({"models": ["openai:gpt"]}, "the environment variable OPENAI_API_KEY is not set"),
        ({"models": ["random", "random"]}, "two models are called random"),
        ({"baseline": "exprt", "models": ["expert"]}, "did you mean `expert`"),
        ({"models": [{"model": "blind", "environments": ["lke"]}]}, "did you mean `lake`"),
        ({"max_cost": 1.0}, "`max_cost` needs a price of openai:m"),
        ({"models": [{"model": hosted, "endpoint": {"tempreature": 1}}]}, "temperature"),
        ({"environments": {"lake": "frozen"}}, "unknown experiment `frozen`"),
        (
            {
                "environments": {
                    "lake": {"experiment": LAKE, "overrides": ["rollout_manager.thinking_budget=4"]}
                }
            },
            "lake: `rollout_manager.thinking_budget` cannot be kept with openai:m@",
        ),
    ):
        with pytest.raises((ConfigError, EndpointError), match=message.replace("(", r"\(")):
            run(server, tmp_path / "e", **changed)
    assert not server.bodies
    server.behaviour.key = "secret"
    with pytest.raises(EndpointError, match="refuses the key"):
        run(server, tmp_path / "e")
    monkeypatch.setenv("MY_KEY", "secret")
    assert run(server, tmp_path / "e", endpoint={"api_key_env": "MY_KEY"}).failed == 0
    text = "".join(p.read_text() for p in (tmp_path / "e").glob("*.*"))
    assert "secret" not in text


@pytest.mark.slow
def test_what_fails_here_fails_before_anything_is_asked(
    server: ChatServer, tmp_path: Path, vl_dir: Path
) -> None:
    full = {"experiment": LAKE, "overrides": ["envs.frozenlake.env_config.prompt_detail=full"]}
    models = [f"openai:m@{server.base_url}", str(vl_dir)]
    with pytest.raises(ValueError, match="the first prompt of FrozenLake takes"):
        run(server, tmp_path / "e", environments={"lake": full}, models=models)
    assert not server.bodies


def test_one_process_at_a_time(server: ChatServer, tmp_path: Path) -> None:
    from vagen.evaluation.journal import Journal

    held = Journal(tmp_path / "e" / "journal.jsonl")
    with pytest.raises(JournalError, match="another process makes this evaluation"):
        run(server, tmp_path / "e")
    held.close()
    (tmp_path / "e" / "journal.jsonl").write_text("nonsense\n")
    with pytest.raises(JournalError, match="line 1"):
        run(server, tmp_path / "e")
