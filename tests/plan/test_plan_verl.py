"""The plan of the verl engine: hand-worked numbers, refusals whose advice works, shipped files."""

import itertools
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from vagen.cli.main import USER_ERROR, main
from vagen.engines.verl.mapping import BUCKET_MIB
from vagen.experiment.load import load_experiment, load_infra
from vagen.plan.memory import (
    ASLEEP,
    CONTEXT,
    SERVER,
    SLACK,
    VLLM_OVERHEAD,
    WORKER,
    Bytes,
    cache_bytes,
    checkpoints,
    gpu_memory,
    host_memory,
    keeps_activations,
    step_tokens,
)
from vagen.plan.parts import resolve_defaults
from vagen.plan.shape import GIB, ModelShape, read_shape
from vagen.plan.sizes import ConversationSize, longest_context

ROOT = Path(__file__).resolve().parents[2]
H100 = sorted(path.stem for path in (ROOT / "experiments" / "infra").glob("h100x[48]*.yaml"))
LARGE = sorted(path.stem for path in (ROOT / "experiments").glob("*-qwen*.yaml"))
LARGE.remove("svg-dreamsim-qwen25vl-3b")  # its environment needs models that are not here
SLOW = pytest.mark.slow
"""Conversations of other games are measured in many seconds, some in a simulator."""
EXPERIMENT = "frozenlake-qwen25vl-3b"
MODEL = "Qwen/Qwen2.5-VL-3B-Instruct"
SIZE = {"frozenlake": ConversationSize(400, 100, 50, image_tokens=25, patches=100)}
"""Three turns: 750 tokens, or 1,200 with responses of 200."""
SHAPE = ModelShape(
    parameters=4_000_000,
    backbone_parameters=3_000_000,
    layers=10,
    hidden=100,
    intermediate=300,
    heads=8,
    kv_heads=2,
    head_dim=16,
    vocabulary=1000,
)


def memory_of(
    *infra: str, words: tuple[str, ...] = (), shape: ModelShape = SHAPE
) -> tuple[Bytes, Bytes]:
    config = load_infra("h100x4", infra)
    return gpu_memory(load_experiment(EXPERIMENT, words), config, shape, SIZE)


def total(parts: Bytes) -> int:
    return sum(parts.values())


def test_weights_gradients_and_moments_are_sharded_over_every_rank() -> None:
    _, update = memory_of()
    critic = 3_000_000 + 100 + 1
    assert update["weights"] == update["gradients"] == 4 * 4_000_000 // 4
    assert update["Adam"] == 8 * 4_000_000 // 4
    assert update["resting critic"] == (4 + 8) * critic // 4
    _, two = memory_of("verl.nnodes=2", "verl.ray_address=auto")
    assert two["Adam"] == update["Adam"] // 2
    # Trained weights are float32 whatever is computed in.
    _, wide = memory_of("dtype=float32")
    assert (wide["weights"], wide["Adam"]) == (update["weights"], update["Adam"])


def test_groups_of_ranks_hold_a_copy_each() -> None:
    _, hybrid = memory_of("verl.nnodes=2", "verl.ray_address=auto", "verl.fsdp_size=4")
    assert hybrid["Adam"] == memory_of()[1]["Adam"]


def test_peaks_are_sums_of_what_is_there_at_once() -> None:
    rollout, update = memory_of()
    resting = (4 + 8) * (4_000_000 + 3_000_101) // 4
    assert rollout["networks"] == resting
    assert total(rollout) == CONTEXT + resting + 40 * GIB
    common = CONTEXT + ASLEEP + update["gathered layers"] + update["activations"]
    assert total(update) == common + resting + update["gradients"] + update["logits"]
    gone, learning = memory_of("verl.param_offload=true", "verl.optimizer_offload=true")
    assert gone["networks"] == 0
    actor = sum(learning[name] for name in ("weights", "gradients", "Adam"))
    assert total(learning) == common + actor + learning["logits"]
    half, _ = memory_of("verl.optimizer_offload=true")
    assert half["networks"] == 4_000_000 + 3_000_101


