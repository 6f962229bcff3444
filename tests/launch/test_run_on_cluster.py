"""What a step sees: its Ray cluster is there, its stage performed, what is lost tried again.

Kubernetes is the API server of tests/cluster; the head of every cluster in it is a real one.
"""

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cluster_place import TEMPLATE, Namespace, open_namespace
from ray_head import PATIENCE, TOKEN, Background, RayHead, await_true, in_warm_start

from vagen import cluster, steps
from vagen.cli.main import main
from vagen.cluster import ClusterError
from vagen.cluster.names import LEASE_UNTIL
from vagen.config import InfraConfig, dump_yaml
from vagen.config.base import ConfigError
from vagen.config.kubernetes import KubernetesConfig
from vagen.experiment.load import load_experiment, load_infra
from vagen.launch import lifecycle, on_cluster, step
from vagen.launch.on_cluster import ENDING_MINUTES, bring_up, lease, run_on_cluster, tear_down
from vagen.launch.protocol import ERRORS, JobFailed, JobRefused
from vagen.launch.step import run_in_process, run_stage
from vagen.run import layout
from vagen.run.run import Run
from vagen.storage import StoreAway, open_store

pytestmark = pytest.mark.slow


@pytest.fixture
def namespace(head: RayHead, monkeypatch: pytest.MonkeyPatch) -> Iterator[Namespace]:
    """A namespace with the platform's template and Ray's token."""
    with open_namespace() as place:
        address = head.dashboard.url.removeprefix("http://")
        place.operator.head = tuple(address.split(":"))
        data = {"raycluster.yaml": TEMPLATE}
        place.store.create("ConfigMap", {"metadata": {"name": "vagen-raycluster"}, "data": data})
        place.store.create("Secret", secret(TOKEN))
        monkeypatch.setattr(cluster, "connect", lambda *_: place.connect())
        yield place


def secret(token: str) -> dict[str, Any]:
    import base64

    data = {"auth_token": base64.b64encode(token.encode()).decode()}
    return {"metadata": {"name": "vagen-ray-token"}, "data": data}


@pytest.fixture
def perform(namespace: Namespace, run: Run) -> Callable[..., dict[str, Any]]:
    """Has a stage of the run performed, as its step does."""

    def perform(stage: str, retries: int = 2, **kwargs: Any) -> dict[str, Any]:
        return run_on_cluster(run.mirror.uri, on(run, retries), stage, kwargs, patience=PATIENCE)

    return perform


def on(run: Run, retries: int = 2) -> InfraConfig:
    settings = KubernetesConfig(retries=retries, pending_minutes=0.5)
    return run.infra.model_copy(update={"kubernetes": settings})


def names(namespace: Namespace) -> list[str]:
    return [item["metadata"]["name"] for item in namespace.store.all("RayCluster")]


def test_a_step_makes_its_cluster_and_the_last_one_lets_it_go(namespace, run, perform, capsys):
    result = perform("build")
    assert result["uri"] == f"{run.mirror.uri}/levels"
    assert names(namespace) == [cluster.cluster_name(run.name)]
    assert "build: " in capsys.readouterr().out
    tear_down(run.mirror.uri, namespace.kube.namespace)
    assert names(namespace) == []
    kept = sorted(
        key.rpartition("-")[2] for key in open_store(run.infra.store).list(f"{run.name}/logs")
    )
    assert sorted(key.rpartition("-")[2] for key in kept) == ["pods", "ray"]


def test_a_stretch_of_iterations_is_found_in_the_store(built, perform):
    run_in_process(str(built.path), "warm_start")
    assert perform("train", start=0, stop=1)["uri"] == f"{built.mirror.uri}/iterations/0000/update"


def test_logs_that_cannot_be_saved_do_not_keep_the_cluster(namespace, run, capsys):
    bring_up(run.mirror.uri, on(run))
    namespace.store.delete("Secret", "vagen-ray-token", {})
    Path(run.infra.store.removeprefix("file://")).rename(Path(run.path.parent, "away"))
    Path(run.infra.store.removeprefix("file://")).write_text("no folder")
    tear_down(run.mirror.uri, namespace.kube.namespace)
    assert names(namespace) == []
    assert capsys.readouterr().out.count("are not saved: ") == 2


