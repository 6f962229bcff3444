"""A training on an environment of OpenEnv, on a server or in the process: what its rows hold."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("openenv", reason="make test-interop installs it")

from walk import Walk, WalkEnvironment

from vagen import envs
from vagen.cli.main import main
from vagen.envs.images import png_bytes
from vagen.rollout.batch import TrajectoryBatch
from vagen.rollout.demonstrations import user_content
from vagen.run.run import Run

HERE = Path(__file__).parent
STEPS = {"left": -1, "right": 1}
ENV = {
    "module": "walk:WalkEnvironment",
    "kwargs": {"limit": 2},
    "actions": {name: {"steps": steps} for name, steps in STEPS.items()},
    "prompt": "Walk to the mark: left or right.",
    "pictures": ["view.png"],
    "text": "{view.png} Where to?",
    "success": "terminated and info.found",
    "prompt_format": "no_think",
    "prompt_detail": "brief",
    "max_steps": 3,
}


@pytest.fixture(params=["module", "url"])
def env_config(request) -> Iterator[dict[str, Any]]:
    if request.param == "module":
        yield ENV
        return
    code = "import uvicorn, walk; uvicorn.run(walk.app(64, limit=2), port=0)"
    command = [sys.executable, "-c", code]
    environment = os.environ | {"PYTHONPATH": str(HERE.parents[1])}
    with subprocess.Popen(
        command, cwd=HERE, env=environment, stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stderr
        said = ""
        while not (at := re.search(r"http://[\d.]+:\d+", said)):
            said += (line := server.stderr.readline())
            assert line, said
        shared = {key: value for key, value in ENV.items() if key not in ("module", "kwargs")}
        yield {**shared, "url": at[0]}
        server.terminate()


def conversations(file: Path) -> None:
    """One answer each, of both directions: enough to speak the format."""
    env = envs.make("OpenEnv", ENV)
    with file.open("w") as lines:
        for seed in range(16):
            shown, _ = env.reset(seed=seed)
            frames = [png_bytes(frame) for frame in shown["images"]]
            said = f"<answer>{('left', 'right')[seed % 2]}</answer>"
            messages = [
                {"role": "system", "content": env.system_prompt()},
                {"role": "user", "content": user_content(shown["text"], frames)},
                {"role": "assistant", "content": said},
            ]
            lines.write(json.dumps({"messages": messages}) + "\n")
    env.close()


def expected(seed: int, words: list[str]) -> tuple[list[float], bool, bool]:
    """Rewards and the end of an episode, by the environment itself."""
    env = WalkEnvironment(limit=2)
    env.reset(seed=seed)
    seen = [env.step(Walk(steps=STEPS[word])) for word in words]
    cut = bool(seen) and seen[-1].metadata["truncated"]
    return [each.reward or 0.0 for each in seen], bool(seen) and seen[-1].done and not cut, cut


@pytest.mark.slow
def test_rewards_and_ends_in_the_rows_are_those_of_the_environment(
    env_config, tmp_path, make_outputs
):
    conversations(tmp_path / "chats.jsonl")
    split_sizes = {f"{split}_size": 8 for split in envs.SPLITS}
    experiment = {
        "name": "walk",
        "preset": "vagen_base",
        "envs": {"walk": {"env_name": "OpenEnv", "env_config": env_config, **split_sizes}},
        "data": {"train_batch_size": 8, "max_prompt_length": 128, "max_response_length": 24},
        "rollout_manager": {"max_turns": 3},
        "actor_rollout_ref": {"model": {"path": "tiny:vl"}, "actor": {"ppo_mini_batch_size": 8}},
        "critic": {"ppo_mini_batch_size": 8},
        "warm_start": {
            "data": str(tmp_path / "chats.jsonl"),
            "steps": 40,
            "batch_size": 8,
            "lr": 2e-3,
            "random_moves": 0,
        },
        "trainer": {"total_training_steps": 2, "test_freq": 2},
    }
    (tmp_path / "walk.yaml").write_text(yaml.safe_dump(experiment))
    outputs = make_outputs()
    words = ["run", str(tmp_path / "walk.yaml"), "--name", "walk", f"infra.output_dir={outputs}"]
    assert main([*words, "infra.device=cpu", "infra.threads=1"]) == 0
    run: Any = Run.open(outputs / "walk")
    played = [
        trajectory
        for iteration in range(2)
        for trajectory in TrajectoryBatch.load(run.step(iteration, "advantage")).trajectories
    ]
    adapter: Any = envs.get_environment("OpenEnv").load()
    config = adapter.config_class.model_validate(env_config)
    ends = set()
    for each in played:
        assert each.status == "ok" and each.error is None
        level = adapter.sample_level(config, each.seed, "train")
        answers = [turn.parsed.actions for turn in each.turns]
        rewards, won, cut = expected(level.seed, [word for words in answers for word in words])
        paid = [turn.rewards.env for turn, words in zip(each.turns, answers, strict=True) if words]
        assert paid == rewards and each.success == won == each.terminated
        assert each.truncated is not won
        assert each.score == pytest.approx(sum(rewards) + sum(t.rewards.format for t in each.turns))
        total = sum(row.columns["rewards"].sum() for row in each.rows if row.columns)
        assert total == pytest.approx(each.score, abs=0.01)  # less a small KL penalty
        ends.add((won, cut))
    assert {(True, False), (False, True)} <= ends
