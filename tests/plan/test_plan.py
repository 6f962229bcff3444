"""Sizes against the conversations themselves, memory against hand-worked numbers."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from vagen.cli.main import USER_ERROR, main
from vagen.config import ExperimentConfig, InfraConfig
from vagen.experiment.load import load_experiment, load_infra
from vagen.models.tiny_policy import build_tiny_policy
from vagen.plan.memory import local_needs, memory_limit
from vagen.plan.parts import notes
from vagen.plan.shape import GIB, read_shape, trained_parameters
from vagen.plan.sizes import (
    ConversationSize,
    longest_context,
    measure,
    model_directory,
    shown_turns,
)
from vagen.rollout.conversation import ChatRenderer
from vagen.rollout.thoughts import Thoughts
from vagen.rollout.types import Trajectory
from vagen.stages.build import load_levels

LAKE = """\
name: lake
preset: vagen_full_turn_lambda
envs:
  lake:
    env_name: FrozenLake
    env_config: {prompt_detail: brief}
rollout_manager: {turn_reward_budget: 3}
"""
CPU = InfraConfig(device="cpu")
SIZE = ConversationSize(prompt=100, observation=20, response=30, image_tokens=16, patches=64)


def experiment_of(tmp_path: Path, *overrides: str) -> ExperimentConfig:
    path = tmp_path / "lake.yaml"
    path.write_text(LAKE)
    return load_experiment(path, overrides)


def of_turns(tmp_path: Path, turns: int, *overrides: str) -> ExperimentConfig:
    """An experiment whose episodes have so many turns."""
    return experiment_of(tmp_path, *overrides, f"rollout_manager.max_turns={turns}")


@pytest.fixture(scope="module")
def tiny_directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tiny")
    from vagen.models.loading import load_model

    with model_directory(experiment_of(folder)) as directory:
        load_model(directory).save(folder / "model")
    return str(folder / "model")


def expert_episode(experiment: ExperimentConfig, directory: str, seed: int) -> Trajectory:
    from vagen.envs import make
    from vagen.models.processor import load_processor
    from vagen.rollout.play import limits_of
    from vagen.rollout.runner import EpisodeRunner, EpisodeSpec
    from vagen.rollout.scripted import ExpertPolicy
    from vagen.rollout.types import Sampling
    from vagen.service import LocalEnv

    policy = ExpertPolicy(ChatRenderer(processor := load_processor(directory)))
    runner = EpisodeRunner(
        policy=policy,
        renderer=ChatRenderer(processor),
        limits=limits_of(experiment),
        sampling=Sampling(),
        frame_digest=lambda _: ("0" * 64, b""),
    )
    env = make("FrozenLake", experiment.envs["lake"].env_config)
    spec = EpisodeSpec(str(seed), str(seed), "lake", "FrozenLake", "", seed, 0)
    policy.envs[spec.trajectory_id] = LocalEnv(env)
    return asyncio.run(runner.run(spec, LocalEnv(env)))


def test_measured_sizes_are_those_of_played_episodes(tmp_path: Path, tiny_directory: str) -> None:
    experiment = experiment_of(tmp_path, "rollout_manager.max_turns=20")
    size = measure(experiment, tiny_directory)["lake"]
    lengths = []
    for seed in range(8):
        trajectory = expert_episode(experiment, tiny_directory, seed)
        (row,) = trajectory.rows
        (planned,) = size.rows_of(of_turns(tmp_path, len(trajectory.turns)))
        lengths.append(len(row.input_ids) / planned)
    assert max(lengths) <= 1.0, "the measured size bounds what experts need"
    assert min(lengths) > 0.8, "and not by much"


def test_a_tiny_model_is_measured_as_a_run_makes_it(warm_runs, tmp_path: Path) -> None:
    """Not only the same words: the same files."""

    run = warm_runs["tiny:vl"]
    build_tiny_policy(run.experiment, load_levels(run), tmp_path)
    with model_directory(run.experiment) as directory:
        names = sorted(file.name for file in Path(directory).iterdir())
        assert names == sorted(file.name for file in tmp_path.iterdir())
        for name in names:
            assert (Path(directory) / name).read_bytes() == (tmp_path / name).read_bytes(), name
    tokenizer = (run.warm_start / "policy" / "tokenizer.json").read_bytes()
    assert (tmp_path / "tokenizer.json").read_bytes() == tokenizer


def test_contexts_add_up(tmp_path: Path) -> None:
    size = replace(SIZE, later_prompt=110)
    assert size.rows_of(of_turns(tmp_path, 1)) == [130]
    assert size.rows_of(of_turns(tmp_path, 3)) == [100 + 3 * 30 + 2 * 20]
    assert SIZE.rows_of(of_turns(tmp_path, 3), response=200) == [100 + 600 + 40]
    window = ("rollout_manager.context=window", "rollout_manager.window_size=2")
    assert size.rows_of(of_turns(tmp_path, 4, *window), response=50) == [220, 230, 230]
    single = "rollout_manager.context=no_concat"
    assert size.rows_of(of_turns(tmp_path, 4, single)) == [130, 140, 140, 140]
    ended = SIZE.rows_of(of_turns(tmp_path, 2, single))
    assert ended == [130, 130], "episodes that ended at once have no later observation"


@pytest.mark.parametrize(
    "words",
    [
        ["rollout_manager.context=no_concat"],
        ["rollout_manager.context=window", "rollout_manager.window_size=2"],
    ],
)
def test_measured_contexts_are_those_of_played_episodes(
    tmp_path: Path, tiny_directory: str, words: list[str]
) -> None:
    experiment = experiment_of(tmp_path, "rollout_manager.max_turns=20", *words)
    size = measure(experiment, tiny_directory)["lake"]
    found = []
    for seed in range(8):
        trajectory = expert_episode(experiment, tiny_directory, seed)
        turns = len(trajectory.turns)
        expected = size.rows_of(of_turns(tmp_path, turns, *words))
        assert len(expected) == len(trajectory.rows)
        found += [len(r.input_ids) / n for r, n in zip(trajectory.rows, expected, strict=True)]
    assert min(found) > 0.8 and max(found) <= 1.0


def test_contexts_with_summaries_are_bounded(tmp_path: Path, tiny_directory: str) -> None:
    words = ["rollout_manager.context=compact", "rollout_manager.window_size=2"]
    experiment = experiment_of(tmp_path, "rollout_manager.max_turns=20", *words)
    size = measure(experiment, tiny_directory)["lake"]
    found = []
    for seed in range(8):
        trajectory = expert_episode(experiment, tiny_directory, seed)
        turns = sum(not turn.summary for turn in trajectory.turns)
        expected = size.rows_of(of_turns(tmp_path, turns, *words))
        assert len(expected) == len(trajectory.rows)
        found += [len(r.input_ids) / n for r, n in zip(trajectory.rows, expected, strict=True)]
    assert max(found) <= 1.0 and max(found) > 0.7


def test_contexts_that_drop_are_bounded_as_if_nothing_was(
    tmp_path: Path, tiny_directory: str
) -> None:
    """The expert of a lake drops every picture; a row's plan has them all."""
    words = ["rollout_manager.context=gate", "rollout_manager.window_size=2"]
    experiment = experiment_of(tmp_path, "rollout_manager.max_turns=5", *words)
    size = measure(experiment, tiny_directory)["lake"]
    assert shown_turns(experiment) == [2, 4, 5]
    assert size.dropped > size.observation, "spelled in letters, as this tokenizer has no word"
    short = replace(size, dropped=5)
    whole = [size.rows_of(of_turns(tmp_path, turns))[0] for turns in (2, 4, 5)]
    assert short.rows_of(experiment) == whole
    planned = size.rows_of(experiment)
    assert longest_context(experiment, {"lake": SIZE}) == longest_context(
        experiment_of(tmp_path, "rollout_manager.max_turns=5"), {"lake": SIZE}
    )
    longest = 0
    for seed in range(8):
        rows = expert_episode(experiment, tiny_directory, seed).rows
        assert len(rows) <= len(planned)
        for row, most in zip(rows, planned, strict=False):
            assert len(row.input_ids) <= most
        longest = max(longest, len(rows))
    assert longest > 1


