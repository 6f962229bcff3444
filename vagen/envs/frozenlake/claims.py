"""Claims about FrozenLake."""

from collections.abc import Sequence

from vagen.envs.claims import Claim
from vagen.envs.grid_claims import Place, Player, Spot, score_places


class Target(Place):
    """Position of the target relative to the player."""

    phrase = "target is {vertical} and {horizontal}"
    weight = 0.7


class _Hole(Claim):
    subject, several = None, True
    weight = 0.3

    @classmethod
    def most(cls, count: int) -> int:
        """Up to twice as many claims as holes, since holes are numerous and similar."""
        return max(2 * count, count + 2)


class Hole(_Hole, Place):
    """Position of a hole relative to the player."""

    phrase = "hole is {vertical} and {horizontal}"


class TargetAt(Spot):
    """Row and column of the target."""

    phrase = "target is at row {row} and column {column}"
    weight = 0.7


class HoleAt(_Hole, Spot):
    """Row and column of a hole."""

    phrase = "hole is at row {row} and column {column}"


PLACES: dict[str, type[Place]] = {"target": Target, "holes": Hole}
SPOTS: dict[str, type[Spot]] = {"player": Player, "target": TargetAt, "holes": HoleAt}
DRAWN: dict[str, tuple[type[Spot], ...]] = {
    "P": (Player,),
    "_": (),
    "O": (HoleAt,),
    "G": (TargetAt,),
    "X": (Player, HoleAt),
    "√": (Player, TargetAt),
}


def score(said: Sequence[Claim], true: Sequence[Claim]) -> float:
    """F1 of the target (.7) and of the holes (.3), half credit per axis."""
    return score_places(said, true, (Target, TargetAt))
