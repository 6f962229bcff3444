"""An agent is deployed if it plays as in its evaluation, and else nothing changes."""

import time
from pathlib import Path

import pytest

from vagen.cli.main import FAILED, main
from vagen.cluster import ClusterError
from vagen.config.base import ConfigError
from vagen.deploy import agent_of, deploy, undeploy
from vagen.deploy.agent import DEPLOYMENT, KSERVE, Agent, agent_name, read_template, render
from vagen.deploy.gate import judge
from vagen.deploy.rollout import SERVICES, Plain
from vagen.run import layout
from vagen.run.folder import read_results
from vagen.run.run import Run
from vagen.tracking import default_uri, holder_results, open_client
from vagen.tracking.registry import register_model

LEVELS = [f"lake/{number}" for number in range(10)]
BEST = dict.fromkeys(LEVELS, 1.0)


@pytest.fixture
def mlflow(registered: Run) -> str:
    return default_uri(Path(registered.infra.output_dir))


def gone(store, kind: str = "Deployment") -> bool:
    """Whether all objects of a kind are deleted, which the garbage collector does."""
    for _ in range(100):
        if not store.all(kind):
            return True
        time.sleep(0.05)
    return False


def tag(mlflow: str, agent: Agent) -> str:
    client = open_client(mlflow)
    return client.get_model_version(agent.model, agent.version).tags["deployment"]


@pytest.mark.slow
def test_it_gets_the_requests_if_it_plays_as_before(registered, cluster, mlflow) -> None:
    agent, kube = agent_of(registered), cluster.place.kube
    found = deploy(registered, kube, registered.infra, "deployed-a", plain=True)
    assert found.verdict.passed and found.verdict.levels == 16
    assert "not worse than its evaluation: gain +0.000" in found.text
    own = read_results(registered.evaluation("final"))["by_level"]
    assert read_results(found.folder)["by_level"] == own
    live = cluster.place.store.get("Service", "agent-test")
    assert live["spec"]["selector"]["vagen.dev/agent-version"] == agent.version
    [deployment] = cluster.place.store.all("Deployment")
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    assert container["args"][:4] == ["serve", registered.mirror.uri, "--name", "agent-test"]
    assert deployment["spec"]["selector"]["matchLabels"] == live["spec"]["selector"]
    assert holder_results(agent.model, "deployed", uri=mlflow)[0] == agent.version
    assert tag(mlflow, agent) == found.text
    store = Path(registered.infra.output_dir) / "store/lake-1/evaluations"
    assert [path.name for path in store.glob("deployed-a*")], "its episodes are in the store"


@pytest.mark.slow
def test_worse_than_the_one_before_it_is_rolled_back(
    registered, cluster, mlflow, capsys, monkeypatch, tmp_path
) -> None:
    agent = agent_of(registered)
    own = read_results(registered.evaluation("final"))["by_level"]
    assert sum(own.values()) < 10, "else none is better by more than chance"
    config = cluster.place.write_kubeconfig(tmp_path)
    location = "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION"
    monkeypatch.setattr(location, str(config))
    kube = cluster.place.kube
    client, own_id = open_client(mlflow), (registered.path / layout.MLFLOW_RUN).read_text().strip()
    other = client.create_run(client.get_run(own_id).info.experiment_id)
    best = register_model(
        Path(registered.newest_policy()),
        agent.model,
        other.info.run_id,
        uri=mlflow,
        results=dict.fromkeys(own, 1.0),
        examples=[],
        alias="deployed",
    )
    client.set_registered_model_alias(agent.model, "deployed", best.version)
    selector = {"vagen.dev/agent": "agent-test", "vagen.dev/agent-version": "0"}
    labels = {"vagen.dev/agent": "agent-test"}
    body = {"metadata": {"name": "agent-test", "labels": labels}, "spec": {"selector": selector}}
    kube.create(SERVICES, body)
    assert main(["deploy", str(registered.path), "--plain"]) == FAILED
    said = capsys.readouterr().out
    assert "rolled back: success" in said and "; not worse than its evaluation" in said
    assert f"; worse than version {best.version}, deployed before: gain -" in said
    assert cluster.place.store.get("Service", "agent-test")["spec"]["selector"] == selector
    assert gone(cluster.place.store)
    assert holder_results(agent.model, "deployed", uri=mlflow)[0] == best.version
    assert "rolled back" in tag(mlflow, agent)
    client.delete_registered_model_alias(agent.model, "deployed")
    assert undeploy(kube, "agent-test") == ["services/agent-test"]
    assert undeploy(kube, "agent-test") == []


@pytest.mark.slow
def test_an_attempt_before_it_gets_the_template_of_today(registered, cluster, monkeypatch) -> None:
    kube, agent = cluster.place.kube, agent_of(registered)
    template = read_template(kube, DEPLOYMENT)
    assert template
    start = Plain(kube, agent, render(template, DEPLOYMENT, agent))
    start.start(20, print)
    again = Plain(kube, agent, render(template.replace('cpu: "1"', "cpu: 250m"), DEPLOYMENT, agent))
    again.start(20, print)
    [deployment] = cluster.place.store.all("Deployment")
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["requests"]["cpu"] == "250m"
    again.roll_back()


