"""A whole run that is judged by the cascade, against a server that fails now and then."""

import json
from dataclasses import astuple
from pathlib import Path

import pytest
from llm_server import MODEL, ScriptedServer

from vagen.cli.main import USER_ERROR, main
from vagen.rollout.batch import TrajectoryBatch
from vagen.run.run import Run
from vagen.stages.judge import judge

KEY = "sk-51c2-not-to-be-seen"
SMALL = (
    "envs.frozenlake.train_size=32",
    "envs.frozenlake.val_size=4",
    "envs.frozenlake.test_size=4",
    "data.train_batch_size=8",
    "rollout_manager.max_turns=2",
    "actor_rollout_ref.actor.ppo_mini_batch_size=8",
    "critic.ppo_mini_batch_size=8",
    "warm_start.steps=40",
    "warm_start.batch_size=8",
    "trainer.total_training_steps=1",
    "infra.threads=1",
)


@pytest.mark.slow
def test_frozenlake_tiny_with_the_cascade(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JUDGE_KEY", KEY)
    with ScriptedServer(key=KEY, fault_share=0.2, hang=3.0, seed=1) as server:
        endpoint = (
            f"base_url={server.base_url}",
            f"model={MODEL}",
            "api_key_env=JUDGE_KEY",
            "timeout=2",
            "backoff=0.05",
        )
        overrides = [
            *SMALL,
            "judge.type=cascade",
            "judge.second.type=llm",
            "judge.second.fraction=1",
            *(f"judge.{part}.{option}" for part in ("llm", "second.llm") for option in endpoint),
            "judge.schedule.max_return_share=0.5",
        ]
        assert main(["run", "frozenlake-tiny", "--name", "one", *overrides]) == 0
        run = Run.open(tmp_path / "outputs" / "one")
        found = TrajectoryBatch.load(run.step(0, "judge"), kind="judge")
        judged = [t for x in found.trajectories for t in x.turns if t.verdict is not None]
        assert judged and not any(turn.verdict.absent for turn in judged)
        assert all(None not in astuple(turn.verdict.second) for turn in judged)
        sources = {p.partition(":")[2] for t in judged for p in t.verdict.decided_by}
        assert sources <= {"gate", "rules", "llm", "cache"} and "rules" in sources
        manifest = json.loads((run.step(0, "judge") / "manifest.json").read_text())
        assert 0 < manifest["payload"]["metrics"]["judge/llm_requests"] <= len(server.asked)
        (metrics,) = run.iteration_metrics()
        assert 0 < metrics["perf/judge/seconds_per_request"] < 3 and metrics["judge/kappa"] > 0
        assert metrics["judge/absent_share"] == 0
        before = len(server.asked)
        again = judge(run, 0, source=run.step(0, "rollout"), out=tmp_path / "again")["metrics"]
        assert len(server.asked) == before and again["judge/llm_requests"] == 0
        written = [path for path in (tmp_path / "outputs").rglob("*") if path.is_file()]
        assert any(path.name == "mlflow.db" for path in written)
        assert not any(KEY.encode() in path.read_bytes() for path in written)
        assert KEY not in "".join(capfd.readouterr())
    monkeypatch.delenv("JUDGE_KEY")
    assert main(["run", "frozenlake-tiny", "--name", "two", *overrides]) == USER_ERROR
    assert "JUDGE_KEY is not set" in capfd.readouterr().err
