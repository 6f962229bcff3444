"""How good a judge is, as numbers: generated statements against the simulators' truth."""

from vagen.judge.calibration.blackjack import BlackjackWriter
from vagen.judge.calibration.frozenlake import FrozenLakeWriter
from vagen.judge.calibration.household import HouseholdWriter
from vagen.judge.calibration.navigation import NavigationWriter
from vagen.judge.calibration.primitive_skill import PrimitiveSkillWriter
from vagen.judge.calibration.sokoban import SokobanWriter
from vagen.judge.calibration.writer import Kind, Scene, Text, Writer

__all__ = ["WRITERS", "Kind", "Scene", "Text", "Writer"]

WRITERS: dict[str, type[Writer]] = {
    writer.env_name: writer
    for writer in (
        BlackjackWriter,
        FrozenLakeWriter,
        HouseholdWriter,
        NavigationWriter,
        PrimitiveSkillWriter,
        SokobanWriter,
    )
}
"""By environment name; an environment that is not here cannot be calibrated."""
