"""Episodes that start in one iteration and finish in a later one (partial rollouts).

Carried over are an episode's responses with their log-probabilities, policy version and verdict.
The environment is recreated and replays these responses, since it depends only on its seed and on
them. So no process has to outlive an iteration, and a rollout's folder holds all that the next one
needs.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from vagen.rollout.runner import EpisodeSpec
from vagen.rollout.types import EarlierGeneration, Status, Trajectory


def carry_on(spec: EpisodeSpec, trajectory: Trajectory, version: str) -> EpisodeSpec:
    """Specification for continuing an episode in a later iteration.

    Args:
        spec: The original specification.
        trajectory: The episode so far, finished or not. If its environment failed, the episode
            starts from the earlier responses of `spec`.
        version: Name of the weights that played.
    """
    if trajectory.status is Status.ENV_ERROR or len(trajectory.turns) < len(spec.answers):
        return spec
    sampled = {}
    for row in trajectory.rows:
        for k in np.unique(row.turn_index[row.loss_mask]):
            places = np.flatnonzero(row.loss_mask & (row.turn_index == k))
            here = slice(places[0], places[-1] + 1)  # with what closed its thought
            drawn, logprobs = row.loss_mask[here], row.rollout_logprobs[here].tolist()
            logprobs = [p if own else None for p, own in zip(logprobs, drawn, strict=True)]
            sampled[k] = row.input_ids[here].tolist(), logprobs
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
    """Writes specifications to carry over as JSON."""
    path.write_text(json.dumps([asdict(spec) for spec in specs]))


def read_carried(path: Path) -> list[EpisodeSpec]:
    """Inverse of `write_carried`, exact for all numbers."""
    return [
        EpisodeSpec(
            **fields | {"answers": tuple(EarlierGeneration(**each) for each in fields["answers"])}
        )
        for fields in json.loads(path.read_text())
    ]
