"""Evaluations whose models are played by processes of their own, which share a store."""

import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from chat_server import ANSWER, ChatServer

from vagen.config import dump_yaml
from vagen.config.base import ConfigError
from vagen.config.infra import InfraConfig
from vagen.config.yaml_io import parse_yaml
from vagen.evaluation import Evaluated, evaluate, in_store, load_evaluation
from vagen.evaluation.in_store import evaluate_in_store, fetch_evaluation
from vagen.experiment.load import find_file
from vagen.storage import LocalStore, StoreAway
from vagen.tracking import open_client

MODELS = ("random", "hosted")


@pytest.fixture(autouse=True)
def tables(mlflow_tables: Path, tmp_path: Path) -> None:
    """What `play` records in."""
    shutil.copy(mlflow_tables, tmp_path / "mlflow.db")


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with ChatServer() as running:
        yield running


def text(server: ChatServer, **changed: object) -> str:
    options = {
        "environments": {"lake": "frozenlake-tiny"},
        "models": ["random", {"model": f"openai:m@{server.base_url}", "name": "hosted"}],
        "count": 4,
    }
    return dump_yaml(load_evaluation(options | changed))


def play(folder: Path, options: str, model: str, uri: str | None = None) -> Evaluated:
    mlflow = f"sqlite:///{folder}/mlflow.db"
    infra = dump_yaml(InfraConfig(output_dir=str(folder / "pods"), mlflow_tracking_uri=mlflow))
    shutil.rmtree(folder / "pods", ignore_errors=True)  # a pod finds nothing
    uri = uri or (folder / "store" / "night").as_uri()
    return evaluate_in_store(options, infra, uri, model)


@pytest.mark.slow
def test_the_table_is_that_of_one_process_and_nothing_is_asked_twice(
    server: ChatServer, tmp_path: Path
) -> None:
    options = text(server)
    here = InfraConfig(output_dir=str(tmp_path))
    whole = evaluate(load_evaluation(parse_yaml(options, "options")), here, tmp_path / "whole", str)
    asked = len(server.bodies)
    for model in MODELS:
        assert [line.model for line in play(tmp_path, options, model).lines] == [model]
    assert play(tmp_path, options, "").lines == whole.lines
    assert len(server.bodies) == 2 * asked
    # A task that is tried again, and one whose rows were lost, ask for nothing.
    play(tmp_path, options, "hosted")
    shutil.rmtree(tmp_path / "store" / "night" / "rows")
    for model in (*MODELS, ""):
        again = play(tmp_path, options, model)
    assert again.lines == whole.lines
    assert len(server.bodies) == 2 * asked
    uri, folder = (tmp_path / "store" / "night").as_uri(), tmp_path / "fetched"
    assert fetch_evaluation(uri, here, folder)
    assert not fetch_evaluation(uri + "-other", here, tmp_path / "none")
    found = evaluate(load_evaluation(folder / "evaluation.yaml"), here, folder, str)
    assert found.lines == whole.lines and len(server.bodies) == 2 * asked
    assert all((folder / line.report).is_file() for line in found.lines)


def _play(folder: Path, options: str) -> None:
    in_store.SECONDS = 0.02
    play(folder, options, "hosted")


@pytest.mark.slow
def test_a_killed_task_goes_on_from_the_answers_in_the_store(
    server: ChatServer, tmp_path: Path
) -> None:
    options = text(server, episodes=1)
    server.behaviour.delay = 0.1
    process = multiprocessing.get_context("spawn").Process(target=_play, args=(tmp_path, options))
    process.start()
    journal = tmp_path / "store" / "night" / "journals" / "hosted.jsonl"
    while not journal.is_file() or len(journal.read_bytes().splitlines()) < 3:
        assert process.is_alive()
        time.sleep(0.01)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    time.sleep(0.3)  # what was on its way to the server has been answered
    kept = len(journal.read_bytes().splitlines())
    before = len(server.answered)
    server.behaviour.delay = 0.0
    play(tmp_path, options, "hosted")
    assert len(server.answered) - before == len(set(server.answered)) - kept
    assert kept >= before - 2, "one was under way, one may not have been copied"


