"""Consistency of the trajectories, turns, token rows and images of a batch."""

from collections.abc import Mapping

import numpy as np

from vagen.envs.images import image_digest
from vagen.rollout.types import CONTEXT, Status, TokenRow, Trajectory


class BatchError(ValueError):
    """An inconsistent trajectory batch; the message says where, and what is expected."""


def check_consistency(trajectories: list[Trajectory], images: Mapping[str, bytes]) -> None:
    """Checks identities, order, array shapes and image references.

    The match between image blocks in `input_ids` and the row's images depends on the model; it is
    checked where rows are built.

    Raises:
        BatchError: Names the first trajectory, turn, row or image that is wrong.
    """
    seen: set[str] = set()
    for trajectory in trajectories:
        name = trajectory.trajectory_id
        if name in seen:
            raise BatchError(f"two trajectories are called {name!r}: ids must be unique")
        seen.add(name)
        _check_turns(trajectory, images)
        for index, row in enumerate(trajectory.rows):
            if row.trajectory_id != name or row.row_index != index:
                raise BatchError(
                    f"row {index} of trajectory {name!r} says it is row {row.row_index} of "
                    f"{row.trajectory_id!r}"
                )
            _check_row(row, trajectory, images)
        _check_order(trajectory)
    for digest, png in images.items():
        if (found := image_digest(png)) != digest:
            raise BatchError(f"the image stored under SHA-256 {digest} has {found}")


def _check_turns(trajectory: Trajectory, images: Mapping[str, bytes]) -> None:
    name = trajectory.trajectory_id
    for index, turn in enumerate(trajectory.turns):
        if turn.trajectory_id != name or turn.turn_index != index:
            raise BatchError(
                f"turn {index} of trajectory {name!r} says it is turn {turn.turn_index} of "
                f"{turn.trajectory_id!r}"
            )
        _check_images(turn.images, images, f"turn {index} of trajectory {name!r}")


def _check_row(row: TokenRow, trajectory: Trajectory, images: Mapping[str, bytes]) -> None:
    where = f"row {row.row_index} of trajectory {row.trajectory_id!r}"
    arrays = {
        "input_ids": (row.input_ids, np.int32),
        "loss_mask": (row.loss_mask, np.bool_),
        "turn_index": (row.turn_index, np.int16),
        "rollout_logprobs": (row.rollout_logprobs, np.float32),
        **{name: (values, np.float32) for name, values in row.columns.items()},
    }
    for name, (values, dtype) in arrays.items():
        if values.dtype != dtype or values.shape != row.input_ids.shape or values.ndim != 1:
            raise BatchError(
                f"{name} of {where} is {values.dtype} {list(values.shape)}; it must be "
                f"{np.dtype(dtype)} [{row.input_ids.size}] like input_ids"
            )
    _check_images(row.images, images, where)
    if not row.input_ids.size:
        return
    turns = len(trajectory.turns)
    # The last observation may follow, and a failed environment leaves a response without a turn.
    sampled = row.turn_index[row.loss_mask]
    last_sampled = int(sampled.max(initial=CONTEXT))
    allowed = turns if trajectory.status is Status.ENV_ERROR else turns - 1
    if row.turn_index.min() < CONTEXT or row.turn_index.max() > turns or last_sampled > allowed:
        raise BatchError(
            f"turn_index of {where} runs from {row.turn_index.min()} to {row.turn_index.max()} "
            f"(sampled tokens to {last_sampled}); the trajectory has {turns} turns"
        )
    if sampled.size and sampled.min() <= CONTEXT:
        raise BatchError(f"{where} has sampled tokens before its first turn")


def _check_order(trajectory: Trajectory) -> None:
    """Checks that each turn is sampled in one row, and turns are in the order of rows."""
    latest, place = CONTEXT, -1
    for row in trajectory.rows:
        sampled = row.turn_index[row.loss_mask]
        if not sampled.size:
            continue
        if sampled.min() <= latest:
            raise BatchError(
                f"turn {sampled.min()} of trajectory {row.trajectory_id!r} is sampled in row "
                f"{row.row_index}, and turn {latest} in row {place}; each turn is sampled in one "
                "row, in order"
            )
        latest, place = int(sampled.max()), row.row_index


def _check_images(digests: list[str], images: Mapping[str, bytes], where: str) -> None:
    for digest in digests:
        if digest not in images:
            raise BatchError(f"{where} shows the image {digest}, which the batch does not hold")
