"""The plan of the verl engine: hand-worked numbers, refusals whose advice works, shipped files."""

import itertools
from collections import Counter
from pathlib import Path

import pytest

from vagen.cli.main import USER_ERROR, main
from vagen.config.load import load_experiment, load_infra
from vagen.engines.verl.mapping import BUCKET_MIB
from vagen.plan.gpu import ASLEEP, CONTEXT, VLLM_OVERHEAD, GpuMemory, gpu_memory
from vagen.plan.parts import resolve_defaults
from vagen.plan.shape import GIB, ModelShape, read_shape
from vagen.plan.sizes import ConversationSize, longest_context
from vagen.plan.verl import SERVER, SLACK, WORKER, checkpoints, decided, host_memory, throughput

ROOT = Path(__file__).resolve().parents[2]
H100 = sorted(path.stem for path in (ROOT / "experiments" / "infra").glob("h100*.yaml"))
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
    assert memory_of("dtype=float32").actor == memory.actor


def test_groups_of_ranks_hold_a_copy_each() -> None:
    two = memory_of("verl.nnodes=2", "verl.ray_address=auto")
    hybrid = memory_of("verl.nnodes=2", "verl.ray_address=auto", "verl.fsdp_size=4")
    assert hybrid.actor == memory_of().actor
    assert hybrid.actor.adam == 2 * two.actor.adam


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


def test_servers_with_gpus_of_their_own_leave_the_others_to_training() -> None:
    shared, apart = memory_of(), memory_of("verl.rollout_gpus=2")
    assert apart.update == shared.update - ASLEEP
    embedding = 4 * SHAPE.vocabulary * SHAPE.hidden
    assert apart.rollout == CONTEXT + 40 * GIB + 3 * (BUCKET_MIB << 20) + embedding
    experiment, infra = load_experiment(EXPERIMENT), load_infra("h100x4", ["verl.rollout_gpus=2"])
    rates = throughput(experiment, infra, SHAPE, SIZE, apart)
    beside = throughput(experiment, load_infra("h100x4"), SHAPE, SIZE, shared)
    assert (rates.cache_tokens, rates.tokens_per_rank) == (
        beside.cache_tokens // 2,
        beside.tokens_per_rank,
    )
    # Two more processes that receive weights, two servers less.
    nodes = [
        host_memory(experiment, at, SHAPE, SIZE, shared) for at in (infra, load_infra("h100x4"))
    ]
    assert nodes[0].processes - nodes[1].processes == 2 * WORKER - 2 * SERVER


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


def test_a_frozen_vision_tower_is_not_trained() -> None:
    words = ("actor_rollout_ref.model.freeze_vision_tower=true",)
    shape = read_shape(MODEL)
    # What is not the language model, Qwen2.5-3B.
    assert shape.vision_parameters == 3_754_622_976 - 3_085_938_688
    plain, frozen = memory_of(shape=shape), memory_of(words=words, shape=shape)
    assert frozen.critic is not None and plain.critic is not None
    assert frozen.actor.weights == plain.actor.weights
    for network, whole in ((frozen.actor, plain.actor), (frozen.critic, plain.critic)):
        assert whole.adam - network.adam == 8 * shape.vision_parameters // 4
    assert frozen.activations < plain.activations


def test_logits_and_activations_grow_with_the_micro_batch() -> None:
    # 32 trajectories of 750 tokens are a step, 8 of them on each rank.
    memory = memory_of()
    # Five times in bfloat16, and a slice of 512 tokens three times in float32.
    sliced = 512 * 1000 * 3 * 4
    assert memory.logits == 8 * 750 * 1000 * 5 * 2 + sliced
    small = memory_of("verl.max_token_len_per_gpu=3000")
    assert small.logits - sliced == (memory.logits - sliced) // 2
    # The entropy bonus has a gradient of its own, added to the other.
    plain = memory_of(words=("actor_rollout_ref.actor.entropy_coeff=0",))
    assert plain.logits - sliced == (memory.logits - sliced) * 3 // 5
    assert small.activations == memory.activations // 2
    # A layer's input, 100 numbers, and one layer's inside instead of all ten layers' insides.
    inside = SHAPE.activation_floats // 10
    assert memory.activations == 2 * 6000 * (10 * 100 + inside)
    kept = memory_of("verl.gradient_checkpointing=false")
    assert kept.activations == 2 * 6000 * SHAPE.activation_floats