def test_servers_with_gpus_of_their_own_leave_the_others_to_training() -> None:
    alone = ("verl.rollout_gpus=2",)
    (_, shared), (rollout, update) = memory_of(), memory_of(*alone)
    assert total(update) == total(shared) - ASLEEP
    embedding = 4 * SHAPE.vocabulary * SHAPE.hidden
    assert total(rollout) == CONTEXT + 40 * GIB + 3 * (BUCKET_MIB << 20) + embedding
    # Two more processes that receive weights, two servers less.
    experiment = load_experiment(EXPERIMENT)
    processes = [
        host_memory(experiment, load_infra("h100x4", words), SHAPE, SIZE)[0]["processes"]
        for words in (alone, ())
    ]
    assert processes[0] - processes[1] == 2 * WORKER - 2 * SERVER


def test_adapters_leave_little_to_train() -> None:
    shape = replace(SHAPE, actor_adapters=40_000)
    _, update = memory_of(words=("actor_rollout_ref.model.lora_rank=8",), shape=shape)
    _, whole = memory_of()
    # The critic, of which all is trained, now needs more than the actor, or rests beside it.
    assert total(update) < total(whole)
    assert update["gathered layers"] < whole["gathered layers"]


def test_a_frozen_vision_tower_is_not_trained() -> None:
    words = ("actor_rollout_ref.model.freeze_vision_tower=true",)
    shape = read_shape(MODEL)
    # What is not the language model, Qwen2.5-3B.
    assert shape.vision_parameters == 3_754_622_976 - 3_085_938_688
    (_, plain), (_, frozen) = memory_of(shape=shape), memory_of(words=words, shape=shape)
    assert frozen["weights"] == plain["weights"]
    for part in ("Adam", "resting critic"):
        assert plain[part] - frozen[part] == 8 * shape.vision_parameters // 4
    assert frozen["activations"] < plain["activations"]


def test_logits_and_activations_grow_with_the_micro_batch() -> None:
    # 32 trajectories of 750 tokens are a step, 8 of them on each rank.
    _, update = memory_of()
    # At sampled tokens, twice in bfloat16, and a slice of 512 tokens three times in float32.
    sliced, sampled = 512 * 1000 * 3 * 4, 8 * 3 * 50
    assert update["logits"] == sampled * 1000 * 2 * 2 + sliced
    _, small = memory_of("verl.max_token_len_per_gpu=3000")
    assert small["logits"] - sliced == (update["logits"] - sliced) // 2
    _, every = memory_of(words=("rollout_manager.use_loss_mask=false",))
    assert every["logits"] == 8 * 750 * 1000 * 2 * 2 + sliced
    assert small["activations"] == update["activations"] // 2
    # A layer's input, 100 numbers, and one layer's inside instead of all ten layers' insides.
    inside = SHAPE.activation_floats // 10
    assert update["activations"] == 2 * 6000 * (10 * 100 + inside)
    _, kept = memory_of("verl.gradient_checkpointing=false")
    assert kept["activations"] == 2 * 6000 * SHAPE.activation_floats


def test_servers_that_play_while_a_network_learns_keep_their_memory() -> None:
    words = ("rollout_manager.one_step_off=true", "actor_rollout_ref.actor.tis_imp_ratio_cap=2")
    (_, plain), (_, apart) = memory_of(), memory_of(words=words)
    assert (plain["servers"], apart["servers"]) == (ASLEEP, 40 * GIB)
    rollout, update = memory_of("verl.rollout=torch", words=words)
    assert update["servers"] == rollout["rollout weights"] + rollout["key/value cache"]
    _, torch = memory_of("verl.rollout=torch")
    assert torch["servers"] == rollout["rollout weights"]


