"""The judge step: what it pays, what it counts, and that it never pays twice."""

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from free_ports import free_ports
from judged_batches import batch, trajectories
from llm_server import MODEL, ScriptedServer

from vagen.config import ConfigError
from vagen.config.judge_options import JudgeConfig
from vagen.experiment.load import load_infra
from vagen.judge.base import JudgeUnavailable, cohen_kappa
from vagen.judge.batch import cap_factor, schedule_factor, score, weigh
from vagen.judge.scoring import is_chosen, statements
from vagen.launch.step import perform, run_stage
from vagen.rollout.batch import TrajectoryBatch
from vagen.rollout.types import SectionScores, Status, TurnRewards
from vagen.run import layout
from vagen.run.layout import JUDGE_ANSWERS
from vagen.run.run import Run
from vagen.stages import judge
from vagen.storage import open_store

KEY = "sk-0b1d-not-to-be-seen"
GROUNDED = {"prompt_format": "grounding_worldmodeling", "state_objects": "all"}
RULES = ("judge.use_state_reward=true",)
REWARDS = ("judge_observation", "judge_prediction")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedServer]:
    monkeypatch.setenv("JUDGE_KEY", KEY)
    with ScriptedServer(key=KEY) as running:
        yield running


def asking(server: ScriptedServer, kind: str = "llm") -> tuple[str, ...]:
    return (
        *RULES,
        f"judge.type={kind}",
        f"judge.llm.base_url={server.base_url}",
        f"judge.llm.model={MODEL}",
        "judge.llm.api_key_env=JUDGE_KEY",
        "judge.llm.backoff=0.01",
        "judge.llm.requests_per_second=null",
    )


def test_the_cascade_asks_the_model_what_the_rules_leave_open(
    server: ScriptedServer, make_experiment: Any, tmp_path: Path
) -> None:
    experiment = make_experiment(*asking(server, "cascade"), **GROUNDED)
    made = trajectories(20, unread=0.2)
    metrics = score(experiment, made, cache=tmp_path)
    by_rules = trajectories(20, unread=0.2)
    score(make_experiment(*RULES, **GROUNDED), by_rules)
    asked = 0
    for ours, theirs in zip(made, by_rules, strict=True):
        for turn, ruled in zip(ours.turns, theirs.turns, strict=True):
            for section in ("observation", "prediction"):
                decided = dict(place.split(":") for place in turn.verdict.decided_by)[section]
                if "frozen thing" in getattr(turn.parsed, section):
                    asked += 1
                    assert decided == "llm" and getattr(turn.verdict, section) == 0.0
                else:
                    assert decided == "rules"
                    assert getattr(turn.verdict, section) == getattr(ruled.verdict, section)
    assert 0 < asked == len(server.asked) == metrics["judge/llm_requests"] < 30
    assert metrics["judge/decided_by_llm"] == pytest.approx(asked / 80)


def test_absent_verdicts_are_absent_and_counted(
    server: ScriptedServer, make_experiment: Any
) -> None:
    server.behaviour.fault_share, server.behaviour.faults = 0.3, ("server_error",)
    experiment = make_experiment(*asking(server), "judge.llm.retries=0", **GROUNDED)
    made = trajectories(15)
    metrics = score(experiment, made, iteration=0)
    absent = 0
    for turn in (turn for t in made for turn in t.turns):
        for section in ("observation", "prediction"):
            value = getattr(turn.verdict, section)
            reward = getattr(turn.rewards, f"judge_{section}")
            if value is None:
                absent += 1
                assert reward is None and f"{section}:server_error" in turn.verdict.absent
            else:
                assert reward == 0.5 * value
    counted = metrics["judge/observation_missing"] + metrics["judge/prediction_missing"]
    by_reason = [metrics[f"judge/absent/{s}_server_error"] for s in ("observation", "prediction")]
    assert 0 < absent == counted == sum(by_reason)
    server.behaviour.fault_share = 0.0
    before = len(server.asked)
    score(experiment, made)
    assert not any(turn.verdict.absent for t in made for turn in t.turns)
    assert len(server.asked) > before


