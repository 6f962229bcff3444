"""Provenance of a run: git commit and package versions."""

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = (
    "vagen",
    "torch",
    "transformers",
    "peft",
    "numpy",
    "gymnasium",
    "pyarrow",
    "kfp",
    "mlflow",
)


def package_versions() -> dict[str, str]:
    """Versions of Python and of relevant installed packages."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def git_commit() -> tuple[str, bool] | None:
    """Commit of this package's checkout, and whether files differ from it.

    Returns:
        None if the package does not run from its git checkout.
    """
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        commit = _git(root, "rev-parse", "HEAD")
        dirty = bool(_git(root, "status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        return None
    return commit, dirty


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=10, check=True
    )
    return done.stdout.strip()
