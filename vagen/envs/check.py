"""Checks the contract of an environment: `check_env` plays it and reports violations."""

import json
import math
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium.error import ResetNeeded

from vagen.envs.answers import AnswerError
from vagen.envs.base import IMAGE_PLACEHOLDER, AgentEnv
from vagen.envs.check_form import ContractError, demand, play, reset, same, step
from vagen.envs.config import EnvConfig
from vagen.envs.levels import SPLITS, LevelError
from vagen.envs.turns import TurnEnv

EPISODES, FEWEST_EPISODES = 8, 2
"""Episodes of the expert, and their number when time is short."""
THREADED, FEWEST_THREADED = 64, 4
"""Levels to reset in threads, and their number when time is short."""
LEVELS = 20
"""Number of seeds whose levels are compared."""
CONTRAST = 8
"""Contrast, of 255, below which an image shows nothing."""


def check_env(
    env: AgentEnv,
    *,
    report: Callable[[str], object] = lambda _: None,
    remark: Callable[[str], object] = lambda _: None,
    seconds: float = 60.0,
) -> list[str]:
    """Plays an environment and checks the contract of `AgentEnv`.

    Creates, plays and closes further instances of its class with its options and variations of them
    (fewer steps, other rewards) in this process.

    Args:
        env: Result of `vagen.envs.make` or `gymnasium.make`.
        report: Called with a sentence for each satisfied part of the contract.
        remark: Called with sentences on the expected time and on skipped parts.
        seconds: Time limit; slow environments get fewer and shorter episodes.

    Returns:
        The parts of the contract that were skipped for lack of time.

    Raises:
        ContractError: It violates the contract.

    Example:
        >>> check_env(vagen.envs.make("corridor:CorridorEnv", {"length": 9}))
    """
    inner: Any = env.unwrapped
    if not isinstance(inner, AgentEnv):
        raise ContractError(
            f"{type(inner).__name__} is no AgentEnv: derive from vagen.envs.turns.TurnEnv or from "
            "vagen.envs.AgentEnv"
        )
    subject = _Subject(type(inner), inner.config, inner.split)
    end = time.monotonic() + seconds
    unchecked: list[str] = []
    remark(_tried(lambda subject: _fit(subject, seconds), subject, "it can be played"))
    for sentence, check in CHECKS:
        if time.monotonic() > end:
            unchecked.append(sentence)
            remark(f"not checked, {seconds:g} s were over: {sentence}")
        elif _tried(check, subject, sentence) is not False:
            report(sentence)
    return unchecked


def _tried(check: "Callable[[_Subject], Any]", subject: "_Subject", sentence: str) -> Any:
    try:
        with ExitStack() as subject.instances:
            return check(subject)
    except ContractError:
        raise
    except Exception as error:  # any failure of an environment
        name = subject.kind.__name__
        what = error if isinstance(error, AnswerError) else f"{name} raises {_brief(error)}"
        raise ContractError(f"{what} (while it was checked that {sentence})") from error


@dataclass
class _Subject:
    """The checked class and its options."""

    kind: type[AgentEnv]
    config: EnvConfig
    split: str
    instances: ExitStack = field(default_factory=ExitStack)
    """Closes the created instances."""
    episodes: int = EPISODES
    threaded: int = THREADED

    def make(self, **options: Any) -> AgentEnv:
        config = self.config.model_validate({**self.config.model_dump(), **options})
        env = self.kind(config, split=self.split)
        self.instances.callback(env.close)
        return env


