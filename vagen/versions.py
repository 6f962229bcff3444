"""Names of policy versions: `warm_start`, then `iteration-0007` after the update of iteration 7."""

WARM_START = "warm_start"


def version_before(iteration: int) -> str:
    """Version of the policy at the start of an iteration."""
    return WARM_START if iteration == 0 else version_after(iteration - 1)


def version_after(iteration: int) -> str:
    """Version of the policy after an iteration's update."""
    return f"iteration-{iteration:04d}"


def iteration_of(version: str) -> int:
    """The iteration whose update produced a version; inverse of `version_after`."""
    return int(version.rpartition("-")[2])


def updates_before(version: str) -> int:
    """Number of updates before a version."""
    return 0 if version == WARM_START else iteration_of(version) + 1