def test_a_turn_that_has_its_verdict_is_paid_for_it_and_not_asked_about(
    server: ScriptedServer, make_experiment: Any
) -> None:
    """So does an episode come that waited an iteration for the others of its group."""
    experiment = make_experiment(*asking(server), **GROUNDED)
    made, carried = trajectories(5), trajectories(5)
    metrics = score(experiment, made, iteration=0)
    asked = len(server.asked)
    for ours, theirs in zip(carried, made, strict=True):
        for turn, judged in zip(ours.turns, theirs.turns, strict=True):
            turn.verdict = judged.verdict
    again = score(experiment, carried, iteration=0)
    assert len(server.asked) == asked == metrics["judge/llm_requests"] > 0
    assert again["judge/llm_requests"] == 0
    rewards = [[turn.rewards for t in found for turn in t.turns] for found in (made, carried)]
    assert rewards[0] == rewards[1] and any(r.judge_observation for r in rewards[0])


def test_a_judge_that_is_not_there_fails_the_step(
    server: ScriptedServer, make_experiment: Any, tmp_path: Path
) -> None:
    server.behaviour.status = 500
    off = ("judge.llm.retries=0", "judge.llm.deadline=4", "judge.llm.timeout=4")
    experiment = make_experiment(*asking(server), *off, **GROUNDED)
    with pytest.raises(JudgeUnavailable, match=r"of 24 verdicts could not be had .*server_error"):
        score(experiment, trajectories(6), cache=tmp_path)
    server.behaviour.status = None
    score(experiment, trajectories(6), cache=tmp_path)


def test_sampling_judges_its_share_of_turns_and_always_the_same(make_experiment: Any) -> None:
    experiment = make_experiment(*RULES, "judge.sampling_fraction=0.3", **GROUNDED)
    made, again = trajectories(200), trajectories(200)
    metrics = score(experiment, made)
    score(experiment, again)
    judged = [turn.verdict is not None for t in made for turn in t.turns]
    assert judged == [turn.verdict is not None for t in again for turn in t.turns]
    assert metrics["judge/judged_share"] == np.mean(judged) == pytest.approx(0.3, abs=0.07)
    for turn in (turn for t in made for turn in t.turns if turn.verdict is None):
        assert [getattr(turn.rewards, part) for part in REWARDS] == [None, None]
    assert sum(1 for t in made for _ in statements(t)) == 400


def test_only_turns_with_the_format_reward_are_judged(make_experiment: Any) -> None:
    experiment = make_experiment(*RULES, **GROUNDED)
    made = trajectories(3)
    refused = made[0].turns[0]
    refused.parsed = replace(refused.parsed, format_correct=False)
    made[1].status = Status.ENV_ERROR
    score(experiment, made)
    judged = [[turn.verdict is not None for turn in t.turns] for t in made]
    assert judged == [[False, True], [False, False], [True, True]]


@pytest.mark.parametrize(
    ("options", "factors"),
    [
        ({}, [1, 1, 1, 1]),
        ({"type": "linear"}, [1, 0.75, 0.5, 0]),
        ({"type": "linear", "floor": 0.2}, [1, 0.8, 0.6, 0.2]),
        ({"type": "cosine"}, [1, 0.853553, 0.5, 0]),
        ({"type": "linear", "iterations": 2}, [1, 0.5, 0, 0]),
    ],
)
def test_the_schedule(options: dict[str, Any], factors: list[float]) -> None:
    config = JudgeConfig.model_validate({"schedule": options})
    found = [schedule_factor(config, iteration, 4) for iteration in (0, 1, 2, 4)]
    assert found == pytest.approx(factors, abs=1e-6)


def test_schedule_and_cap_scale_what_is_paid(make_experiment: Any) -> None:
    late = make_experiment(
        *RULES,
        "judge.schedule.type=linear",
        "trainer.total_training_steps=4",
        "judge.schedule.max_return_share=0.1",
        **GROUNDED,
    )
    made = trajectories(40)
    metrics = score(late, made, iteration=1)
    of_judge = [sum(getattr(t.rewards, p) or 0 for t in x.turns for p in REWARDS) for x in made]
    others = [sum(t.rewards.env + t.rewards.format for t in x.turns) for x in made]
    assert np.std(of_judge) == pytest.approx(0.1 * np.std(others))
    factor = metrics["judge/weight_factor"]
    assert 0 < factor < 0.75
    for turn in (turn for t in made for turn in t.turns):
        for section in ("observation", "prediction"):
            expected = factor * 0.5 * getattr(turn.verdict, section)
            assert getattr(turn.rewards, f"judge_{section}") == pytest.approx(expected)
    evaluated = trajectories(40)
    score(late, evaluated)
    assert max(t.rewards.judge_observation for x in evaluated for t in x.turns) == 0.5


