"""The policy's contexts in one trajectory, as rows: one per distinct context.

Turn k is sampled after the system prompt, the observations and responses of earlier turns in the
window (responses by their sampled ids), and observation k. While no turn leaves the window, turn k
+ 1 extends the row of turn k. Otherwise it starts a new row, rendered as if the conversation had
begun with the first turn of the window; responses in it from earlier rows are given, not sampled.

With `compact` the window is summarised instead: after a number of turns the policy is asked for a
summary, a further turn in the current row. The next row is rendered as if the conversation had
begun with that turn: system prompt, request, summary (by its sampled ids), the pending observation,
and the following turns.

With `gate` every response decides whether the observation before it stays in context. Later rows
show `DROPPED` in place of dropped observations, and all responses. A row lasts at least `window`
turns, and until something in it is dropped.

A chat template that takes thoughts out of earlier answers (`vagen.rollout.thoughts`) also ends a
row: the next one repeats the responses without their thoughts.
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
"""Observation that asks for a summary."""
DROPPED: Observation = {"text": "You dropped what was here.", "images": ()}
"""Placeholder of an observation that the policy dropped."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A row up to the header of the next response."""

    row: Conversation
    """The row without the digests of the observation's frames."""
    restarts: bool
    """Whether the row is new instead of continuing the current one."""
    beginning: int
    """Tokens of the row's system prompt and first observation."""
    observation: Observation
    following: Rendered | None
    """The rendered observation after a response; None if it starts the row."""


@dataclass(frozen=True, slots=True)
class _PastTurn:
    """A turn as repeated in later rows."""

    index: int
    observation: Observation
    following: Rendered | None
    digests: list[str]
    answer: list[int]
    """Ids of the response, without its thought if that is taken out."""
    thought: bool
    """Whether the response is shown with its thought."""


class Contexts:
    """The rows of a growing trajectory; repeat `prompt`, `show`, `answer`."""

    def __init__(
        self,
        trajectory_id: str,
        renderer: ChatRenderer,
        *,
        system_prompt: str | None,
        window: int | None,
        compact: bool = False,
        compact_budget: int | None = None,
        gate: bool = False,
    ):
        """Starts without a row.

        Args:
            trajectory_id: Id of the trajectory.
            renderer: Renders for the policy's model.
            system_prompt: The environment's system prompt, at the start of every row; None for
                none.
            window: Maximum number of turns in a prompt, with the current one; None for all.
            compact: Whether the policy summarises the turns of a full window.
            compact_budget: Tokens of a row that it summarises earlier, before a turn as long as
                the last one would reach them; None for no such limit.
            gate: Whether dropped observations are removed after `window` turns in a row.
        """
        self.trajectory_id = trajectory_id
        self.renderer = renderer
        self.system_prompt = system_prompt
        self.window = window
        self.compact = compact
        self.compact_budget = compact_budget
        self.gate = gate
        self.rows: list[Conversation] = []
        self.turns = 0
        """Number of responses."""
        drops = renderer.thoughts is not None and renderer.thoughts.drops
        unbounded = drops if window is None else gate or compact
        kept = None if unbounded else (window or 1) - 1
        self._past: deque[_PastTurn] = deque(maxlen=kept)
        self._thought_ends = False
        self._since_summary = 0
        self._length = self._last_turn = 0
        self._row_begins = 0
        self._dropped = False
        self._shown: tuple[Prompt, list[str]] | None = None

    @property
    def row(self) -> Conversation:
        """The current row."""
        return self.rows[-1]

    @property
    def request_id(self) -> str:
        """Id of the current row for the policy."""
        return f"{self.trajectory_id}/{len(self.rows) - 1}"

    @property
    def summary_due(self) -> bool:
        """Whether the next response is a summary of the turns since the last one."""
        if not (self.compact and self._since_summary):
            return False
        budget = self.compact_budget
        long = budget is not None and self._length + self._last_turn >= budget
        return long or self._since_summary == self.window

    def prompt(self, observation: Observation) -> Prompt:
        """The policy's next context; takes effect with `show`."""
        if self.compact:
            continues = self._since_summary > 0
        else:
            in_row = self.turns - self._row_begins
            continues = (
                self.window is None or in_row < self.window or (self.gate and not self._dropped)
            )
        if self._shown is not None and continues and not self._thought_ends:
            following = self.renderer.following(observation)
            row = _copy(self.row)
            _append(row, following, self.turns)
            return Prompt(row, False, self._shown[0].beginning, observation, following)
        row = Conversation(self.trajectory_id, row_index=len(self.rows))
        past = list(self._past)
        first = past[0].observation if past else observation
        thought = not past or past[0].thought
        initial = self.renderer.initial(self.system_prompt, first, thought=thought)
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
        """Makes the prompt the policy's current context.

        Args:
            prompt: The result of the last call of `prompt`.
            digests: SHA-256 of each frame of its observation.
        """
        prompt.row.digests += digests
        if prompt.restarts:
            self.rows.append(prompt.row)
            self._thought_ends = False
            if self.gate:
                self._row_begins, self._dropped = self.turns, False
        else:
            self.rows[-1] = prompt.row
        self._shown = (prompt, list(digests))

    def answer(
        self, ids: Sequence[int], logprobs: Sequence[float | None], closing: Sequence[int] = ()
    ) -> None:
        """Appends a response to the current row.

        Args:
            ids: Its token ids.
            logprobs: Log-probability of each id; None if it was not sampled.
            closing: End-of-turn ids that were not sampled.
        """
        assert self._shown is not None
        prompt, digests = self._shown
        self.row.extend(ids, self.turns, logprobs)
        if closing:
            self.row.extend(closing, self.turns)
        answer, following = [*ids, *closing], prompt.following
        rest = self.renderer.rest(answer)
        if rest is not None and following is not None:
            following = self.renderer.following(prompt.observation, thought=False)
        if self.summary_due:
            self._past.clear()
        self._past.append(
            _PastTurn(
                self.turns,
                prompt.observation,
                following,
                digests,
                answer if rest is None else rest,
                thought=rest is None,
            )
        )
        self._thought_ends = rest is not None
        self._since_summary = 0 if self.summary_due else self._since_summary + 1
        # The first turn of a row also has the system prompt: it says nothing of the next one.
        self._last_turn = 0 if prompt.restarts else len(self.row.ids) - self._length
        self._length = len(self.row.ids)
        self.turns += 1

    def drop(self) -> None:
        """Removes the observation of the last response from later rows."""
        if self.window is not None:
            thought = self._past[-1].thought
            following = self.renderer.following(DROPPED, thought=thought)
            self._past[-1] = replace(
                self._past[-1], observation=DROPPED, following=following, digests=[]
            )
            self._dropped = True


def _append(row: Conversation, rendered: Rendered, turn: int) -> None:
    row.extend(rendered.ids, turn)
    row.images += rendered.images


def _copy(row: Conversation) -> Conversation:
    """A copy of the row with separate lists."""
    new = copy(row)
    for name in ("ids", "mask", "turns", "logprobs", "images", "digests"):
        setattr(new, name, list(getattr(row, name)))
    return new


def context_tokens(rows: Sequence[TokenRow]) -> tuple[int, int]:
    """Sums over responses of tokens in context: actual, and without any removal.

    Args:
        rows: Rows of one trajectory.
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
