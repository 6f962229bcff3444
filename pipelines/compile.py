"""Writes the pipelines as Kubeflow's IR YAML (`vagen compile`, `make compile`)."""

import functools
import tempfile
from collections.abc import Sequence
from pathlib import Path

from kfp import compiler
from kfp.dsl.base_component import BaseComponent

from pipelines.definition import evaluation_pipeline, models_pipeline, training_pipeline
from vagen.config import InfraConfig, dump_yaml
from vagen.config.yaml_io import parse_yaml
from vagen.experiment.load import load_infra


def compile_training(path: Path, infra: InfraConfig, *, image: str | None = None) -> Path:
    """Compiles the pipeline of a training to `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_training(dump_yaml(infra), image))
    return path


@functools.lru_cache
def _training(infra: str, image: str | None) -> str:
    """Content of the file; the same for every trial of a sweep."""
    pipeline = training_pipeline(load_infra(parse_yaml(infra, "infra")), image=image)
    with tempfile.TemporaryDirectory() as folder:
        return write(pipeline, Path(folder) / "training.yaml").read_text()


def compile_evaluation(path: Path, infra: InfraConfig, *, image: str | None = None) -> Path:
    """Compiles the evaluation of a run's newest policy to `path`."""
    return write(evaluation_pipeline(infra, image=image), path)


def compile_models(
    path: Path,
    infra: InfraConfig,
    models: Sequence[str],
    *,
    scheduled: bool = False,
    image: str | None = None,
) -> Path:
    """Compiles an evaluation of these models to `path`."""
    return write(models_pipeline(infra, models, scheduled=scheduled, image=image), path)


def write(pipeline: BaseComponent, path: Path) -> Path:
    """Compiles a pipeline to a file; creates its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    compiler.Compiler().compile(pipeline, str(path))
    return path
