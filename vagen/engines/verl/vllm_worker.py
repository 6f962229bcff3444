"""vLLM's workers, which import this module by the name in verl's configuration."""

import torch
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension


class SeededWorker(vLLMColocateWorkerExtension):
    """Adds what `WorkerGroups.seed` calls to a worker of vLLM."""

    def seed_sampling(self, seed: int) -> None:
        """Seeds the generator that requests without a seed of their own are sampled with."""
        torch.manual_seed(seed)
