"""Submits pipelines to Kubeflow: a training, or an evaluation now or by schedule."""

import contextlib
import io
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from components.image import IMAGE
from pipelines.compile import compile_evaluation, compile_models, compile_training
from pipelines.schedule import check_length, stretches
from vagen.config import ConfigError, ExperimentConfig, InfraConfig, dump_yaml
from vagen.config.evaluation_options import EvaluationConfig
from vagen.config.kubernetes import KubernetesConfig


class SubmitError(RuntimeError):
    """Kubeflow did not accept the pipeline; the message says why, and what to check."""


@dataclass(frozen=True)
class Submitted:
    """A submitted pipeline run or schedule."""

    id: str
    """Id of the pipeline run or of the schedule."""
    url: str
    """URL of its page."""


class Kubeflow:
    """Kubeflow Pipelines' API.

    Args:
        host: Its address; None for `KF_PIPELINES_ENDPOINT`, the service of the surrounding cluster,
            or a port forwarded by kubeconfig, as in `kfp.Client`. The file
            `KF_PIPELINES_SA_TOKEN_PATH`, if set, has a service account's token for it.
        namespace: The user's namespace if Kubeflow is multi-user; otherwise None.

    Raises:
        SubmitError: It cannot be reached, or wants a namespace.
    """

    def __init__(self, host: str | None = None, namespace: str | None = None) -> None:
        self._namespace = namespace
        with _answers(host):
            import kfp
            from kfp.client import KF_PIPELINES_SA_TOKEN_ENV, ServiceAccountTokenVolumeCredentials

            # By itself kfp takes the token in pods only.
            told = os.environ.get(KF_PIPELINES_SA_TOKEN_ENV)
            credentials = ServiceAccountTokenVolumeCredentials(told) if told else None
            # It prints a message about a missing kubeconfig; `_answers` reports errors below.
            with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
                warnings.simplefilter("ignore", FutureWarning)
                # Its argument `namespace` is Kubeflow's own one, where the API's service is.
                self._client = kfp.Client(host=host, credentials=credentials)
            many = self._client.get_kfp_healthz().multi_user
            if many and not (namespace or self._client.get_user_namespace()):
                raise SubmitError("this Kubeflow has many users: give --kfp-namespace")
        self._host = host

    def train(
        self, experiment: ExperimentConfig, infra: InfraConfig, run: str, image: str | None = None
    ) -> Submitted:
        """Starts a training.

        Args:
            experiment: The experiment.
            infra: Infrastructure, whose `kubernetes` section places the steps.
            run: URI of the run in its store; the last part is its name. An existing run
                continues.
            image: Container image of the steps; None for the infra's.
        """
        config = kubernetes_of(infra)
        check_image(infra, image)
        items = stretches(experiment, infra)
        check_length(items)
        arguments = {
            "run": run,
            "stretches": items,
            "experiment": dump_yaml(experiment),
            "infra": dump_yaml(infra),
        }
        with _answers(self._host), _quietly(), tempfile.TemporaryDirectory() as folder:
            package = compile_training(Path(folder) / "vagen-train.yaml", infra, image=image)
            result = self._client.create_run_from_pipeline_package(
                str(package),
                arguments=arguments,
                run_name=run.rpartition("/")[2],
                experiment_name=experiment.trainer.project_name,
                namespace=self._namespace,
                enable_caching=False,
                service_account=config.service_account,
            )
        return Submitted(result.run_id, self._page("runs", result.run_id))

    def evaluate(
        self,
        experiment: ExperimentConfig,
        infra: InfraConfig,
        run: str,
        *,
        split: str,
        count: int = 0,
        cron: str | None = None,
        image: str | None = None,
    ) -> Submitted:
        """Evaluates a run's newest policy, once or by schedule.

        Args:
            experiment: The run's experiment.
            infra: Infrastructure of the step.
            run: URI of the run.
            split: `val` or `test`.
            count: Levels per environment; 0 for all.
            cron: Kubeflow's six fields, seconds first; None: once, now.
            image: Container image of the step; None for the infra's.
        """
        check_image(infra, image)
        arguments = {"run": run, "split": split, "count": count}
        name = f"{run.rpartition('/')[2]} on {split}"
        write = partial(compile_evaluation, infra=infra, image=image)
        project = experiment.trainer.project_name
        return self._begin(write, arguments, name, project, infra, cron)

    def evaluate_models(
        self,
        options: EvaluationConfig,
        infra: InfraConfig,
        uri: str,
        *,
        cron: str | None = None,
        image: str | None = None,
    ) -> Submitted:
        """Evaluates hosted models, a task each, once or by schedule.

        Args:
            options: Options of the evaluation.
            infra: Infrastructure and Secrets of the tasks.
            uri: URI of the evaluation; an existing one continues. Scheduled runs append their id.
            cron: Kubeflow's six fields, seconds first; None: once, now.
            image: Container image of the tasks; None for the infra's.
        """
        from vagen.evaluation.in_store import for_pods

        check_image(infra, image)
        secrets = [key for keys in kubernetes_of(infra).secrets.values() for key in keys]
        options = for_pods(options, secrets)
        arguments = {"evaluation": dump_yaml(options), "infra": dump_yaml(infra), "folder": uri}
        models = list(dict.fromkeys(entry.label for entry in options.models))
        write = partial(
            compile_models, infra=infra, models=models, scheduled=cron is not None, image=image
        )
        name, project = uri.rpartition("/")[2], "evaluations"
        return self._begin(write, arguments, name, project, infra, cron)

    def _begin(
        self,
        write: Callable[[Path], Path],
        arguments: dict[str, Any],
        name: str,
        project: str,
        infra: InfraConfig,
        cron: str | None,
    ) -> Submitted:
        with _answers(self._host), _quietly(), tempfile.TemporaryDirectory() as folder:
            package = str(write(Path(folder) / "pipeline.yaml"))
            group = self._client.create_experiment(project, namespace=self._namespace)
            common: dict[str, Any] = {
                "pipeline_package_path": package,
                "params": arguments,
                "enable_caching": False,
                "service_account": kubernetes_of(infra).service_account,
            }
            if cron is None:
                once = self._client.run_pipeline(group.experiment_id, name, **common)
                return Submitted(once.run_id, self._page("runs", once.run_id))
            schedule = self._client.create_recurring_run(
                group.experiment_id,
                name,
                cron_expression=cron,
                max_concurrency=1,
                # Missed runs are not repeated, since the newest policy is evaluated anyway.
                no_catchup=True,
                **common,
            )
            identifier = schedule.recurring_run_id
            return Submitted(identifier, self._page("recurringrun", identifier))

    def state(self, run_id: str) -> tuple[str, str, str]:
        """Status of a pipeline run, its error message, and its page.

        Returns:
            Kubeflow's state (`RUNNING`, `SUCCEEDED`, `FAILED`, ...), message, and URL.
        """
        with _answers(self._host):
            run = self._client.get_run(run_id)
        return run.state or "", run.error.message if run.error else "", self._page("runs", run_id)

    def terminate(self, run_id: str) -> None:
        """Ends a pipeline run at once, without its exit handler."""
        with _answers(self._host):
            self._client.terminate_run(run_id)

    def _page(self, kind: str, identifier: str) -> str:
        return f"{self._client._get_url_prefix()}/#/{kind}/details/{identifier}"