def test_servers_that_play_while_a_network_learns_keep_their_memory() -> None:
    words = (
        "rollout_manager.one_step_off=true",
        "actor_rollout_ref.actor.tis_imp_ratio_cap=2",
    )
    plain, apart = memory_of(), memory_of(words=words)
    assert (plain.serving, apart.serving) == (ASLEEP, 40 * GIB)
    assert apart.update == plain.update - ASLEEP + 40 * GIB
    torch = memory_of("verl.rollout=torch", words=words)
    assert torch.serving == torch.vllm_weights + torch.cache
    assert memory_of("verl.rollout=torch").serving == torch.vllm_weights


def test_float32_attention_is_not_fused() -> None:
    assert memory_of().attention == 0
    # 8 heads, 6,000 tokens, each with at most 1,200 of its row; four bytes, three times.
    assert memory_of("dtype=float32").attention == 8 * 6000 * 1200 * 4 * 3
    kept = memory_of("dtype=float32", "verl.gradient_checkpointing=false")
    assert kept.attention == 8 * 6000 * 1200 * 4 * (3 + 9)
    assert kept.update > memory_of("verl.gradient_checkpointing=false").update + kept.attention


def test_checkpoints_on_the_disk() -> None:
    """The policy twice over and more: its weights, and both networks' with their moments."""
    experiment = load_experiment(EXPERIMENT)
    found = checkpoints(experiment, SHAPE)
    assert found.one == 4 * 4_000_000 + 12 * (4_000_000 + 3_000_000 + 101)
    assert (found.count, found.peak) == (2, 2 * found.one)
    guarded = load_experiment(EXPERIMENT, ["trainer.guard.enable=true"])
    assert checkpoints(guarded, SHAPE).count == 3


def test_activations_are_kept_where_there_is_room() -> None:
    experiment = load_experiment(EXPERIMENT)

    def of(*words: str) -> bool | str:
        infra = load_infra("h100x4", words)
        return decided(experiment, infra, SHAPE, SIZE).verl.gradient_checkpointing

    assert of() is False
    assert of("verl.gradient_checkpointing=true") is True
    memory = memory_of("verl.gradient_checkpointing=false")
    room = memory.peak / GIB / (1 - SLACK)
    share = 40 / room  # vLLM's share stays 40 GiB
    words = [f"verl.gpu_memory_utilization={share}", f"verl.gpu_memory_gib={room - 0.1}"]
    assert of(*words) is True
    # The file says nothing: what the plan has chosen is what verl is told.
    infra = load_infra("h100x4")
    assert infra.verl.gradient_checkpointing == "auto"
    assert resolve_defaults(experiment, load_infra("laptop")) == load_infra("laptop")


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
    assert plain.saving == checkpoints(experiment, SHAPE).one
    assert plain.peak == plain.processes + plain.reference + plain.episodes + plain.saving
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
            [
                "rollout_manager.one_step_off=true",
                "actor_rollout_ref.actor.tis_imp_ratio_cap=2",
                "infra.verl.gpu_memory_utilization=0.6",
            ],
            "in the update and has 80 GiB",
            "gpu_memory_utilization=0.",
        ),
        (
            ["infra.verl.host_memory_gib=146"],
            "a node needs about",
            "agent_workers=",
        ),
        (
            ["infra.verl.host_memory_gib=160", "infra.verl.optimizer_offload=true"],
            "(infra.verl.host_memory_gib)",
            "optimizer_offload=false",
        ),
        (
            ["infra.verl.scratch_gib=240", "trainer.guard.enable=true"],
            "3 checkpoints of",
            "trainer.guard.enable=false",
        ),
        (
            ["infra.verl.scratch_gib=120"],
            "(infra.verl.scratch_gib)",
            "actor_rollout_ref.model.lora_rank=64",
        ),
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
        added = alternative.removesuffix(", on a disk of that size").split(" ")
        if any("nnodes" in word for word in added):
            added.append("infra.verl.ray_address=auto")
        assert main([*plan, *added]) == 0, alternative
        capsys.readouterr()


def test_what_never_fits_is_said_plainly(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["infra.verl.gpu_memory_gib=4"]
    assert main(["plan", EXPERIMENT, "--infra", "h100x4", *words]) == USER_ERROR
    assert capsys.readouterr().err.strip().endswith("take a smaller model")


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
    assert "host memory of each of 1 nodes" in out
    assert "memory of each of 1 GPUs" not in out
    assert main(["plan", "frozenlake-tiny", "--engine", "local", "infra.engine=verl"]) == 0
    assert "memory of the local engine" in capsys.readouterr().out
