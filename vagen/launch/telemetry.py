"""Prometheus metrics of a run on a Ray cluster, besides Ray's own metrics.

Ray exports them at the port `metrics` of the actor's node, named `ray_vagen_...`.
"""

from typing import Any

from ray.util.metrics import Gauge

from vagen.metrics import TOKENS


class Telemetry:
    """Observes a run's events: `progress.observe(Telemetry("lake-1"))`."""

    def __init__(self, run: str) -> None:
        self._run = {"run": run}
        self._seconds = Gauge("vagen_step_seconds", "Duration of the latest step.", ("run", "step"))
        self._speed = Gauge(
            "vagen_tokens_per_second", "Sampled tokens per second, latest rollout.", ("run",)
        )
        self._engine = {
            name: Gauge(f"vagen_engine_{name}", text, ("run", "call"))
            for name, text in (
                ("tokens_per_second", "Tokens per second of the networks, latest step."),
                ("mfu", "Model FLOPs utilisation, latest step."),
                ("max_memory_allocated", "Peak GiB of tensors on a GPU, latest step."),
                ("max_memory_reserved", "Peak GiB that torch reserved on a GPU, latest step."),
            )
        }
        self._judge = {
            name: Gauge(f"vagen_judge_{name}", text, ("run",))
            for name, text in (
                ("seconds_per_request", "Latency of the judge's language models, latest batch."),
                ("decided_by_cache", "Share of verdicts from the cache, latest batch."),
                ("absent_share", "Share of missing verdicts, latest batch."),
                ("kappa", "Agreement with the second judge, latest batch."),
            )
        }
        self._iteration = Gauge("vagen_iteration", "Current iteration.", ("run",))

    def __call__(self, event: str, fields: dict[str, Any]) -> None:
        """Handles an event of `vagen.progress`."""
        if event == "stage_started" and fields["iteration"] is not None:
            self._iteration.set(fields["iteration"], self._run)
        if event != "stage_finished":
            return
        seconds = fields["seconds"]
        self._seconds.set(seconds, {**self._run, "step": fields["stage"]})
        if TOKENS in fields["metrics"] and seconds:
            self._speed.set(fields["metrics"][TOKENS] / seconds, self._run)
        if fields["stage"] == "judge":
            metrics = {**fields["metrics"], **fields.get("performance", {})}
            for name, gauge in self._judge.items():
                for key in (f"judge/{name}", f"perf/judge/{name}"):
                    if key in metrics:
                        gauge.set(metrics[key], self._run)
            return
        for name, value in fields.get("performance", {}).items():
            _, call, measure = name.split("/")
            self._engine[measure].set(value, {**self._run, "call": call})
