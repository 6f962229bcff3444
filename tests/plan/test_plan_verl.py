"""The plan of the verl engine: hand-worked numbers, refusals whose advice works, shipped files."""

import itertools
from collections import Counter
from pathlib import Path

import pytest

from vagen.cli.main import USER_ERROR, main
from vagen.config.load import load_experiment, load_infra
from vagen.plan.shape import GIB, ModelShape, read_shape
from vagen.plan.sizes import ConversationSize, longest_context
from vagen.plan.verl import (
    ASLEEP,
    CONTEXT,
    VLLM_OVERHEAD,
    GpuMemory,
    gpu_memory,
    host_memory,
    throughput,
)

ROOT = Path(__file__).resolve().parents[2]
H100 = sorted(path.stem for path in (ROOT / "experiments" / "infra").glob("h100*.yaml"))
LARGE = sorted(path.stem for path in (ROOT / "experiments").glob("*-qwen*.yaml"))
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


def memory_of(*infra: str, words: tuple[str, ...] = (), shape: ModelShape = SHAPE) -> GpuMemory:
    config = load_infra("h100x4", infra)
    return gpu_memory(load_experiment(EXPERIMENT, words), config, shape, SIZE)


def test_weights_gradients_and_moments_are_sharded_over_every_rank() -> None:
    memory = memory_of()
    critic = 3_000_000 + 100 + 1
    assert memory.actor.weights == 4 * 4_000_000 // 4
    assert memory.actor.gradients == 4 * 4_000_000 // 4
    assert memory.actor.adam == 8 * 4_000_000 // 4
    assert memory.critic is not None
    assert memory.critic.weights == critic
    assert memory.critic.adam == 2 * critic
    two = memory_of("verl.nnodes=2", "verl.ray_address=auto")
    assert two.actor.adam == memory.actor.adam // 2
    # Trained weights are float32 whatever is computed in.
    assert memory_of("dtype=float32", "verl.attention=sdpa").actor == memory.actor


def test_peaks_are_sums_of_what_is_there_at_once() -> None:
    memory = memory_of()
    assert memory.critic is not None
    resting = memory.actor.weights + memory.actor.adam + memory.critic.weights + memory.critic.adam
    assert memory.resting == resting
    assert memory.rollout == CONTEXT + resting + 40 * GIB
    common = CONTEXT + ASLEEP + memory.gathered + memory.activations
    actor = resting + memory.actor.gradients + memory.logits
    assert memory.update == common + actor
    gone = memory_of("verl.param_offload=true", "verl.optimizer_offload=true")
    assert gone.resting == 0
    assert gone.update == common + gone.actor.working + gone.logits
    half = memory_of("verl.optimizer_offload=true")
    assert half.resting == memory.actor.weights + memory.critic.weights


def test_adapters_leave_little_to_train() -> None:
    words = ("actor_rollout_ref.model.lora_rank=8",)
    shape = ModelShape(
        **{name: getattr(SHAPE, name) for name in SHAPE.__slots__ if name != "actor_adapters"},
        actor_adapters=40_000,
    )
    memory = memory_of(words=words, shape=shape)
    assert memory.actor.weights == 4 * 4_040_000 // 4
    assert memory.actor.adam == 8 * 40_000 // 4
    assert memory.gathered < memory_of().gathered


def test_logits_and_activations_grow_with_the_micro_batch() -> None:
    # 32 trajectories of 750 tokens are a step, 8 of them on each rank.
    memory = memory_of()
    assert memory.logits == 8 * 750 * 1000 * (3 * 2 + 4)
    small = memory_of("verl.max_token_len_per_gpu=3000")
    assert small.logits == memory.logits // 2
    assert small.activations == memory.activations // 2
    # A layer's input, 100 numbers, and one layer's inside instead of all ten layers' insides.
    inside = SHAPE.activation_floats // 10
    assert memory.activations == 2 * 6000 * (10 * 100 + inside)
    kept = memory_of("verl.gradient_checkpointing=false")
    assert kept.activations == 2 * 6000 * SHAPE.activation_floats