def test_float32_attention_is_not_fused() -> None:
    # 8 heads, 6,000 tokens, each with at most 1,200 of its row; four bytes, three times.
    inputs = 4 * 6000 * (10 * 100 + SHAPE.activation_floats // 10)
    scores = 8 * 6000 * 1200 * 4
    assert memory_of("dtype=float32")[1]["activations"] == inputs + 3 * scores
    kept = memory_of("dtype=float32", "verl.gradient_checkpointing=false")[1]["activations"]
    assert kept == 4 * 6000 * SHAPE.activation_floats + 12 * scores


def test_checkpoints_on_the_disk() -> None:
    """The policy twice over and more: its weights, and both networks' with their moments."""
    experiment = load_experiment(EXPERIMENT)
    one = 4 * 4_000_000 + 12 * (4_000_000 + 3_000_000 + 101)
    assert checkpoints(experiment, SHAPE) == (one, 2)
    guarded = load_experiment(EXPERIMENT, ["trainer.guard.enable=true"])
    assert checkpoints(guarded, SHAPE) == (one, 3)


def test_activations_are_kept_where_there_is_room() -> None:
    experiment = load_experiment(EXPERIMENT)

    def of(*words: str) -> bool:
        return keeps_activations(experiment, load_infra("h100x4", words), SHAPE, SIZE)

    assert of()
    peak = max(map(total, memory_of("verl.gradient_checkpointing=false")))
    room = peak / GIB / (1 - SLACK)
    share = 40 / room  # vLLM's share stays 40 GiB
    assert not of(f"verl.gpu_memory_utilization={share}", f"verl.gpu_memory_gib={room - 0.1}")
    # The file says nothing: what the plan has chosen is what verl is told.
    assert load_infra("h100x4").verl.gradient_checkpointing == "auto"
    assert resolve_defaults(experiment, load_infra("laptop")) == load_infra("laptop")


def test_the_cache_is_what_remains_of_vllms_share() -> None:
    experiment, infra = load_experiment(EXPERIMENT), load_infra("h100x4")
    rollout, _ = memory_of()
    assert rollout["key/value cache"] == 40 * GIB - 2 * 4_000_000 - VLLM_OVERHEAD
    assert cache_bytes(infra, SHAPE) == 2 * (2 * 10 * 2 * 16)
    assert longest_context(experiment, SIZE) == 1200
    assert step_tokens(experiment, infra, SIZE) == 6000


def test_servers_of_several_ranks_share_weights_and_heads() -> None:
    parallel = "verl.tensor_model_parallel_size=4"
    rollout, _ = memory_of(parallel)
    assert rollout["rollout weights"] == 2 * 4_000_000 // 4
    # Two heads on four ranks: each holds one of them, twice over.
    assert cache_bytes(load_infra("h100x4", [parallel]), SHAPE) == 2 * 2 * 10 * 1 * 16


def test_host_memory_holds_the_reference_and_what_is_offloaded() -> None:
    experiment = load_experiment(EXPERIMENT)

    def of(*words: str, shape: ModelShape = SHAPE) -> tuple[Bytes, Bytes]:
        return host_memory(experiment, load_infra("h100x4", words), shape, SIZE)

    playing, loading = of()
    assert playing["reference"] == 2 * 4_000_000
    assert playing["offloaded"] == 0
    moved, _ = of("verl.optimizer_offload=true")
    assert moved["offloaded"] == 8 * (4_000_000 + 3_000_101)
    assert playing["saving"] == checkpoints(experiment, SHAPE)[0]
    # The first rank reads the weights, or each one if embedding and output layer are one.
    assert loading["weights"] == 4 * 4_000_000
    assert of(shape=read_shape(MODEL))[1]["weights"] == 4 * 4 * 3_754_622_976


@pytest.mark.parametrize(
    ("experiment", "infra"),
    [
        pytest.param(experiment, infra, marks=[] if "frozenlake" in experiment else SLOW)
        for experiment, infra in itertools.product(LARGE, H100)
    ],
)
def test_every_shipped_combination_fits(
    experiment: str, infra: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["plan", experiment, "--infra", infra])
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    assert "actor_rollout_ref.rollout.name" in out
    assert "episodes side by side" in out
    assert "tokens of text are estimated" in out


def test_there_is_something_shipped() -> None:
    assert H100 == ["h100x4", "h100x8", "h100x8-2nodes"]
    games = Counter(name.partition("-qwen")[0] for name in LARGE)
    assert set(games.values()) == {3} and len(games) == 8


@pytest.mark.parametrize(
    ("words", "what", "remedy"),
    [
        (["infra.verl.n_gpus_per_node=1"], "a GPU in the update needs", "n_gpus_per_node=4"),
        (
            ["infra.verl.gpu_memory_utilization=0.9"],
            "a GPU in the rollout needs about 95.0 GiB and has 80.0 GiB",
            "gpu_memory_utilization=0.7",
        ),
        (
            ["infra.verl.gpu_memory_utilization=0.1"],
            "one sequence of 2,400 tokens needs about 84 MiB and has 0 B "
            "(infra.verl.gpu_memory_utilization, data.max_trajectory_length)",
            "tensor_model_parallel_size=2",
        ),
        (["infra.verl.gpu_memory_gib=40"], "has 40.0 GiB", "optimizer_offload=true"),
        (
            [
                "rollout_manager.one_step_off=true",
                "actor_rollout_ref.actor.tis_imp_ratio_cap=2",
                "infra.verl.gpu_memory_utilization=0.6",
            ],
            "a GPU in the update needs",
            "gpu_memory_utilization=0.",
        ),
        (["infra.verl.host_memory_gib=146"], "a node needs about", "agent_workers="),
        (
            ["infra.verl.host_memory_gib=160", "infra.verl.optimizer_offload=true"],
            "(infra.verl.host_memory_gib)",
            "optimizer_offload=false",
        ),
        (
            ["infra.verl.scratch_gib=240", "trainer.guard.enable=true"],
            "the disk for 3 checkpoints needs about",
            "trainer.guard.enable=false",
        ),
        (
            ["infra.verl.scratch_gib=120"],
            "(infra.verl.scratch_gib)",
            "actor_rollout_ref.model.lora_rank=64",
        ),
        (
            ["infra.verl.gpu_memory_gib=24"],
            "has 24.0 GiB",
            "optimizer_offload=true infra.verl.param_offload=true infra.verl.max_token_len",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_advice_that_works(
    words: list[str], what: str, remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = ["plan", EXPERIMENT, "--infra", "h100x4", *words]
    assert main(plan) == USER_ERROR
    err = capsys.readouterr().err
    assert what in err
    advice = err.strip().partition("it would fit with ")[2]
    assert remedy in advice
    for alternative in advice.split(", or "):
        added = alternative.split(" ")
        if any("nnodes" in word for word in added):
            added.append("infra.verl.ray_address=auto")
        assert main([*plan, *added]) == 0, alternative
        capsys.readouterr()


def test_what_never_fits_is_said_plainly(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["infra.verl.gpu_memory_gib=4"]
    assert main(["plan", EXPERIMENT, "--infra", "h100x4", *words]) == USER_ERROR
    assert capsys.readouterr().err.strip().endswith("take a smaller model or larger machines")


def test_what_is_passed_through_to_verl_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    key = "actor_rollout_ref.rollout.enable_chunked_prefill"
    plan = ["plan", EXPERIMENT, "--infra", "h100x4"]
    assert main([*plan, f"infra.verl.extra.{key}=false"]) == 0
    assert f" {key}: False (infra.verl.extra)\n" in capsys.readouterr().out
    assert main([*plan, "infra.verl.extra.trainer.nnodes=2"]) == USER_ERROR
    assert "set `infra.verl.nnodes` instead" in capsys.readouterr().err


@pytest.mark.slow
def test_the_engine_can_be_chosen_for_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "frozenlake-tiny", "--engine", "verl", "infra.device=cpu"]) == 0
    out = capsys.readouterr().out
    assert " actor_rollout_ref.model.override_config.attn_implementation: packed\n" in out
    assert "a node, without networks" in out
    assert "a GPU" not in out
    assert main(["plan", "frozenlake-tiny", "--engine", "local", "infra.engine=verl"]) == 0
    assert "the local engine" in capsys.readouterr().out
