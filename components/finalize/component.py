"""The `finalize` step."""

from kfp import dsl

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def finalize(
    run_dir: str,
    status: dsl.PipelineTaskFinalStatus,
) -> None:
    """Closes the run, however it ended: tracking, summary, what has to be released.

    Args:
        run_dir: The run's folder.
        status: How the pipeline ended.
    """
    from vagen.stages.session import call

    call(run_dir, "finalize", state=status.state, message=status.error_message or "")
