"""What state texts of Sokoban claim."""

from collections.abc import Sequence

from vagen.envs.claims import Claim
from vagen.envs.grid_claims import Place, Player, Spot, score_places


class Box(Place):
    """Where a box is from the player."""

    phrase = "box is {vertical} and {horizontal}"
    subject, several = None, True


class Target(Place):
    """Where a target is from the player."""

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
    """Half the F1 of the boxes and half that of the targets; half right is wrong."""
    return score_places(said, true, (Box, Target, BoxAt, TargetAt), halves=False)
