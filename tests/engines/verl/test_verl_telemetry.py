"""What Prometheus is told of the engine and of the judge."""

from vagen.engines.performance import Performance


def test_prometheus_is_told_each_measure_by_call_and_what_the_judge_does(monkeypatch):
    told = {}
    from vagen.launch.actor import Telemetry

    telemetry = Telemetry("lake-1")
    for gauge in (*telemetry._engine.values(), *telemetry._judge.values()):
        name = gauge.info["name"]
        monkeypatch.setattr(
            gauge, "set", lambda value, tags, n=name: told.update({n: (value, tags)})
        )
    performance = Performance()
    performance.add("values", tokens=100, seconds=1.0, mfu=0.1, allocated=1 << 30, reserved=1 << 30)
    fields = {"iteration": 0, "stage": "advantage", "seconds": 1.0, "metrics": {}}
    telemetry("stage_finished", fields | {"performance": performance.take()})
    assert told == {
        f"vagen_engine_{name}": (value, {"run": "lake-1", "call": "values"})
        for name, value in {
            "tokens_per_second": 100,
            "mfu": 0.1,
            "max_memory_allocated": 1,
            "max_memory_reserved": 1,
        }.items()
    }
    told.clear()
    metrics = {"judge/absent_share": 0.25, "judge/decided_by_cache": 0.5, "judge/kappa": 0.9}
    fields |= {"stage": "judge", "metrics": metrics}
    telemetry("stage_finished", fields | {"performance": {"perf/judge/seconds_per_request": 0.2}})
    assert told == {
        "vagen_judge_absent_share": (0.25, {"run": "lake-1"}),
        "vagen_judge_decided_by_cache": (0.5, {"run": "lake-1"}),
        "vagen_judge_kappa": (0.9, {"run": "lake-1"}),
        "vagen_judge_seconds_per_request": (0.2, {"run": "lake-1"}),
    }
