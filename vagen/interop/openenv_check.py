"""Checks a package of OpenEnv with the graders of OpenEnv and all installed ones.

`openenv validate` builds an image and loads no entry points; here the package's `app` is started in
a process.
"""

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import yaml
from openenv.validation import (
    CheckResult,
    CheckStatus,
    Lane,
    Level,
    ManifestError,
    SignatureError,
    Subject,
    Verdict,
    apply_policy,
    detect_signature,
    load_policy,
)
from openenv.validation.runner import default_grader_registry, default_parser_registry
from openenv.validation.runtime.collector import collect_runtime_evidence
from openenv.validation.runtime.scheduler import execute_graders

from vagen.envs.check_form import ContractError
from vagen.interop.openenv_player import plan_of

START_SECONDS = 120.0
"""Timeout of the start of a server."""


@dataclass(frozen=True)
class LocalServer:
    """A package's server, as graders see it."""

    root: Path
    base_url: str

    def another(self) -> "AbstractContextManager[LocalServer]":
        """The same package in another process."""
        return started(self.root)


@contextmanager
def started(root: Path) -> Iterator[LocalServer]:
    """Starts `app` of `openenv.yaml` with uvicorn, and ends it.

    Raises:
        ContractError: It does not start.
    """
    app = yaml.safe_load((root / "openenv.yaml").read_text()).get("app", "server.app:app")
    with tempfile.TemporaryFile("a+") as log:
        command = [sys.executable, "-m", "uvicorn", app, "--port", "0"]
        server = subprocess.Popen(command, cwd=root, stdout=log, stderr=log)
        try:
            end = time.monotonic() + START_SECONDS
            while True:
                log.seek(0)
                said = log.read()
                if address := re.search(r"running on (http://127\.0\.0\.1:\d+)", said):
                    break
                if server.poll() is not None or time.monotonic() > end:
                    raise ContractError(f"{root}: {app} does not start: {said[-2000:]}")
                time.sleep(0.1)
            yield LocalServer(root, address[1])
        finally:
            server.terminate()
            server.wait()


def check_package(
    root: Path, base_url: str | None = None, *, report: Callable[[str], object] = print
) -> None:
    """Runs the graders of OpenEnv and the installed ones on a package with `openenv.yaml`.

    Args:
        root: Folder of the package.
        base_url: Address of its server; otherwise it is started here.
        report: Called with each line of the report.

    Raises:
        ContractError: It is no package, or it fails a check that the severity policy v2 of OpenEnv
            demands.
    """
    policy = load_policy("v2")
    try:
        manifest = default_parser_registry().parser_for(detect_signature(root)).parse(root)
    except SignatureError as error:
        raise ContractError(str(error)) from error
    except ManifestError as error:
        raise ContractError(f"{root}: {error}; {error.remediation}") from error
    registry = default_grader_registry(policy)
    registry.load_entry_points()
    graders = registry.select(manifest, Level.SEMANTIC)
    with nullcontext(LocalServer(root, base_url)) if base_url else started(root) as running:
        subject = Subject(
            root=root, manifest=manifest, image_ref=None, running=running, outputs_dir=root
        )
        plan = plan_of(subject)
        evidence = collect_runtime_evidence(
            running.base_url, plan, episode_timeout_s=manifest.resources.episode_timeout_s
        )
        startup = CheckResult(
            check_id="runtime.startup",
            status=CheckStatus.FAIL if evidence.failure_reason else CheckStatus.PASS,
            evidence=[evidence.failure_reason or "the server plays the probe"],
            duration_s=0,
        )
        subject = replace(subject, runtime_evidence=evidence)
        results = [startup, *execute_graders(graders, subject, prior=[startup])]
    for result in results:
        report(f"{result.status.value.upper():5} {result.check_id} ({result.duration_s:.1f} s)")
        if result.status is not CheckStatus.PASS:
            for line in filter(None, (*result.evidence, result.remediation)):
                report(f"      {line}")
    absent = [
        check_id
        for check_id, entry in policy.entries_for_lane(Lane.LOCAL).items()
        if entry.level is not Level.STATIC and check_id not in {each.check_id for each in results}
    ]
    report(f"no grader: {', '.join(absent)}")
    if apply_policy(results, policy, Lane.LOCAL) is Verdict.FAIL:
        raise ContractError(f"{root} fails what severity policy v2 of OpenEnv demands")
