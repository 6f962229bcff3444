"""The two ends of a run as a pipeline has them: what it needs is made, and let go."""

from pathlib import Path

from vagen.stages.routing import is_uri
from vagen.stages.session import StageError, call


def begin(run: str, *, experiment: str, infra: str) -> None:
    """Makes the run if it is not there, and on Kubernetes its Ray cluster.

    Args:
        run: The run: its folder, or its URI in a store.
        experiment: Text of the experiment file.
        infra: Text of the infra file.

    Raises:
        StageError: There is no such run and nothing to make it from, or it is another one.
        ClusterError: The Ray cluster cannot be had.
    """
    if is_uri(run):
        from vagen.stages import stored_run

        stored_run.begin(run, experiment=experiment, infra=infra)
    elif not Path(run).is_dir():
        raise StageError(f"no run at {run}: the folder does not exist")


def end(run: str, *, state: str, message: str) -> None:
    """Closes the run: tracking and summary; on Kubernetes also logs and Ray cluster.

    Args:
        run: The run: its folder, or its URI in a store.
        state: How the pipeline ended, in Kubeflow's words.
        message: Why, if it failed.
    """
    if is_uri(run):
        from vagen.stages import stored_run

        if not stored_run.release(run):
            print(f"{run} was never made: there is nothing to close", flush=True)
            return
    call(run, "finalize", state=state, message=message)
