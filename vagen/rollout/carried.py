"""Episodes that one iteration begins and a later one finishes (partial rollouts).

What is carried on is an episode's answers, with the log-probabilities and the name of the weights
that sampled each, and what the judge has said of them. Its environment is made again and given
these answers: it depends on its seed and on them alone. So no process has to outlive an iteration,
and a rollout's folder holds all that the next one needs.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from vagen.rollout.runner import EpisodeSpec
from vagen.rollout.types import EarlierGeneration, Status, Trajectory


def carry_on(spec: EpisodeSpec, trajectory: Trajectory, version: str) -> EpisodeSpec:
    """The episode as a later iteration goes on with it.

    Args:
        spec: What was to be played.
        trajectory: As far as it came, to its end or not. One that failed in its environment is
            played again from what was there before.
        version: Name of the weights that played.
    """
    if trajectory.status is Status.ENV_ERROR or len(trajectory.turns) < len(spec.answers):
        return spec
    sampled = {}
    for row in trajectory.rows:
        for k in np.unique(row.turn_index[row.loss_mask]):
            here = row.loss_mask & (row.turn_index == k)
            sampled[k] = row.input_ids[here].tolist(), row.rollout_logprobs[here].tolist()
    answers = [
        EarlierGeneration(
            *sampled[turn.turn_index],
            stop_reason="length" if turn.length_cut else "stop",
            policy_version=turn.policy_version or version,
            observation_text=turn.observation_text,
            images=turn.images,
            verdict=None if turn.verdict is None else turn.verdict.to_dict(),
        )
        for turn in trajectory.turns
    ]
    return replace(spec, answers=tuple(answers))


def write_carried(path: Path, specs: Iterable[EpisodeSpec]) -> None:
    """Writes what is carried on as JSON."""
    path.write_text(json.dumps([asdict(spec) for spec in specs]))


def read_carried(path: Path) -> list[EpisodeSpec]:
    """Inverse of `write_carried`, number by number."""
    return [
        EpisodeSpec(
            **fields | {"answers": tuple(EarlierGeneration(**each) for each in fields["answers"])}
        )
        for fields in json.loads(path.read_text())
    ]
