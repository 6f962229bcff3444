"""Fixtures: a registered run in a store, its policy served, and a namespace for agents."""

import stat
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from threaded_server import ThreadedServer

from vagen.experiment.load import load_infra
from vagen.run.run import Run
from vagen.serve.app import Server, ServeSettings, make_app
from vagen.serve.model import ServedModel
from vagen.train import train

REPOSITORY = Path(__file__).parents[2]
sys.path.append(str(REPOSITORY / "tests/cluster"))
TOKEN = "0123456789abcdef"
KUBECTL = """\
#!/bin/sh
echo "Forwarding from 127.0.0.1:{port} -> 8000"
exec sleep 600
"""
"""Instead of a port of the cluster, that of the test's server."""


@pytest.fixture(scope="session")
def registered(make_experiment, make_outputs) -> Run:
    """A trained and registered run in a store, greedy in evaluations."""
    outputs = make_outputs()
    infra = load_infra(
        None,
        [
            f"output_dir={outputs}",
            f"store={(outputs / 'store').as_uri()}",
            "device=cpu",
            "threads=1",
        ],
    )
    experiment = make_experiment(
        "actor_rollout_ref.rollout.val_kwargs.temperature=0",
        "envs.game.test_size=16",
        "trainer.total_training_steps=1",
        model="tiny:text",
    )
    run = Run.create(experiment, infra, name="lake-1")
    train(run)
    return Run.open(run.path)


@dataclass
class Cluster:
    """A namespace whose controllers make every Deployment and InferenceService ready."""

    place: Any
    pods: dict[str, Any]
    """Status of the pods; empty: they run."""
    closed: bool = False

    def control(self) -> None:
        """What the controllers of Kubernetes and KServe (0.16, serverless) do, again and again."""
        store, done = self.place.store, threading.Event()
        while not self.closed:
            for found in store.all("Deployment"):
                ready = 0 if self.pods else found["spec"].get("replicas", 1)
                self._status(found, {"availableReplicas": ready})
            for found in store.all("InferenceService"):
                self._status(found, self._revisions(found))
            done.wait(0.05)

    def _status(self, found: Any, status: Any) -> None:
        status = {**status, "observedGeneration": found["metadata"]["generation"]}
        if status != found.get("status"):
            name = found["metadata"]["name"]
            try:
                self.place.store.update(found["kind"], name, {"status": status}, "status")
            except Exception:  # deleted, or changed, meanwhile
                return

    def _revisions(self, found: Any) -> Any:
        predictor = {**found["spec"]["predictor"]}
        share = predictor.pop("canaryTrafficPercent", None)
        old = found.get("status", {}).get("components", {}).get("predictor", {})
        newest = f"{found['metadata']['name']}-{hash(str(predictor)) % 10**6}"
        rolled = old.get("latestRolledoutRevision", newest)
        full = share is None or share == 100
        latest = {"tag": "latest", "revisionName": newest, "percent": 100 if full else share}
        traffic = [{**latest, "url": f"http://127.0.0.1:{self.place.port}"}]
        if not full:
            traffic.append({"tag": "prev", "revisionName": rolled, "percent": 100 - share})
        own = {"latestCreatedRevision": newest, "latestReadyRevision": newest, "traffic": traffic}
        own["latestRolledoutRevision"] = newest if full else rolled
        return {
            "url": f"http://127.0.0.1:{self.place.port}",
            "conditions": [{"type": "Ready", "status": "True"}],
            "components": {"predictor": own},
        }


@pytest.fixture
def served(registered: Run) -> Iterator[int]:
    """Port of the run's policy, behind `vagen serve`'s application."""
    from vagen.models.loading import load_model

    model = ServedModel(load_model(Path(registered.newest_policy())), rows=4)
    server = Server(model, "agent-test", ServeSettings(), TOKEN, registered.experiment)
    with ThreadedServer(make_app(server)) as running:
        yield int(running.root.rpartition(":")[2])
    model.close()


@pytest.fixture
def cluster(served: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    from cluster_place import open_namespace

    kubectl = tmp_path / "bin/kubectl"
    kubectl.parent.mkdir()
    kubectl.write_text(KUBECTL.format(port=served))
    kubectl.chmod(kubectl.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", str(kubectl.parent), prepend=":")
    monkeypatch.setenv("VAGEN_SERVE_TOKEN", TOKEN)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with open_namespace() as place:
        place.port = served  # type: ignore[attr-defined]
        folder = REPOSITORY / "k8s/components/agents"
        data = {path.name: path.read_text() for path in folder.glob("*e*.yaml")}
        body = {"metadata": {"name": "vagen-agent"}, "data": data}
        place.store.create("ConfigMap", body)
        found = Cluster(place, {})
        thread = threading.Thread(target=found.control, daemon=True)
        thread.start()
        yield found
        found.closed = True
        thread.join()
