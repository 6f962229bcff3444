"""The `begin` step."""

from kfp import dsl

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def begin(
    run: str,
    experiment: str,
    infra: str,
    code: str,
):
    """Creates the run's folder in the store, with its configuration.

    Args:
        run: The run: its folder, or its URI in a store.
        experiment: The experiment file's text; empty if the run exists.
        infra: The infra file's text; empty if the run exists.
        code: Digest of the steps' code in the pipeline; the image must have the same.
    """
    from components import check
    from vagen.launch.lifecycle import begin

    check(code)
    begin(run, experiment=experiment, infra=infra)
