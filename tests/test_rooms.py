"""The architecture, checked: which room may import which, and who may import kfp, ray and verl."""

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = [
    "config",
    "storage",
    "progress",
    "cluster",
    "clients",
    "envs",
    "service",
    "rollout",
    "interop",
    "judge",
    "advantage",
    "experiment",
    "learning",
    "models",
    "engines",
    "tracking",
    "report",
    "run",
    "serve",
    "stages",
    "evaluation",
    "compare",
    "deploy",
    "launch",
    "plan",
    "sweep",
    "play",
    "cli",
]
"""Data flows downwards: a room imports only rooms above it."""


@cache
def imports(path: Path) -> set[str]:
    """Modules that a file imports anywhere, inside functions too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
    return found


def rooms_imported(room: str) -> dict[str, set[str]]:
    """Other rooms that a room imports, each with the files that do."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "vagen" / room).rglob("*.py"):
        for module in imports(path):
            parts = module.split(".")
            if parts[0] == "vagen" and len(parts) > 1 and parts[1] != room:
                found.setdefault(parts[1], set()).add(str(path.relative_to(ROOT)))
    return found


def test_every_room_is_listed() -> None:
    folders = {path.parent.name for path in (ROOT / "vagen").glob("*/__init__.py")}
    assert folders == set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_rooms_above_it(room: str) -> None:
    below = set(ROOMS[ROOMS.index(room) + 1 :])
    wrong = {other: files for other, files in rooms_imported(room).items() if other in below}
    assert not wrong


@pytest.mark.parametrize(
    ("library", "homes"),
    [
        ("kfp", ("components", "pipelines")),
        ("ray", ("vagen/engines/verl", "vagen/launch")),
        ("verl", ("vagen/engines/verl",)),
        ("boto3", ("vagen/storage",)),
        ("botocore", ("vagen/storage",)),
        ("kubernetes", ("vagen/cluster", "pipelines/submit.py")),
        ("miniworld", ("vagen/envs/navigation/miniworld.py",)),
        ("pyglet", ("vagen/envs/navigation/miniworld.py",)),
        ("optuna", ("vagen/sweep",)),
        ("inspect_ai", ("vagen/interop/inspect_tasks.py",)),
        ("openenv", ("vagen/envs/adapters/openenv.py", "vagen/interop/openenv_")),
        ("verifiers", ("vagen/interop/verifiers_env.py",)),
        ("ai2thor", ("vagen/envs/navigation/thor.py",)),
    ],
)
def test_a_heavy_library_is_imported_only_at_home(library: str, homes: tuple[str, ...]) -> None:
    strangers = [
        str(path.relative_to(ROOT))
        for folder in ("vagen", "components", "pipelines")
        for path in (ROOT / folder).rglob("*.py")
        if any(module.split(".")[0] == library for module in imports(path))
        and not str(path.relative_to(ROOT)).startswith(homes)
    ]
    assert not strangers


def loaded_with(path: Path) -> set[str]:
    """Modules that a file imports as it is imported itself, with the packages of each."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found | {module.split(".")[0] for module in found}


def test_tests_are_collected_where_neither_ray_nor_verl_is() -> None:
    """`make check` has neither; what is in verl's own folder is skipped there."""
    needs = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): loaded_with(path)
        for path in (ROOT / "vagen").rglob("*.py")
    }
    absent = {"ray", "verl", "hydra", "omegaconf"}
    while more := {name for name, found in needs.items() if found & absent} - absent:
        absent |= more
    assert "vagen.launch.actor" in absent and "vagen.launch.ray_job" not in absent
    wrong = {
        str(path.relative_to(ROOT)): found
        for path in (ROOT / "tests").rglob("*.py")
        if path.parent.name != "verl" and path.name.startswith(("test_", "conftest"))
        if (found := loaded_with(path) & absent)
    }
    assert not wrong
