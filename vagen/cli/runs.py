"""`vagen runs`: the runs in a folder with their status."""

import json
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from vagen.cli.common import RunNotFoundError
from vagen.config import InfraConfig
from vagen.run.layout import is_uri
from vagen.run.listing import RunStatus, list_runs

_WIDE = 200
"""Columns without a terminal."""
_STYLES = {"training": "cyan", "finished": "green", "failed": "red", "interrupted": "yellow"}


def runs(options: Namespace) -> None:
    """Prints the runs in a folder, the newest first.

    Raises:
        RunNotFoundError: There is no such folder.
    """
    given = options.folder or InfraConfig().output_dir
    folder = Path(given)
    if is_uri(given):
        raise RunNotFoundError(f"{given} is a store: `vagen store ls {given}` lists what it has")
    if not folder.is_dir():
        raise RunNotFoundError(
            f"there is no folder {folder}: `vagen run` makes it, or name another"
        )
    found = list_runs(folder)
    if options.json:
        print(json.dumps([asdict(status) for status in found], indent=2))
    elif not found:
        print(f"no runs in {folder}")
    else:
        console = Console()
        console = console if console.is_terminal else Console(width=_WIDE)
        console.print(_table(found))
        for status in found:
            if status.message:
                print(f"{status.name} failed: {status.message.splitlines()[0]}")


def _table(found: list[RunStatus]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("run", "state", "iteration", "start", "newest", "time", "preset", "seed"):
        right = name in ("iteration", "start", "newest", "time", "seed")
        table.add_column(
            name, justify="right" if right else "left", no_wrap=name != "run", overflow="fold"
        )
    for status in found:
        table.add_row(
            status.name,
            f"[{_STYLES[status.state]}]{status.state}[/]",
            f"{status.iteration}/{status.iterations}",
            _rate(status.start),
            f"{_rate(status.newest)} {status.newest_of}".rstrip(),
            f"{int(status.seconds) // 60}:{int(status.seconds) % 60:02d}",
            status.preset or "–",
            str(status.seed),
        )
    return table


def _rate(success: float | None) -> str:
    return "–" if success is None else f"{success:.3f}"
