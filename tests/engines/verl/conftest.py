"""Tests of the verl engine need verl: `make test-verl` installs it."""

import importlib.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from vagen.engines.verl.environment import configure

if importlib.util.find_spec("verl") is None:
    pytest.skip("verl is not installed; `make test-verl` installs it", allow_module_level=True)
configure(cpu=True)  # before verl or transformers is imported


@pytest.fixture(scope="module")
def ray_folder(tmp_path_factory) -> Iterator[None]:
    """Ray's files in a short path of their own (its sockets' paths may have 107 characters)."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="ray") as folder:
        os.environ["RAY_TMPDIR"] = folder
        yield
        del os.environ["RAY_TMPDIR"]


@pytest.fixture(scope="module")
def make_verl_engine(ray_folder, make_experiment) -> Iterator[Callable[..., Any]]:
    """The distributed engine on this machine: one at a time, `make(model, "overrides")`."""
    from vagen.config import load_infra
    from vagen.engines.verl.launch import start

    made: list[Any] = []

    def make(model: Path, *overrides: str, ranks: int = 1):
        while made:
            made.pop().close()
        settings = ["engine=verl", "device=cpu", "threads=1", "verl.rollout=torch"]
        settings += [f"verl.n_gpus_per_node={ranks}", "verl.agent_workers=1"]
        infra = load_infra(None, settings)
        made.append(start(make_experiment(*overrides), infra, model))
        return made[0]

    yield make
    while made:
        made.pop().close()
