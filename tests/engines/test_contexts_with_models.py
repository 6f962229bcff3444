"""Contexts with the real local policy, and the rows they leave in the trainer."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from vagen.config.schema import context_window
from vagen.engines.columns import add_columns
from vagen.engines.local.engine import LocalEngine
from vagen.rollout.contexts import DROPPED
from vagen.rollout.episodes import training_specs
from vagen.rollout.play import limits_of, play
from vagen.rollout.types import CONTEXT, TokenRow, Trajectory
from vagen.stages.build import load_levels

pytestmark = pytest.mark.slow

CONCAT: tuple[str, ...] = ()
NO_CONCAT = ("rollout_manager.context=no_concat",)
GATE = ("rollout_manager.context=gate", "rollout_manager.window_size=1")
COMPACT = ("rollout_manager.context=compact", "rollout_manager.window_size=1")
WIDE_PROMPT = "data.max_prompt_length=160"


def window(size: int) -> tuple[str, ...]:
    return ("rollout_manager.context=window", f"rollout_manager.window_size={size}")


def played(make_experiment, warm_runs, engine: LocalEngine, *overrides: str, model="tiny:vl"):
    """Trajectories and frames of an iteration, and every request the policy had, by row."""
    config = make_experiment(*overrides, WIDE_PROMPT, model=model)
    policy = engine.policy(slots=4)
    requests: dict[str, list[Any]] = {}
    generate = policy.generate

    async def recorded(*, request_id, prompt_ids, images, sampling):
        prompt = list(prompt_ids)
        out = await generate(
            request_id=request_id, prompt_ids=prompt_ids, images=images, sampling=sampling
        )
        requests.setdefault(request_id, []).append((prompt, out.ids, out.logprobs))
        return out

    policy.generate = recorded
    trajectories, images = play(
        config,
        training_specs(config, load_levels(warm_runs[model]), 0),
        policy=policy,
        processor=engine.processor,
        sampling=config.actor_rollout_ref.rollout,
        split="train",
    )
    assert not policy._by_id, "every row is released"
    return trajectories, images, requests


def rows_of(trajectories: list[Trajectory]) -> list[TokenRow]:
    return [row for trajectory in trajectories for row in trajectory.rows]


def same_rows(a: list[Trajectory], b: list[Trajectory]) -> bool:
    def plain(trajectories: list[Trajectory]) -> list[Any]:
        return [
            (
                row.trajectory_id,
                row.row_index,
                row.input_ids.tolist(),
                row.loss_mask.tolist(),
                row.turn_index.tolist(),
                row.rollout_logprobs.tolist(),
                row.images,
            )
            for row in rows_of(trajectories)
        ]

    return plain(a) == plain(b)


@pytest.mark.parametrize("model", ["tiny:vl", "tiny:text"])
@pytest.mark.parametrize("overrides", [CONCAT, NO_CONCAT, window(2), COMPACT], ids=str)
def test_rows_are_what_the_policy_saw_and_the_trainer_agrees(
    make_experiment, warm_runs, make_engine, model, overrides
):
    engine = make_engine(*overrides, WIDE_PROMPT, model=model)
    trajectories, images, requests = played(
        make_experiment, warm_runs, engine, *overrides, model=model
    )
    found = engine.logprobs(rows_of(trajectories), images)
    sampled = 0
    for row, logprobs in zip(rows_of(trajectories), found, strict=True):
        answers = requests.pop(f"{row.trajectory_id}/{row.row_index}", [])
        places = np.flatnonzero(row.loss_mask)
        assert row.input_ids[places].tolist() == [i for _, ids, _ in answers for i in ids]
        for prompt, ids, _ in answers:
            seen = row.input_ids[: len(prompt) + len(ids)].tolist()
            assert seen == prompt + ids, "token for token what the policy saw and sampled"
        np.testing.assert_array_equal(
            row.rollout_logprobs[places],
            np.asarray([x for *_, lp in answers for x in lp], np.float32),
        )
        if places.size:
            assert np.abs(logprobs - row.rollout_logprobs)[places].max() <= 1e-4
            sampled += len(np.unique(row.turn_index[places]))
    assert not requests, "every answer is in a row"
    assert sampled == sum(len(t.turns) for t in trajectories)
    several = [len(t.rows) for t in trajectories]
    assert max(several) == {CONCAT: 1, NO_CONCAT: 4, window(2): 3, COMPACT: 3}[overrides]


def test_no_concat_is_a_window_of_one(make_experiment, warm_runs, make_engine):
    engine = make_engine()
    a, frames, _ = played(make_experiment, warm_runs, engine, *NO_CONCAT)
    b, others, _ = played(make_experiment, warm_runs, engine, *window(1))
    assert same_rows(a, b) and frames == others
    assert limits_of(make_experiment(*NO_CONCAT)) == limits_of(make_experiment(*window(1)))


def test_a_window_over_all_turns_is_concat(make_experiment, warm_runs, make_engine):
    engine = make_engine()
    whole, frames, _ = played(make_experiment, warm_runs, engine)
    for size in (3, 4):
        found, others, _ = played(make_experiment, warm_runs, engine, *window(size))
        assert same_rows(whole, found) and frames == others
        assert context_window(make_experiment(*window(size))) is None
    assert not same_rows(whole, played(make_experiment, warm_runs, engine, *window(2))[0])


@pytest.mark.parametrize("overrides", [NO_CONCAT, window(2)], ids=str)
def test_the_bootstrap_is_the_value_of_the_context_of_the_next_turn(
    make_experiment, warm_runs, make_engine, overrides
):
    """A turn more: its prompt is what the shorter episode must have been valued in."""
    gae = ("algorithm.adv_estimator=masked_gae", "algorithm.truncation_bootstrap=true")
    engine = make_engine(*overrides, WIDE_PROMPT, *gae)
    torch.nn.init.normal_(engine.critic.head.weight, generator=torch.Generator().manual_seed(1))
    three, images, _ = played(make_experiment, warm_runs, engine, *overrides, *gae)
    longer = (*overrides, *gae, "rollout_manager.max_turns=4")
    four, more, _ = played(make_experiment, warm_runs, engine, *longer)
    add_columns(make_experiment(*overrides, *gae, WIDE_PROMPT), engine, three, images)
    compared = 0
    for short, long in zip(three, four, strict=True):
        if not short.truncated:
            assert short.bootstrap_value == 0
            continue
        row = next(r for r in long.rows if (r.loss_mask & (r.turn_index == 3)).any())
        values, _ = engine.values([row], more)
        begins = int(np.flatnonzero(row.loss_mask & (row.turn_index == 3))[0])
        assert short.rows[-1].input_ids.tolist() == row.input_ids[:begins].tolist()
        assert short.bootstrap_value == pytest.approx(float(values[0][begins]), abs=1e-4)
        compared += 1
    assert compared


@pytest.mark.parametrize("overrides", [NO_CONCAT, window(2)], ids=str)
def test_mini_batches_are_trajectories_with_all_their_rows(
    make_experiment, warm_runs, make_engine, overrides
):
    gae = "algorithm.adv_estimator=masked_gae"
    options = (*overrides, WIDE_PROMPT, gae, "actor_rollout_ref.actor.ppo_mini_batch_size=2")
    engine = make_engine(*options)
    trajectories, images, _ = played(make_experiment, warm_runs, engine, *overrides, gae)
    add_columns(make_experiment(*options), engine, trajectories, images)
    rows = [row for row in rows_of(trajectories) if row.loss_mask.any()]
    seen: list[list[TokenRow]] = []
    groups = engine._groups

    def recorded(mini, ask):
        seen.append(list(mini))
        return groups(mini, ask)

    engine._groups = recorded
    metrics = engine.update(rows, images, seed=5)
    assert metrics["actor/skipped_steps"] == metrics["critic/skipped_steps"] == 0
    assert np.isfinite(metrics["actor/loss"]) and np.isfinite(metrics["critic/loss"])
    critic, actor = seen[:3], seen[3:]
    for minis in (critic, actor):
        assert [len({row.trajectory_id for row in mini}) for mini in minis] == [2, 2, 2]
        assert sorted(id(row) for mini in minis for row in mini) == sorted(map(id, rows))
    order = [[mini[0].trajectory_id for mini in minis] for minis in (critic, actor)]
    assert order[0] != order[1], "it is drawn anew"


def test_the_kl_controller_counts_trajectories(make_experiment, warm_runs, make_engine):
    options = (*NO_CONCAT, WIDE_PROMPT, "algorithm.kl_ctrl.type=adaptive")
    engine = make_engine(*options, "algorithm.kl_ctrl.kl_coef=0.1")
    trajectories, *_ = played(make_experiment, warm_runs, engine, *NO_CONCAT)
    rows = [row for row in rows_of(trajectories) if row.loss_mask.any()]
    for row in rows:
        row.columns = {
            "old_logprobs": np.where(row.loss_mask, 0, 0).astype(np.float32),
            "ref_logprobs": np.where(row.loss_mask, -9, 0).astype(np.float32),
        }
    engine._update_kl_controller(rows)
    horizon = engine.config.algorithm.kl_ctrl.horizon
    assert len(rows) > len(trajectories) == 6
    assert engine.kl_coef == pytest.approx(0.1 * (1 + 0.2 * 6 / horizon), rel=1e-9)


@pytest.mark.parametrize("overrides", [NO_CONCAT, window(2)], ids=str)
def test_experts_play_in_the_context_of_the_rollout(
    make_experiment, warm_runs, vl_model, overrides
):
    from vagen.stages.warm_start import ExpertEpisodes

    run = warm_runs["tiny:vl"]
    config = make_experiment(*overrides, WIDE_PROMPT)
    rows, images = ExpertEpisodes(config, load_levels(run), vl_model.processor).batch(0)
    assert len({row.trajectory_id for row in rows}) == config.warm_start.batch_size
    kept = context_window(config)
    longest = 0
    for row in rows:
        assert row.loss_mask.any() and set(row.images) <= set(images)
        turns = np.unique(row.turn_index[row.turn_index > CONTEXT])
        assert len(turns) <= kept and len(row.images) <= kept
        longest = max(longest, len(turns))
        if row.row_index:
            assert np.unique(row.turn_index[row.loss_mask]).tolist() == [turns[-1]]
    assert longest == kept and any(row.row_index for row in rows)


def test_experts_tag_what_a_warm_start_learns_and_later_rows_show(
    make_experiment, warm_runs, vl_model
):
    """The expert of a lake drops each picture, so that every row has one: the present."""
    from vagen.stages.warm_start import ExpertEpisodes

    config = make_experiment(*GATE, WIDE_PROMPT)
    (name,) = config.envs
    levels = [replace(item, spec=config.envs[name]) for item in load_levels(warm_runs["tiny:vl"])]
    rows, _ = ExpertEpisodes(config, levels, vl_model.processor).batch(0)
    decode = vl_model.processor.tokenizer.decode
    for row in rows:
        assert len(row.images) == 1
        learnt = decode(row.input_ids[row.loss_mask], skip_special_tokens=True)
        assert learnt.endswith("<memory>drop</memory>") or not learnt
        assert decode(row.input_ids).count(DROPPED["text"]) == row.row_index
    assert max(row.row_index for row in rows) >= 1


def test_experts_write_the_summaries_that_are_learnt(make_experiment, warm_runs, vl_model):
    from vagen.envs import make
    from vagen.stages.warm_start import ExpertEpisodes

    run = warm_runs["tiny:vl"]
    config = make_experiment(*COMPACT, WIDE_PROMPT)
    levels = load_levels(run)
    experts = ExpertEpisodes(config, levels, vl_model.processor)
    chosen = deepcopy(experts.rng).integers(len(experts.pool), size=config.warm_start.batch_size)
    rows, _ = experts.batch(0)
    decode = vl_model.processor.tokenizer.decode
    texts = {
        decode(row.input_ids[(row.turn_index == k) & row.loss_mask], skip_special_tokens=True)
        for row in rows
        if row.row_index == 0
        for k in [row.turn_index.max()]
        if (row.loss_mask & (row.turn_index == 1)).any()
    }
    expected = set()
    for place in chosen:
        level_set, ref = experts.pool[place]
        env = make(level_set.spec.env_name, level_set.spec.env_config)
        env.reset(seed=ref.seed)
        env.step(env.expert_response())
        expected.add(env.expert_summary())
    assert texts and texts <= expected
