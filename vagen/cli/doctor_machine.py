"""The doctor's checks of a machine: versions, folders, devices, MLflow."""

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sqlite3
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

from vagen.cli.findings import Findings, bad, good, guarded, warning
from vagen.config import InfraConfig
from vagen.engines.verl.env_vars import is_installed
from vagen.plan.memory import memory_limit
from vagen.service.pool import core_count
from vagen.storage import open_store

PYTHONS = ((3, 11), (3, 12), (3, 13))
PACKAGES = (
    "boto3",
    "gymnasium",
    "httpx",
    "jinja2",
    "kfp",
    "kubernetes",
    "matplotlib",
    "mlflow",
    "numpy",
    "peft",
    "pillow",
    "pyarrow",
    "pydantic",
    "pyyaml",
    "rich",
    "safetensors",
    "scipy",
    "torch",
    "transformers",
)
"""Packages that the project imports."""
CONSTRAINTS = Path("constraints") / ("verl.txt" if is_installed() else "laptop.txt")
GIB = 1 << 30
LEAST_SPACE, ENOUGH_SPACE = GIB // 4, 4 * GIB
TIMEOUT = 5.0
"""Seconds an MLflow server has to answer."""


def versions() -> Findings:
    """Compares Python and the packages with the tested versions."""
    found = sys.version_info[:2]
    text = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if found in PYTHONS:
        yield good("python", text)
    else:
        yield bad("python", text, "use Python 3.11 to 3.13")
    torch = importlib.util.find_spec("torch")
    if sys.dont_write_bytecode and torch and not os.path.exists(torch.cached or ""):
        text = "PYTHONDONTWRITEBYTECODE is set, and libraries have none"
        yield warning("bytecode", text, "unset it: each command compiles them anew, for seconds")
    pins = read_pins()
    missing, different = [], []
    for name in PACKAGES:
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
            continue
        # `2.13.0+cpu` is a build of 2.13.0.
        if name in pins and version.partition("+")[0] != pins[name]:
            different.append(f"{name} {version} (tested: {pins[name]})")
    if missing:
        yield bad("packages", f"missing: {', '.join(missing)}", "run `make venv`")
    if different:
        yield warning("packages", ", ".join(different), f"pip install -c {CONSTRAINTS} -e .")
    if not pins:
        yield warning("packages", "their tested versions are unknown", f"{CONSTRAINTS} is missing")
    elif not missing and not different:
        yield good("packages", f"{len(PACKAGES)} at the tested versions")


def read_pins() -> dict[str, str]:
    """Tested version by package, from the constraints file; empty if it is not there."""
    for root in (Path(), Path(__file__).resolve().parents[2]):
        path = root / CONSTRAINTS
        if path.is_file():
            lines = (line.partition("#")[0].strip() for line in path.read_text().splitlines())
            pairs = (line.split("==") for line in lines if "==" in line)
            return {name.lower(): version for name, version in pairs}
    return {}


def folders(infra: InfraConfig) -> Findings:
    """Checks that the output and temporary folders are writable and have space."""
    for subject, folder in (
        ("outputs", Path(infra.output_dir)),
        ("temporary", Path(tempfile.gettempdir())),
    ):
        yield from _folder(subject, folder.resolve())


def _folder(subject: str, folder: Path) -> Findings:
    existing = folder
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir():
        yield bad(subject, f"{existing} is a file", "choose another `infra.output_dir`")
        return
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(b"\0" * 4096)
    except OSError as error:
        yield bad(
            subject,
            f"{existing} cannot be written: {error.strerror}",
            "choose another `infra.output_dir`, or change its permissions",
        )
        return
    free = shutil.disk_usage(existing).free
    text = f"{folder}, {free / GIB:.1f} GiB free"
    if free < LEAST_SPACE:
        yield bad(subject, text, "make room: a run writes batches, checkpoints and reports")
    elif free < ENOUGH_SPACE:
        yield warning(subject, text, "a run may need more")
    else:
        yield good(subject, text)


