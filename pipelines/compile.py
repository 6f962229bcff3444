"""Writes the pipeline as Kubeflow's IR YAML (`vagen compile`, `make compile`)."""

from pathlib import Path

from kfp import compiler

from pipelines.definition import training_pipeline


def compile_pipeline(
    path: Path,
    *,
    iterations: int,
    start: int = 0,
    mode: str = "staged",
    test_freq: int = 0,
    image: str | None = None,
) -> Path:
    """Compiles the training pipeline to `path`; arguments as `training_pipeline`'s.

    Raises:
        ValueError: If the mode is unknown or `start` is not within the training.
    """
    if mode not in ("staged", "fused"):
        raise ValueError(f"unknown mode `{mode}`; there is: staged, fused")
    pipeline = training_pipeline(
        iterations=iterations, start=start, mode=mode, test_freq=test_freq, image=image
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    compiler.Compiler().compile(pipeline, str(path))
    return path