def _fit(subject: _Subject, seconds: float) -> str:
    """Reduces checks of slow environments; returns a sentence on the expected time."""

    def clock(call: Callable[[], Any]) -> tuple[Any, float]:
        start = time.monotonic()
        result = call()
        return result, time.monotonic() - start

    subject.make()  # completes its imports
    env, making = clock(subject.make)
    _, resetting = clock(lambda: reset(env, 0))
    steps, stepping, over = 0, 0.0, False
    while not over and steps < env.config.max_steps and stepping < seconds / 60:
        (_, terminated, truncated, _), took = clock(lambda: step(env, env.expert_response()))
        steps, stepping, over = steps + 1, stepping + took, terminated or truncated
    each = stepping / steps
    length = steps if over else env.config.max_steps

    def total() -> float:
        played = subject.episodes * (2 if env.has_expert else 1) + 8
        begun = 30 + 2 * subject.threaded
        return begun * (making + resetting) + played * length * each

    if total() > seconds:
        subject.episodes = FEWEST_EPISODES
        subject.threaded = 0
        left = (0.7 * seconds - total()) / (2 * (making + resetting))  # later calls may be slower
        subject.threaded = min(max(int(left), FEWEST_THREADED), THREADED)
    if total() > seconds and not env.has_expert:  # an expert may need every step
        length = min(max(int(seconds / (20 * each)), 2), length)
        subject.config = subject.config.model_copy(update={"max_steps": length})
    what = f"{subject.episodes} episodes and {subject.threaded} levels in threads"
    whole = "" if subject.episodes == EPISODES else f", for which it plays less: {what}"
    return f"takes about {max(total(), 1):.0f} s of at most {seconds:g}{whole}"


# The parts of the contract.


def _is_made_from_options(subject: _Subject) -> None:
    config, kind = subject.config, subject.kind
    again = kind.config_class.model_validate(json.loads(json.dumps(config.model_dump(mode="json"))))
    demand(
        again == config,
        f"options change on their way through JSON, which takes them to workers: {config!r} "
        f"becomes {again!r}",
    )
    demand(
        isinstance(getattr(kind, "env_name", None), str), f"{kind.__name__}.env_name is not a text"
    )
    subject.make()


def _has_one_prompt(subject: _Subject) -> None:
    env = subject.make()
    prompt = env.system_prompt()
    demand(
        isinstance(prompt, str) and bool(prompt.strip()),
        f"system_prompt() gives {prompt!r}, not a text",
    )
    demand(IMAGE_PLACEHOLDER not in prompt, "system_prompt() holds an image placeholder")
    for seed in range(2):
        reset(env, seed)
        demand(
            env.system_prompt() == prompt,
            "system_prompt() depends on the level; put level-specific facts into observations",
        )
    if not isinstance(env, TurnEnv):
        return
    example = env.example_response()
    parsed = env._parser.parse(example)
    demand(
        parsed.format_correct and bool(parsed.actions),
        f"the example of the system prompt cannot be read: {example!r}; example_actions must be "
        "actions as the environment reads them",
    )
    demand(
        env.config.prompt_detail == "brief" or example in prompt,
        "the full system prompt does not hold example_response()",
    )
    demand(
        parsed.observation in (None, env.state_text(env.example_state)),
        f"the example describes its state by {parsed.observation!r}, but state_text gives "
        f"{env.state_text(env.example_state)!r}",
    )


def _draws_levels_by_seed(subject: _Subject) -> None:
    kind, config = subject.kind, subject.config
    env = subject.make()
    split_by_hash: dict[str, str] = {}
    for split in SPLITS:
        try:
            found = [kind.sample_level(config, seed, split).level_hash for seed in range(LEVELS)]
        except LevelError:
            demand(split != subject.split, f"there are no levels in the split {split}")
            continue
        again = [kind.sample_level(config, seed, split).level_hash for seed in range(LEVELS)]
        demand(found == again, "sample_level gives another level for the same seed")
        demand(len(set(found)) > 1, f"{LEVELS} seeds give one and the same level in {split}")
        for digest in found:
            other = split_by_hash.setdefault(digest, split)
            demand(
                other == split,
                f"the level {digest} is in {other} and in {split}; decide by split_of(level_hash)",
            )
        _, info = env.reset(seed=3, options={"split": split})
        demand(
            info["level_hash"] == found[3],
            f"reset(seed=3) loads another level of {split} than sample_level(config, 3, ...)",
        )


