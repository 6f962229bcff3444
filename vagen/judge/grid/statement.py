"""What a text claims about a state, whatever the form it was written in.

Rows count downwards and columns rightwards, as in the state. A direction is the sign of
(object - player): row -1 above, 0 same row, +1 below; column -1 left, 0 same column, +1 right.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class Form(StrEnum):
    """How a statement is written."""

    LANGUAGE = "language"
    STRUCTURED = "structured"
    """A dict from object to grid position."""
    SYMBOLIC = "symbolic"
    """A grid of symbols, one row per line."""


class Claim(NamedTuple):
    """Where one object is said to be. A part that is not said is None."""

    row_direction: int | None = None
    """Sign of the object's row minus the player's."""
    column_direction: int | None = None
    """Sign of the object's column minus the player's."""
    row: int | None = None
    """Grid row, counted from 0."""
    column: int | None = None
    """Grid column, counted from 0."""
    row_distance: int | None = None
    """Rows between the object and the player."""
    column_distance: int | None = None
    """Columns between the object and the player."""

    @property
    def is_positional(self) -> bool:
        """Whether a grid row or column, or a number of them, is claimed."""
        return any(part is not None for part in self[2:])

    @property
    def is_empty(self) -> bool:
        """Whether nothing is claimed."""
        return self == _NOTHING

    def merged(self, other: "Claim") -> "Claim | None":
        """Both claims as one about the same object; None if they contradict each other."""
        parts: list[int | None] = []
        for ours, theirs in zip(self, other, strict=True):
            if ours is not None and theirs is not None and ours != theirs:
                return None
            parts.append(theirs if ours is None else ours)
        return Claim(*parts)


_NOTHING = Claim()


@dataclass(frozen=True, slots=True)
class Statement:
    """Everything one text claims, by object class (`target`, `hole`, `box`)."""

    form: Form
    claims: dict[str, tuple[Claim, ...]] = field(default_factory=dict)
    """Claims in the order of the text; an object named without any claim adds none."""
    named: frozenset[str] = frozenset()
    """Object classes that the text names, the player included."""
    counts: dict[str, int] = field(default_factory=dict)
    """Most objects of a class that are spoken of together, as in `two holes are above`."""
    player: Claim | None = None
    """Where the player is said to be (`row` and `column` only)."""
    contradiction: bool = False
    """One object is said to be in two places."""
    understood: bool = True
    """Every word and mark that could bear on the meaning was used."""
