"""Episodes with scripted answers, in real environments."""

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np

from vagen.envs import make
from vagen.envs.images import image_digest, png_bytes
from vagen.rollout.conversation import ChatRenderer
from vagen.rollout.runner import EpisodeLimits, EpisodeRunner, EpisodeSpec, run_to_end
from vagen.rollout.types import Generation, Sampling, Trajectory
from vagen.service import LocalEnv

LIMITS = EpisodeLimits(
    max_turns=4, max_prompt_length=128, max_response_length=16, max_trajectory_length=400
)
OPTIONS = {
    "prompt_detail": "brief",
    "prompt_format": "no_think",
    "max_actions_per_step": 1,
    "p_frozen": 1.0,
    "min_distance": 2,
}
WALK = "<answer>Left</answer>"


class ScriptedPolicy:
    """Gives the answers of a script, one per turn; a turn past its end repeats the last.

    An answer that is a list of ids is cut at `max_new_tokens`, without an end of turn.
    """

    def __init__(self, processor: Any, script: Sequence[str | list[int]]):
        self.processor = processor
        self.script = script
        self.requests: list[tuple[str, list[int], int, Sampling]] = []
        self.released: list[str] = []

    async def generate(self, *, request_id, prompt_ids, images, sampling) -> Generation:
        trajectory = request_id.rpartition("/")[0]
        turn = sum(name.rpartition("/")[0] == trajectory for name, *_ in self.requests)
        self.requests.append((request_id, list(prompt_ids), len(images), sampling))
        await asyncio.sleep(0)
        answer = self.script[min(turn, len(self.script) - 1)]
        if isinstance(answer, str):
            ids = self.processor.tokenizer.encode(answer, add_special_tokens=False)
            ids.append(self.processor.eos_id)
            assert len(ids) <= sampling.max_new_tokens
            return Generation(ids, [-0.25] * len(ids), "stop")
        ids = answer[: sampling.max_new_tokens]
        return Generation(ids, [-0.25] * len(ids), "length")

    def release(self, request_id: str) -> None:
        self.released.append(request_id)


def spec(name: str = "e", seed: int = 0) -> EpisodeSpec:
    return EpisodeSpec(name, f"group-{name}", "game", "FrozenLake", "digest", seed, 11)


def digest(frame: np.ndarray) -> tuple[str, bytes]:
    png = png_bytes(frame)
    return image_digest(png), png


def runner_for(policy: Any, limits: EpisodeLimits = LIMITS) -> EpisodeRunner:
    return EpisodeRunner(
        policy=policy,
        renderer=ChatRenderer(policy.processor),
        limits=limits,
        sampling=Sampling(temperature=0.7, top_p=0.9, top_k=5),
        frame_digest=digest,
    )


def environment(_: EpisodeSpec | None = None, **options: Any):
    return make("FrozenLake", OPTIONS | {"render_mode": "vision"} | options)


def play(policy: Any, limits: EpisodeLimits = LIMITS, env: Any = None) -> Trajectory:
    runner = runner_for(policy, limits)
    return run_to_end(runner.run(spec(), LocalEnv(env or environment())))