def _repeats_itself(subject: _Subject) -> None:
    first = play(subject.make(), 5)
    used = subject.make()
    play(used, 6)
    for other, what in (
        (play(used, 5, first.responses), "an instance that was played before"),
        (play(subject.make(), 5, first.responses), "another instance"),
    ):
        demand(
            same(first, other),
            f"the same seed and responses give another episode in {what}: take all chance from "
            "the seed of reset()",
        )

    def hashes() -> list[str]:
        env = subject.make()
        reset(env, 9)
        return [reset(env, None)[1]["level_hash"] for _ in range(5)]

    found = hashes()
    demand(
        found == hashes(),
        "resets without a seed differ between two instances that began with the same seed: draw "
        "the seed from self.np_random",
    )
    demand(len(set(found)) > 1, "resets without a seed give the same level again and again")


def _resets_in_threads(subject: _Subject) -> bool | None:
    if subject.kind.needs_process:
        return False

    def level(seed: int) -> Any:
        # Closed at once: a server of environments may have few sessions.
        with closing(subject.kind(subject.config, split=subject.split)) as env:
            return env.reset(seed=seed)

    with ThreadPoolExecutor(16) as pool:
        threaded = list(pool.map(level, range(subject.threaded)))
    demand(
        same(threaded, [level(seed) for seed in range(subject.threaded)]),
        "resets in threads differ from resets in order: keep no globals, or set needs_process",
    )


def _reads_strictly(subject: _Subject) -> None:
    env = subject.make()
    reset(env, 2)
    right = env.expert_response()
    for wrong in _malformed(right):
        _, before = reset(env, 2)
        try:
            _, terminated, truncated, info = step(env, wrong)
        except ContractError:
            raise
        except Exception as error:  # any failure of an environment
            raise ContractError(
                f"the response {wrong[:60]!r} raises {_brief(error)}; step must return a result "
                "for any text"
            ) from error
        if not isinstance(env, TurnEnv):
            continue
        demand(
            not info["parsed"]["format_correct"] and not info["metrics"]["action_is_valid"],
            f"the format of {wrong[:60]!r} is accepted",
        )
        demand(
            sum(info["rewards"].values()) <= 0, f"a reward is paid for the response {wrong[:60]!r}"
        )
        demand(
            bool(info["parsed"]["actions"])
            or (info["state"] == before["state"] and not (terminated or truncated)),
            f"the response {wrong[:60]!r} holds no action, but changes the state",
        )


