"""What Prometheus is told of the engine."""

from vagen.engines.performance import Performance


def test_prometheus_is_told_each_measure_by_call(monkeypatch):
    told = []
    from vagen.launch.telemetry import Telemetry

    telemetry = Telemetry("lake-1")
    for gauge in telemetry._engine.values():
        name = gauge.info["name"]
        monkeypatch.setattr(gauge, "set", lambda value, tags, n=name: told.append((n, tags, value)))
    performance = Performance()
    performance.add("values", tokens=100, seconds=1.0, mfu=0.1, allocated=1 << 30, reserved=1 << 30)
    fields = {"iteration": 0, "stage": "advantage", "seconds": 1.0, "metrics": {}}
    telemetry("stage_finished", fields | {"performance": performance.take()})
    assert {name for name, _, _ in told} == {
        "vagen_engine_tokens_per_second",
        "vagen_engine_mfu",
        "vagen_engine_max_memory_allocated",
        "vagen_engine_max_memory_reserved",
    }
    assert all(tags == {"run": "lake-1", "call": "values"} for _, tags, _ in told)
