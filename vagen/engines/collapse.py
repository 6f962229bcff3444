"""Measures template collapse of a policy on the first turns of a batch.

The policy scores every response under every prompt, which costs N^2 rows of one turn. This changes
neither weights nor random states.

Shape legend: N first turns, T tokens of a row.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vagen import progress
from vagen.config.schema import ExperimentConfig
from vagen.engines.base import Engine, Images
from vagen.learning.template_collapse import template_collapse
from vagen.rollout.types import CONTEXT, TokenRow, Trajectory


@dataclass(frozen=True, slots=True)
class FirstTurn:
    """A prompt and a response sampled for it."""

    prompt_ids: NDArray[np.int32]  # [P] all before the first sampled token
    response_ids: NDArray[np.int32]  # [Z] tokens of turn 0 from the first sampled to the last
    sampled: NDArray[np.bool_]  # [Z] False where the thinking budget closed a thought
    images: list[str]
    """SHA-256 of the images in the prompt, in order."""


def is_due(config: ExperimentConfig, iteration: int) -> bool:
    """Whether to measure in an iteration."""
    frequency = config.trainer.template_collapse_freq
    return frequency > 0 and iteration % frequency == 0


def measure(
    config: ExperimentConfig, engine: Engine, trajectories: Sequence[Trajectory], images: Images
) -> dict[str, float]:
    """Measures of `vagen.learning.template_collapse` and `collapse/samples`, the number N.

    Args:
        config: Has the maximum number of first turns.
        engine: Has the policy of the trajectories.
        trajectories: Trajectories of one batch.
        images: PNG bytes by SHA-256.

    Returns:
        `collapse/mutual_information`, `collapse/retrieval_accuracy`, `collapse/entropy`,
        `collapse/conditional_entropy`; empty with fewer than two levels.
    """
    turns = first_turns(trajectories, config.trainer.template_collapse_samples)
    if len(turns) < 2:
        return {}
    found = template_collapse(cross_logprobs(engine, turns, images))
    return {
        "collapse/mutual_information": found.mutual_information,
        "collapse/retrieval_accuracy": found.retrieval_accuracy,
        "collapse/entropy": found.entropy,
        "collapse/conditional_entropy": found.conditional_entropy,
        "collapse/samples": float(len(turns)),
    }


def first_turns(trajectories: Sequence[Trajectory], count: int) -> list[FirstTurn]:
    """First turns of at most `count` levels, one per level, in the batch's order.

    Trajectories of one level have the same prompt and are not wrong prompts for each other.
    """
    found: dict[str, FirstTurn] = {}
    for trajectory in trajectories:
        if len(found) == count:
            break
        row = trajectory.rows[0] if trajectory.rows else None
        if row is None or trajectory.group_id in found or not row.loss_mask.any():
            continue
        places = np.flatnonzero(row.loss_mask & (row.turn_index == 0))
        response = slice(places[0], places[-1] + 1)
        found[trajectory.group_id] = FirstTurn(
            prompt_ids=row.input_ids[: places[0]],
            response_ids=row.input_ids[response],
            sampled=row.loss_mask[response],
            images=row.images[: len(trajectory.turns[0].images)],
        )
    return list(found.values())


def cross_logprobs(
    engine: Engine, turns: Sequence[FirstTurn], images: Images
) -> NDArray[np.float64]:
    """Log-probability of each response under each prompt, [N, N] with prompts as rows.

    At the rollout's temperature, summed over a response's tokens.
    """
    matrix = np.zeros((len(turns), len(turns)))
    with progress.bar("template collapse", len(turns)) as advance:
        for i, prompt in enumerate(turns):
            rows = [_row(prompt, response) for response in turns]
            for j, logprobs in enumerate(engine.logprobs(rows, images)):
                matrix[i, j] = logprobs[len(prompt.prompt_ids) :].sum(dtype=np.float64)
            advance(1)
    return matrix


def _row(prompt: FirstTurn, response: FirstTurn) -> TokenRow:
    """A row with the response as if sampled after the prompt."""
    before, after = len(prompt.prompt_ids), len(response.response_ids)
    return TokenRow(
        trajectory_id="cross",
        row_index=0,
        input_ids=np.concatenate([prompt.prompt_ids, response.response_ids]),
        loss_mask=np.concatenate([np.zeros(before, np.bool_), response.sampled]),
        turn_index=np.repeat([CONTEXT, 0], [before, after]).astype(np.int16),
        rollout_logprobs=np.zeros(before + after, np.float32),
        images=prompt.images,
    )
