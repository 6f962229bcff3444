"""What the policy sees at each turn: the rows of one trajectory, one per distinct context.

Turn k is sampled after the system prompt, the observations and answers of the turns before it that
are in the window (answers by their sampled ids, verbatim), and observation k. As long as no turn
falls out of the window, turn k + 1 continues the row of turn k. Otherwise it begins a new row:
rendered as if the conversation had begun with the first turn of the window, and the answers in it
that were sampled in earlier rows are given, not sampled.

With `compact` the window is emptied instead: after so many turns the policy is asked for a summary,
which is a turn of its own in the present row, and the next row is rendered as if the conversation
had begun with that turn: system prompt, request, summary (by its sampled ids), the observation that
waited, and the turns that follow.

With `gate` every answer says whether the observation before it stays in view. Rows after that show
`DROPPED` in the place of one that does not, and all answers. A row lasts for `window` turns at the
least, and for as long as nothing in it is dropped.
"""

from collections import deque
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace

import numpy as np

from vagen.envs.base import Observation
from vagen.rollout.conversation import ChatRenderer, Conversation, Rendered
from vagen.rollout.types import CONTEXT, TokenRow

SUMMARY_REQUEST: Observation = {
    "text": "Sum up in a few words what you must remember: all of the above will be forgotten.",
    "images": (),
}
"""What a turn that writes a summary answers to."""
DROPPED: Observation = {"text": "You dropped what was here.", "images": ()}
"""What stands for an observation that the policy did not keep."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A row up to the header of the answer that would be sampled next."""

    row: Conversation
    """Complete but for the digests of the observation's frames."""
    restarts: bool
    """It is a new row, not the present one continued."""
    beginning: int
    """Tokens of the row's system prompt and first observation."""
    observation: Observation
    following: Rendered | None
    """The observation as it follows an answer; None if it begins the row."""


@dataclass(frozen=True, slots=True)
class _PastTurn:
    """A turn as later rows repeat it."""

    index: int
    observation: Observation
    following: Rendered | None
    digests: list[str]
    answer: list[int]


class Contexts:
    """The rows of one trajectory while it grows: `prompt`, `show`, `answer`, and again."""

    def __init__(
        self,
        trajectory_id: str,
        renderer: ChatRenderer,
        *,
        system_prompt: str,
        window: int | None,
        compact: bool = False,
        gate: bool = False,
    ):
        """Begins without a row.

        Args:
            trajectory_id: Id that the rows carry.
            renderer: Renders for the policy's model.
            system_prompt: The environment's; every row begins with it.
            window: Turns in a prompt, the present one included; None keeps all of them.
            compact: After so many turns a summary is due, which replaces them.
            gate: What was dropped is, after so many turns in a row; all others are kept.
        """
        self.trajectory_id = trajectory_id
        self.renderer = renderer
        self.system_prompt = system_prompt
        self.window = window
        self.compact = compact
        self.gate = gate
        self.rows: list[Conversation] = []
        self.turns = 0
        """Answers so far."""
        kept = 0 if window is None else None if gate else 1 if compact else window - 1
        self._past: deque[_PastTurn] = deque(maxlen=kept)
        self._since_summary = 0
        self._row_begins = 0
        self._dropped = False
        self._shown: tuple[Prompt, list[str]] | None = None

    @property
    def row(self) -> Conversation:
        """The row that is being sampled in."""
        return self.rows[-1]

    @property
    def request_id(self) -> str:
        """Name of the present row towards the policy."""
        return f"{self.trajectory_id}/{len(self.rows) - 1}"

    @property
    def summary_due(self) -> bool:
        """Whether the next answer, if there is one, sums up those since the last summary."""
        return self.compact and self._since_summary == self.window

    def prompt(self, observation: Observation) -> Prompt:
        """What the policy would see next; nothing changes until it is shown."""
        if self.compact:
            goes_on = self._since_summary > 0
        else:
            in_row = self.turns - self._row_begins
            goes_on = (
                self.window is None or in_row < self.window or (self.gate and not self._dropped)
            )
        if self._shown is not None and goes_on:
            following = self.renderer.following(observation)
            row = _copy(self.row)
            _append(row, following, self.turns)
            return Prompt(row, False, self._shown[0].beginning, observation, following)
        row = Conversation(self.trajectory_id, row_index=len(self.rows))
        past = list(self._past)
        first = past[0].observation if past else observation
        initial = self.renderer.initial(self.system_prompt, first)
        _append(row, initial, CONTEXT)
        following = self.renderer.following(observation) if past else None
        continuations = [*(turn.following for turn in past[1:]), following]
        for turn, after in zip(past, continuations[: len(past)], strict=True):
            assert after is not None
            row.digests += turn.digests
            row.extend(turn.answer, turn.index)
            _append(row, after, turn.index + 1)
        return Prompt(row, True, len(initial.ids), observation, following)

    def show(self, prompt: Prompt, digests: Sequence[str]) -> None:
        """Makes the prompt what the policy sees.

        Args:
            prompt: The latest one made.
            digests: SHA-256 of each of its observation's frames.
        """
        prompt.row.digests += digests
        if prompt.restarts:
            self.rows.append(prompt.row)
            if self.gate:
                self._row_begins, self._dropped = self.turns, False
        else:
            self.rows[-1] = prompt.row
        self._shown = (prompt, list(digests))

    def answer(
        self, ids: Sequence[int], logprobs: Sequence[float], closing: Sequence[int] = ()
    ) -> None:
        """Appends an answer to the present row.

        Args:
            ids: As sampled.
            logprobs: Log-probability of each id.
            closing: What ends the turn where the model did not; not sampled.
        """
        assert self._shown is not None
        prompt, digests = self._shown
        self.row.extend(ids, self.turns, logprobs)
        if closing:
            self.row.extend(closing, self.turns)
        self._past.append(
            _PastTurn(self.turns, prompt.observation, prompt.following, digests, [*ids, *closing])
        )
        self._since_summary = 0 if self.summary_due else self._since_summary + 1
        self.turns += 1

    def drop(self) -> None:
        """Rows to come do without the observation of the latest answer."""
        if self.window is not None:
            following = self.renderer.following(DROPPED)
            self._past[-1] = replace(
                self._past[-1], observation=DROPPED, following=following, digests=[]
            )
            self._dropped = True


def _append(row: Conversation, rendered: Rendered, turn: int) -> None:
    row.extend(rendered.ids, turn)
    row.images += rendered.images


def _copy(row: Conversation) -> Conversation:
    """The row with lists of its own."""
    new = copy(row)
    for name in ("ids", "mask", "turns", "logprobs", "images", "digests"):
        setattr(new, name, list(getattr(row, name)))
    return new


def context_tokens(rows: Sequence[TokenRow]) -> tuple[int, int]:
    """Tokens in view at the end of each answer, summed; and if nothing had left the view.

    Args:
        rows: Of a trajectory.
    """
    seen = whole = length = 0
    for row in rows:
        if not row.row_index:
            length = int((row.turn_index == CONTEXT).sum())
        for turn in np.unique(row.turn_index[row.loss_mask]):
            places = np.flatnonzero(row.turn_index == turn)
            length += len(places)
            seen, whole = seen + int(places[-1]) + 1, whole + length
    return seen, whole
