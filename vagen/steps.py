"""The steps of a training, declared once, and the versions of the policy between them.

    build → warm_start → evaluate
    for each iteration: the steps of `ITERATION` (→ evaluate on the validation levels)
    evaluate → register

Every step is the function of its name in `vagen.stages`, and a component of its name in
`components`. Each step of an iteration but the first starts from the batch of the one before it.
"""

ITERATION = ("rollout", "judge", "advantage", "update")
"""Steps of one iteration, in order. All but the last commit a batch of trajectories."""
EVALUATIONS = ("evaluate", "measure")
STEPS = ("build", "warm_start", *ITERATION, *EVALUATIONS, "register", "finalize")

WARM_START = "warm_start"
"""Version of the policy before the first update; `iteration-0007` follows iteration 7."""


def step_before(step: str) -> str:
    """The step of an iteration whose batch a step starts from.

    >>> step_before("judge")
    'rollout'
    """
    return ITERATION[ITERATION.index(step) - 1]


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
