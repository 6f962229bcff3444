"""The laboratory: its task pays what it says, and its figures are what they are called."""

import json
from dataclasses import replace
from random import Random

import numpy as np
import pytest
import torch
from scipy.stats import ttest_rel

from benchmarks.method import arms, contexts, gate, gradients, jobs, lab, learner, report
from benchmarks.method.curriculum import Levels
from benchmarks.method.environments import NAMES, RecallEnv
from benchmarks.method.pipeline import STUDIES, warm_policy
from vagen.config.schema import EntropyControl
from vagen.envs import check_env
from vagen.experiment.load import load_experiment


@pytest.mark.parametrize("task", arms.CROSSED.values(), ids=arms.CROSSED)
def test_being_always_right_earns_most(task):
    """A reward of 1 per turn, wherever it is paid; noise has mean 0 and the task's deviation."""
    luck = lab.draw([0, 1], 0, episodes=2_000, turns=task.turns)
    right = torch.ones(2, 2_000, task.turns, dtype=torch.bool)
    scores = task.rewards(task.earned(right), luck).sum(-1)
    spread = task.noise * task.turns**0.5
    assert scores.mean().item() == pytest.approx(task.turns, abs=4 * spread / 4_000**0.5)
    assert scores.std().item() == pytest.approx(spread, rel=0.05)


