"""`vf-eval` plays environments with a model behind an OpenAI-compatible server."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("verifiers", reason="make test-interop installs it")

from expert_server import expert_server, key
from uv import find_uv_bin

from vagen import envs
from vagen.envs.images import png_bytes
from vagen.rollout.demonstrations import user_content

ROOT = Path(__file__).parents[2]
LEVELS = 2


def vf_eval(folder: Path, base_url: str, *words: str) -> subprocess.CompletedProcess[str]:
    here, uv = Path(sys.executable).parent, Path(find_uv_bin()).parent
    path = f"{here}:{uv}:{os.environ['PATH']}"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PATH": path}
    command = [f"{here}/vf-eval", "vagen-verifiers", "-m", "expert", "--client.base-url", base_url]
    return subprocess.run(
        [*command, "--no-rich", "--no-push", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )


def test_the_expert_wins_every_level_and_sees_every_picture(tmp_path):
    with expert_server("FrozenLake", {"size": 3}, LEVELS) as server:
        done = vf_eval(
            tmp_path,
            server.base_url,
            *("--env.taskset.env-name", "FrozenLake", "--env.taskset.env-config", '{"size": 3}'),
            *("--env.taskset.levels", str(LEVELS)),
        )
    (file,) = tmp_path.rglob("traces.jsonl")
    episodes = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(episodes) == LEVELS, done.stdout + done.stderr
    for episode in episodes:
        (trace,) = episode["traces"]
        assert trace["errors"] == [] and trace["rewards"]["success"]["score"] == 1.0
        level = trace["task"]["data"]["level"]
        env = envs.make("FrozenLake", {"size": 3}, "test")
        seen, _ = env.reset(seed=level["seed"])
        total, turns, (system, *messages) = 0.0, 0, [node["message"] for node in trace["nodes"]]
        assert system["content"] == env.system_prompt()
        for user, assistant in zip(messages[::2], messages[1::2], strict=True):
            shown = user_content(seen["text"], [png_bytes(frame) for frame in seen["images"]])
            assert key(user["content"]) == key(shown)
            seen, reward, *_ = env.step(assistant["content"])
            total, turns = total + reward, turns + 1
        assert trace["metrics"] == {"return": pytest.approx(total), "turns": turns}


def test_an_environment_that_is_none_is_named(tmp_path):
    done = vf_eval(tmp_path, "http://127.0.0.1:9/v1", "--env.taskset.env-name", "FrozenPond")
    assert done.returncode and "did you mean 'FrozenLake'" in done.stdout + done.stderr
