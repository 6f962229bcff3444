"""Claims about Sokoban."""

from collections.abc import Sequence

from vagen.envs.claims import Claim
from vagen.envs.grid_claims import Place, Player, Spot, score_places


class Box(Place):
    """Position of a box relative to the player."""

    phrase = "box is {vertical} and {horizontal}"
    subject, several = None, True


class Target(Place):
    """Position of a target relative to the player."""

    phrase = "target is {vertical} and {horizontal}"
    subject, several = None, True


class BoxAt(Spot):
    """Row and column of a box."""

    phrase = "box is at row {row} and column {column}"
    subject, several = None, True


class TargetAt(Spot):
    """Row and column of a target."""

    phrase = "target is at row {row} and column {column}"
    subject, several = None, True


PLACES: dict[str, type[Place]] = {"boxes": Box, "targets": Target}
SPOTS: dict[str, type[Spot]] = {"player": Player, "boxes": BoxAt, "targets": TargetAt}
DRAWN: dict[str, tuple[type[Spot], ...]] = {
    "P": (Player,),
    "_": (),
    "#": (),
    "O": (TargetAt,),
    "X": (BoxAt,),
    "√": (BoxAt, TargetAt),
    "S": (Player, TargetAt),
}


def score(said: Sequence[Claim], true: Sequence[Claim]) -> float:
    """Mean F1 of boxes and targets, without credit for one correct axis."""
    return score_places(said, true, (Box, Target, BoxAt, TargetAt), halves=False)
