"""The policy that reinforcement learning begins with."""

import shutil

import pytest
from safetensors.torch import load_file

from vagen.experiment.load import load_infra
from vagen.models import ModelError
from vagen.models.loading import load_model
from vagen.run.folder import committed
from vagen.run.run import Run
from vagen.stages.build import load_levels
from vagen.stages.warm_start import ExpertEpisodes, warm_start
from vagen.stages.weights import engine_at
from vagen.storage import read_manifest


def sharing_levels(source: Run, config, folder) -> Run:
    """A run with another experiment over the levels of `source`."""
    run = Run.create(config, load_infra(None, [f"output_dir={folder}", "device=cpu"]), "run")
    shutil.copytree(source.levels, run.levels)
    return run


@pytest.mark.slow
def test_it_is_a_function_of_the_seed(warm_runs, make_experiment, tmp_path):
    found = []
    for name, seed in (("a", 7), ("b", 7), ("c", 8)):
        config = make_experiment("warm_start.steps=1", f"seed={seed}", model="tiny:text")
        run = sharing_levels(warm_runs["tiny:text"], config, tmp_path / name)
        warm_start(run)
        found.append((run.warm_start / "policy" / "model.safetensors").read_bytes())
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize("model", ["tiny:vl", "tiny:text"])
def test_it_learns_the_experts_answers(warm_runs, make_experiment, tmp_path, model):
    run = warm_runs[model]
    losses = read_manifest(run.warm_start).payload["metrics"]["warm_start/loss"]
    assert 0 < losses < 3.5, "a uniform guess over the vocabulary costs about 5.8 nats"
    config = make_experiment("warm_start.steps=0", model=model)
    raw = sharing_levels(run, config, tmp_path)
    warm_start(raw)
    start = load_file(raw.warm_start / "policy" / "model.safetensors")
    after = load_file(run.warm_start / "policy" / "model.safetensors")
    assert any(not start[name].equal(after[name]) for name in start)


def test_experts_play_training_levels_only(warm_runs, vl_model):
    run = warm_runs["tiny:vl"]
    levels = load_levels(run)
    experts = ExpertEpisodes(run.experiment, levels, vl_model.processor)
    rows, images = experts.batch(0)
    assert len(rows) == run.experiment.warm_start.batch_size
    assert {ref for _, ref in experts.pool} == set(levels[0].splits["train"])
    for row in rows:
        assert row.loss_mask.any() and set(row.images) <= set(images)
        assert not row.rollout_logprobs.any()


@pytest.mark.parametrize(("episodes", "batches"), [("null", 4), (1, 1), (9, 3), (12, 3)])
def test_steps_beyond_the_episodes_go_through_them_again(
    warm_runs, vl_model, make_experiment, episodes, batches
):
    config = make_experiment("warm_start.batch_size=4", f"warm_start.episodes={episodes}")
    experts = ExpertEpisodes(config, load_levels(warm_runs["tiny:vl"]), vl_model.processor)
    found = [b"".join(row.input_ids.tobytes() for row in experts.batch(k)[0]) for k in range(4)]
    assert [found.index(one) for one in found] == [k % batches for k in range(4)]


def test_a_local_directory_is_taken_as_it_is(warm_runs, vl_dir, make_experiment, tmp_path):
    config = make_experiment(f"actor_rollout_ref.model.path={vl_dir}", "warm_start.steps=0")
    run = sharing_levels(warm_runs["tiny:vl"], config, tmp_path)
    warm_start(run)
    assert run.initial_model() == str(vl_dir) and not (run.warm_start / "policy").exists()
    engine = engine_at(run, "warm_start")
    weights = load_model(vl_dir).model.state_dict()
    for name, weight in engine.actor.model.state_dict().items():
        assert weight.equal(weights[name])


def test_a_local_directory_learns_further_from_experts(
    warm_runs, vl_dir, make_experiment, tmp_path
):
    config = make_experiment(f"actor_rollout_ref.model.path={vl_dir}", "warm_start.steps=1")
    run = sharing_levels(warm_runs["tiny:vl"], config, tmp_path)
    warm_start(run)
    assert run.initial_model() == str(run.warm_start / "policy")


@pytest.mark.parametrize("steps", [0, 1])
def test_a_directory_without_weights_is_refused(
    warm_runs, vl_dir, make_experiment, tmp_path, steps
):
    """Before the first rollout at the latest: nothing is learnt in a step that takes it as is."""
    broken = shutil.copytree(vl_dir, tmp_path / "model")
    (broken / "model.safetensors").unlink()
    config = make_experiment(f"actor_rollout_ref.model.path={broken}", f"warm_start.steps={steps}")
    run = sharing_levels(warm_runs["tiny:vl"], config, tmp_path / "out")
    with pytest.raises(ModelError, match="no weights"):
        warm_start(run)
        engine_at(run, "warm_start")
    assert (committed(run.warm_start) is None) == (steps > 0)
