"""Rules of FrozenLake: the target and, where they are to be described, the holes."""

from typing import ClassVar

from vagen.envs.config import EnvConfig
from vagen.envs.frozenlake.config import FrozenLakeConfig
from vagen.judge.grid.lexicon import HOLE, TARGET
from vagen.judge.grid.matching import Truth, score_frozenlake
from vagen.judge.grid.statement import Claim, Statement
from vagen.judge.rules.grid import GridRules


class FrozenLakeRules(GridRules):
    """A description must place the target; holes are judged where they are described."""

    env_name: ClassVar[str] = "FrozenLake"
    required: ClassVar[tuple[str, ...]] = (TARGET,)
    state_keys: ClassVar[dict[str, str]] = {TARGET: "target", HOLE: "holes"}

    def __init__(self, *, require_holes: bool = False, coordinate_base: int = 0) -> None:
        """Creates the rules.

        Args:
            require_holes: A description must place every hole for a full score.
            coordinate_base: What rows and columns in texts count from, 0 or 1.
        """
        super().__init__(coordinate_base=coordinate_base)
        self.require_holes = require_holes

    @classmethod
    def from_config(cls, env_config: EnvConfig | None) -> "FrozenLakeRules":
        """Holes are required where the environment's own state texts describe them."""
        if not isinstance(env_config, FrozenLakeConfig):
            return cls()
        return cls(require_holes=env_config.describes_holes)

    def _most_claims(self, name: str, count: int) -> int:
        """Holes are many and look alike: half of the claims may be of holes that are none."""
        return max(2 * count, count + 2) if name == HOLE else super()._most_claims(name, count)

    def _score(
        self, statement: Statement, claims: dict[str, tuple[Claim, ...]], truth: Truth
    ) -> float:
        return score_frozenlake(statement, claims, truth, require_holes=self.require_holes)