def test_a_narrow_context_needs_less(tmp_path: Path, tiny_directory: str) -> None:
    size = replace(SIZE, later_prompt=110)
    turns = "rollout_manager.max_turns=5"
    narrow = experiment_of(tmp_path, turns, "rollout_manager.context=no_concat")
    assert longest_context(narrow, {"lake": size}) == 310
    assert longest_context(experiment_of(tmp_path, turns), {"lake": size}) == 1180
    assert notes(narrow, {"lake": size}) == []
    tight = experiment_of(
        tmp_path, turns, "rollout_manager.context=no_concat", "data.max_prompt_length=105"
    )
    assert "later observation take 110 tokens" in notes(tight, {"lake": size})[0]


def test_a_row_for_each_turn_where_thoughts_are_taken_out(tmp_path: Path) -> None:
    dropping = replace(SIZE, thoughts=Thoughts(None, "<think>\n", drops=True))
    keeping = replace(SIZE, thoughts=Thoughts(None, "<think>\n", drops=False))
    experiment = of_turns(tmp_path, 4)
    assert keeping.rows_of(experiment) == SIZE.rows_of(experiment) == [280]
    assert dropping.rows_of(experiment) == [130, 180, 230, 280]
    window = ["rollout_manager.context=window", "rollout_manager.window_size=2"]
    experiment = of_turns(tmp_path, 4, *window)
    assert shown_turns(experiment, drops=True) == [1, 2, 2, 2]
    assert shown_turns(experiment) == [2, 2, 2]