@pytest.mark.slow
def test_what_does_not_start_is_removed(registered, cluster) -> None:
    store, kube = cluster.place.store, cluster.place.kube
    waiting = {"reason": "ErrImagePull", "message": "manifest unknown"}
    container = {"name": "agent", "image": "vagen:none", "state": {"waiting": waiting}}
    cluster.pods = {"phase": "Pending", "containerStatuses": [container]}
    cluster.place.operator.pod_status = lambda _: cluster.pods
    labels = agent_of(registered).labels
    spec = {"containers": [{"name": "agent"}]}
    body = {"metadata": {"name": "a-pod", "labels": labels}, "spec": spec, "status": cluster.pods}
    store.create("Pod", body)
    with pytest.raises(ClusterError, match="the registry has no such image or tag"):
        deploy(registered, kube, registered.infra, "deployed-b", plain=True, start_seconds=20)
    assert gone(store) and gone(store, "Service")


@pytest.mark.slow
def test_kserve_shares_the_requests(registered, cluster, mlflow, monkeypatch) -> None:
    store, kube = cluster.place.store, cluster.place.kube
    found = deploy(registered, kube, registered.infra, "deployed-c")
    assert found.verdict.passed and not store.all("Deployment")
    first = store.get("InferenceService", "agent-test")["spec"]
    assert "canaryTrafficPercent" not in first["predictor"]
    template = read_template(kube, KSERVE).replace("minReplicas: 1", "minReplicas: 2")
    data = {"data": {KSERVE: template}}
    store.update("ConfigMap", "vagen-agent", data, merge=True)
    deploy(registered, kube, registered.infra, "deployed-d", share=20)
    canary = store.get("InferenceService", "agent-test")["spec"]["predictor"]
    assert canary["canaryTrafficPercent"] == 20 and canary["minReplicas"] == 2
    with monkeypatch.context() as patch:
        patch.setattr("vagen.deploy.deployment.judge", lambda *_: judge({}, 3, {}))
        refused = deploy(registered, kube, registered.infra, "deployed-e")
    assert refused.verdict.reason == "3 episodes got no answer"
    assert store.get("InferenceService", "agent-test")["spec"]["predictor"] == canary
    deploy(registered, kube, registered.infra, "deployed-f")
    whole = store.get("InferenceService", "agent-test")["spec"]["predictor"]
    assert whole.get("canaryTrafficPercent") is None and whole["minReplicas"] == 2
    assert undeploy(kube, "agent-test") == ["inferenceservices.serving.kserve.io/agent-test"]


@pytest.mark.slow
def test_a_share_needs_kserve_and_a_run_its_store(registered, cluster, make_run) -> None:
    kube = cluster.place.kube
    with pytest.raises(ConfigError, match="from 1 to 100"):
        deploy(registered, kube, registered.infra, "x", share=0)
    with pytest.raises(ClusterError, match="a share of the requests needs KServe"):
        deploy(registered, kube, registered.infra, "x", share=10, plain=True)
    assert gone(cluster.place.store)
    with pytest.raises(ConfigError, match="on this machine only"):
        agent_of(make_run())


def test_the_gate_compares_on_the_same_levels() -> None:
    worse = {**BEST, "lake/0": 0.0}
    assert judge(worse, 0, {"its evaluation": BEST}).passed, "one of ten may be chance"
    verdict = judge(dict.fromkeys(LEVELS, 0.0), 0, {"its evaluation": BEST})
    assert not verdict.passed and verdict.reason.startswith("worse than its evaluation: gain -1")
    few = dict.fromkeys(LEVELS[:4], 1.0)
    assert judge(few, 0, {"its evaluation": BEST}).levels == 4
    other = judge(BEST, 0, {"version 2": few})
    assert (
        not other.passed and other.reason == "not compared with version 2, which has other levels"
    )
    assert judge(BEST, 0, {"its evaluation": BEST, "version 2": None}).passed
    assert not judge(BEST, 1, {"its evaluation": BEST}).passed


def test_templates_are_of_their_kind() -> None:
    agent = Agent("lake", "3", "s3://b/lake-1", "s3://b/lake-1/checkpoints/0009")
    text = "kind: Deployment\nspec: {args: [AGENT_RUN, AGENT_NAME, AGENT_CHECKPOINT]}"
    body = render(text, DEPLOYMENT, agent)
    assert body["spec"]["args"] == [agent.run, "agent-lake", agent.checkpoint]
    assert body["metadata"]["labels"]["vagen.dev/agent-version"] == "3"
    with pytest.raises(ClusterError, match="is no InferenceService"):
        render(text, KSERVE, agent)
    with pytest.raises(ClusterError, match="is no YAML"):
        render("kind: [", DEPLOYMENT, agent)
    assert len(agent_name("a" * 80)) <= 40