def test_what_a_constant_text_scores_earns_nothing(make_experiment: Any) -> None:
    experiment = make_experiment(*RULES, **GROUNDED)
    chance = SectionScores(observation=0.4, prediction=1.0)
    made, evaluated = trajectories(40), trajectories(40)
    blind = {made[0].config_id: chance}
    metrics = score(experiment, made, iteration=0, blind=blind)
    assert metrics["judge/blind_observation"] == pytest.approx(0.4)
    scores = set()
    for turn in (turn for t in made for turn in t.turns):
        scores.add(turn.verdict.observation)
        above = max(turn.verdict.observation - 0.4, 0) / 0.6
        assert turn.rewards.judge_observation == pytest.approx(0.5 * above)
        assert turn.rewards.judge_prediction == 0
    assert min(scores) < 0.4 < max(scores)
    assert "judge/blind_observation" not in score(experiment, evaluated, blind=blind)
    assert max(t.rewards.judge_prediction for x in evaluated for t in x.turns) == 0.5


def test_the_cap_leaves_what_is_below_it_and_stops_what_has_nothing_beside_it() -> None:
    made = trajectories(10)
    for t in made:
        for turn in t.turns:
            turn.rewards = TurnRewards(float(t.seed), 0.5, judge_observation=0.1 * (t.seed % 2))
    assert cap_factor(made, None) == cap_factor(made, 0.5) == 1
    for t in made:
        for turn in t.turns:
            turn.rewards = replace(turn.rewards, env=1.0)
    assert cap_factor(made, 0.5) == 0
    assert cap_factor([], 0.5) == 1
    weigh(JudgeConfig(), made, iteration=0, iterations=1, blind={})


def test_a_second_judge_is_compared_with(server: ScriptedServer, make_experiment: Any) -> None:
    endpoint = [text.replace("judge.llm", "judge.second.llm") for text in asking(server)[2:]]
    second = ("judge.second.type=llm", "judge.second.fraction=0.5", *endpoint)
    experiment = make_experiment(*RULES, *second, **GROUNDED)
    made = trajectories(30)
    metrics = score(experiment, made)
    compared = [turn for t in made for turn in t.turns if turn.verdict.second]
    assert [is_chosen(turn, "second", 0.5) for turn in compared] == [True] * len(compared)
    assert metrics["judge/kappa_statements"] == 2 * len(compared) and 15 < len(compared) < 45
    assert metrics["judge/kappa"] > 0.9, "the server reads by the same rules"


def test_kappa() -> None:
    assert cohen_kappa([True, False] * 4, [True, False] * 4) == 1
    assert cohen_kappa([True, False] * 4, [False, True] * 4) == -1
    assert cohen_kappa([True, True, False, False], [True, False, True, False]) == 0
    # Cohen's own kind of example: 20 + 15 of 50 agree, 25 and 30 say yes.
    first = [True] * 25 + [False] * 25
    second = [True] * 20 + [False] * 5 + [True] * 10 + [False] * 15
    assert cohen_kappa(first, second) == pytest.approx(0.4)
    assert cohen_kappa([True], [True]) is None and cohen_kappa([], []) is None


def test_impossible_judges_are_refused_without_repeating_secrets(make_experiment: Any) -> None:
    def refusal(*overrides: str) -> str:
        with pytest.raises(ConfigError) as error:
            make_experiment(*RULES, *overrides, **GROUNDED)
        return str(error.value)

    named = ("judge.llm.base_url=http://h/v1", "judge.llm.model=m")
    assert "judge.type = llm asks a language model" in refusal("judge.type=llm")
    secret = refusal("judge.type=llm", "judge.llm.base_url=http://me:pa55@h/v1")
    assert "no user, password" in secret and "pa55" not in secret
    secret = refusal("judge.type=cascade", *named, "judge.llm.api_key_env=sk-pa55")
    assert "environment variable" in secret and "pa55" not in secret
    assert "no base of an API" in refusal("judge.type=llm", "judge.llm.base_url=h:8000")
    assert "deadline" in refusal("judge.type=llm", *named, "judge.llm.deadline=1")
    assert "one answer" in refusal("judge.type=llm", *named, "judge.llm.tokens_per_minute=9")
    assert "agree on everything" in refusal("judge.second.fraction=0.1")
    make_experiment(*RULES, "judge.type=llm", *named, **GROUNDED)