def test_the_longest_context_is_bounded_by_the_budget(tmp_path: Path) -> None:
    assert longest_context(experiment_of(tmp_path), {"lake": SIZE}) == 740
    tight = experiment_of(tmp_path, "data.max_trajectory_length=400", "data.max_prompt_length=128")
    assert longest_context(tight, {"lake": SIZE}) == 400


def test_the_shape_is_the_models(tiny_directory: str) -> None:
    from vagen.models.loading import load_model

    loaded = load_model(tiny_directory)
    shape = read_shape(tiny_directory)
    assert shape.parameters == sum(weight.numel() for weight in loaded.model.parameters())
    backbone = loaded.model.model.parameters()
    assert shape.backbone_parameters == sum(weight.numel() for weight in backbone)
    assert (shape.layers, shape.heads, shape.kv_heads, shape.head_dim) == (4, 4, 2, 32)
    assert shape.vision_layers == 2


def test_the_cache_is_counted_as_it_is_allocated(tmp_path: Path, tiny_directory: str) -> None:
    from vagen.engines.local.generation import LocalPolicy
    from vagen.models.loading import load_model

    experiment = experiment_of(
        tmp_path,
        "data.max_trajectory_length=400",
        "data.max_prompt_length=128",
        "actor_rollout_ref.rollout.max_concurrency=7",
    )
    policy = LocalPolicy(load_model(tiny_directory), slots=7)
    [need] = local_needs(experiment, CPU, read_shape(tiny_directory), {"lake": SIZE})
    storage = policy.cache.storage
    assert need.parts["key/value cache"] == storage.numel() * storage.element_size()