def run_uri(infra: InfraConfig, name: str) -> str:
    """URI of the run of this name.

    Raises:
        ConfigError: The infra has no store that pods can reach.
    """
    if infra.store is None or "://" not in infra.store or infra.store.startswith("file:"):
        raise ConfigError(
            f"infra.store is {infra.store!r}: steps run on other machines; give "
            "infra.store=s3://BUCKET/PREFIX"
        )
    return f"{infra.store.rstrip('/')}/{name}"


def check_image(infra: InfraConfig, image: str | None) -> None:
    """Rejects an image of the steps that is a placeholder or has no version.

    Args:
        infra: The run's infra.
        image: Image that replaces the infra's, if any.

    Raises:
        ConfigError: The image is invalid; the message says what to set.
    """
    chosen = image or kubernetes_of(infra).image or IMAGE
    _, _, version = chosen.rpartition("/")[2].partition(":")
    if chosen.startswith("registry.invalid/") or version in ("", "latest"):
        raise ConfigError(
            f"the steps' image is {chosen}, which is a placeholder or names no version: set "
            "VAGEN_IMAGE in k8s/site/site.env, which `make submit` takes, or give "
            "--image REGISTRY/NAME:TAG or NAME@sha256:..."
        )


def kubernetes_of(infra: InfraConfig) -> KubernetesConfig:
    """The infra's Kubernetes section.

    Raises:
        ConfigError: It is missing.
    """
    if infra.kubernetes is None:
        raise ConfigError(
            "the infra has no `kubernetes` section, so it describes one machine: choose another, "
            "such as --infra kubernetes-cpu, or train here with `vagen run`"
        )
    return infra.kubernetes


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Suppresses kfp's output: links for notebooks, warnings of every component."""
    with (
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _answers(host: str | None) -> Iterator[None]:
    """Converts errors of Kubeflow's client to one line."""
    import kfp_server_api
    import urllib3
    from kubernetes.client.exceptions import ApiException
    from kubernetes.config import ConfigException

    where = host or os.environ.get("KF_PIPELINES_ENDPOINT") or "the cluster of your kubeconfig"
    level = logging.getLogger("urllib3").level
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    try:
        yield
    except (kfp_server_api.ApiException, ApiException) as error:
        reason = _reason(error)
        advice = {
            401: "give a token (KF_PIPELINES_SA_TOKEN_PATH), or forward the port of ml-pipeline-ui",
            403: "you may not do this there: ask for the namespace, or give --kfp-namespace",
            404: "there is no Kubeflow Pipelines 2 at this address: see --host",
        }.get(error.status or 0, "see the log of ml-pipeline")
        raise SubmitError(f"Kubeflow at {where} refused: {reason}; {advice}") from error
    except (urllib3.exceptions.HTTPError, ConfigException, ConnectionError, TimeoutError) as error:
        raise SubmitError(
            f"Kubeflow at {where} cannot be reached: {error}; give --host http://..., or forward "
            "its port: kubectl -n kubeflow port-forward svc/ml-pipeline 8888"
        ) from error
    finally:
        logging.getLogger("urllib3").setLevel(level)


def _reason(error: Any) -> str:
    """The first line of the server's message."""
    text = " ".join(str(error.body or error.reason or "").split())
    return f"{error.status} {text}"[:300]
