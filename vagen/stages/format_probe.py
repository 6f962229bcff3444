"""The format probe: checks before training whether the policy's responses have the required layout.

Without such responses there is no reward to learn from. Causes are a tag that is a special token of
the model, a prompt that the model does not follow, or truncated responses.
"""

from dataclasses import replace

from vagen import progress
from vagen.config.schema import ExperimentConfig
from vagen.engines.base import Engine
from vagen.models.tiny import TINY_MODELS
from vagen.rollout.episodes import evaluation_specs
from vagen.rollout.levels import LevelSet
from vagen.rollout.types import Trajectory, Turn

DEFAULT_ANSWERS = 20
SHOWN = 400
"""Maximum number of characters of a response in the error."""


class FormatNotKept(ValueError):
    """Too few responses have the required layout; the message has two examples."""


def answers_probed(config: ExperimentConfig) -> int:
    """Number of first responses to check per environment; 0 disables the probe."""
    probe = config.trainer.format_probe
    if probe is None:
        return 0 if config.actor_rollout_ref.model.path in TINY_MODELS else DEFAULT_ANSWERS
    return probe


def probe_format(config: ExperimentConfig, engine: Engine, levels: list[LevelSet]) -> None:
    """Plays the first turns of a few training levels and checks their layout.

    Levels and seeds are those of an evaluation of the training split, which no other step uses, so
    the probe does not change a training.

    Raises:
        FormatNotKept: The share in an environment is below `trainer.format_probe_min`.
    """
    specs = [
        replace(spec, max_turns=1)
        for spec in evaluation_specs(config, levels, "train", answers_probed(config))
    ]
    with progress.bar("answers", len(specs)) as advance:
        trajectories, _ = engine.play(
            specs,
            sampling=config.actor_rollout_ref.rollout,
            split="train",
            on_finish=lambda _: advance(1),
        )
    for level_set in levels:
        played = [t for t in trajectories if t.config_id == level_set.config_id]
        _check(config, level_set.config_id, played)


def _check(config: ExperimentConfig, env_id: str, played: list[Trajectory]) -> None:
    answers = [trajectory.turns[0] for trajectory in played if trajectory.turns]
    malformed = [turn for turn in answers if not turn.parsed.format_correct]
    kept = len(answers) - len(malformed)
    progress.event("format_probe", env=env_id, answers=len(answers), format_correct=kept)
    said = f"{env_id}: {kept} of {len(answers)} first answers have the layout of the prompt"
    least = config.trainer.format_probe_min
    if kept >= least * len(answers):
        progress.note(f"format probe: {said}")
        return
    cut = sum(turn.length_cut for turn in malformed)
    raise FormatNotKept(
        f"{said}, fewer than trainer.format_probe_min = {least:g} asks for: there would be nothing "
        f"to learn from. {cut} were cut at data.max_response_length = "
        f"{config.data.max_response_length}. Two of them:\n"
        + "\n".join(f"  {_shown(turn)}" for turn in malformed[:2])
        + f"\n`vagen doctor` says whether a tag is one reserved token: rename it in "
        f"`envs.{env_id}.env_config.tags`. Otherwise take another prompt_format or model, or a "
        "warm start; trainer.format_probe=0 goes on all the same"
    )


def _shown(turn: Turn) -> str:
    text = turn.response_text
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}…")
