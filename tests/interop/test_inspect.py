"""`inspect eval` plays environments with a model behind an OpenAI-compatible server."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("inspect_ai", reason="make test-interop installs it")

from expert_server import expert_server
from inspect_ai.log import read_eval_log

ROOT = Path(__file__).parents[2]


@pytest.fixture
def inspect_eval(tmp_path):
    """Runs the command where vagen is installed as `pip install --editable` does it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    folder = tmp_path / "vagen-9.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: vagen\nVersion: 9\n")
    (name, target), *_ = project["entry-points"]["inspect_ai"].items()
    (folder / "entry_points.txt").write_text(f"[inspect_ai]\n{name} = {target}\n")

    url = {"url": ROOT.as_uri(), "dir_info": {"editable": True}}
    (folder / "direct_url.json").write_text(json.dumps(url))

    def run(base_url: str, task: str, *words: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}", "LOCAL_API_KEY": "none"}
        model = ("--model", "openai-api/local/expert", "--model-base-url", base_url)
        shown = ("--display", "plain", "--log-dir", "logs")
        program = str(Path(sys.executable).with_name("inspect"))
        return subprocess.run(
            [program, "eval", task, *words, *model, *shown],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )

    return run


@pytest.mark.parametrize(
    ("env_name", "task", "words"),
    [
        ("FrozenLake", "vagen/frozenlake", ()),
        ("Sokoban", f"{ROOT}/vagen/interop/inspect_tasks.py@environment", ("env_name=Sokoban",)),
    ],
)
def test_the_expert_wins_and_the_log_shows_turns_and_score(
    inspect_eval, tmp_path, env_name, task, words
):
    config = {"reward_overrides": {"format": 0.25}}
    given = ("env_config={reward_overrides: {format: 0.25}}", "count=3", *words)
    with expert_server(env_name, config, 3) as server:
        done = inspect_eval(server.base_url, task, *(x for each in given for x in ("-T", each)))
    (file,) = (tmp_path / "logs").iterdir()
    log = read_eval_log(str(file))
    assert log.status == "success" and log.results, done.stdout + done.stderr
    means = {score.name: score.metrics["mean"].value for score in log.results.scores}
    assert means["success"] == 1.0
    for sample in log.samples:
        score = sample.scores["outcome"].value
        system, *messages = sample.messages
        assert system.role == "system" and score["turns"] == len(messages) / 2
        assert score["return"] > 0.25 * score["turns"]
        for user, assistant in zip(messages[::2], messages[1::2], strict=True):
            assert [part.type for part in user.content].count("image") == 1
            assert "<think>" in assistant.text and "<answer>" in assistant.text
    assert means["turns"] == sum(s.scores["outcome"].value["turns"] for s in log.samples) / 3


def test_an_option_that_is_none_is_named(inspect_eval):
    done = inspect_eval("http://127.0.0.1:9/v1", "vagen/frozenlake", "-T", "env_config={sise: 4}")
    assert done.returncode and "sise" in done.stdout + done.stderr