def test_what_the_user_did_wrong_is_not_tried_again(perform, capsys):
    with pytest.raises(JobRefused, match="no stage is named 'rolout'"):
        perform("rolout")
    assert "tried again" not in capsys.readouterr().out


def test_a_cluster_that_was_deleted_is_made_again(namespace, run, perform):
    bring_up(run.mirror.uri, on(run))
    cluster.delete_run(namespace.kube, run.name)
    assert perform("build")["uri"] == f"{run.mirror.uri}/levels"
    assert names(namespace) == [cluster.cluster_name(run.name)]


def test_a_lost_actor_is_tried_again_by_the_launcher(head, built, perform, capsys):
    step = Background(perform, "warm_start")
    in_warm_start(head, built, step)
    for process in head.processes("ray::ResidentActor.perform"):
        os.kill(process, signal.SIGKILL)
    assert step.result()["uri"] == f"{built.mirror.uri}/warm_start"
    assert "warm_start is tried again in 0 s, 2 more times at most" in capsys.readouterr().out


def test_a_lost_head_is_tried_again_by_the_launcher(head, built, perform):
    step = Background(perform, "warm_start", retries=6)
    in_warm_start(head, built, step)
    head.kill()
    head.start()
    assert step.result()["uri"] == f"{built.mirror.uri}/warm_start"


def test_what_is_lost_again_and_again_is_given_up(head, built, perform):
    step = Background(perform, "warm_start", retries=0)
    in_warm_start(head, built, step)
    for process in head.processes("ray::ResidentActor.perform"):
        os.kill(process, signal.SIGKILL)
    assert isinstance(step.result(), JobFailed)
    assert "given up after 1 attempts" in str(step.outcome)


def test_a_store_that_is_away_is_no_attempt(perform, monkeypatch):
    monkeypatch.setattr(on_cluster, "_check_committed", lambda *_: away(""))
    with pytest.raises(StoreAway):
        perform("build", retries=0)
    from vagen.launch.actor import kind_of

    assert kind_of(StoreAway("")) == "store"
    assert ERRORS["store"] is StoreAway


def test_another_token_than_the_cluster_s_is_named(namespace, perform):
    namespace.store.delete("Secret", "vagen-ray-token", {})
    with pytest.raises(ClusterError, match="no secret vagen-ray-token with the key auth_token"):
        perform("build")
    namespace.store.create("Secret", secret(TOKEN[::-1]))
    with pytest.raises(ClusterError, match="refuses the token"):
        perform("build")


SMALL = [f"envs.frozenlake.{part}_size=128" for part in ("train", "val", "test")]


def test_the_cluster_goes_even_if_the_store_is_away(namespace, run, monkeypatch):
    bring_up(run.mirror.uri, on(run))
    monkeypatch.setattr(step, "STORE_AWAY_SECONDS", 0.0)
    monkeypatch.setattr(lifecycle, "_found", away)
    with pytest.raises(StoreAway):
        lifecycle.end(run.mirror.uri, namespace="vagen", state="SUCCEEDED", message="")
    assert names(namespace) == []


def away(_: str) -> None:
    raise StoreAway("cannot use s3://vagen/runs: the server does not answer")


def test_a_step_at_work_renews_the_lease(namespace, run):
    def until() -> str:
        (item,) = namespace.store.all("RayCluster")
        return item["metadata"]["annotations"][LEASE_UNTIL]

    bring_up(run.mirror.uri, on(run))
    first = until()
    infra = run.infra.model_copy(
        update={"kubernetes": KubernetesConfig(lease_minutes=0.02, pending_minutes=0.5)}
    )
    with lease(run.mirror.uri, infra):
        await_true(lambda: until() < first)
        second = until()
        await_true(lambda: until() > second)


def test_a_pod_that_is_told_to_end_leaves_a_short_lease(namespace, run):
    bring_up(run.mirror.uri, on(run))
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit), lease(run.mirror.uri, on(run)):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    assert signal.getsignal(signal.SIGTERM) is before
    (item,) = namespace.store.all("RayCluster")
    until = datetime.fromisoformat(item["metadata"]["annotations"][LEASE_UNTIL])
    assert until - datetime.now(UTC) < timedelta(minutes=ENDING_MINUTES)


