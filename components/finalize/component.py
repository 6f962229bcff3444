"""The `finalize` step."""

from kfp import dsl

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def finalize(
    run: str,
    namespace: str,
    status: dsl.PipelineTaskFinalStatus,
) -> None:
    """Closes the run in any state: tracking, summary, logs, Ray cluster.

    Args:
        run: The run: its folder, or its URI in a store.
        namespace: Namespace of its Ray cluster; empty if it has none.
        status: Final status of the pipeline.
    """
    from vagen.launch.lifecycle import end

    end(run, namespace=namespace, state=status.state, message=status.error_message or "")
