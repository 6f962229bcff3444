"""Tokens that the verl engine computes of rows with equal beginnings: apart, and once.

    python -m benchmarks.shared_rows

Log-probabilities, reference, values and one update of both networks by one rank, on Sokoban's
episodes with pictures: five turns of one step in a random direction, read by a tiny Qwen2.5-VL.
Counts the tokens that each network's layers read, and compares what it says with rows apart and
together.
Written as section `shared_rows` of benchmarks/results/verl-cpu.json.
"""

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.common import Setup, add_columns, rows_of, specs_of
from benchmarks.gpu.engines import one_rank
from benchmarks.machine import write_verl_cpu
from vagen.config.schema import ExperimentConfig
from vagen.engines.local import packing
from vagen.engines.verl.env_vars import configure
from vagen.models.processor import Processor, load_processor
from vagen.rollout.play import play
from vagen.rollout.types import Generation, Sampling
from vagen.service import environments_of

GROUPS = ("rollout_manager.n_trajectory=4", "data.train_batch_size=2")
CASES = {
    "no_concat": ("rollout_manager.context=no_concat",),
    "no_concat, groups of 4": ("rollout_manager.context=no_concat", *GROUPS),
    "concat, groups of 4": ("rollout_manager.context=concat", *GROUPS),
}
REFERENCE = "algorithm.kl_ctrl.kl_coef=0.05"


class Walker:
    """A policy that walks anywhere, so that most turns show another picture."""

    def __init__(self, processor: Processor, config: ExperimentConfig):
        (spec,) = config.envs.values()
        env = environments_of(None).open(spec.env_name, spec.env_config)
        env.reset(seed=0)
        text, _, _ = env.expert_response().partition("<answer>")
        env.close()
        encode = processor.tokenizer.encode
        self.answers = [
            [*encode(f"{text}<answer>{step}</answer>", add_special_tokens=False), processor.eos_id]
            for step in ("Up", "Down", "Left", "Right")
        ]

    async def generate(self, *, sampling: Sampling, **_: Any) -> Generation:
        """One step in a direction that the request's seed decides."""
        draws = np.random.Generator(np.random.Philox(key=sampling.seed))
        ids = self.answers[draws.integers(4)]
        return Generation(list(ids), [0.0] * len(ids), "stop")

    def release(self, request_id: str) -> None:
        """Keeps nothing of a conversation."""


def told(setup: Setup, config: ExperimentConfig, rows: Any, images: Any) -> dict[str, Any]:
    """What the networks say of the rows and of a step, and the tokens that they read for it."""
    read: Counter[str] = Counter()
    with one_rank(config, setup.infra("verl.max_token_len_per_gpu=8192")) as engine:
        policy, critic = engine.groups.policy.worker, engine.groups.critic.worker
        workers = {"actor": policy.actor, "reference": policy.ref, "critic": critic}

        def count(name: str, given: dict[str, Any]) -> None:
            read[name] += given["input_ids"].numel()

        for name, worker in workers.items():
            worker.engine.module.register_forward_pre_hook(
                lambda _, __, given, name=name: count(name, given), with_kwargs=True
            )
        found: dict[str, Any] = {
            "logprobs": engine.logprobs(rows, images),
            "reference": engine.logprobs(rows, images, reference=True),
            "values": engine.values(rows, images)[0],
        }
        inferred = dict(read)
        add_columns(rows, found["logprobs"], found["values"])
        metrics = engine.update(rows, images, seed=0)
        found["logprobs after an update"] = engine.logprobs(rows, images)
        found["values after an update"] = engine.values(rows, images)[0]
    found |= {"norms": [[metrics["actor/grad_norm"], metrics["critic/grad_norm"]]]}
    # Without what was asked afterwards again.
    updates = {name: read[name] - 2 * inferred[name] for name in ("actor", "critic")}
    found["tokens"] = {**inferred, **{f"update of the {name}": n for name, n in updates.items()}}
    return found


def compared(setup: Setup, options: tuple[str, ...]) -> dict[str, Any]:
    """One case both ways."""
    config = setup.experiment(*options, REFERENCE)
    processor = load_processor(config.actor_rollout_ref.model.path)
    trajectories, images = play(
        config,
        specs_of(config),
        policy=Walker(processor, config),
        processor=processor,
        sampling=config.actor_rollout_ref.rollout,
        split="train",
    )
    rows = rows_of(trajectories)
    together = told(setup, config, rows, images)
    least, packing.MIN_SHARED_SAVING = packing.MIN_SHARED_SAVING, 2.0  # more than there is
    apart = told(setup, config, rows, images)
    packing.MIN_SHARED_SAVING = least
    return {
        "rows": len(rows),
        "tokens": sum(len(row.input_ids) for row in rows),
        "pictures": sum(len(row.images) for row in rows),
        "pictures_distinct": len({digest for row in rows for digest in row.images}),
        "tokens_computed": {
            name: {
                "apart": apart["tokens"][name],
                "together": count,
                "ratio": round(apart["tokens"][name] / count, 2),
            }
            for name, count in together["tokens"].items()
        },
        "largest_difference": {
            name: float(max(np.abs(np.subtract(*pair)).max() for pair in pairs))
            for name, pairs in (
                (name, zip(together[name], apart[name], strict=True))
                for name in together
                if name != "tokens"
            )
        },
    }


def main() -> None:
    configure(cpu=True)
    sizes = {"trajectories": 8, "turns": 5, "response": 128, "repeats": 1}
    result: dict[str, Any] = {"model": "qwen25vl-tiny", **sizes}
    with tempfile.TemporaryDirectory() as folder:
        setup = Setup("qwen25vl-tiny", "cpu", 1, **sizes, rollouts=("none",), scratch=Path(folder))
        for name, options in CASES.items():
            result[name] = compared(setup, options)
    write_verl_cpu(result, "shared_rows")


if __name__ == "__main__":
    main()
