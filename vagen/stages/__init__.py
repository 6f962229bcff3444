"""The steps of the pipeline: one function each over a run's folder.

`execute(run, "rollout", iteration=3)` finds what the step before wrote, does the work, commits its
own folder whole and returns `uri`, `sha256` and `metrics`. A step whose folder is committed already
returns it: running a step again never does it twice.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vagen.stages.dispatch import evaluate_model, execute, rerun_stage
    from vagen.stages.run import Run

__all__ = ["Run", "evaluate_model", "execute", "rerun_stage"]


def __getattr__(name: str) -> Any:
    """Loads the stages (torch, transformers) only once something needs them."""
    if name not in __all__:
        raise AttributeError(name)
    if name == "Run":
        from vagen.stages.run import Run

        return Run
    from vagen.stages import dispatch

    return getattr(dispatch, name)
