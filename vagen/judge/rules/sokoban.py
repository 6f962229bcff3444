"""Rules of Sokoban: boxes and targets."""

from typing import ClassVar

from vagen.judge.grid.lexicon import BOX, TARGET
from vagen.judge.grid.matching import Truth, score_sokoban
from vagen.judge.grid.statement import Claim, Statement
from vagen.judge.rules.grid import GridRules


class SokobanRules(GridRules):
    """A description must place a box and a target."""

    env_name: ClassVar[str] = "Sokoban"
    required: ClassVar[tuple[str, ...]] = (TARGET, BOX)
    state_keys: ClassVar[dict[str, str]] = {TARGET: "targets", BOX: "boxes"}

    def _score(
        self, statement: Statement, claims: dict[str, tuple[Claim, ...]], truth: Truth
    ) -> float:
        return score_sokoban(statement, claims, truth)
