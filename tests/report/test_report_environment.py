"""`vagen env show`: what an environment is like, on the terminal and as a page."""

import base64
import json
import re
from pathlib import Path

import numpy as np
import pytest

from vagen import envs
from vagen.cli.main import main
from vagen.envs.frozenlake.env import FrozenLakeEnv
from vagen.envs.images import decode_png
from vagen.report.environment import portray, strip


class Marked(FrozenLakeEnv):
    """Its rules hold markup."""

    def _rules(self):
        return "Cross <script>alert(1)</script> the lake."


class Untrue(FrozenLakeEnv):
    """Its expert describes another state."""

    def expert_response(self):
        return super().expert_response().replace("above", "below")


def test_the_page_and_pictures_show_the_levels_of_the_seeds(tmp_path: Path, capsys) -> None:
    assert main(["env", "show", "FrozenLake", "--config", "size=5", "--to", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    env = envs.make("FrozenLake", {"size": 5})
    page = (tmp_path / "index.html").read_text()
    for seed in range(4):
        observation, info = env.reset(seed=seed)
        frame = decode_png((tmp_path / f"level-{seed}.png").read_bytes())
        assert np.array_equal(frame, observation["images"][0])
        assert base64.b64encode((tmp_path / f"level-{seed}.png").read_bytes()).decode() in page
        for claim in type(env).truth(info["state"], env.config):
            assert str(claim) in printed
    assert env.system_prompt().splitlines()[0] in printed
    assert not re.search(r'(src|href)="(?!data:)', page)


def test_the_strip_holds_the_experts_episode_to_its_success() -> None:
    portrait = portray("Sokoban", envs.make("Sokoban", {}))
    episode = portrait.expert
    assert episode is not None and episode.success
    sheet = strip(episode.observations)
    first, last = episode.observations[0]["images"][0], episode.observations[-1]["images"][0]
    assert np.array_equal(sheet[:, : first.shape[1]], first)
    assert np.array_equal(sheet[:, -last.shape[1] :], last)
    expert, random = portrait.successes
    assert expert.wins == expert.count > random.wins


def test_what_an_environment_writes_is_text_on_the_page(tmp_path: Path) -> None:
    assert main(["env", "show", f"{__name__}:Marked", "--to", str(tmp_path)]) == 0
    page = (tmp_path / "index.html").read_text()
    assert "<script" not in page and "&lt;script&gt;" in page


def test_a_broken_contract_is_shown_and_fails(tmp_path: Path, capsys) -> None:
    assert main(["env", "show", f"{__name__}:Untrue", "--to", str(tmp_path)]) == 2
    assert "the expert describes a state by" in (tmp_path / "index.html").read_text()
    captured = capsys.readouterr()
    assert "the expert describes" in captured.err and "keeps the contract" not in captured.out


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("Household", {}),
        (
            "Gymnasium",
            {
                "id": "CartPole-v1",
                "actions": {"left": 0, "right": 1},
                "prompt": "Keep the pole up.",
                "success": "return >= 5",
                "max_steps": 5,
                "render_mode": "text",  # pygame draws in one thread at a time
            },
        ),
    ],
)
def test_words_and_environments_without_an_expert(tmp_path: Path, name, options) -> None:
    file = tmp_path / "options.yaml"
    file.write_text(json.dumps(options))
    folder = tmp_path / "page"
    assert main(["env", "show", name, "--config", str(file), "--to", str(folder)]) == 0
    assert (folder / "expert.png").exists() is False
    assert "levels, in at most" in (folder / "index.html").read_text()