def judged_run(make_run: Any, server: ScriptedServer, count: int = 12) -> Run:
    """A run whose first iteration is played and not judged."""
    run = make_run(*asking(server), **GROUNDED)
    batch(trajectories(count), run.config_digest).save(run.step(0, "rollout"))
    return run


def judge_in_process(path: Path) -> None:
    judge.judge(Run.open(path), 0)


@pytest.mark.slow
def test_a_step_that_was_killed_goes_on_without_paying_twice(
    server: ScriptedServer, make_run: Any
) -> None:
    run = judged_run(make_run, server)
    server.behaviour.delay = 0.3
    process = multiprocessing.get_context("spawn").Process(
        target=judge_in_process, args=(run.path,)
    )
    process.start()
    cache = run.path.parent / "judge-cache"
    while len(server.asked) < 40:
        assert process.is_alive()
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert not run.step(0, "judge").exists() and cache.exists()
    server.behaviour.delay = 0.0
    time.sleep(0.5)
    before = list(server.asked)
    judge.judge(run, 0)
    later = server.asked[len(before) :]
    questions = {asked.question for asked in server.asked}
    had = len(questions) - len(later)
    assert 0 < had < len(questions) and len(later) < len(questions)
    assert len({asked.question for asked in later}) == len(later)
    found = TrajectoryBatch.load(run.step(0, "judge"), kind="judge")
    assert all(turn.verdict for t in found.trajectories for turn in t.turns)
    assert [t.trajectory_id for t in found.trajectories] == [f"game-{i}" for i in range(12)]
    asked = len(server.asked)
    judge.judge(run, 0, source=run.step(0, "rollout"), out=run.path / "again")
    assert len(server.asked) == asked, "the same batch again costs nothing"


def test_the_plan_names_the_judge_and_the_doctor_asks_it(
    server: ScriptedServer, make_experiment: Any
) -> None:
    from vagen.cli.doctor_model import judge as examine
    from vagen.cli.findings import CheckOutcome
    from vagen.plan.tables import judge_text

    experiment = make_experiment(*asking(server, "cascade"), **GROUNDED)
    plan = judge_text(experiment.judge)
    assert f"asks {MODEL} at {server.base_url}" in plan and plan.startswith("cascade")
    [finding] = examine(experiment)
    assert finding.verdict is CheckOutcome.GOOD and "answers in" in finding.text
    server.behaviour.status = 500
    [finding] = examine(experiment)
    assert finding.verdict is CheckOutcome.BAD and "server_error" in finding.text
    server.behaviour.status, server.behaviour.key = None, "another"
    [finding] = examine(experiment)
    assert finding.verdict is CheckOutcome.BAD and "refuses the key" in finding.text
    assert KEY not in f"{plan}{finding}"
    assert not list(examine(make_experiment(*RULES, **GROUNDED)))


def test_steps_on_kubernetes_need_the_key(make_experiment: Any) -> None:
    from vagen.experiment.checks_infra import check_infra

    named = ("judge.type=llm", "judge.llm.base_url=http://h/v1", "judge.llm.model=m")
    experiment = make_experiment(*RULES, *named, **GROUNDED)
    cluster = "kubernetes.image=registry/vagen:1"
    with pytest.raises(ConfigError, match=r"`vagen-judge: \[OPENAI_API_KEY\]`"):
        check_infra(experiment, load_infra(None, [cluster]))
    given = "kubernetes.secrets={vagen-judge: [OPENAI_API_KEY]}"
    check_infra(experiment, load_infra(None, [cluster, given]))
    check_infra(experiment, load_infra(None, []))