def test_the_cache_is_what_remains_of_vllms_share() -> None:
    experiment, infra = load_experiment(EXPERIMENT), load_infra("h100x4")
    memory = gpu_memory(experiment, infra, SHAPE, SIZE)
    assert memory.cache == 40 * GIB - 2 * 4_000_000 - VLLM_OVERHEAD
    rates = throughput(experiment, infra, SHAPE, SIZE, memory)
    per_token = 2 * (2 * 10 * 2 * 16)
    assert rates.cache_tokens == 4 * (memory.cache // per_token)
    assert longest_context(experiment, SIZE) == 1200
    assert rates.concurrency == 4 * (memory.cache // per_token // 1200)
    assert rates.tokens == 128 * 750
    assert (rates.optimizer_steps, rates.tokens_per_rank, rates.micro_batches) == (4, 6000, 1)


def test_servers_of_several_ranks_share_weights_and_heads() -> None:
    experiment = load_experiment(EXPERIMENT)
    infra = load_infra("h100x4", ["verl.tensor_model_parallel_size=4"])
    memory = gpu_memory(experiment, infra, SHAPE, SIZE)
    assert memory.vllm_weights == 2 * 4_000_000 // 4
    # Two heads on four ranks: each holds one of them, twice over.
    rates = throughput(experiment, infra, SHAPE, SIZE, memory)
    assert rates.cache_tokens == memory.cache // (2 * 2 * 10 * 1 * 16)


def test_host_memory_holds_the_reference_and_what_is_offloaded() -> None:
    experiment = load_experiment(EXPERIMENT)

    def of(*words: str, shape: ModelShape = SHAPE):
        infra = load_infra("h100x4", words)
        return host_memory(
            experiment, infra, shape, SIZE, gpu_memory(experiment, infra, shape, SIZE)
        )

    plain = of()
    assert plain.reference == 2 * 4_000_000
    assert plain.offloaded == 0
    memory = memory_of()
    assert memory.critic is not None
    moments = 4 * (memory.actor.adam + memory.critic.adam)
    assert of("verl.optimizer_offload=true").offloaded == moments
    # The first rank reads the weights, or each one if embedding and output layer are one.
    assert plain.loading == 4 * 4_000_000
    assert of(shape=read_shape(MODEL)).loading == 4 * 4 * 3_754_622_976


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
    assert set(games.values()) == {3} and len(games) == 7


@pytest.mark.parametrize(
    ("words", "what", "remedy"),
    [
        (["infra.verl.n_gpus_per_node=1"], "in the update and has 80 GiB", "n_gpus_per_node=4"),
        (
            ["infra.verl.gpu_memory_utilization=0.9"],
            "in the rollout and has 80 GiB",
            "gpu_memory_utilization=0.7",
        ),
        (
            ["infra.verl.gpu_memory_utilization=0.1"],
            "too little for one sequence of data.max_trajectory_length = 2,400 tokens",
            "tensor_model_parallel_size=2",
        ),
        (["infra.verl.gpu_memory_gib=40"], "has 40 GiB", "optimizer_offload=true"),
        (
            ["infra.verl.gpu_memory_gib=24"],
            "has 24 GiB",
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
    assert capsys.readouterr().err.strip().endswith("take a smaller model")


@pytest.mark.slow
def test_the_engine_can_be_chosen_for_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "frozenlake-tiny", "--engine", "verl", "infra.device=cpu"]) == 0
    out = capsys.readouterr().out
    assert " actor_rollout_ref.model.override_config.attn_implementation: sdpa\n" in out
    assert "host memory of each of 1 nodes" in out
    assert "memory of each of 1 GPUs" not in out
    assert main(["plan", "frozenlake-tiny", "--engine", "local", "infra.engine=verl"]) == 0
    assert "memory of the local engine" in capsys.readouterr().out


def test_a_plan_on_a_gpu_refuses_what_flash_attention_cannot(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--infra", "h100x4", "infra.dtype=float32"]
    assert main(["plan", EXPERIMENT, *words]) == USER_ERROR
    assert "flash_attention_2 has no float32" in capsys.readouterr().err
