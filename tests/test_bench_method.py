"""The laboratory: its task pays what it says, and its figures are what they are called."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
import torch
from scipy.stats import ttest_rel

from benchmarks.method import (
    arms,
    contexts,
    curriculum,
    gate,
    gradients,
    lab,
    learner,
    report,
)
from benchmarks.method.environments import NAMES, RecallEnv, TurnsEnv, options
from benchmarks.method.pipeline import STUDIES, warm_policy
from vagen.config.schema import EntropyControl
from vagen.envs import check_env
from vagen.experiment.load import load_experiment


@pytest.mark.parametrize("dependent", [False, True])
@pytest.mark.parametrize(("reward", "best"), [("dense", 8.0), ("noisy", 8.0), ("sparse", 10.0)])
def test_being_always_right_earns_most(dependent, reward, best):
    task = lab.Task(dependent, reward)
    earned = task.earned(torch.ones(5, lab.TURNS, dtype=torch.bool))
    assert task.rewards(earned, torch.zeros(5, lab.TURNS)).sum(-1).tolist() == [best] * 5


@pytest.mark.parametrize(("dependent", "expected"), [(False, 1 / 8), (True, (1 + 7 / 8) / 64)])
def test_chance_earns_what_it_should(dependent, expected):
    """A policy without preferences is right in one turn of eight."""
    policy = lab.Networks([0, 1], lab.START, zero_head=True)
    played = lab.play(policy, lab.Task(dependent, "dense"), lab.draw([0, 1], 0, episodes=2_000))
    share = played.earned.mean().item()
    error = played.earned.mean(-1).flatten().std().item() / 4_000**0.5
    assert share == pytest.approx(expected, abs=4 * error)


@pytest.mark.parametrize("dependent", [False, True])
def test_the_pipelines_environment_is_the_same_task(dependent):
    """Right and wrong answers of chance, in both."""
    env = TurnsEnv(options(dependent=dependent))
    check_env(env)
    rng = np.random.default_rng(0)
    for seed in range(5):
        observation, info = env.reset(seed=seed)
        right = torch.from_numpy(rng.random(lab.TURNS) < 0.6)
        rewards, spoilt = [], []
        for is_right in right:
            spoilt.append("spoilt" in observation["text"])
            answer = env.expert_response()
            if not is_right:
                letter = answer[-len("A</answer>")]
                answer = answer.replace(f">{letter}<", f">{chr((ord(letter) - 64) % 8 + 65)}<")
            observation, reward, terminated, _, info = env.step(answer)
            rewards.append(reward)
        earned = lab.Task(dependent, "dense").earned(right)
        assert rewards == earned.tolist() and terminated
        assert info["success"] == (earned.sum() >= 4)
        assert not dependent or spoilt[1:] == (~right[:-1]).tolist()


def test_what_was_sampled_has_its_probability_and_seeds_do_not_mix():
    seeds, task = [3, 4], lab.Task(True, "dense")
    both, alone = lab.Networks(seeds, lab.START), lab.Networks([4], lab.START)
    played = lab.play(both, task, lab.draw(seeds, 7))
    by_itself = lab.play(alone, task, lab.draw([4], 7))
    assert torch.equal(played.tokens[1:], by_itself.tokens)
    again, _ = both.logprobs(played.tokens)
    torch.testing.assert_close(again[..., lab.SAMPLED], played.logprobs[..., lab.SAMPLED])
    arm = learner.Arm("bi_level_gae", entropy_target=1.38)
    two, one = (learner.train(task, arm, chosen, 3) for chosen in (seeds, [4]))
    for name in ("accuracy", "entropy", "weights"):
        torch.testing.assert_close(getattr(two, name)[1:], getattr(one, name))
    step = EntropyControl().step
    assert one.entropy.max() < 1.38 and one.weights[0].tolist() == pytest.approx(
        [0, step, 2 * step]
    )


def test_judge_and_placebo_pay_alike_but_for_truth():
    """By chance both pay as often; what a word says of its own state only the judge pays for."""
    policy, task = lab.Networks([0], lab.START, zero_head=True), lab.Task(False, "sparse")
    luck = lab.draw([0], 0)
    none, judge, placebo = (
        lab.play(policy, task, luck, name).rewards for name in ("none", "judge", "placebo")
    )
    words = lab.play(policy, task, luck).tokens[..., lab.PLACE == 2] - lab.BOUNDS[2]
    assert torch.equal(judge - none > 0, words == luck.states)
    assert torch.equal(placebo - none > 0, words == luck.states.roll(1, 1))


@pytest.mark.slow
def test_a_method_that_works_learns():
    """From chance to mostly right within forty iterations."""
    curve = learner.train(
        lab.Task(False, "dense"), learner.Arm("bi_level_gae", high_level_lam=0.5), [0, 1], 40
    ).accuracy
    assert curve[:, 0].max() < 0.25 and curve[:, -1].min() > 0.4


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
    turns = STUDIES["turns"]
    small = ("envs.turns.train_size=64", "envs.turns.val_size=2", "envs.turns.test_size=2")
    study = replace(turns, shared=(*turns.shared, *small), warm=("warm_start.steps=2",))
    first = warm_policy("small", study, tmp_path, 0)
    made = sorted(tmp_path.rglob("*.safetensors"))
    assert warm_policy("small", study, tmp_path, 0) == first
    assert sorted(tmp_path.rglob("*.safetensors")) == made


@pytest.mark.parametrize("name", ["grpo: even", "grpo: curriculum"])
def test_levels_of_the_curriculum_pay_what_they_say(name):
    """Ten at the end, for as many right turns as the level's number; all of a group play one."""
    arm = curriculum.arms_of()[name]
    levels = curriculum.Levels(curriculum.draws_of(name), arm, [0, 1])
    policy = lab.Networks([0, 1], lab.START)
    task = arms.TASKS[curriculum.TASK]
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
    played = set().union(*(arms.arms_of(task) for task in arms.TASKS.values()))
    assert {name for contrast in arms.CONTRASTS for name in contrast[1:]} <= played
