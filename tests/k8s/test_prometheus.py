"""Alerts and dashboard ask for metrics that exist, in expressions that can be one."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from rendered import EVERY, K8S, of_kind

METRICS = {
    # KubeRay 1.6, ray-operator/controllers/ray/metrics/ray_cluster_metrics.go
    "kuberay_cluster_info": {"name", "namespace", "uid", "owner_kind"},
    "kuberay_cluster_condition_provisioned": {"name", "namespace", "uid", "condition"},
    "kuberay_cluster_provisioned_duration_seconds": {"name", "namespace", "uid"},
    # kube-state-metrics 2, docs/metrics/workload; labels of pods only where they are allowed
    "kube_pod_status_phase": {"namespace", "pod", "phase", "uid"},
    "kube_pod_labels": {"namespace", "pod", "uid", "label_vagen_dev_step"},
    "kube_deployment_status_replicas_available": {"namespace", "deployment"},
    "kube_cronjob_status_last_successful_time": {"namespace", "cronjob"},
    # DCGM's exporter, etc/default-counters.csv; `exported_` is Prometheus' for labels that it has
    "DCGM_FI_DEV_GPU_UTIL": {"gpu", "namespace", "pod", "exported_namespace", "exported_pod"},
    "DCGM_FI_DEV_FB_USED": {"gpu", "exported_namespace", "exported_pod"},
    "DCGM_FI_DEV_POWER_USAGE": {"gpu", "exported_namespace", "exported_pod"},
    # Argo Workflows 4.0, docs/metrics.md, with the prefix that it tells
    "argo_workflows_gauge": {"phase"},
    "argo_workflows_pods_gauge": {"phase"},
    "argo_workflows_error_count": {"cause"},
    "argo_workflows_queue_latency_bucket": {"queue_name", "le"},
    # Kubeflow Pipelines 2.17, backend/src/apiserver/resource/resource_manager.go
    "resource_manager_workflow_runs_success": {"profile", "workflow"},
    "resource_manager_workflow_runs_failed": {"profile", "workflow"},
    # vagen/serve/app.py, with the labels of the monitor's pods
    "vagen_agent_turns_total": {"result", "vagen_dev_agent", "vagen_dev_agent_version"},
}
"""Metrics and their labels, by where they are made."""
ELSEWHERE = ("ray_", "vllm:")
"""Of Ray and vLLM, which the images have."""
FUNCTIONS = {"avg", "sum", "max", "rate", "histogram_quantile", "max_over_time", "time"}
WORDS = {*FUNCTIONS, "by", "on", "and", "or", "unless", "offset", "h"}
RULES = [
    rule
    for found in of_kind(EVERY, "PrometheusRule")
    for group in found["spec"]["groups"]
    for rule in group["rules"]
]
DASHBOARD = json.loads((K8S / "components/prometheus/dashboard.json").read_text())
PANELS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
MATCHER = re.compile(r'(\w+)(?:=~|!~|!=|=)"((?:[^"\\]|\\.)*)"')


@pytest.mark.parametrize("expression", [*(rule["expr"] for rule in RULES), *PANELS])
def test_metrics_and_labels_exist_and_the_expression_is_whole(expression: str) -> None:
    for metric, matchers in re.findall(r"([A-Za-z_][\w:]*)\{([^}]*)\}", expression):
        rest = MATCHER.sub("", matchers)
        assert not rest.strip(", "), "matchers are name, operator, text in quotes"
        for label, pattern in MATCHER.findall(matchers):
            re.compile(pattern.replace("$cluster", ".*"))
            assert metric.startswith(ELSEWHERE) or label in METRICS[metric]
    bare = re.sub(r"\{[^}]*\}|\[\w+\]|(?:by|on) \([^)]*\)", " ", expression)
    for word in re.findall(r"[A-Za-z_][\w:]*", bare):
        assert word in WORDS | METRICS.keys() or word.startswith(ELSEWHERE)
    for left, right in ("()", "{}", "[]"):
        assert expression.count(left) == expression.count(right)
    assert expression.count('"') % 2 == 0


def test_each_alert_says_what_is_wrong_and_what_to_do() -> None:
    assert len({rule["alert"] for rule in RULES}) == len(RULES) == 8
    for rule in RULES:
        assert rule["alert"].startswith("Vagen")
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert {"summary", "description"} <= rule["annotations"].keys()
        for text in rule["annotations"].values():
            for label in re.findall(r"\$labels\.(\w+)", text):
                assert any(label in METRICS[name] for name in METRICS if name in rule["expr"])


def test_the_jobs_alert_knows_the_job_and_its_pace() -> None:
    (job,) = [one for one in of_kind(EVERY, "CronJob") if one["metadata"]["name"] == "vagen-gc"]
    assert job["spec"]["schedule"] == "*/10 * * * *"
    assert job["spec"]["jobTemplate"]["spec"]["activeDeadlineSeconds"] < 600, "one after the other"
    (rule,) = [rule for rule in RULES if rule["alert"] == "VagenGcFails"]
    assert 'cronjob="vagen-gc"' in rule["expr"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not here")
def test_promtool_takes_the_rules(tmp_path: Path) -> None:
    (found,) = of_kind(EVERY, "PrometheusRule")
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump(found["spec"]))
    subprocess.run(["promtool", "check", "rules", str(file)], check=True)


def test_the_dashboard_asks_for_labels_that_the_monitor_keeps() -> None:
    (monitor,) = [
        found for found in of_kind(EVERY, "PodMonitor") if found["metadata"]["name"] == "vagen-ray"
    ]
    kept = {re.sub(r"\W", "_", label) for label in monitor["spec"]["podTargetLabels"]}
    assert PANELS
    for expression in PANELS:
        assert set(re.findall(r"\bray_io_\w+", expression)) <= kept
