"""Prometheus metrics of the service."""

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0)


class ServiceMetrics:
    """Counters of one service, in a separate registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.sessions = Gauge(
            "vagen_env_sessions", "Open sessions.", ["env_name"], registry=self.registry
        )
        self.pending = Gauge(
            "vagen_env_pending_calls", "Calls that wait for environments.", registry=self.registry
        )
        self.calls = Counter(
            "vagen_env_calls", "Calls answered.", ["env_name", "operation"], registry=self.registry
        )
        self.errors = Counter(
            "vagen_env_errors", "Calls that failed.", ["env_name", "kind"], registry=self.registry
        )
        self.requests = Histogram(
            "vagen_env_request_seconds",
            "Time to answer a request.",
            ["operation"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.refused = Counter(
            "vagen_env_refused_requests",
            "Requests turned away.",
            ["reason"],
            registry=self.registry,
        )
        self.image_bytes = Counter(
            "vagen_env_image_bytes", "PNG bytes sent.", registry=self.registry
        )
        self.expired = Counter(
            "vagen_env_expired_sessions", "Sessions closed unused.", registry=self.registry
        )
        self.worker_deaths = Counter(
            "vagen_env_worker_deaths", "Worker processes that died.", registry=self.registry
        )

    def text(self) -> bytes:
        """All metrics in Prometheus's text format."""
        return generate_latest(self.registry)
