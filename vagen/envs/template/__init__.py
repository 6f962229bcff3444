"""A complete environment to begin with, which `vagen env init` writes under a name of one's own."""

import importlib.util
import keyword
import re
from pathlib import Path

from vagen.envs.registry import ADAPTERS, ENVIRONMENTS


class EnvironmentNameError(ValueError):
    """An environment of this name cannot be written here."""


def write_environment(name: str, folder: Path) -> str:
    """Writes a new environment: `NAME.py` (class), `NAME.yaml` (experiment) and `test_NAME.py`.

    Args:
        name: Module and experiment; `two_doors` has the class `TwoDoorsEnv`.
        folder: New folder for the files.

    Returns:
        Its name for experiments, `two_doors:TwoDoorsEnv`, once the folder is on `PYTHONPATH`.

    Raises:
        EnvironmentNameError: The name is none for a module, or is taken; or the folder exists.
    """
    if not re.fullmatch(r"[A-Za-z]\w{0,99}", name, re.ASCII) or keyword.iskeyword(name):
        close = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_0123456789") or "env"
        like = f"{close}_env" if keyword.iskeyword(close) else close
        raise EnvironmentNameError(
            f"{name!r} cannot name a Python module: use letters, digits and `_`, such as {like}"
        )
    for known in (*ENVIRONMENTS, *ADAPTERS):
        if name.replace("_", "").lower() == known.lower():
            raise EnvironmentNameError(
                f"{known} is an environment of this package: take another name, or look at it with "
                f"`vagen env show {known}`"
            )
    if folder.exists():
        raise EnvironmentNameError(f"{folder} exists: take another name, or another folder by --to")
    if found := importlib.util.find_spec(name):
        raise EnvironmentNameError(
            f"there is a module {name} already ({found.origin or 'a folder on PYTHONPATH'}), which "
            "either would hide: take another name"
        )
    new = "".join(part[:1].upper() + part[1:] for part in name.split("_"))
    folder.mkdir(parents=True)
    for path in Path(__file__).parent.glob("*corridor.*"):
        text = path.read_text().replace(f"{__name__}.", "")
        text = re.sub("[Cc]orridor", lambda found: new if found[0][0] == "C" else name, text)
        (folder / path.name.replace("corridor", name)).write_text(text)
    return f"{name}:{new}Env"