@pytest.mark.parametrize("turns", [2, 8, 32])
@pytest.mark.parametrize("dependent", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
def test_chance_earns_what_it_should(dependent, sparse, turns):
    """A policy without preferences is right in one turn of eight."""
    task = lab.Task(dependent, sparse, turns=turns)
    policy = lab.Networks([0, 1], lab.START, zero_head=True)
    played = lab.play(policy, task, lab.draw([0, 1], 0, episodes=2_000, turns=turns))
    expected = (1 / 8 + (turns - 1) / 64) / turns if dependent else 1 / 8
    for shares in (played.earned.mean(-1), played.rewards.sum(-1) / turns):
        error = shares.flatten().std().item() / 4_000**0.5
        assert shares.mean().item() == pytest.approx(expected, abs=4 * error)


def test_what_was_sampled_has_its_probability_and_seeds_do_not_mix():
    seeds, task = [3, 4], lab.Task(dependent=True)
    both, alone = lab.Networks(seeds, lab.START), lab.Networks([4], lab.START)
    played = lab.play(both, task, lab.draw(seeds, 7))
    by_itself = lab.play(alone, task, lab.draw([4], 7))
    assert torch.equal(played.tokens[1:], by_itself.tokens)
    again, _ = both.logprobs(played.tokens)
    sampled = lab.places(task.turns).sampled
    torch.testing.assert_close(again[..., sampled], played.logprobs[..., sampled])
    arm = learner.Arm("bi_level_gae", entropy_target=1.38, actor_lr=0.003)
    two, one = (learner.train(task, arm, chosen, 3) for chosen in (seeds, [4]))
    for name in ("accuracy", "entropy", "weights"):
        torch.testing.assert_close(getattr(two, name)[1:], getattr(one, name))
    step = EntropyControl().step
    assert one.entropy.max() < 1.38 and one.weights[0].tolist() == pytest.approx(
        [0, step, 2 * step]
    )


def test_judge_and_placebo_pay_alike_but_for_truth():
    """By chance both pay as often; what a word says of its own state only the judge pays for."""
    policy, task = lab.Networks([0], lab.START, zero_head=True), lab.Task(sparse=True)
    luck = lab.draw([0], 0)
    none, judge, placebo = (
        lab.play(policy, task, luck, name) for name in ("none", "judge", "placebo")
    )
    words = none.tokens[..., lab.places(task.turns).starts] - lab.BOUNDS[2]
    assert not none.judged.any() and torch.equal(none.rewards, judge.rewards)
    assert torch.equal(judge.judged > 0, words == luck.states)
    assert torch.equal(placebo.judged > 0, words == luck.states.roll(1, 1))


@pytest.mark.parametrize("placement", ["turn_end", "span"])
def test_the_judge_s_reward_is_where_the_arm_says(placement):
    """With one estimator that gives each token the sum of what follows: what `masked_gae` does at
    values of 0."""
    task, luck = lab.Task(), lab.draw([0], 0)
    arm = learner.Arm("masked_gae", judge="judge", reward_placement=placement, whiten=False)
    played = lab.play(lab.Networks([0], lab.START), task, luck, "judge")
    found, _ = learner.Learner(arm, task, [0]).advantages(
        played, torch.zeros(played.tokens.shape), None
    )
    words, turns = found[..., lab.places(task.turns).starts], played.rewards + played.judged
    following = turns.flip(-1).cumsum(-1).flip(-1)
    torch.testing.assert_close(words, following)
    actions = found[..., torch.arange(40) % lab.TOKENS == 3]
    paid_before = played.judged if placement == "span" else 0.0
    torch.testing.assert_close(actions, following - paid_before)


@pytest.mark.slow
def test_a_method_that_works_learns():
    """From chance to mostly right within forty iterations."""
    curve = learner.train(
        lab.Task(), learner.Arm("bi_level_gae", high_level_lam=0.5), [0, 1], 40
    ).accuracy
    assert curve[:, 0].max() < 0.25 and curve[:, -1].min() > 0.9


def test_signal_noise_and_bias_of_gradients_are_found():
    """Of a gradient whose mean and covariance are known."""
    source = torch.Generator().manual_seed(0)
    mean = torch.zeros(2, 50)
    mean[0, :9], mean[1, :4] = 1.0, 1.0  # lengths 3 and 2
    noise = torch.randn(4_000, 2, 50, generator=source)
    found = gradients.moments(mean + noise)
    expected = mean.norm(dim=1) / 50**0.5
    torch.testing.assert_close(found.snr(), expected, rtol=0.05, atol=0.0)
    other = torch.zeros(2, 50)
    other[:, :1] = 5.0
    cosine = found.cosine(gradients.moments(other + torch.zeros(4_000, 2, 50)))
    torch.testing.assert_close(cosine, torch.tensor([1 / 3, 1 / 2]), rtol=0.05, atol=0.0)


def test_arms_are_compared_seed_by_seed():
    rng = np.random.default_rng(0)
    baseline, candidate = rng.random((8, 30)), rng.random((8, 30)) + 0.1
    found = {"a": report.measures(baseline.tolist()), "b": report.measures(candidate.tolist())}
    gains = report.compare(found, arms.Contrast("b against a", "a", "b"))
    areas = ttest_rel(candidate.mean(1), baseline.mean(1))
    ends = ttest_rel(candidate[:, -10:].mean(1), baseline[:, -10:].mean(1))
    assert gains["auc"].t == pytest.approx(areas.statistic)
    assert gains["auc"].ci95 == pytest.approx(tuple(areas.confidence_interval(0.95)))
    assert gains["final"].t == pytest.approx(ends.statistic)
    assert report.compare(found, arms.Contrast("c against a", "a", "c")) == {}


@pytest.mark.parametrize("name", STUDIES)
def test_every_arm_of_the_pipeline_can_run(name):
    """Its configuration is accepted, and what contrasts name is there."""
    study = STUDIES[name]
    load_experiment(study.experiment, [*study.shared, *study.warm])
    for overrides in study.arms.values():
        load_experiment(study.experiment, [*study.shared, *overrides])
    assert {arm for contrast in study.contrasts for arm in contrast[1:]} <= set(study.arms)


@pytest.mark.slow
def test_a_study_that_was_stopped_goes_on_from_its_warm_start(tmp_path):
    lake = STUDIES["frozenlake"]
    small = ("envs.frozenlake.train_size=128", "envs.frozenlake.val_size=2")
    small = (*lake.shared, *small, "envs.frozenlake.test_size=2")
    study = replace(lake, shared=small, warm=("warm_start.steps=2",))
    first = warm_policy("small", study, tmp_path, 0)
    made = sorted(tmp_path.rglob("*.safetensors"))
    assert warm_policy("small", study, tmp_path, 0) == first
    assert sorted(tmp_path.rglob("*.safetensors")) == made


@pytest.mark.parametrize("name", ["grpo: even", "grpo: curriculum"])
def test_levels_of_the_curriculum_pay_what_they_say(name):
    """Ten at the end, for as many right turns as the level's number; all of a group play one."""
    arm = arms.arms_of(arms.LEVELS)[name]
    levels = Levels(arm, [0, 1])
    policy = lab.Networks([0, 1], lab.START)
    task = lab.Task()
    for iteration in range(3):
        luck = lab.draw([0, 1], iteration, arm.n_trajectory)
        played = levels.play(policy, task, luck, "none")
        assert not played.rewards[..., :-1].any()
        groups = played.rewards[..., -1].unflatten(1, (-1, arm.n_trajectory))
        earned = played.earned.sum(-1).unflatten(1, (-1, arm.n_trajectory))
        for rewards, counts in zip(groups.flatten(0, 1), earned.flatten(0, 1), strict=True):
            won, lost = counts[rewards == 10].tolist(), counts[rewards == 0].tolist()
            assert min(won, default=9) > max(lost, default=0), "one number for the level"
            assert 0 not in won
    assert [sum(n for _, n in seen.values()) > 64 for seen in levels.seen] == [True, True]


def test_the_code_is_asked_for_when_it_is_no_longer_shown():
    env = RecallEnv({"render_mode": "text", "prompt_format": "no_think", "prompt_detail": "brief"})
    check_env(env)
    true = 0
    for seed in range(60):
        observation, info = env.reset(seed=seed)
        assert observation["text"] == "code " + " ".join(info["state"]["code"])
        for _ in range(3):
            observation, *_ = env.step(env.expert_response())
            assert not set(NAMES) & set(observation["text"].split())
        assert env.expert_summary() == env.expert_summary()
        said = env.expert_summary().removeprefix("code ")
        *_, last = env.step(env.expert_response())
        assert last["success"] == (said.split() == info["state"]["code"])
        true += last["success"]
    assert 20 <= true <= 50


@pytest.mark.parametrize("name", contexts.ARMS)
def test_every_context_of_recall_can_run(name):
    load_experiment(
        contexts.ROOT / "benchmarks" / "method" / "recall-tiny.yaml", contexts.ARMS[name]
    )


@pytest.mark.parametrize("name", ["concat", "window 2", "gate, cost .1"])
def test_rows_of_the_gate_are_what_its_policy_saw(name):
    """Its log-probabilities are those of the rollout, and the code is there where it was kept."""
    arm, policy = gate.ARMS[name], gate.Policy(0)
    torch.nn.init.normal_(policy.head.weight)
    episodes = gate.play(policy, arm, [f"level {i}" for i in range(40)], Random("draws"))
    rows = [row for episode in episodes for row in episode.rows]
    mask = gate.padded([row.loss_mask for row in rows], torch.bool)
    with torch.no_grad():
        found = policy.logprobs(gate.padded([row.input_ids for row in rows]))
    stored = gate.padded([row.rollout_logprobs for row in rows], torch.float32)
    torch.testing.assert_close(found[mask], stored[mask], atol=1e-5, rtol=1e-4)
    several = set()
    for episode, level in zip(episodes, range(40), strict=True):
        _, code, place = gate.observations(Random(f"level {level}"))
        last = episode.rows[-1]
        several.add(len(episode.rows))
        seen = gate.CODE + code in last.input_ids
        if name == "concat":
            assert seen
        elif arm.gate and episode.kept[0]:
            assert seen, "what is kept stays"
        elif arm.gate and place < 2 and len(episode.rows) == 3:
            assert not seen, "what was dropped is gone"
        if seen:
            assert episode.label == 2 + code
        tags = sum(-reward for reward in episode.rewards[:-1]) / (arm.keep_cost or 1)
        kept = episode.kept[0] + (gate.TURNS - 2) * episode.kept[1]
        assert tags == pytest.approx(kept if arm.keep_cost else 0)
    assert max(several) == {"concat": 1, "window 2": 5, "gate, cost .1": 3}[name]


def test_every_contrast_is_between_arms_of_a_task():
    played = set().union(*(arms.arms_of(task) for task in (*arms.CROSSED, arms.LEVELS)))
    asked = [contrast for study in arms.STUDIES.values() for contrast in study]
    assert {name for contrast in asked for name in contrast[1:]} <= played


@pytest.mark.parametrize(("best", "tried"), [(0.02, 5), (0.15, 7), (100.0, 8), (1e-9, 8)])
def test_the_best_rate_is_not_at_the_edge_of_the_grid(best, tried):
    """The grid grows towards a best rate outside of it, by a few steps."""
    asked = []

    def area(rate):
        asked.append(rate)
        return -abs(np.log(rate / best))

    found = jobs.search(jobs.ACTOR_RATES, jobs.ACTOR_STEP, area)
    assert len(asked) == tried
    assert found == max(asked, key=lambda rate: -abs(np.log(rate / best)))
    if tried < 8:
        assert min(asked) < found < max(asked)


def test_an_arm_is_tuned_on_other_seeds_than_it_is_judged_by(monkeypatch):
    """First the policy's rate at one rate of the critic, then the critic's at the best of those."""
    monkeypatch.setattr(jobs, "SEEDS", range(2))
    tried = []

    def train(task, arm, seeds, iterations, play):
        tried.append((arm.actor_lr, arm.critic_lr, list(seeds)))
        good = -((np.log(arm.actor_lr / 0.04)) ** 2) - np.log(arm.critic_lr / 0.03) ** 2
        curve = torch.full((len(seeds), iterations), float(good))
        return learner.Training(curve, curve, curve, lab.Networks(seeds, lab.START))

    monkeypatch.setattr(learner, "train", train)
    settings = {"seeds": [0, 1], "iterations": 20}
    found = jobs.tokens("dependent, dense", learner.Arm("masked_gae"), settings)
    assert (found["actor_lr"], found["critic_lr"]) == (0.04, 0.03)
    assert len(found["tuning"]) == 5 + 2
    *tuned, judged = tried
    assert all(seeds == list(jobs.TUNING_SEEDS) for *_, seeds in tuned)
    tried.clear()
    again = jobs.tokens("dependent, dense", learner.Arm("masked_gae"), settings, found["tuning"])
    assert tried == [judged] and again == found, "what was tried is not tried again"
    assert judged == (0.04, 0.03, [0, 1]) and not set(jobs.TUNING_SEEDS) & set(jobs.SEEDS)


def test_verdicts_are_corrected_for_their_number():
    """Holm's step-down, by its definition; equal only where the whole interval is."""
    gains = [
        report.paired_seeds(np.zeros(8), mean + spread * np.array([-1, 1] * 4))
        for mean, spread in ((0.5, 0.1), (-0.3, 0.1), (0.1, 0.11), (0.001, 0.01), (0.01, 0.2))
    ]
    rows = report.judged(gains, 8)
    assert [row["verdict"] for row in rows] == ["better", "worse", "open", "equal", "open"]
    ordered = sorted(row["p"] for row in rows)
    assert ordered[2] == pytest.approx(ttest_rel([0.21, -0.01] * 4, [0] * 8).pvalue)
    for row in rows:
        rank = ordered.index(row["p"])
        steps = [p * (5 - i) for i, p in enumerate(ordered[: rank + 1])]
        assert row["p_holm"] == pytest.approx(min(1, max(steps)))
    assert ordered[2] < 0.05 < rows[2]["p_holm"]


def test_the_page_says_what_the_results_say():
    """Contrasts and verdicts come out of the cells again, and the page's tables of both."""
    result = json.loads((report.RESULTS / "method.json").read_text())
    for name, contrasts in arms.STUDIES.items():
        again = json.loads(json.dumps(report.contrasts_of(result["tokens"], contrasts)))
        assert again == result["contrasts"][name]
    page, tables = report.PAGE.read_text(), report.tables()
    assert any(f"<!-- {name}:" in page for name in tables)
    assert report.filled(page, tables) == page