def test_memory_follows_the_switches(tmp_path: Path, tiny_directory: str) -> None:
    shape = read_shape(tiny_directory)

    def of(*overrides: str, dtype: str = "float32") -> dict[str, int]:
        infra = InfraConfig(dtype=dtype, device="cpu")  # type: ignore[arg-type]
        [need] = local_needs(experiment_of(tmp_path, *overrides), infra, shape, {"lake": SIZE})
        assert need.total == sum(need.parts.values()), "a CPU process keeps what it frees"
        return need.parts

    full = of()
    critic = shape.backbone_parameters + shape.hidden + 1
    assert full["weights"] == 4 * (2 * shape.parameters + critic)
    assert full["Adam"] == 2 * 4 * (shape.parameters + critic)
    alone = of(
        "algorithm.adv_estimator=grpo",
        "rollout_manager.n_trajectory=2",
        "algorithm.kl_ctrl.kl_coef=0",
    )
    assert alone["weights"] == 4 * shape.parameters
    assert alone["Adam"] == 2 * 4 * shape.parameters
    half = of(dtype="bfloat16")
    assert half["weights"] == full["weights"] // 2 + 2 * (shape.hidden + 1), "a float32 head"
    assert half["Adam"] == full["Adam"] and half["gradients"] == full["gradients"]
    assert half["float32 masters"] == 4 * (shape.parameters + critic)
    fewer = of("actor_rollout_ref.actor.ppo_max_token_len=2400")
    assert fewer["activations"] < full["activations"] and fewer["logits"] < full["logits"]
    assert of("rollout_manager.use_loss_mask=false")["logits"] > full["logits"]
    assert full["processed frames"] > 0


@pytest.mark.parametrize(
    ("experiment", "infra", "fits"),
    [
        ("sokoban-qwen25vl-3b-lora", "h100x1", True),
        ("sokoban-qwen25vl-3b-lora", "rtx4090x1", True),
        ("sokoban-qwen25vl-3b", "h100x1", False),
    ],
)
def test_one_gpu_without_ray(experiment: str, infra: str, fits: bool) -> None:
    """The GPU need not be here."""
    few = "actor_rollout_ref.rollout.max_concurrency=64"
    config = load_experiment(experiment, [few])
    shape = read_shape(config.actor_rollout_ref.model.path, config)
    size = ConversationSize(prompt=527, observation=183, response=72, image_tokens=81, patches=324)
    needs = local_needs(config, load_infra(infra, []), shape, {"sokoban": size})
    assert [need.what for need in needs] == [
        f"the local engine in the {phase}" for phase in ("update", "rollout")
    ]
    assert all(need.is_met for need in needs) == fits
    assert {need.source for need in needs} == {"infra.local.gpu_memory_gib"}
    kept = load_infra(infra, ["local.gradient_checkpointing=false"])
    more = local_needs(config, kept, shape, {"sokoban": size})
    assert more[0].total > 2 * needs[0].total or not fits


def test_adapters_are_counted_as_the_engine_makes_them(tmp_path: Path, tiny_directory: str) -> None:
    import torch

    from vagen.engines.local.engine import LocalEngine

    actor, critic = "actor_rollout_ref.model.lora_rank=8", "critic.model.lora_rank=4"
    for overrides in ((actor, critic), (actor,), (critic,), ()):
        experiment = experiment_of(tmp_path, *overrides)
        shape = read_shape(tiny_directory, experiment)
        [need] = local_needs(experiment, CPU, shape, {"lake": SIZE})
        engine = LocalEngine(experiment, tiny_directory, device=torch.device("cpu"))
        networks = [engine.actor.model, engine.critic, engine.reference.model]
        held = {p.data_ptr(): p.numel() for module in networks for p in module.parameters()}
        assert need.parts["weights"] == 4 * sum(held.values())
        trained = [
            sum(p.numel() for p in module.parameters() if p.requires_grad)
            for module in networks[:2]
        ]
        assert trained_parameters(experiment, shape) == tuple(trained)
        assert need.parts["Adam"] == 2 * 4 * sum(trained)
        assert need.parts["gradients"] == 4 * max(trained)


