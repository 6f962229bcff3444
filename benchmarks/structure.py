"""Size of the code that a reader has to hold in mind, measured.

What one training iteration enters, circles of imports, imports inside functions, lines, tests.
`--tree` measures another checkout, for a comparison of before and after.

    python benchmarks/structure.py [--tree FOLDER --label before]

One iteration is measured on `vagen run` of experiments/frozenlake-tiny.yaml, made small: a profiler
in every process and thread notes which file of `vagen` the called function is in. The iteration
lasts from the end of the first update to the end of the second. Code that runs while a module is
being imported does not count.
"""

import argparse
import ast
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import tokenize
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PACKAGE = "vagen"
Graph = dict[str, set[str]]
"""Files, relative to the tree, with the files that each imports."""

EXPERIMENT = "experiments/frozenlake-tiny.yaml"
SMALL = (
    "trainer.total_training_steps=2",
    "data.train_batch_size=8",
    "actor_rollout_ref.actor.ppo_mini_batch_size=8",
    "critic.ppo_mini_batch_size=8",
    "envs.frozenlake.train_size=8",
    "envs.frozenlake.val_size=2",
    "envs.frozenlake.test_size=2",
    "warm_start.steps=2",
)
TRACER = '''
"""Imported by every Python process at its start: notes the files of `vagen` that calls enter."""
import os, sys, threading, time

tree, notes = os.environ["STRUCTURE_TREE"] + os.sep, os.environ["STRUCTURE_NOTES"]
seen = set()

def profile(frame, event, argument):
    name = frame.f_code.co_filename
    if event != "call" or not name.startswith(tree) or not frame.f_code.co_flags & 1:
        return  # the flag is CO_OPTIMIZED: a function, not the body of a module or class
    entry = name[len(tree):], int(time.time() * 100)
    if entry in seen:
        return
    while frame := frame.f_back:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return
    seen.add(entry)
    with open(os.path.join(notes, str(os.getpid())), "a") as file:
        file.write("%s\\t%d\\n" % entry)

threading.setprofile(profile)
sys.setprofile(profile)
'''


def imports_of(tree: Path, file: Path) -> list[tuple[list[str], bool]]:
    """The import statements of a file, wherever in it they stand.

    Returns:
        Of each statement what it imports: modules, or `module.name` for `from module import name`;
        and whether it stands inside a function.
    """
    package = file.relative_to(tree).parent.parts
    found: list[tuple[list[str], bool]] = []

    def visit(node: ast.AST, inside: bool) -> None:
        if isinstance(node, ast.Import):
            found.append(([alias.name for alias in node.names], inside))
        elif isinstance(node, ast.ImportFrom):
            parents = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*parents, *filter(None, [node.module])])
            found.append(([f"{module}.{alias.name}" for alias in node.names], inside))
        inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for child in ast.iter_child_nodes(node):
            visit(child, inside)

    visit(ast.parse(file.read_text()), False)
    return found


def import_graph(tree: Path) -> Graph:
    """The files of the package and what each imports of it, also in functions and for types.

    `from a import b` leads to the file of `a.b` if that is a module, else to `a`.
    """

    def file_of(name: str) -> str | None:
        path = name.replace(".", "/")
        candidates = (f"{path}.py", f"{path}/__init__.py")
        return next((file for file in candidates if (tree / file).is_file()), None)

    graph: Graph = {}
    for path in sorted((tree / PACKAGE).rglob("*.py")):
        targets = graph[str(path.relative_to(tree))] = set()
        for name in (name for names, _ in imports_of(tree, path) for name in names):
            if name.partition(".")[0] == PACKAGE:
                file = file_of(name) or file_of(name.rpartition(".")[0])
                targets |= {file} if file else set()
    return graph


def circles(graph: Graph) -> list[list[str]]:
    """Groups of files that import one another, directly or not; the largest first."""

    def reachable(start: str) -> set[str]:
        found: set[str] = set()
        waiting = list(graph[start])
        while waiting:
            if (file := waiting.pop()) not in found:
                found.add(file)
                waiting.extend(graph[file])
        return found

    reach = {file: reachable(file) for file in graph}
    groups = {
        tuple(sorted(other for other in reach[file] if file in reach[other])) for file in graph
    }
    return sorted(
        (list(group) for group in groups if group), key=lambda group: (-len(group), group)
    )


