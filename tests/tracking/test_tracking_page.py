"""What MLflow's page shows of a run: names, machine, sample episodes, success first."""

import pytest

from vagen.tracking import open_client
from vagen.train import train


@pytest.mark.slow
def test_a_finished_run_can_be_read_in_mlflow(make_started_run, monkeypatch):
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "1")
    run = make_started_run("trainer.total_training_steps=2", "seed=7")
    train(run)
    client = open_client(f"sqlite:///{run.path.parent}/mlflow.db")
    found = client.get_run((run.path / "mlflow_run_id").read_text().strip())
    assert found.info.run_name == f"vagen_full, seed 7: {run.name}"
    assert found.info.status == "FINISHED"
    assert "FrozenLake" in found.data.tags["mlflow.note.content"]
    metrics = set(found.data.metrics)
    assert {"timing_s/rollout", "timing_s/update", "perf/update_actor/tokens_per_second"} <= metrics
    assert any(name.startswith("system/cpu") for name in metrics)
    experiment = client.get_experiment(found.info.experiment_id)
    assert experiment.tags["mlflow.experiment.primaryMetric.name"] in metrics

    traces = client.search_traces(locations=[experiment.experiment_id], run_id=found.info.run_id)
    names = {trace.info.tags["evaluation"] for trace in traces}
    assert names == {"warm_start", "final"}
    for trace in traces:
        turns = [span for span in trace.data.spans if span.name.startswith("turn ")]
        assert turns and all(span.outputs["response"] is not None for span in turns)
    (version,) = client.search_model_versions(f"run_id = '{found.info.run_id}'")
    assert "held-out levels" in (version.description or "")