def _malformed(right: str) -> Iterator[str]:
    yield from ("", " \n", "Jump", "\x00\ud800", "x" * 20_000, "<think>" * 500, "<answer></answer>")
    yield from (f"so: {right}", f"{right} so", right * 2, right[: len(right) // 2])


def _keeps_the_limit(subject: _Subject) -> None:
    for seed in range(subject.episodes):
        free = play(subject.make(expert_actions_per_turn=1), seed)
        count = len(free.responses)
        if free.ends[-1] == (True, False):
            end = _end_within(subject, seed, free.responses)
            demand(
                end == (True, False),
                f"an episode that ends on the last allowed action (max_steps {count}) is "
                f"{_ending(end)}; it must be terminated",
            )
        if count > 1:
            end = _end_within(subject, seed, free.responses[:1])
            demand(
                end == (False, True),
                f"after max_steps 1 an episode is {_ending(end)}; it must be truncated",
            )
            return


def _end_within(subject: _Subject, seed: int, responses: list[str]) -> tuple[bool, bool]:
    """How an episode ends after at most this many responses."""
    env = subject.make(expert_actions_per_turn=1, max_steps=len(responses))
    return play(env, seed, responses).ends[-1]


def _plays_between_reset_and_end(subject: _Subject) -> None:
    env = subject.make()
    for when in ("before reset()", "after the end of an episode"):
        try:
            env.step("")
        except ResetNeeded:
            play(env, 0)
            continue
        raise ContractError(f"step() {when} is to raise gymnasium.error.ResetNeeded")


def _hides_rewards(subject: _Subject) -> bool | None:
    if not subject.config.reward_presets:
        return False
    plain = play(subject.make(), 1)
    others = {part: 3 * value + 7 for part, value in subject.config.reward_values.items()}
    paid = play(subject.make(reward_overrides=others), 1, plain.responses)
    demand(
        same(plain.observations, paid.observations),
        "observations change with the rewards that are paid: the agent could read its reward",
    )


def _has_a_true_expert(subject: _Subject) -> bool | None:
    env = subject.make()
    if not env.has_expert:
        return False
    episodes = [play(env, seed) for seed in range(subject.episodes)]
    for episode in episodes:
        for before, info in zip(episode.states, episode.infos[1:], strict=False):
            parsed = info["parsed"]
            if isinstance(env, TurnEnv) and parsed["observation"] is not None:
                demand(
                    parsed["observation"] == env.state_text(before),
                    f"the expert describes a state by {parsed['observation']!r}, but state_text "
                    f"gives {env.state_text(before)!r}",
                )
    demand(
        any(episode.success for episode in episodes),
        f"the expert solves none of {subject.episodes} levels; an environment without an expert "
        "sets has_expert = False",
    )


def _measures_progress(subject: _Subject) -> None:
    env = subject.make()
    for seed in range(subject.episodes // 2):
        episode = play(env, seed)
        start = episode.states[0]
        for state in episode.states:
            distance = env.distance(state)
            demand(
                distance is None or (math.isfinite(distance) and distance >= 0),
                f"distance() gives {distance}; it must be a number from 0, or None",
            )
            potential = env.potential(state, start)
            demand(0 <= potential <= 1, f"potential() gives {potential}; it lies in [0, 1]")
        demand(env.potential(start, start) == 0, "potential(start, start) is not 0")
        if env.has_expert and episode.success and env.distance(start) is not None:
            last = env.potential(episode.states[-1], start)
            demand(last == 1, f"potential() is {last} where the expert has succeeded, not 1")


def _shows_something(subject: _Subject) -> bool | None:
    env, pictures, states = subject.make(), set[bytes](), set[str]()
    contrast, frame = 0, None
    for seed in range(max(subject.episodes // 2, 2)):
        episode = play(env, seed)
        states |= {json.dumps(state) for state in episode.states}
        for frame in (each for shown in episode.observations for each in shown["images"]):
            contrast = max(contrast, int(np.ptp(frame, axis=(0, 1)).max()))
            pictures.add(frame.tobytes())
    if frame is None:
        return False
    dummy = os.environ.get("SDL_VIDEODRIVER") == "dummy"
    demand(
        contrast >= CONTRAST,
        f"every picture is of one colour, {frame[0, 0].tolist()}: it shows nothing"
        + dummy * "; SDL_VIDEODRIVER is dummy, with which some environments draw black: unset it",
    )
    demand(
        len(pictures) > 1 or len(states) == 1,
        f"all pictures are the same, though there were {len(states)} states",
    )


CHECKS: tuple[tuple[str, Callable[[_Subject], bool | None]], ...] = (
    ("it is made from its options, which survive JSON", _is_made_from_options),
    ("its system prompt stands for every level, and its example can be read", _has_one_prompt),
    ("a seed gives a level, and no level is in two splits", _draws_levels_by_seed),
    ("observations and infos are as described, and the same seed repeats them", _repeats_itself),
    ("pictures show something", _shows_something),
    ("malformed responses get a result and no reward", _reads_strictly),
    ("max_steps truncates, and an end on the last step terminates", _keeps_the_limit),
    ("there is no step before a reset or after the end", _plays_between_reset_and_end),
    ("observations do not reveal rewards", _hides_rewards),
    ("the expert's responses are read, true, and solve levels", _has_a_true_expert),
    ("progress is 0 at the start, 1 at success", _measures_progress),
    ("resets in threads equal resets in order", _resets_in_threads),
)
"""All checks in order; a check that does not apply returns False."""


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")


def _ending(end: tuple[bool, bool]) -> str:
    return {(True, False): "terminated", (False, True): "truncated"}.get(end, "not over")
