"""Names of runs: a folder, or a URI in a store.

Every step of a pipeline loads it, so it imports nothing heavy.
"""

from pathlib import Path


def is_uri(run: str | Path) -> bool:
    """Whether the name of a run is a URI in a store."""
    return isinstance(run, str) and "://" in run


def split_uri(run: str) -> tuple[str, str]:
    """URI of the store and name of a run, from the run's URI."""
    store, _, name = run.rstrip("/").rpartition("/")
    return store, name


def run_name(run: str) -> str:
    """Name of a run: the last part of its URI."""
    return split_uri(run)[1]