def test_plan_names_what_is_trained(
    tmp_path: Path, tiny_directory: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lake.yaml"
    path.write_text(LAKE)
    model = "actor_rollout_ref.model"
    words = ["plan", str(path), f"{model}.path={tiny_directory}", f"{model}.lora_rank=4"]
    assert main(words) == 0
    assert "actor 46,080, critic " in capsys.readouterr().out
    assert main([*words, f"{model}.target_modules=wq"]) == USER_ERROR
    assert "has no linear layer 'wq'; there are" in capsys.readouterr().err


def test_a_machine_too_small_is_refused_with_advice(
    tmp_path: Path,
    tiny_directory: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "lake.yaml"
    path.write_text(LAKE)
    monkeypatch.setattr("vagen.plan.memory.memory_limit", lambda: 7 * GIB // 4)
    words = ["plan", str(path), f"actor_rollout_ref.model.path={tiny_directory}"]
    assert main(words) == USER_ERROR
    said, _, options = capsys.readouterr().err.strip().partition("; it would fit with ")
    assert said == "error: the local engine needs about 1.9 GiB and has 1.8 GiB (RAM)"
    advice = options.split(", or ")
    assert {text.partition("=")[0].rpartition(".")[2] for text in advice} == {
        "ppo_max_token_len",
        "max_concurrency",
    }
    for alternative in advice:
        assert main([*words, alternative]) == 0, alternative
    capsys.readouterr()
    monkeypatch.setattr("vagen.plan.memory.memory_limit", lambda: GIB // 2)
    assert main(words) == USER_ERROR
    assert "take a smaller model or larger machines" in capsys.readouterr().err


def test_notes_tell_what_may_not_be_meant(tmp_path: Path) -> None:
    assert notes(experiment_of(tmp_path), {"lake": SIZE}) == []
    long = replace(SIZE, response=900)
    assert len(notes(experiment_of(tmp_path), {"lake": long})) == 2
    assert (
        "has no effect" in notes(experiment_of(tmp_path, "preset=vanilla_ppo"), {"lake": SIZE})[0]
    )
    often = notes(experiment_of(tmp_path, "preset=grpo_mask", "data.train_batch_size=128"), {})
    assert any(note.startswith("1,024 trajectories an iteration: preset grpo") for note in often)
    masked = experiment_of(tmp_path, "critic.use_reward_mask=true")
    assert "on every token" in notes(masked, {"lake": SIZE})[0]


def test_the_machines_memory_is_read() -> None:
    assert 2**28 < memory_limit() < 2**46


@pytest.mark.parametrize("model", ["tiny:vl", "tiny:text"])
def test_plan_prints_steps_sizes_and_memory(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lake.yaml"
    path.write_text(LAKE)
    mode = "vision" if model == "tiny:vl" else "text"
    words = [f"actor_rollout_ref.model.path={model}", f"envs.lake.env_config.render_mode={mode}"]
    assert main(["plan", str(path), *words]) == 0
    text = capsys.readouterr().out
    for part in ("bi_level_gae", "actor, critic, reference", "40 x (rollout", "key/value", "GiB"):
        assert part in text


def test_plan_refuses_a_text_model_for_pictures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lake.yaml"
    path.write_text(LAKE)
    assert main(["plan", str(path), "actor_rollout_ref.model.path=tiny:text"]) == USER_ERROR
    assert "render_mode=text" in capsys.readouterr().err


def test_plan_refuses_a_prompt_over_its_budget(
    tmp_path: Path, tiny_directory: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lake.yaml"
    path.write_text(LAKE)
    words = [f"actor_rollout_ref.model.path={tiny_directory}", "data.max_prompt_length=20"]
    assert main(["plan", str(path), *words]) == USER_ERROR
    said = "the first prompt of lake takes 62 tokens, `data.max_prompt_length` is 20: raise it"
    assert said in capsys.readouterr().err
