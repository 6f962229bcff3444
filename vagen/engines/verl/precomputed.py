"""What the networks say of episodes that ended, computed while others are still played.

Ranks without servers on their GPUs have nothing else to do until a batch's last episode ends. What
a learner asks about a row (its log-probabilities, those of the reference, its values) depends on
the row and the weights alone, so that it can be computed as soon as the row's episode has ended.

Shape legend: T tokens of a row.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vagen.config.checks import has_critic, has_reference
from vagen.config.schema import ExperimentConfig
from vagen.engines.base import Images
from vagen.engines.verl.shared_rows import digest_of
from vagen.rollout.types import TokenRow, Trajectory

Outputs = list[NDArray[np.float32]]
"""What a network says at every token, [T] per row."""
Compute = Callable[
    [str, Sequence[TokenRow], Images, Sequence[TokenRow]], tuple[Outputs, dict[str, Any]]
]
"""Computes a call's outputs for rows that are part of a batch; also returns what that took."""


class PrecomputedOutputs:
    """The answers of one state of the networks, by call (`logprobs`, `reference`, `values`)."""

    def __init__(self, config: ExperimentConfig, compute: Compute, ranks: int):
        """Knows nothing yet.

        Args:
            config: The experiment, which says what will be asked.
            compute: Asks the networks.
            ranks: It waits for so many rows, one for each.
        """
        self._compute = compute
        self._ranks = ranks
        self._all_rows = ("values",) if has_critic(config) else ()
        self._learnt_rows: tuple[str, ...] = ()
        if not config.actor_rollout_ref.actor.use_rollout_log_probs:
            # The policy first: FSDP takes for frozen what is so in a network's first call, and with
            # adapters the reference is the policy with these switched off.
            self._learnt_rows = (
                ("logprobs", "reference") if has_reference(config) else ("logprobs",)
            )
        self.forget()
        self.begin()

    def forget(self) -> None:
        """The networks are about to change."""
        self._outputs: dict[tuple[str, bytes], NDArray[np.float32]] = {}
        self._measured: dict[str, list[dict[str, Any]]] = defaultdict(list)

    def begin(self) -> None:
        """Another batch is about to be played."""
        self._batch: list[TokenRow] = []
        self._waiting: list[TokenRow] = []

    def answer(self, ended: Sequence[Trajectory], images: Images) -> None:
        """Computes what will be asked about episodes of the batch, given every frame they show."""
        self._waiting += [row for trajectory in ended for row in trajectory.rows]
        if len(self._waiting) < self._ranks:
            return
        self._batch += self._waiting
        learnt = [row for row in self._waiting if row.loss_mask.any()]
        asked = dict.fromkeys(self._learnt_rows, learnt)
        asked |= dict.fromkeys(self._all_rows, self._waiting)
        for call, rows in asked.items():
            if rows:
                outputs, measured = self._compute(call, rows, images, self._batch)
                self._measured[call].append(measured)
                for row, output in zip(rows, outputs, strict=True):
                    self._outputs[call, digest_of(row)] = output
        self._waiting = []

    def complete(
        self, call: str, rows: Sequence[TokenRow], images: Images
    ) -> tuple[Outputs, list[dict[str, Any]]]:
        """Outputs for all rows of a batch: those that are there, and the others computed now.

        Returns:
            [T] per row, and what the computing took, now and since the call was last completed.
        """
        keys = [(call, digest_of(row)) for row in rows]
        missing = [i for i, key in enumerate(keys) if key not in self._outputs]
        found: dict[int, NDArray[np.float32]] = {}
        measured = self._measured.pop(call, [])
        if missing:
            outputs, now = self._compute(call, [rows[i] for i in missing], images, rows)
            found = dict(zip(missing, outputs, strict=True))
            measured.append(now)
        return [found[i] if i in found else self._outputs[k] for i, k in enumerate(keys)], measured
