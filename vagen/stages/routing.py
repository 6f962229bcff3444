"""Who executes the stages of a run: this machine, a Ray cluster, or a job on Kubernetes.

Loaded by every step of a pipeline, so it imports nothing heavy.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vagen.config import InfraConfig

INSIDE = "VAGEN_INSIDE"
"""Environment variable: URI of the run in whose Ray cluster on Kubernetes this process is."""
OWN_POD = frozenset({"build", "register", "measure", "finalize"})
"""Stages that need no Ray cluster: on Kubernetes the step's own pod executes them."""


def is_uri(run: str | Path) -> bool:
    """Whether a run is named by its URI in a store, and not by its folder."""
    return isinstance(run, str) and "://" in run


def split_uri(run: str) -> tuple[str, str]:
    """URI of the store and name of a run, from the run's URI."""
    store, _, name = run.rstrip("/").rpartition("/")
    return store, name


def run_name(run: str) -> str:
    """Name of a run: the last part of its URI."""
    return split_uri(run)[1]


def ray_jobs(run: str, run_dir: str | Path, stage: str) -> "InfraConfig | None":
    """The infra of a run on Kubernetes, if a stage has to be asked for there.

    Args:
        run: As the step names it: URI or folder.
        run_dir: Its folder here.
        stage: The stage, or `train`.
    """
    if not is_uri(run) or stage in OWN_POD or os.environ.get(INSIDE) == run:
        return None
    path = _file(run_dir)
    if not (infra := _read(path)) or infra.get("kubernetes") is None or infra["engine"] != "verl":
        return None
    from vagen.config import load_infra

    return load_infra(path)


def ray_address(run: str, run_dir: str | Path) -> str | None:
    """Address of the Ray cluster that a run's session lives in; None if it lives on this machine.

    The run's `infra.verl.ray_address` names a cluster that is there already; an engine that starts
    a Ray of its own lives and ends with the process that started it.
    """
    if os.environ.get(INSIDE) == run:
        return "auto"
    infra = _read(_file(run_dir))
    if infra.get("engine") != "verl":
        return None
    return infra["verl"]["ray_address"]


def _file(run_dir: str | Path) -> Path:
    return Path(run_dir) / "config" / "infra.yaml"


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    import yaml

    return yaml.safe_load(path.read_text())
