"""Network outputs for ended episodes, computed while other episodes are still played.

Ranks without servers on their GPUs would idle until a batch's last episode ends. The outputs needed
for a row (log-probabilities, reference log-probabilities, values) depend only on the row and the
weights, so they can be computed once its episode has ended.

Shape legend: T tokens of a row.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vagen.config.schema import ExperimentConfig, has_reference
from vagen.engines.base import Images
from vagen.engines.verl.rows import digest_of
from vagen.experiment.checks import has_critic
from vagen.rollout.types import TokenRow, Trajectory

Outputs = list[NDArray[np.float32]]
"""A network's output at every token, [T] per row."""
Compute = Callable[
    [str, Sequence[TokenRow], Images, Sequence[TokenRow]], tuple[Outputs, dict[str, Any]]
]
"""Computes a call's outputs for rows of a batch; also returns its measurements."""


class PrecomputedOutputs:
    """Cached outputs for fixed weights, by call (`logprobs`, `reference`, `values`)."""

    def __init__(self, config: ExperimentConfig, compute: Compute, ranks: int):
        """Starts empty.

        Args:
            config: The experiment, which determines the calls.
            compute: Computes outputs.
            ranks: Rows are computed once there is one for each rank.
        """
        self._compute = compute
        self._ranks = ranks
        self._all_rows = ("values",) if has_critic(config) else ()
        self._learnt_rows: tuple[str, ...] = ()
        if not config.actor_rollout_ref.actor.use_rollout_log_probs:
            # The policy first: FSDP treats what is frozen in the first call as frozen for good, and
            # with adapters the reference is the policy without them.
            self._learnt_rows = (
                ("logprobs", "reference") if has_reference(config) else ("logprobs",)
            )
        self.forget()
        self.begin()

    def forget(self) -> None:
        """Drops all outputs; call it before the networks change."""
        self._outputs: dict[tuple[str, bytes], NDArray[np.float32]] = {}
        self._measured: dict[str, list[dict[str, Any]]] = defaultdict(list)

    def begin(self) -> None:
        """Starts another batch."""
        self._batch: list[TokenRow] = []
        self._waiting: list[TokenRow] = []

    def answer(self, ended: Sequence[Trajectory], images: Images) -> None:
        """Computes outputs for ended episodes of the batch, given all frames so far."""
        self._waiting += [row for trajectory in ended for row in trajectory.rows]
        if len(self._waiting) < self._ranks:
            return
        self._batch += self._waiting
        learnt = [row for row in self._waiting if row.loss_mask.any()]
        requests = dict.fromkeys(self._learnt_rows, learnt)
        requests |= dict.fromkeys(self._all_rows, self._waiting)
        for call, rows in requests.items():
            if rows:
                outputs, measured = self._compute(call, rows, images, self._batch)
                self._measured[call].append(measured)
                for row, output in zip(rows, outputs, strict=True):
                    self._outputs[_key(call, row)] = output
        self._waiting = []

    def complete(
        self, call: str, rows: Sequence[TokenRow], images: Images
    ) -> tuple[Outputs, list[dict[str, Any]]]:
        """Outputs for all rows of a batch, cached or computed now.

        Returns:
            [T] per row, and all measurements since the call was last completed.
        """
        keys = [_key(call, row) for row in rows]
        missing = [i for i, key in enumerate(keys) if key not in self._outputs]
        found: dict[int, NDArray[np.float32]] = {}
        measured = self._measured.pop(call, [])
        if missing:
            outputs, now = self._compute(call, [rows[i] for i in missing], images, rows)
            found = dict(zip(missing, outputs, strict=True))
            measured.append(now)
        return [found[i] if i in found else self._outputs[k] for i, k in enumerate(keys)], measured


def _key(call: str, row: TokenRow) -> tuple[str, bytes]:
    """With the sampled tokens, which decide where there are log-probabilities."""
    return call, digest_of(row) + row.loss_mask.tobytes()
