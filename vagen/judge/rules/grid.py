"""What the rules of the grid games share: where objects are relative to the player."""

from abc import abstractmethod
from collections.abc import Mapping
from copy import copy
from typing import ClassVar

from vagen.envs.base import State
from vagen.judge.grid.language import read_statement
from vagen.judge.grid.lexicon import LEXICON, PLAIN_WORDS, PLAYER
from vagen.judge.grid.matching import Truth, make_truth, merge_unique
from vagen.judge.grid.statement import Claim, Form, Statement
from vagen.judge.rules.base import Reading, Rules

ROWS = {-1: "above", 0: "same row", 1: "below"}
COLUMNS = {-1: "left", 0: "same column", 1: "right"}
MOST_MENTIONS = 3
"""How often a description may speak of the only object of its class."""


class GridRules(Rules[Statement, Truth]):
    """Relations and positions of objects on a grid.

    A game names the objects that its descriptions must place, the symbols of its grid, the keys of
    its state, and its score.
    """

    vocabulary: ClassVar[frozenset[str]] = frozenset(LEXICON) - PLAIN_WORDS
    required: ClassVar[tuple[str, ...]]
    """Object classes that a description must place."""
    state_keys: ClassVar[dict[str, str]]
    """Object class -> key of its position or list of positions in the state."""

    def __init__(self, *, coordinate_base: int = 0) -> None:
        """Creates the rules.

        Args:
            coordinate_base: What rows and columns in texts count from, 0 or 1.
        """
        self.coordinate_base = coordinate_base

    def counting_from(self, base: int) -> "GridRules":
        """A copy with another `coordinate_base`."""
        rules = copy(self)
        rules.coordinate_base = base
        return rules

    def read(self, text: str) -> Reading[Statement]:
        """The claims of a sentence, a dict or a grid of symbols."""
        statement = read_statement(text, self.env_name, coordinate_base=self.coordinate_base)
        flags = _flags(statement, self.required) if statement.understood else ()
        return Reading(statement, flags, understood=statement.understood)

    def reading_of(self, claims: Mapping[str, tuple[Claim, ...]]) -> Reading[Statement]:
        """The reading of a text that something else has read: its claims by object class."""
        statement = Statement(Form.LANGUAGE, dict(claims), frozenset(claims))
        return Reading(statement, _flags(statement, self.required))

    def truth(self, state: State) -> Truth:
        """Places of the objects that descriptions speak of."""
        return make_truth(state["player"], self._places(state))

    def score(self, content: Statement, truth: Truth) -> tuple[float, tuple[str, ...]]:
        """The game's score. Two places of one object are worth none, nor is a text that speaks of
        far more objects than there are: a list of all places is right somewhere in any state.
        """
        for name, stated in content.claims.items():
            if content.counts.get(name, 1) > max(len(truth.objects.get(name, ())), 1):
                return 0.0, ("contradiction",)
            if len(stated) > self._most_claims(name, len(truth.objects.get(name, ()))):
                return 0.0, ("listing",)
        claims = merge_unique(content, truth)
        if claims is None:
            return 0.0, ("contradiction",)
        return self._score(content, claims, truth), ()

    def _most_claims(self, name: str, count: int) -> int:
        """Most claims about a class of which there are `count` objects.

        The only object may be spoken of again; of several, one may be miscounted.
        """
        del name
        return MOST_MENTIONS if count == 1 else count + 1

    @abstractmethod
    def _score(
        self, statement: Statement, claims: dict[str, tuple[Claim, ...]], truth: Truth
    ) -> float: ...

    def recall(self, content: Statement, truth: Truth) -> float:
        """Mean over the required objects of the axes that some claim has right."""
        found: list[float] = []
        for name in self.required:
            claims = content.claims.get(name, ())
            for object_ in truth.objects[name]:
                axes = (0, 1)
                right = [any(claim[a] == object_[a] for claim in claims) for a in axes]
                found.append(sum(right) / len(axes))
        return sum(found) / len(found) if found else 0.0

    def has_changed(self, content: Statement, before: Truth, after: Truth) -> bool:
        """Relations of the objects that are named if relations are stated; positions, the player's
        included, if positions are.
        """
        claims = [claim for stated in content.claims.values() for claim in stated]
        if any(claim.is_positional for claim in claims):
            return before != after
        return any(
            sorted(claim[:2] for claim in before.objects.get(name, ()))
            != sorted(claim[:2] for claim in after.objects.get(name, ()))
            for name in content.claims
        )

    def describe(self, state: State) -> str:
        """Where each object is from the player and on the grid, in one sentence each."""
        truth, rows_columns = self.truth(state), state["size"]
        lines = [
            f"The grid has {rows_columns[0]} rows and {rows_columns[1]} columns, counted from 0 at "
            "the top left.",
            f"The {PLAYER} is at row {truth.player[0]}, column {truth.player[1]}.",
        ]
        for name, claims in truth.objects.items():
            if not claims:
                lines.append(f"There is no {name}.")
            for row_direction, column_direction, row, column, *_ in claims:
                assert row_direction is not None and column_direction is not None
                lines.append(
                    f"A {name} is at row {row}, column {column}: {ROWS[row_direction]} and "
                    f"{COLUMNS[column_direction]} of the {PLAYER}."
                )
        return "\n".join(lines)

    def canonical(self, state: State) -> str:
        """Player and described objects; what the game does not describe leaves the key alone."""
        return f"{state['player']} {[state[key] for key in self.state_keys.values()]}"

    def _places(self, state: State) -> dict[str, list[list[int]]]:
        places = {}
        for name, key in self.state_keys.items():
            value = state[key]
            places[name] = [value] if value and isinstance(value[0], int) else value
        return places


def _flags(statement: Statement, required: tuple[str, ...]) -> tuple[str, ...]:
    """Why a statement is not worth a score.

    Args:
        statement: What the text was read as.
        required: Object classes that a description must place.

    Returns:
        Of `no_entity` (names no required object), `no_relation` (a required object is not placed),
        `contradiction` those that hold.
    """
    flags = []
    if not statement.named.intersection(required):
        flags.append("no_entity")
    elif not all(statement.claims.get(name) for name in required):
        flags.append("no_relation")
    if statement.contradiction:
        flags.append("contradiction")
    return tuple(flags)
