"""The `finalize` step."""

from kfp import dsl

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def finalize(
    run: str,
    status: dsl.PipelineTaskFinalStatus,
) -> None:
    """Closes the run, however it ended: tracking, summary, logs, its Ray cluster.

    Args:
        run: The run: its folder, or its URI in a store.
        status: How the pipeline ended.
    """
    from vagen.stages.lifecycle import end

    end(run, state=status.state, message=status.error_message or "")