@pytest.mark.slow
def test_a_store_that_is_away_when_it_ends_costs_nothing(
    server: ChatServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise StoreAway("the store does not answer")

    monkeypatch.setattr(LocalStore, "write_file", away)
    with pytest.raises(StoreAway):
        play(tmp_path, text(server), "hosted")
    monkeypatch.undo()
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)  # the same pod, once more
    asked = len(server.bodies)
    assert asked
    (line,) = play(tmp_path, text(server), "hosted").lines
    assert line.episodes == 4 and len(server.bodies) == asked
    monkeypatch.undo()
    play(tmp_path, text(server), "hosted")
    assert len(server.bodies) == asked


@pytest.mark.slow
def test_budgets_are_shared_and_what_is_left_is_spent_on_the_table(
    server: ChatServer, tmp_path: Path
) -> None:
    other = {"model": f"openai:n@{server.base_url}", "name": "other"}
    models = [{"model": f"openai:m@{server.base_url}", "name": "hosted"}, other]
    limits = {"max_tokens": 6000, "endpoint": {"max_tokens": ANSWER}}
    options = text(server, models=models, count=16, episodes=1, **limits)

    def spent(found: Evaluated) -> int:
        return sum(line.tokens.total for line in found.lines if line.tokens)

    first = play(tmp_path, options, "hosted")
    assert first.stopped == "max_tokens = 3000"
    assert 1500 < spent(first) <= 3000
    table = play(tmp_path, options, "")  # the other's task has never come to play
    assert table.stopped == "max_tokens = 6000"
    assert 3000 < spent(table) <= 6000
    asked = len(server.bodies)
    play(tmp_path, options, "other")  # for it is spent what was its share
    assert len(server.bodies) == asked
    with pytest.raises(ConfigError, match="no model 'third'"):
        play(tmp_path, options, "third")


@pytest.mark.slow
def test_mlflow_has_each_row_once_however_often_the_table_is_made(
    server: ChatServer, tmp_path: Path
) -> None:
    client = open_client(f"sqlite:///{tmp_path}/mlflow.db")

    def runs(*models: str) -> list[str]:
        options = text(server, models=[*models], name="night")
        for model in (*models, ""):
            play(tmp_path, options, model)
        ids = [experiment.experiment_id for experiment in client.search_experiments()]
        return sorted(run.info.run_name or "" for run in client.search_runs(ids))

    once = ["evaluation: night", "random on lake"]
    assert runs("random") == once
    assert runs("random") == once
    assert runs("random", "blind") == sorted([*once, "blind on lake"])


@pytest.mark.slow
def test_what_an_interruption_has_left_of_a_fetched_evaluation_is_completed(
    server: ChatServer, tmp_path: Path
) -> None:
    options, here = text(server), InfraConfig(output_dir=str(tmp_path))
    for model in (*MODELS, ""):
        whole = play(tmp_path, options, model)
    uri, folder = (tmp_path / "store" / "night").as_uri(), tmp_path / "fetched"
    assert fetch_evaluation(uri, here, folder)
    shutil.rmtree(folder / "rows" / "lake" / "hosted")
    (folder / "evaluation.yaml").unlink()
    assert fetch_evaluation(uri, here, folder)
    asked = len(server.bodies)
    found = evaluate(load_evaluation(folder / "evaluation.yaml"), here, folder, str)
    assert found.lines == whole.lines and len(server.bodies) == asked


def test_pods_get_what_files_of_this_machine_say(server: ChatServer, tmp_path: Path) -> None:
    lake, prices = tmp_path / "lake.yaml", tmp_path / "prices.yaml"
    shutil.copy(find_file("frozenlake-tiny", "experiments"), lake)
    prices.write_text("version: mine\nmodels: {'openai:m': {input: 1.0, output: 2.0}}\n")
    environments = {"lake": {"experiment": str(lake), "overrides": ["rollout_manager.max_turns=2"]}}
    options = load_evaluation(
        parse_yaml(text(server, environments=environments, prices=str(prices)), "options")
    )
    sent = dump_yaml(in_store.for_pods(options, ()))
    for file in (lake, prices):
        file.unlink()
    (line,) = play(tmp_path, sent, "hosted").lines
    assert line.cost and line.cost > 0 and line.turns and line.turns <= 2