def devices(infra: InfraConfig) -> Findings:
    """Reports processor, memory and accelerator."""
    yield from guarded("device", "run `make venv`", lambda: _devices(infra))


def _devices(infra: InfraConfig) -> Findings:
    import torch

    cores = core_count()
    threads = infra.threads or cores
    memory = memory_limit() / GIB
    text = f"{cores} cores, {threads} to compute on, {memory:.1f} GiB of memory"
    if threads > cores:
        yield warning("cpu", text, f"lower `infra.threads` to {cores}")
    elif memory < 4:
        yield warning("cpu", text, "`vagen plan` says what an experiment needs")
    else:
        yield good("cpu", text)
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    wanted = infra.device
    number = int(wanted.partition(":")[2] or 0)
    if wanted.startswith("cuda") and number >= len(names):
        found = ", ".join(names) or "no accelerator"
        yield bad("device", f"{wanted} is asked for; there is {found}", "set `infra.device=auto`")
    else:
        chosen = names[number] if names and wanted != "cpu" else "cpu"
        yield good("device", f"{wanted}: {chosen} (torch {torch.__version__})")


def store(infra: InfraConfig) -> Findings:
    """Checks that the store of runs answers; writes nothing."""
    if infra.store is not None:
        yield from guarded("store", "set `infra.store` right, or null", lambda: _store(infra))


def _store(infra: InfraConfig) -> Findings:
    opened = open_store(infra.store or "", infra.s3)
    opened.check()
    yield good("store", f"{opened.uri} answers")


def mlflow_store(infra: InfraConfig) -> Findings:
    """Checks that MLflow's server answers, or that its database is writable."""
    uri = infra.mlflow_tracking_uri or f"sqlite:///{Path(infra.output_dir) / 'mlflow.db'}"
    advice = "check `infra.mlflow_tracking_uri`; null takes a file in the output folder"
    if uri.startswith(("http://", "https://")):
        yield from guarded("mlflow", advice, lambda: _server(uri))
    elif uri.startswith("sqlite:///"):
        yield from guarded("mlflow", advice, lambda: _sqlite(uri))
    else:
        yield from guarded("mlflow", advice, lambda: _other_store(uri))


def _server(uri: str) -> Findings:
    try:
        with urllib.request.urlopen(f"{uri.rstrip('/')}/health", timeout=TIMEOUT) as answer:
            answer.read()
    except urllib.error.HTTPError as error:
        # It speaks HTTP: a proxy may hide the health page behind a login.
        if error.code not in (401, 403):
            raise
        yield warning("mlflow", f"{uri} wants a login", "set MLFLOW_TRACKING_USERNAME, _PASSWORD")
        return
    except (urllib.error.URLError, TimeoutError) as error:
        reason = getattr(error, "reason", error)
        yield bad("mlflow", f"{uri} does not answer: {reason}", "start it, or correct the URI")
        return
    yield good("mlflow", f"{uri} answers")


def _sqlite(uri: str) -> Findings:
    path = Path(uri.removeprefix("sqlite:///"))
    if not path.exists():
        yield good("mlflow", f"{path} (made by the first run)")
        return
    connection = sqlite3.connect(f"file:{path}?mode=rw", uri=True, timeout=TIMEOUT)
    try:
        connection.execute("BEGIN IMMEDIATE")
        tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
        connection.rollback()
    except sqlite3.Error as error:
        yield bad("mlflow", f"{path}: {error}", "move the file away, or wait for who writes to it")
        return
    finally:
        connection.close()
    if tables and "alembic_version" not in tables:
        yield bad("mlflow", f"{path} is another program's database", "move the file away")
        return
    yield good("mlflow", str(path))


def _other_store(uri: str) -> Findings:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        MlflowClient(uri).search_experiments(max_results=1)
    except (MlflowException, SQLAlchemyError) as error:
        raise ConnectionError(str(error)) from error
    yield good("mlflow", f"{uri} answers")
