"""The `finalize` step."""

from kfp import dsl

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def finalize(
    run: str,
    namespace: str,
    status: dsl.PipelineTaskFinalStatus,
) -> None:
    """Closes the run, however it ended: tracking, summary, logs, its Ray cluster.

    Args:
        run: The run: its folder, or its URI in a store.
        namespace: Where its Ray cluster is; empty if it has none.
        status: How the pipeline ended.
    """
    from vagen.launch.lifecycle import end

    end(run, namespace=namespace, state=status.state, message=status.error_message or "")