@pytest.mark.slow
def test_of_a_run_in_a_store_another_pod_goes_on_without_paying_twice(
    server: ScriptedServer, make_experiment: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first pod's disk is gone with its cache; what it was answered is in the store."""
    monkeypatch.setattr(judge, "_EVERY", 0.0)
    monkeypatch.setenv("VAGEN_SCRATCH", str(tmp_path / "pod-1"))
    infra = load_infra(None, [f"store={(tmp_path / 'store').as_uri()}", "device=cpu"])
    options = ("judge.llm.retries=0", "judge.max_absent=0")
    first = Run.create(make_experiment(*asking(server), *options, **GROUNDED), infra)
    first.mirror.begin()
    batch(trajectories(8), first.config_digest).save(first.step(0, "rollout"))
    first.mirror.push()
    server.behaviour.fault_share, server.behaviour.faults = 0.4, ("server_error",)
    with pytest.raises(JudgeUnavailable):
        judge.judge(first, 0)
    had = {asked.question for asked in server.asked if asked.ending == "answered"}
    assert 5 < len(had) < 32

    monkeypatch.setenv("VAGEN_SCRATCH", str(tmp_path / "pod-2"))
    server.behaviour.fault_share = 0.0
    before = len(server.asked)
    second = Run.open(first.mirror.uri)
    second.mirror.begin()
    assert second.path != first.path and (second.path / JUDGE_ANSWERS).exists()
    judge.judge(second, 0)
    assert second.step(0, "judge").exists() and not (second.path / JUDGE_ANSWERS).exists()
    later = {asked.question for asked in server.asked[before:]}
    assert later and len(later) == len(server.asked) - before
    assert len(later & had) <= 1, "the last answers may have come after the last copy"
    second.mirror.push()
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(KEY.encode() in path.read_bytes() for path in written)


def test_a_judge_that_the_ray_cluster_finds_away_is_refused_by_its_first_stage(
    make_experiment: Any, make_outputs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VAGEN_SCRATCH", str(tmp_path / "scratch"))
    judge = ("judge.type=llm", "judge.llm.model=none", "judge.llm.api_key_env=null")
    where = f"http://127.0.0.1:{free_ports(1)[0]}/v1"
    options = (*RULES, *judge, f"judge.llm.base_url={where}", "judge.llm.retries=1")
    settings = [f"output_dir={make_outputs()}", "mlflow_tracking_uri=null"]
    infra = load_infra("kubernetes-cpu", [*settings, f"store={(tmp_path / 'store').as_uri()}"])
    run = Run.create(make_experiment(*options, **GROUNDED), infra)
    perform(run, "build")
    with pytest.raises(JudgeUnavailable, match=f"{where} did not answer"):
        perform(run, "warm_start")


def test_a_judge_that_is_away_is_refused_before_anything_is_computed_and_the_store_says_so(
    make_experiment: Any, make_outputs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VAGEN_SCRATCH", str(tmp_path / "scratch"))
    where = f"http://127.0.0.1:{free_ports(1)[0]}/v1"
    options = ("judge.type=llm", "judge.llm.model=none", "judge.llm.api_key_env=null")
    options = (*RULES, *options, f"judge.llm.base_url={where}", "judge.llm.retries=1")
    experiment = make_experiment(*options, **GROUNDED)
    settings = [f"store={(tmp_path / 'store').as_uri()}", f"output_dir={make_outputs()}"]
    run = Run.create(experiment, load_infra(None, [*settings, "mlflow_tracking_uri=null"]))
    run.mirror.begin()
    with pytest.raises(JudgeUnavailable, match="did not answer"):
        run_stage(run.mirror.uri, "build")
    told = open_store(run.mirror.uri).read_file(layout.EVENTS)
    assert told is not None and where in told.decode()


def test_summaries_are_not_among_the_turns_of_which_a_share_is_judged(make_experiment: Any) -> None:
    experiment = make_experiment(*RULES, "judge.sampling_fraction=0.5", **GROUNDED)
    plain, with_summaries = trajectories(20), trajectories(20)
    for trajectory in with_summaries:
        last = trajectory.turns[-1]
        blank = replace(last.parsed, format_correct=False)
        trajectory.turns.append(
            replace(last, turn_index=len(trajectory.turns), summary=True, parsed=blank)
        )
    assert score(experiment, with_summaries) == score(experiment, plain)
    assert all(turn.verdict is None for t in with_summaries for turn in t.turns if turn.summary)
