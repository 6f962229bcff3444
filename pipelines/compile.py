"""Writes the pipeline as Kubeflow's IR YAML: `python -m pipelines.compile`."""

import argparse
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


def main(arguments: list[str] | None = None) -> None:
    """Command line of the compiler."""
    parser = argparse.ArgumentParser(description="Compile the training pipeline to IR YAML.")
    parser.add_argument("experiment", nargs="?", default="frozenlake-tiny")
    parser.add_argument("overrides", nargs="*", help="dotted overrides of the experiment")
    parser.add_argument("--iterations", type=int, help="instead of the experiment's number")
    parser.add_argument("--start", type=int, default=0, help="first iteration")
    parser.add_argument("--mode", default="staged", choices=["staged", "fused"])
    parser.add_argument("--image", help="container image of the steps")
    parser.add_argument("--output", type=Path, default=Path("build/pipeline.yaml"))
    options = parser.parse_args(arguments)

    from vagen.config import load_experiment

    try:
        trainer = load_experiment(options.experiment, options.overrides).trainer
        path = compile_pipeline(
            options.output,
            iterations=options.iterations or trainer.total_training_steps,
            start=options.start,
            mode=options.mode,
            test_freq=trainer.test_freq,
            image=options.image,
        )
    except ValueError as error:
        parser.exit(2, f"error: {error}\n")
    print(f"{path}: {path.stat().st_size / 1024:.0f} KB")


if __name__ == "__main__":
    main()