def test_the_two_ends_of_a_pipeline(namespace, tmp_path, monkeypatch, capsys):
    """Its first step makes the run and the cluster, its last one lets both go."""
    monkeypatch.setenv("VAGEN_SCRATCH", str(tmp_path / "scratch"))
    run = f"{(tmp_path / 'store').as_uri()}/lake"
    settings = [f"store={(tmp_path / 'store').as_uri()}", f"output_dir={tmp_path}"]
    settings.append(f"mlflow_tracking_uri=sqlite:///{tmp_path}/mlflow.db")
    infra = dump_yaml(load_infra("kubernetes-cpu", [*settings, "kubernetes.pending_minutes=0.5"]))
    experiment = dump_yaml(load_experiment("frozenlake-tiny", SMALL))
    lifecycle.end(run, namespace="vagen", state="FAILED", message="begin")
    assert "was never made: there is nothing to close" in capsys.readouterr().out
    lifecycle.begin(run, experiment=experiment, infra=infra)
    tracked = open_store(f"{(tmp_path / 'store').as_uri()}").read_file("lake/mlflow_run_id")
    assert tracked, "what cannot be recorded fails before anything is computed"
    shutil.rmtree(tmp_path / "scratch")
    lifecycle.begin(run, experiment=experiment, infra=infra)  # a step that is tried again
    assert (Run.open(run).path / layout.MLFLOW_RUN).read_bytes() == tracked
    run_stage(run, "build")
    assert names(namespace) == [], "no GPUs are held while levels are made"
    other = dump_yaml(load_experiment("frozenlake-tiny", [*SMALL, "seed=8"]))
    with pytest.raises(ConfigError, match="exists with another experiment: choose another name"):
        lifecycle.begin(run, experiment=other, infra=infra)
    bring_up(run, Run.open(run).infra)
    assert names(namespace) == ["lake"]
    with pytest.raises(ConfigError, match="3 does not begin, because iteration 2 has not ended"):
        run_stage(run, "rollout", iteration=3)
    assert names(namespace) == [], "no item after one that failed holds GPUs"
    bring_up(run, Run.open(run).infra)
    lifecycle.release(run, after=steps.WARM_START)
    assert names(namespace) == ["lake"]
    lifecycle.release(run, after=layout.FINAL)
    assert names(namespace) == []


KUBECTL = """#!{python}
import sys, time
assert sys.argv[1:3] == ["--namespace", "vagen"] and sys.argv[3] == "port-forward", sys.argv
assert sys.argv[4].startswith("pod/") and sys.argv[5] == ":8265", sys.argv
print("Forwarding from {address} -> 8265", flush=True)
time.sleep(600)
"""


def test_a_person_reads_the_newest_log_and_stops_a_job(
    namespace, head, run, perform, capsys, monkeypatch, tmp_path
):
    perform("build")
    capsys.readouterr()
    address = head.dashboard.url.removeprefix("http://")
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(KUBECTL.format(python=sys.executable, address=address))
    kubectl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("vagen.cli.cluster.connect", lambda *_: namespace.connect())
    assert main(["cluster", "logs", run.name]) == 0
    assert "build: " in capsys.readouterr().out
    assert main(["cluster", "logs", run.name, "--follow"]) == 0
    assert "build: " in capsys.readouterr().out
    assert main(["cluster", "stop", run.name]) == 1
    assert "has ended already" in capsys.readouterr().err
    step = Background(perform, "warm_start")
    in_warm_start(head, run, step)
    assert main(["cluster", "stop", run.name]) == 0
    assert isinstance(step.result(), JobFailed) and "was stopped" in str(step.outcome)


def test_time_in_the_queue_of_a_quota_counts_as_pending(namespace, tmp_path):
    """What is left of it is how long the cluster, once made, may take to be ready."""
    settings = [f"store={tmp_path.as_uri()}", "kubernetes.pending_minutes=0.05"]
    infra = load_infra("kubernetes-cpu", settings)
    namespace.store.quotas["RayCluster"] = 1
    bring_up(f"{tmp_path.as_uri()}/sea", infra)
    namespace.operator.pod_status = lambda pod: {"phase": "Pending"}
    freed = threading.Timer(2, cluster.delete_run, (namespace.connect(), "sea"))
    freed.start()
    begun = time.monotonic()
    with pytest.raises(ClusterError, match="lake is not ready after"):
        bring_up(f"{tmp_path.as_uri()}/lake", infra)
    assert 3 <= time.monotonic() - begun < 4.5
    freed.join()
