"""A real cluster with Kubeflow Pipelines, KubeRay and the platform: that of kubectl's context."""

import base64
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vagen.cluster.names import RUN

ROOT = Path(__file__).parents[2]
FORWARDING = re.compile(r"Forwarding from (127\.0\.0\.1:\d+)")
ENDED = ("SUCCEEDED", "FAILED", "CANCELED")
STEPS = "app.kubernetes.io/part-of=vagen,app.kubernetes.io/component=step"


def site(name: str) -> str:
    """A value of the site's file."""
    found = re.search(rf"^{name}=(.*)$", (ROOT / "k8s/site/site.env").read_text(), re.MULTILINE)
    assert found, name
    return found[1]


KFP = site("KFP_NAMESPACE")


def kubectl(*words: str) -> str:
    """What kubectl prints."""
    done = subprocess.run(["kubectl", *words], capture_output=True, text=True)
    assert done.returncode == 0, f"kubectl {' '.join(words)}: {done.stderr}"
    return done.stdout


def missing() -> str:
    """Why these tests cannot run here; empty if they can."""
    if shutil.which("kubectl") is None:
        return "no kubectl"
    for what in (
        ("crd", "rayclusters.ray.io"),
        ("deployment", "ml-pipeline", "--namespace", KFP),
        ("deployment", "vagen-mlflow", "--namespace", "vagen"),
    ):
        if subprocess.run(["kubectl", "get", *what], capture_output=True).returncode:
            return f"kubectl's context is no cluster with {what[1]}: docs/kubernetes.md"
    return ""


def forward(namespace: str, service: str, port: int) -> tuple[subprocess.Popen[str], str]:
    """`kubectl port-forward` to a service of the cluster, and the URL that it makes."""
    words = ("--namespace", namespace, "port-forward", f"service/{service}", f":{port}")
    process = subprocess.Popen(["kubectl", *words], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    found = FORWARDING.match(process.stdout.readline())
    assert found, f"{service} cannot be reached"
    return process, f"http://{found[1]}"


@contextmanager
def forwarded(namespace: str, service: str, port: int) -> Iterator[str]:
    """URL of a service of the cluster."""
    process, url = forward(namespace, service, port)
    try:
        yield url
    finally:
        process.terminate()
        process.communicate()


class Place:
    """The cluster's services, as this machine reaches them, also after the API server was away."""

    def __init__(self) -> None:
        self._forwarded: dict[str, tuple[subprocess.Popen[str], str]] = {}

    @classmethod
    @contextmanager
    def reached(cls) -> Iterator["Place"]:
        """Gives this process the runs' keys for as long as the block takes."""
        place = cls()
        secret = kubectl("--namespace", "vagen", "get", "secret", "vagen-s3", "--output", "json")
        for key, value in json.loads(secret)["data"].items():
            os.environ[key] = base64.b64decode(value).decode()
        os.environ["AWS_REGION"] = site("AWS_REGION")
        try:
            yield place
        finally:
            for process, _ in place._forwarded.values():
                process.terminate()
                process.communicate()

    def _url(self, namespace: str, service: str, port: int) -> str:
        process, url = self._forwarded.get(service, (None, ""))
        if process is None or process.poll() is not None:
            process, url = self._forwarded[service] = forward(namespace, service, port)
        return url

    def _reach_store(self) -> None:
        """Anew: its pod may be another, which a connection that is forwarded does not see."""
        process, _ = self._forwarded.pop("vagen-s3", (None, ""))
        if process is not None:
            process.terminate()
            process.communicate()
        os.environ["AWS_ENDPOINT_URL_S3"] = self._url("vagen", "vagen-s3", 8333)

    @property
    def kubeflow(self) -> str:
        return self._url(KFP, "ml-pipeline", 8888)

    def submit(self, folder: Path, name: str, *words: str) -> str:
        """Submits `lake.yaml` of a folder; returns the id of the pipeline run."""
        where = ("--infra", "kubernetes-cpu", f"infra.store={site('VAGEN_STORE')}")
        return self.send(str(folder / "lake.yaml"), *where, "--name", name, *words)

    def send(self, *words: str) -> str:
        """`vagen submit`, as a person does it; returns the id of the run or of the schedule."""
        self._reach_store()
        done = subprocess.run(
            ["vagen", "submit", "--host", self.kubeflow, *words],
            env={**os.environ, "VAGEN_IMAGE": site("VAGEN_IMAGE")},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        found = re.search(r"#/\w+/details/(\S+)", done.stdout)
        assert found, done.stdout
        return found[1]

    def state(self, identifier: str) -> str:
        """Kubeflow's word for how a pipeline run is."""
        return self._client().get_run(identifier).state or ""

    def terminate(self, identifier: str) -> None:
        """What the button of Kubeflow's page does."""
        self._client().terminate_run(identifier)

    def runs_of(self, schedule: str) -> list[str]:
        """States of the runs that a schedule has started."""
        runs = self._client().list_runs(page_size=100).runs or []
        return [run.state for run in runs if run.recurring_run_id == schedule]

    def end_schedule(self, schedule: str) -> None:
        """Lets a schedule start nothing more."""
        self._client().delete_recurring_run(schedule)

    def await_end(self, identifier: str, minutes: float = 60) -> str:
        """The state in which a pipeline run ended."""
        return await_true(
            lambda: state if (state := self.state(identifier)) in ENDED else "", minutes
        )

    def read(self, name: str, file: str) -> str:
        """A file of a run in the store; empty if it is not there."""
        from vagen.storage import open_store

        self._reach_store()
        content = open_store(site("VAGEN_STORE")).read_file(f"{name}/{file}")
        return content.decode() if content else ""

    def mlflow_run(self, name: str) -> Any:
        """What MLflow knows of a run."""
        from mlflow import MlflowClient

        return MlflowClient(self._url("vagen", "vagen-mlflow", 5000)).get_run(
            self.read(name, "mlflow_run_id").strip()
        )

    def _client(self) -> Any:
        import kfp

        return kfp.Client(host=self.kubeflow)


def await_true(test: Callable[[], Any], minutes: float) -> Any:
    """What `test` returns once that is true."""
    end = time.monotonic() + 60 * minutes
    while not (found := test()):
        assert time.monotonic() < end, "not in time"
        time.sleep(2)
    return found


def rayclusters(run: str) -> list[dict[str, Any]]:
    """The Ray clusters that a run has."""
    words = ("get", "rayclusters", "--selector", f"{RUN}={run}", "--output", "json")
    return json.loads(kubectl("--namespace", "vagen", *words))["items"]
