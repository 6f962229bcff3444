"""How fast an engine says that it is."""

import gzip
import json
import time

import pytest
import torch

from vagen.engines.performance import Performance, start_trace, write_trace
from vagen.metrics import find


def test_calls_of_a_kind_add_up_until_they_are_taken():
    performance = Performance()
    performance.add("values", tokens=100, seconds=1.0, mfu=0.1, allocated=3 << 30, reserved=4 << 30)
    performance.add("values", tokens=500, seconds=2.0, mfu=0.4, allocated=1 << 30, reserved=5 << 30)
    performance.add("logprobs", tokens=10, seconds=0.5)
    metrics = performance.take()
    assert metrics == {
        "perf/values/tokens_per_second": 200.0,
        "perf/values/mfu": pytest.approx(0.3),
        "perf/values/max_memory_allocated": 3.0,
        "perf/values/max_memory_reserved": 5.0,
        "perf/logprobs/tokens_per_second": 20.0,
    }
    assert all(find(name) is not None for name in metrics)
    assert performance.take() == {}


def test_a_cpu_has_a_speed_and_no_memory():
    performance = Performance()
    with performance.measured("logprobs", 1000, torch.device("cpu")):
        time.sleep(0.05)
    (name, speed), *others = performance.take().items()
    assert (name, others) == ("perf/logprobs/tokens_per_second", [])
    assert 0 < speed <= 1000 / 0.05


def test_a_trace_names_what_was_computed(tmp_path):
    trace = start_trace()
    torch.ones(8, 8).matmul(torch.ones(8, 8))
    path = tmp_path / "profiles" / "0001-update.json.gz"
    write_trace(trace, path)
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    names = {event.get("name") for event in events}
    assert "aten::mm" in names