def entered(tree: Path) -> list[str]:
    """Files of the package in which the second iteration of a small training called a function.

    Raises:
        RuntimeError: The training failed.
    """
    with tempfile.TemporaryDirectory() as scratch:
        site, notes, outputs = (Path(scratch) / name for name in ("site", "notes", "outputs"))
        site.mkdir()
        notes.mkdir()
        (site / "sitecustomize.py").write_text(TRACER)
        words = [*SMALL, f"infra.output_dir={outputs}", "infra.device=cpu"]
        done = subprocess.run(
            [sys.executable, "-m", "vagen.cli.main", "run", EXPERIMENT, "--name", "run", *words],
            cwd=tree,
            env=os.environ
            | {
                "PYTHONPATH": f"{site}{os.pathsep}{tree}",
                "STRUCTURE_TREE": str(tree),
                "STRUCTURE_NOTES": str(notes),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"the training failed: {done.stderr[-2000:]}")
        ends = [
            event["time"] * 100
            for event in map(
                json.loads, (outputs / "run" / "events.jsonl").read_text().splitlines()
            )
            if event["event"] == "stage_finished" and event["stage"] == "update"
        ]
        lines = [line for file in notes.iterdir() for line in file.read_text().splitlines()]
    start, end = ends
    moments = [line.split("\t") for line in lines]
    return sorted(
        {file for file, at in moments if start < int(at) <= end and file.startswith(PACKAGE)}
    )


def collected_tests(tree: Path) -> int:
    """Number of tests that pytest finds."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only"],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        check=True,
    )
    found = re.search(r"(\d+) tests? collected", done.stdout)
    assert found, done.stdout[-500:]
    return int(found[1])


def lines(tree: Path, *patterns: str) -> int:
    """Lines of the files under version control that fit a pattern."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", *patterns], cwd=tree, capture_output=True, text=True, check=True
    )
    files = (tree / name for name in listed.stdout.split("\0") if name)
    return sum(file.read_bytes().count(b"\n") for file in files)


def sizes(tree: Path) -> dict[str, tuple[int, int]]:
    """Lines and lines of code of each package, and of the tests.

    Code is what remains without blank lines, comments and docstrings.
    """
    found: dict[str, tuple[int, int]] = {}
    for path in sorted([*(tree / PACKAGE).rglob("*.py"), *(tree / "tests").rglob("*.py")]):
        parts = path.relative_to(tree).parts
        room = "tests" if parts[0] == "tests" else "/".join(parts[:2]).removesuffix(".py")
        text = path.read_text()
        total, code = found.get(room, (0, 0))
        found[room] = total + text.count("\n"), code + _code_lines(text)
    return found


def _code_lines(text: str) -> int:
    """Lines with a token that is no comment and no docstring."""
    prose: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        value = getattr(node, "value", None)
        if isinstance(node, ast.Expr) and isinstance(getattr(value, "value", None), str):
            prose |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = set()
    skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in (*skipped, tokenize.ENDMARKER):
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - prose)


def measure(tree: Path) -> dict[str, Any]:
    """All figures of a tree."""
    inside = [
        names[0].partition(".")[0]
        for path in (tree / PACKAGE).rglob("*.py")
        for names, in_function in imports_of(tree, path)
        if in_function
    ]
    found = circles(import_graph(tree))
    modules = entered(tree)
    return {
        "modules_entered": len(modules),
        "largest_circle": len(found[0]) if found else 0,
        "files_in_circles": sum(map(len, found)),
        "function_level_imports": len(inside),
        "function_level_imports_of_vagen": inside.count(PACKAGE),
        "lines_vagen": lines(tree, f"{PACKAGE}/*.py"),
        "lines_python": lines(tree, "*.py"),
        "tests": collected_tests(tree),
        "entered": modules,
        "circles": found,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tree", type=Path, default=ROOT, help="the checkout to measure")
    parser.add_argument("--label", default="now", help="its name among the results")
    default = ROOT / "benchmarks" / "results" / "structure.json"
    parser.add_argument("--output", type=Path, default=default)
    parser.add_argument("--sizes", action="store_true", help="only print tests/budget.yaml's lines")
    arguments = parser.parse_args()
    if arguments.sizes:
        for room, (total, code) in sizes(arguments.tree.resolve()).items():
            print(f"{room}: [{total}, {code}]")
        return
    figures = measure(arguments.tree.resolve())
    results = json.loads(arguments.output.read_text()) if arguments.output.exists() else {}
    results[arguments.label] = figures
    arguments.output.write_text(json.dumps(results, indent=2) + "\n")
    for name, value in figures.items():
        if isinstance(value, int):
            print(f"{name:32} {value:,}")


if __name__ == "__main__":
    main()
