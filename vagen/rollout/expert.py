"""The expert as a policy: its answers become token ids by the same path as the model's own."""

from PIL.Image import Image

from vagen.rollout.conversation import ChatProcessor
from vagen.rollout.types import Generation, Sampling
from vagen.service import AsyncEnv


class ExpertPolicy:
    """Answers with `env.expert_response()`; log-probabilities are 0."""

    def __init__(self, processor: ChatProcessor):
        self.processor = processor
        self.envs: dict[str, AsyncEnv] = {}
        """Environment of each trajectory, by its id; set before the episode starts."""

    async def generate(
        self, *, request_id: str, prompt_ids: list[int], images: list[Image], sampling: Sampling
    ) -> Generation:
        """The expert's answer, ended properly."""
        trajectory_id, _, _ = request_id.rpartition("/")
        response = await self.envs[trajectory_id].expert_response()
        ids = self.processor.tokenizer.encode(response, add_special_tokens=False)
        ids.append(self.processor.eos_id)
        return Generation(ids, [0.0] * len(ids), "stop")

    def release(self, request_id: str) -> None:
        """Nothing is kept for a row."""
