"""A `Policy` over verl's client of rollout servers, for `vagen_torch` and vLLM."""

from collections.abc import Sequence
from typing import Any

from PIL.Image import Image
from ray.actor import ActorHandle
from verl.workers.rollout.llm_server import LLMServerClient

from vagen.engines.verl.mapping import TORCH_ROLLOUT
from vagen.models.processor import Processor
from vagen.rollout.types import Generation, Sampling

BANNED_LOGIT = -100.0
"""vLLM's lowest logit bias: a probability of about e^-100, which is 0 in float32."""


class ServerClient(LLMServerClient):
    """Client of verl's servers that sends a conversation's requests to one server.

    Our server identifies conversations by id and caches them until release. vLLM matches prefixes
    itself and gets an id per request.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._homes: dict[str, ActorHandle] = {}

    @property
    def _keeps_conversations(self) -> bool:
        return self.config.actor_rollout_ref.rollout.name == TORCH_ROLLOUT

    def _vllm_request_id(self, request_id: str) -> str:
        return request_id if self._keeps_conversations else super()._vllm_request_id(request_id)

    async def _acquire_server(self, request_id: str, **extra: Any) -> tuple[str, ActorHandle]:
        server_id, server = await super()._acquire_server(request_id, **extra)
        if self._keeps_conversations:
            self._homes[request_id] = server
        return server_id, server

    def release(self, request_id: str) -> None:
        """Ends the conversation; does not wait for the server."""
        server = self._homes.pop(request_id, None)
        if server is not None:
            server.release.remote(request_id)


class ServerPolicy:
    """Implements `vagen.rollout.types.Policy`.

    Log-probabilities are at the sampling temperature without banned ids. vLLM also applies top-p
    and top-k first (`logprobs_mode=processed_logprobs`; its other mode ignores temperature and
    bans), so with those they are of the truncated distribution.
    """

    def __init__(self, client: ServerClient, processor: Processor):
        """Prepares a policy.

        Args:
            client: Client of the servers, shared by a process's episodes.
            processor: Processor of the policy's model.
        """
        self.client = client
        self.processor = processor
        self.own_server = client.config.actor_rollout_ref.rollout.name == TORCH_ROLLOUT

    async def generate(
        self,
        *,
        request_id: str,
        prompt_ids: Sequence[int],
        images: list[Image],
        sampling: Sampling,
    ) -> Generation:
        """Continues `prompt_ids`; see `Policy.generate`."""
        output = await self.client.generate(
            request_id,
            prompt_ids=list(prompt_ids),
            sampling_params=(_own(sampling) if self.own_server else self._vllm(sampling)),
            image_data=list(images) or None,
        )
        stop = output.token_ids[-1] == self.processor.eos_id
        return Generation(
            list(output.token_ids), list(output.log_probs or []), "stop" if stop else "length"
        )

    def release(self, request_id: str) -> None:
        """Ends the conversation; see `Policy.release`."""
        self.client.release(request_id)

    def _vllm(self, sampling: Sampling) -> dict[str, Any]:
        """Fields of vLLM's SamplingParams, as verl's server passes them on.

        Only our end-of-turn token stops generation: models list more. verl's server bans ids
        without a token.
        """
        tokens = len(self.processor.tokenizer)
        banned = [token for token in self.processor.banned_ids if token < tokens]
        return {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "max_tokens": sampling.max_new_tokens,
            "seed": sampling.seed,
            "logprobs": True,
            "logit_bias": dict.fromkeys(banned, BANNED_LOGIT),
            "ignore_eos": True,
            "stop_token_ids": [self.processor.eos_id],
        }


def _own(sampling: Sampling) -> dict[str, Any]:
    return {name: getattr(sampling, name) for name in Sampling.__dataclass_fields__}
