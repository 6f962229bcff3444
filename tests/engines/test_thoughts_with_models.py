"""Thinking templates and budgets with the real local policy, trainer, warm start and commands."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from small_experiment import experiment_tree
from thinking_templates import QWEN3_THINKING, TEMPLATES, with_template

from vagen.cli.main import main
from vagen.config import ConfigError
from vagen.engines.collapse import cross_logprobs, first_turns
from vagen.engines.local.engine import LocalEngine
from vagen.envs.images import decode_png
from vagen.rollout.batch import TrajectoryBatch
from vagen.rollout.episodes import training_specs
from vagen.rollout.play import play
from vagen.rollout.types import TokenRow, Trajectory
from vagen.run.run import Run
from vagen.stages.build import load_levels
from vagen.stages.rollout import episode_metrics
from vagen.stages.warm_start import ExpertEpisodes

pytestmark = pytest.mark.slow

BUDGET = 2
ROOM = (
    "data.max_prompt_length=160",
    "data.max_response_length=24",
    "data.max_trajectory_length=600",
    "algorithm.adv_estimator=masked_gae",
)


def thinking_model(model: Any, template: str, folder: Path) -> Path:
    """A model directory with these weights and this chat template."""
    model.model.save_pretrained(folder)
    processor = with_template(model.processor, template)
    processor.tokenizer.save_pretrained(folder)
    if processor.image_processor is not None:
        processor.image_processor.save_pretrained(folder)
    return folder


def make_engine(make_experiment, folder: Path, *overrides: str, model: str) -> LocalEngine:
    path = f"actor_rollout_ref.model.path={folder}"
    config = make_experiment(*ROOM, path, *overrides, model=model)
    return LocalEngine(config, folder, device=torch.device("cpu"))


def played(engine: LocalEngine, levels: Any, concurrency: int = 4):
    return play(
        engine.config,
        training_specs(engine.config, levels, 0),
        policy=engine.policy(slots=concurrency),
        processor=engine.processor,
        sampling=engine.config.actor_rollout_ref.rollout,
        split="train",
        concurrency=concurrency,
    )


def rows_of(trajectories: list[Trajectory]) -> list[TokenRow]:
    return [row for trajectory in trajectories for row in trajectory.rows]


@pytest.mark.parametrize("model", ["tiny:vl", "tiny:text"])
@pytest.mark.parametrize("name", ["qwen3-thinking", "qwen3", "r1", "kept"])
def test_the_trainer_agrees_in_every_row(
    make_experiment, warm_runs, vl_model, text_model, tmp_path, model, name
):
    language_model = vl_model if model == "tiny:vl" else text_model
    folder = thinking_model(language_model, TEMPLATES[name], tmp_path / "model")
    budget = f"rollout_manager.thinking_budget={BUDGET}"
    engine = make_engine(make_experiment, folder, budget, model=model)
    levels = load_levels(warm_runs[model])
    trajectories, images = played(engine, levels)
    found = engine.logprobs(rows_of(trajectories), images)
    for row, logprobs in zip(rows_of(trajectories), found, strict=True):
        places = row.loss_mask
        assert np.abs(logprobs - row.rollout_logprobs)[places].max(initial=0) <= 1e-4
        shown = [decode_png(images[digest]) for digest in row.images]
        processor = engine.processor
        texts = "".join(processor.image_text(f.shape[1::-1]) for f in shown)
        patches = texts.count(processor.placeholder)
        assert (row.input_ids == processor.image_token_id).sum() == patches
    turns = [turn for t in trajectories for turn in t.turns]
    sampled = [np.unique(r.turn_index[r.loss_mask]).tolist() for r in rows_of(trajectories)]
    assert sum(map(len, sampled)) == len(turns), "every turn is sampled in one row"
    assert any(turn.thought_cut for turn in turns)
    assert max(turn.thought_length or 0 for turn in turns) <= BUDGET
    several = max(len(t.rows) for t in trajectories)
    assert several == 1 if name == "kept" else several > 1
    metrics = episode_metrics(trajectories, "train")
    assert 0 < metrics["train/thought_length"] <= BUDGET and metrics["train/thought_cut"] > 0
    for alone in played(engine, levels, concurrency=1)[0]:
        (same,) = [t for t in trajectories if t.trajectory_id == alone.trajectory_id]
        assert [t.response_text for t in alone.turns] == [t.response_text for t in same.turns]


def test_template_collapse_conditions_on_what_closed_a_thought(
    make_experiment, warm_runs, text_model, tmp_path
):
    folder = thinking_model(text_model, QWEN3_THINKING, tmp_path / "model")
    budget = f"rollout_manager.thinking_budget={BUDGET}"
    engine = make_engine(make_experiment, folder, budget, model="tiny:text")
    trajectories, images = played(engine, load_levels(warm_runs["tiny:text"]))
    turns = first_turns(trajectories, 4)
    assert any(not turn.sampled.all() for turn in turns)
    own = np.diag(cross_logprobs(engine, turns, images))
    firsts = {t.group_id: t.rows[0] for t in reversed(trajectories)}
    expected = [
        row.rollout_logprobs[row.loss_mask & (row.turn_index == 0)].sum(dtype=np.float64)
        for row in [firsts[t.group_id] for t in trajectories][: len(turns)]
    ]
    np.testing.assert_allclose(own, expected, atol=1e-3)


@pytest.mark.parametrize("prompt_format", ["free_think", "no_think"])
def test_experts_go_on_with_the_thought_that_is_opened(
    make_experiment, warm_runs, text_model, tmp_path, prompt_format
):
    folder = thinking_model(text_model, QWEN3_THINKING, tmp_path / "model")
    layout = f"envs.game.env_config.prompt_format={prompt_format}"
    engine = make_engine(make_experiment, folder, layout, model="tiny:text")
    (level_set,) = load_levels(warm_runs["tiny:text"])
    object.__setattr__(level_set, "spec", engine.config.envs["game"])
    rows, _ = ExpertEpisodes(engine.config, [level_set], engine.actor.processor).batch(0)
    decode = engine.processor.tokenizer.decode
    for row in rows:
        learnt = decode(row.input_ids[row.loss_mask])
        assert not learnt.startswith("<think>")
        assert learnt.count("</think>") == len(np.unique(row.turn_index[row.loss_mask])) == 1
        assert decode(row.input_ids).count("assistant\n<think>\n") == 1, "earlier ones are gone"


@pytest.mark.parametrize(
    ("overrides", "template", "reason"),
    [
        (["rollout_manager.thinking_budget=20"], QWEN3_THINKING, "leave none of data.max_resp"),
        (["rollout_manager.thinking_budget=5"], None, "knows no thoughts to be closed"),
        (
            ["algorithm.adv_estimator=gae", "rollout_manager.use_gae_mask=false"],
            QWEN3_THINKING,
            "needs a trajectory in one row, and the model's chat template takes thoughts out",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_played(
    make_experiment, text_model, tmp_path, overrides, template, reason
):
    template = template or text_model.processor.tokenizer.chat_template
    folder = thinking_model(text_model, template, tmp_path / "model")
    with pytest.raises(ConfigError, match=reason):
        make_engine(make_experiment, folder, *overrides, model="tiny:text")


def test_a_run_of_a_thinking_model(text_model, tmp_path, monkeypatch):
    folder = thinking_model(text_model, QWEN3_THINKING, tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    tree = experiment_tree(model="tiny:text")
    tree["actor_rollout_ref"]["model"]["path"] = str(folder)
    Path("think.yaml").write_text(yaml.safe_dump(tree))
    options = [*ROOM, "rollout_manager.thinking_budget=6", "warm_start.steps=20"]
    options += ["trainer.total_training_steps=2", "trainer.format_probe=0", "infra.threads=1"]
    assert main(["plan", "think.yaml", *options]) == 0
    assert main(["run", "think.yaml", "--name", "one", *options]) == 0
    run = Run.open(tmp_path / "outputs" / "one")
    assert run.finished_iterations == 2
    for iteration in range(2):
        metrics = TrajectoryBatch.load(run.step(iteration, "rollout")).metrics
        assert 0 < metrics["train/thought_length"] <= 6
        assert 0 <= metrics["train/thought_cut"] < 1
        assert metrics["train/format_correct"] > 0, "the parser sees the opened thought"
        learnt = TrajectoryBatch.load(run.step(iteration, "advantage")).trajectories
        assert max(len(trajectory.rows) for trajectory in learnt) > 1
        assert all(np.isfinite(row.columns["advantages"]).all() for row in rows_of(learnt))
