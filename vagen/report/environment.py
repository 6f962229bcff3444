"""Portrait of an environment: prompt, some levels, an expert's episode, success of chance.

Everything that an environment wrote is set as text only, and the page loads nothing.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vagen.envs import ContractError
from vagen.envs.base import AgentEnv, Observation, State
from vagen.envs.check_form import FormEpisode, play, reset
from vagen.envs.images import png_bytes, png_url
from vagen.report.viewer import render
from vagen.rollout.scripted import play_scripted
from vagen.rollout.types import Trajectory
from vagen.storage import write_text
from vagen.tracking.stats import success_ci95

LEVELS = 4
"""Levels that are shown."""
EPISODES = 48
"""Levels that the expert and chance play."""
_GAP = 6


@dataclass(frozen=True, slots=True)
class LevelPreview:
    """How an episode begins."""

    seed: int
    shown: Observation
    truth: str


@dataclass(frozen=True, slots=True)
class Success:
    """How many of `count` levels a policy wins in at most `turns`, with a 95 % interval."""

    policy: str
    wins: int
    count: int
    turns: int

    @property
    def ci95(self) -> tuple[float, float]:
        """Low and high."""
        return success_ci95([1.0] * self.wins + [0.0] * (self.count - self.wins))

    def __str__(self) -> str:
        low, high = self.ci95
        rate = self.wins / self.count
        return (
            f"{self.policy}: {rate:.2f}  [{low:.2f}, {high:.2f}] of {self.count} levels, "
            f"in at most {self.turns} turns"
        )


@dataclass(frozen=True, slots=True)
class Portrait:
    """Portrait of an environment."""

    name: str
    prompt: str
    options: dict[str, Any]
    levels: list[LevelPreview]
    expert: FormEpisode | None
    """The longest episode that the expert wins of those levels; None if there is no expert."""
    truths: list[str]
    """What is true in each state of that episode."""
    successes: list[Success]


def portray(name: str, env: AgentEnv) -> Portrait:
    """Plays an environment and tells what it is.

    Raises:
        ContractError: It cannot be played.

    Example:
        >>> portray("FrozenLake", vagen.envs.make("FrozenLake")).successes[1].policy
        "random answers of the expert's"
    """
    try:
        levels = []
        for seed in range(LEVELS):
            shown, info = reset(env, seed)
            levels.append(LevelPreview(seed, shown, truth_of(env, info["state"])))
        expert = None
        if env.has_expert:
            episodes = [play(env, seed) for seed in range(LEVELS)]
            expert = max(episodes, key=lambda each: (each.success, len(each.responses)))
        return Portrait(
            name=name,
            prompt=env.system_prompt(),
            options=env.config.model_dump(mode="json", exclude_defaults=True),
            levels=levels,
            expert=expert,
            truths=[truth_of(env, state) for state in expert.states] if expert else [],
            successes=_successes(env),
        )
    except ContractError:
        raise
    except Exception as error:  # an environment may fail in any way
        raise ContractError(
            f"{name} raises {type(error).__name__}: {error} (while it was played)"
        ) from error


def write_portrait(portrait: Portrait, folder: Path, contract: Sequence[tuple[bool, str]]) -> Path:
    """Writes the page `index.html`, and beside it PNGs: `level-0.png`, ... and `expert.png`.

    Args:
        portrait: Portrait of the environment.
        folder: Made if it is not there.
        contract: Sentences on the contract, each with whether it is kept.

    Returns:
        The page.

    Raises:
        StorageError: The folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for level in portrait.levels:
        if level.shown["images"]:
            (folder / f"level-{level.seed}.png").write_bytes(png_bytes(strip([level.shown])))
    if portrait.expert and portrait.expert.observations[0]["images"]:
        (folder / "expert.png").write_bytes(png_bytes(strip(portrait.expert.observations)))
    page = render(
        "environment.html.j2",
        ("report.css", "environment.css"),
        title=portrait.name,
        portrait=portrait,
        options=json.dumps(portrait.options),
        turns=_turns(portrait),
        pictures=lambda shown: [png_url(png_bytes(frame)) for frame in shown["images"]],
        contract=contract,
    )
    return write_text(folder / "index.html", page)


def strip(observations: Sequence[Observation]) -> NDArray[np.uint8]:
    """All frames side by side on white, uint8 [height, width, 3]; there is at least one."""
    frames = [frame for each in observations for frame in each["images"]]
    height = max(len(frame) for frame in frames)
    wide = sum(frame.shape[1] + _GAP for frame in frames) - _GAP
    sheet = np.full((height, wide, 3), 255, np.uint8)
    left = 0
    for frame in frames:
        sheet[: frame.shape[0], left : left + frame.shape[1]] = frame
        left += frame.shape[1] + _GAP
    return sheet


def truth_of(env: AgentEnv, state: State) -> str:
    """What is true in a state: its claims, or where it has none the state itself."""
    if type(env).claims_of(env.config):
        return " · ".join(map(str, type(env).truth(state, env.config)))
    return json.dumps({key: value for key, value in state.items() if key != "env_name"})


def _successes(env: AgentEnv) -> list[Success]:
    def episodes(text: Any) -> list[Trajectory]:
        return [
            play_scripted(
                env,
                text,
                config_id=env.env_name,
                env_name=env.env_name,
                seed=seed,
                max_turns=env.config.max_steps,
            )
            for seed in range(EPISODES)
        ]

    def success(policy: str, played: list[Trajectory]) -> Success:
        wins = sum(each.success for each in played)
        return Success(policy, wins, len(played), env.config.max_steps)

    own = episodes(lambda played, _: played.expert_response())
    if not env.has_expert:
        return [success("its own stand-in for an expert", own)]
    said = [turn.response_text for each in own for turn in each.turns]
    chance = Random(env.env_name)
    random = episodes(lambda *_: chance.choice(said))
    return [success("expert", own), success("random answers of the expert's", random)]


def _turns(portrait: Portrait) -> list[dict[str, Any]]:
    """What the page shows of the expert's episode, turn by turn; the last has no response."""
    if (episode := portrait.expert) is None:
        return []
    responses = [*episode.responses, None]
    rewards = [info["rewards"] for info in episode.infos[1:]] + [None]
    columns = zip(episode.observations, portrait.truths, responses, rewards, strict=True)
    return [
        {"shown": shown, "truth": truth, "response": response, "rewards": paid}
        for shown, truth, response, paid in columns
    ]
