"""The environment's expert as a policy; its text becomes token ids like the model's."""

from PIL.Image import Image

from vagen.rollout.contexts import SUMMARY_REQUEST
from vagen.rollout.conversation import ChatRenderer
from vagen.rollout.types import Generation, Sampling
from vagen.service import AsyncEnv


class ExpertPolicy:
    """Responds with `env.expert_response()`, or with `env.expert_summary()` to a summary request.

    Log-probabilities are 0.
    """

    def __init__(self, renderer: ChatRenderer):
        self.processor = renderer.processor
        self.request = renderer.following(SUMMARY_REQUEST).ids
        self.envs: dict[str, AsyncEnv] = {}
        """Environment of each trajectory by id; set before the episode starts."""

    async def generate(
        self, *, request_id: str, prompt_ids: list[int], images: list[Image], sampling: Sampling
    ) -> Generation:
        """The expert's response with the end-of-turn token."""
        trajectory_id, _, _ = request_id.rpartition("/")
        env = self.envs[trajectory_id]
        if prompt_ids[-len(self.request) :] == self.request:
            response = await env.expert_summary()
        else:
            response = await env.expert_response()
        ids = self.processor.tokenizer.encode(response, add_special_tokens=False)
        ids.append(self.processor.eos_id)
        return Generation(ids, [0.0] * len(ids), "stop")

    def release(self, request_id: str) -> None:
        """Does nothing."""
