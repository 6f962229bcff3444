"""`vagen view`: the page of a run, of an evaluation, or of any folder of episodes."""

import os
import time
import webbrowser
from argparse import Namespace
from pathlib import Path

from vagen import progress, steps
from vagen.cli.common import RunNotFoundError, find_run, is_run, pull, run_of
from vagen.rollout.batch import TrajectoryBatch
from vagen.run import layout
from vagen.run.run import Run
from vagen.storage import MANIFEST

EPISODES = "trajectories.parquet"
"""A folder that holds it is a batch."""
FOLLOW_SECONDS = 10


def view(options: Namespace) -> None:
    """Prints where the page is, and opens it; or draws a moving picture."""
    if options.gif:
        _draw(options)
        return
    if options.follow:
        _follow(options)
        return
    try:
        page = find_report(options.target)
    finally:
        progress.close()
    _show(page, options)


def find_report(target: str) -> Path:
    """The page of a run, of an evaluation, or of a batch of episodes; or the HTML file itself.

    A run's is written now, and a batch's where it has none.

    Raises:
        RunNotFoundError: There is nothing to see.
        StorageError: The content was changed, or is not available.
    """
    path = Path(target)
    if path.is_file() and path.suffix == ".html":
        return path.resolve()
    if not path.is_dir() or is_run(path):
        from vagen.stages.overview import write_pages

        return write_pages(Run.open(find_run(target)))
    path = path.resolve()
    try:
        run = Run.open(run_of(path))
    except RunNotFoundError:
        run = None
    if run is not None and (path / MANIFEST).exists():
        run.fetch(path)
    if pages := sorted(path.glob("*.html")):
        return pages[0]
    if not (path / EPISODES).is_file():
        raise RunNotFoundError(
            f"{path} holds no episodes: give a run, an evaluation, or a step such as "
            "RUN/iterations/0007/rollout"
        )
    from vagen.stages.overview import write_batch_page

    if run is None:
        return write_batch_page(path, path.with_name(f"{path.name}.html"))
    name = path.relative_to(run.path).as_posix().replace("/", "-")
    return write_batch_page(path, run.path / layout.OVERVIEW.with_name(f"{name}.html"), run=run)


def _draw(options: Namespace) -> None:
    """Draws a level before and after the training of a run."""
    from vagen.report.moving import draw_before_after

    run = Run.open(find_run(options.target))
    before, after = (
        TrajectoryBatch.load(run.fetch(run.evaluation(name)))
        for name in (steps.WARM_START, layout.FINAL)
    )
    seed = draw_before_after(before, after, Path(options.gif), seed=options.level)
    print(f"{options.gif}: level {seed}")


def _follow(options: Namespace) -> None:
    """Writes a run's page again and again until the run ends."""
    from vagen.stages.overview import write_pages

    run = Run.open(find_run(options.target))
    shown = False
    while True:
        pull(run)
        run.read_length()
        events = [event["event"] for event in progress.read_events(run.events)]
        ended = run.is_current(run.registration) or events[-1:] == ["run_ended"]
        page = write_pages(run, refresh=None if ended else FOLLOW_SECONDS)
        if not shown:
            _show(page, options)
            shown = True
        if ended:
            print(f"{run.name} has ended")
            return
        time.sleep(FOLLOW_SECONDS)


def _show(page: Path, options: Namespace) -> None:
    print(page, flush=True)
    if not options.no_open and has_display():
        webbrowser.open(page.as_uri())


def has_display() -> bool:
    """Whether a browser can be opened here."""
    if os.name == "nt" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        return True
    return os.uname().sysname == "Darwin"
