"""Deploys a registered version: it starts beside the live one, plays, and stays or is removed."""

import base64
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from vagen import progress
from vagen.cluster.errors import ApiError
from vagen.cluster.kube import SECRETS, Kube
from vagen.config.base import ConfigError
from vagen.config.infra import InfraConfig
from vagen.deploy.agent import Agent, agent_of
from vagen.deploy.gate import Verdict, judge, play_levels
from vagen.deploy.rollout import open_rollout
from vagen.run import layout
from vagen.run.folder import read_results
from vagen.run.run import Run
from vagen.tracking import default_uri, holder_results, record_deployment

ALIAS = "deployed"
"""MLflow's alias of the version that answers requests."""
TOKEN = "VAGEN_SERVE_TOKEN"
"""Environment variable with the agent's API key."""
START_SECONDS = 1800.0
REGISTRY_ROOT, REGISTRY_SECONDS = "/api/model_registry/v1alpha3", 15.0
"""Path of Kubeflow's Model Registry (kubeflow/model-registry, api/openapi/model-registry.yaml), and
the timeout of its answers."""


def _read_token(kube: Kube) -> bool:
    """Takes the agents' key from their Secret, where that may be read: steps have it already."""
    try:
        secret = kube.get(SECRETS, "vagen-agent")
    except ApiError:
        return False
    if secret is None:
        return False
    os.environ[TOKEN] = base64.b64decode(secret["data"][TOKEN]).decode()
    return True


@dataclass(frozen=True, slots=True)
class Deployed:
    """Result of a deployment."""

    agent: Agent
    verdict: Verdict
    folder: Path
    """The evaluation of the deployed agent (`vagen view`)."""

    @property
    def text(self) -> str:
        """One line for users."""
        done = "deployed" if self.verdict.passed else "rolled back"
        return (
            f"{self.agent.model_uri} {done}: success {self.verdict.success:.3f} on "
            f"{self.verdict.levels} levels; {self.verdict.reason}"
        )


def deploy(
    run: Run,
    kube: Kube,
    infra: InfraConfig,
    name: str,
    *,
    count: int | None = None,
    share: int = 100,
    plain: bool = False,
    context: str | None = None,
    start_seconds: float = START_SECONDS,
) -> Deployed:
    """Deploys the agent of a registered run, if it plays as well as before.

    The new version starts beside the live one and plays held-out levels. It is compared, level by
    level, with the run's own evaluation and with the version that holds the alias `deployed`. If it
    is worse, it is removed and the live one stays.

    Args:
        run: A registered run in a store.
        kube: The API server, with the namespace of agents.
        infra: Where environments of the levels run, and MLflow.
        name: Name of the evaluation of the deployed agent, one of the run's.
        count: Levels per environment; None for all of the run's.
        share: Percent of the requests that it gets; less than 100 needs KServe.
        plain: Whether to use a Deployment even where KServe is.
        context: Context of the kubeconfig, for `kubectl`.
        start_seconds: Timeout of its start.

    Raises:
        ConfigError: The run is not registered, or not in a store, or `share` cannot be given.
        ClusterError: It does not start, or cannot be reached; it is removed.
        TrackingError: MLflow cannot be reached.
    """
    if not 1 <= share <= 100:
        raise ConfigError(f"share is {share}; it must be from 1 to 100 percent")
    agent = agent_of(run)
    uri = infra.mlflow_tracking_uri or default_uri(Path(infra.output_dir))
    before: dict[str, Mapping[str, float] | None] = {
        "its evaluation": read_results(run.fetch(run.evaluation(layout.FINAL)))["by_level"]
    }
    holder = holder_results(agent.model, ALIAS, uri=uri)
    if holder is not None and holder[0] != agent.version:
        before[f"version {holder[0]}, deployed before"] = holder[1]
    rollout = open_rollout(kube, agent, plain=plain, share=share, context=context)
    token = TOKEN if os.environ.get(TOKEN) or _read_token(kube) else None
    folder = Path(infra.output_dir) / layout.EVALUATIONS / f"{run.name}-{name}"
    promoted = False
    try:
        rollout.start(start_seconds, progress.note)
        with rollout.url() as url:
            row, failed = play_levels(
                run, url, agent.name, folder, infra, count=count, token_env=token
            )
        shutil.copytree(row, run.evaluation(name), dirs_exist_ok=True)
        if run.mirror is not None:
            run.mirror.push_evaluation(run.evaluation(name))
        played = read_results(row)["by_level"]
        verdict = judge(played, failed, before, run.experiment.seed)
        if verdict.passed:
            rollout.promote(share)
            promoted = True
    finally:
        if not promoted:
            rollout.roll_back()
    result = Deployed(agent, verdict, run.evaluation(name))
    alias = ALIAS if verdict.passed and share == 100 else None
    record_deployment(agent.model, agent.version, result.text, alias=alias, uri=uri)
    where = infra.kubernetes and infra.kubernetes.deploy
    if alias and where and where.model_registry:
        try:
            tell_model_registry(where.model_registry, agent, verdict.success, verdict.reason)
        except httpx.HTTPError as error:
            progress.note(f"{where.model_registry} was not told: {error}; the agent is deployed")
    return result


def tell_model_registry(address: str, agent: Agent, success: float, reason: str) -> None:
    """Creates registered model, version and checkpoint's artifact in Kubeflow's Model Registry.

    Repeated calls update the version. MLflow's registry stays the source.

    Args:
        address: The registry, such as `http://model-registry-service.kubeflow.svc:8080`.
        agent: The deployed version.
        success: Its success on the held-out levels, 0 to 1.
        reason: The result of its gate.

    Raises:
        httpx.HTTPError: It does not answer, or refuses.
    """
    with httpx.Client(
        base_url=address.rstrip("/") + REGISTRY_ROOT, timeout=REGISTRY_SECONDS
    ) as registry:
        model = _ensure(registry, "registered_model", {"name": agent.model}, {})
        told = {
            "description": reason,
            "customProperties": {
                "success": {"metadataType": "MetadataDoubleValue", "double_value": success},
                **{
                    name: {"metadataType": "MetadataStringValue", "string_value": text}
                    for name, text in (("mlflow", agent.model_uri), ("run", agent.run))
                },
            },
        }
        key = {"name": agent.version, "parentResourceId": model}
        version = _ensure(registry, "model_version", key, {"registeredModelId": model, **told})
        artifact = {"artifactType": "model-artifact", "name": "checkpoint", "uri": agent.checkpoint}
        artifacts = f"/model_versions/{version}/artifacts"
        if not registry.get(artifacts).raise_for_status().json()["items"]:
            registry.post(artifacts, json=artifact).raise_for_status()
        registry.patch(f"/model_versions/{version}", json=told).raise_for_status()


def _ensure(registry: httpx.Client, kind: str, key: dict[str, str], body: dict[str, Any]) -> str:
    """Id of an object, which is created unless it exists."""
    found = registry.get(f"/{kind}", params=key)
    if found.status_code == 404:
        found = registry.post(f"/{kind}s", json={"name": key["name"], **body})
    return str(found.raise_for_status().json()["id"])
