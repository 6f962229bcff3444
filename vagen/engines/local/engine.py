"""The engine for one machine: actor, critic and reference in this process, with torch only.

On a CPU, forked processes compute parts of every batch (`vagen.engines.local.helpers`). They share
the weights; only this process has optimizers.

Shape legend: R rows, T tokens of a row, N tokens of a packed line, M action tokens of a line,
V vocabulary.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vagen.config.infra import EnvironmentsConfig, LocalConfig
from vagen.config.schema import ExperimentConfig, SamplingConfig, has_reference
from vagen.engines.base import Engine, Finish, Images, OnProgress, Step, StepResult
from vagen.engines.local.generation import LocalPolicy
from vagen.engines.local.helpers import PARTS, Helpers, OnMessage
from vagen.engines.local.learner import Learner, module_state
from vagen.engines.local.packing import (
    ImageCache,
    PackedRows,
    TokenMask,
    micro_batches,
    pack,
    stretch_of,
)
from vagen.engines.objectives import CRITIC_MASK, Loss, actor_objective, critic_objective
from vagen.learning import Aggregate, entropy_from_logits
from vagen.models.loading import (
    LanguageModel,
    copy_of,
    load_model,
    save_processor,
    tied,
    value_model_from,
)
from vagen.models.lora import add_adapters, has_adapters
from vagen.models.vision import freeze_tower
from vagen.rollout.play import check_failures, check_rendering, play
from vagen.rollout.runner import EpisodeSpec, derive_seed
from vagen.rollout.types import TokenRow, Trajectory
from vagen.storage import write_files

SLICE = 512
"""Action tokens whose logits are in memory at once where activations are computed again."""
LEAST_TOKENS = 1536
"""Fewest tokens of a unit."""
LEAST_EPISODES = 64
"""Fewest episodes of a unit: a decode step costs little more for many."""


class LocalEngine(Engine):
    """See `vagen.engines.base.Engine`."""

    same_logprobs = True

    def __init__(
        self,
        config: ExperimentConfig,
        model_path: str | Path,
        *,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        version: str = "initial",
        environments: EnvironmentsConfig | None = None,
        helpers: int = 0,
        options: LocalConfig | None = None,
    ):
        """Loads the policy, copies it as reference if the experiment needs one, makes a critic.

        Args:
            config: The experiment.
            model_path: Weights of the policy at the start of reinforcement learning; also the
                reference.
            device: Device of all networks.
            dtype: Type that the networks compute in. What is trained is kept in float32 as well.
            version: Name of the weights.
            environments: Where environments run; None for the default.
            helpers: Number of helper processes, on a CPU only. They do not change results. With
                them, torch uses one thread per process.
            options: `infra.local`; None for the default.

        Raises:
            ModelError: The model cannot be loaded.
        """
        self.actor = load_model(model_path, device=device, dtype=dtype)
        self._options = options or LocalConfig()
        if self._options.gradient_checkpointing:
            self.actor.recompute_activations()
        if config.actor_rollout_ref.model.freeze_vision_tower:
            freeze_tower(self.actor.model)
        super().__init__(config, self.actor.processor, version)
        self.device = device
        self.environments = environments
        self.dtype = dtype
        self._frames = ImageCache(self.processor)
        # With adapters the base is frozen, so all models loaded from it share its memory.
        adapters = config.actor_rollout_ref.model.lora_rank > 0
        critic_adapters = config.critic.model.lora_rank > 0
        self.critic = None
        if self.learns_values:
            share = adapters and critic_adapters
            self.critic = value_model_from(self.actor, share_weights=share)
            if critic_adapters:
                seed = derive_seed(config.seed, "adapters", "critic")
                add_adapters(self.critic.backbone, config.critic.model, seed=seed)
        self.reference = None
        if has_reference(config):
            frozen = copy_of(self.actor.model, share_weights=adapters).requires_grad_(False)
            self.reference = LanguageModel(frozen, self.processor)
        if adapters:
            seed = derive_seed(config.seed, "adapters", "actor")
            add_adapters(self.actor.model, config.actor_rollout_ref.model, seed=seed)
        self.learners = {
            "actor": Learner(
                self.actor.model,
                config.actor_rollout_ref.actor.optim,
                self._actor_loss,
                self.action_mask,
            )
        }
        if self.critic is not None:
            self.learners["critic"] = Learner(
                self.critic, config.critic.optim, self._critic_loss, _learnt
            )
        self._processes = 1 + helpers
        modules = {name: learner.module for name, learner in self.learners.items()}
        self._helpers = Helpers(self, modules, helpers)

    def policy(self, *, slots: int) -> LocalPolicy:
        """A policy with the current weights."""
        return LocalPolicy(self.actor, slots=slots, recorded=self._options.cuda_graphs)

    def play(
        self,
        specs: Sequence[EpisodeSpec],
        *,
        sampling: SamplingConfig,
        split: str,
        on_finish: Callable[[Trajectory], None] | None = None,
    ) -> tuple[list[Trajectory], Images]:
        """Plays episodes with the current weights; see `Engine.play`."""
        check_rendering(self.config, self.processor, split, self.environments)
        parts = self._parts(len(specs), LEAST_EPISODES)
        chosen = [[specs[i] for i in part] for part in np.array_split(np.arange(len(specs)), parts)]
        concurrency = max(1, self.config.actor_rollout_ref.rollout.max_concurrency // parts)
        finished: dict[str, Trajectory] = {}

        def finish(trajectory: Trajectory) -> None:
            finished[trajectory.trajectory_id] = trajectory
            if on_finish is not None:
                on_finish(trajectory)

        units = [(part, sampling, split, concurrency) for part in chosen]
        images: Images = {}
        for shown in self._helpers.map("play_part", units, finish):
            images |= shown
        trajectories = [finished[spec.trajectory_id] for spec in specs]
        check_failures(trajectories)
        return trajectories, images

    def play_part(
        self,
        specs: Sequence[EpisodeSpec],
        sampling: SamplingConfig,
        split: str,
        concurrency: int,
        finish: OnMessage,
    ) -> Images:
        """Plays one unit of episodes; reports every trajectory and returns the frames."""
        _, images = play(
            self.config,
            specs,
            policy=self.policy(slots=min(concurrency, len(specs))),
            processor=self.processor,
            sampling=sampling,
            split=split,
            concurrency=concurrency,
            environments=self.environments,
            num_processes=self._processes,
            on_finish=finish,
        )
        return images

    def logprobs(
        self, rows: Sequence[TokenRow], images: Images, *, reference: bool = False
    ) -> list[NDArray[np.float32]]:
        """Log-probabilities of the action tokens, float32 [T] per row, 0 elsewhere."""
        with self._measured("reference" if reference else "logprobs", rows):
            return self._infer("logprobs_of", self.action_mask, rows, images, reference)

    @torch.no_grad()
    def logprobs_of(
        self, rows: Sequence[TokenRow], images: Images, reference: bool, _: OnMessage
    ) -> list[NDArray[np.float32]]:
        """One unit of `logprobs`."""
        model = self.reference if reference else self.actor
        assert model is not None
        packed = self._pack(rows, images, self.action_mask)
        return packed.scatter(self._distributions(model, packed, entropies=False)[0])

    def values(
        self, rows: Sequence[TokenRow], images: Images
    ) -> tuple[list[NDArray[np.float32]], NDArray[np.float32]]:
        """Values before each token, float32 [T] per row, and after the last one, float32 [R]."""
        with self._measured("values", rows):
            after = self._infer("values_after", None, rows, images)
        before = [np.concatenate([[np.float32(0)], value[:-1]]) for value in after]
        return before, np.array([value[-1] for value in after], dtype=np.float32)

    @torch.no_grad()
    def values_after(
        self, rows: Sequence[TokenRow], images: Images, _: OnMessage
    ) -> list[NDArray[np.float32]]:
        """One unit of `values`: values after each token, float32 [T] per row."""
        assert self.critic is not None
        packed = self._pack(rows, images, None)
        return packed.split(packed.spread(self.critic(**packed.inputs)[0]))

    def begin_save(self, directory: Path) -> Finish:
        """Copies weights, optimizers and counters and starts writing them; see `Engine.begin_save`.

        `policy` and `critic.safetensors` hold merged weights, readable without adapters. `load`
        reads the separate adapter file, since merging is not exactly reversible.
        """
        model = self.actor.model
        files = {} if self.critic is None else {"critic.safetensors": module_state(self.critic)}
        for name, learner in self.learners.items():
            files |= learner.files(name)
        writers: dict[str, Callable[[Path], None]] = {
            name: partial(save_file, tensors) for name, tensors in files.items()
        }
        policy = tied(model, module_state(model))
        writers["policy"] = partial(model.save_pretrained, state_dict=policy)
        save_processor(directory / "policy", self.processor)
        self.save_state(directory)
        return partial(write_files, directory, writers)

    def load(self, directory: Path, *, version: str) -> None:
        """Restores a checkpoint; the reference and the base under adapters stay."""
        self.version = None
        if not has_adapters(self.actor.model):
            weights = load_model(directory / "policy", device=self.device, dtype=self.dtype)
            self.actor.model.load_state_dict(weights.model.state_dict())
        if self.critic is not None and not has_adapters(self.critic):
            self.critic.load_state_dict(load_file(directory / "critic.safetensors"))
        for name, learner in self.learners.items():
            learner.load(directory, name)
        self.load_state(directory)
        self.version = version

    def close(self) -> None:
        """Ends the helpers."""
        self._helpers.close()

    def _measured(self, call: str, rows: Sequence[TokenRow]) -> AbstractContextManager[None]:
        tokens = sum(len(row.input_ids) for row in rows)
        return self.performance.measured(call, tokens, self.device)

    def _parts(self, size: int, least: int) -> int:
        """Number of equal parts that a batch is cut into, each at least `least` in size.

        A power of two, so that 2, 4 or 8 processes get equal shares.
        """
        if self.device.type != "cpu" or size < least:
            return 1
        return min(PARTS, 1 << (size // least).bit_length() - 1)

    def _groups(self, rows: Sequence[TokenRow], mask: TokenMask | None) -> list[list[int]]:
        """Indices of the rows of each micro batch."""
        # The remaining rows with one prompt may be few; two processes still pay off.
        least = min(2, self._parts(sum(len(row.input_ids) for row in rows), LEAST_TOKENS))
        return list(
            micro_batches(
                [stretch_of(row, mask, self.processor.image_ids) for row in rows],
                self.config.actor_rollout_ref.actor.ppo_max_token_len,
                lambda tokens: max(least, self._parts(tokens, LEAST_TOKENS)),
            )
        )

    def _infer(
        self,
        method: str,
        mask: TokenMask | None,
        rows: Sequence[TokenRow],
        images: Images,
        *options: Any,
    ) -> list[NDArray[np.float32]]:
        """A network's output for each row."""
        groups = self._groups(rows, mask)
        units = ((*_some(rows, images, group), *options) for group in groups)
        found = self._helpers.map(method, units, lambda _: None)
        by_row = dict(zip(chain(*groups), chain(*found), strict=True))
        return [by_row[i] for i in range(len(rows))]

    def _pack(self, rows: Sequence[TokenRow], images: Images, mask: TokenMask | None) -> PackedRows:
        processed = self._frames.shown_by(rows, images)
        return pack(rows, processed, self.processor, self.device, self.dtype, mask)

    def _step(
        self, step: Step, rows: Sequence[TokenRow], images: Images, on_progress: OnProgress | None
    ) -> StepResult:
        """Accumulates micro batch gradients so that they sum exactly to the mini batch's."""
        learner = self.learners[step.network]
        for group in learner.optimizer.param_groups:
            group["lr"] = step.lr
        learner.optimizer.zero_grad(set_to_none=True)
        groups = self._groups(rows, learner.mask)
        units = ((step, *_some(rows, images, group)) for group in groups)
        on_message = on_progress or (lambda _: None)
        with self._measured(f"update_{step.network}", rows):
            found = self._helpers.add_gradients(step.network, "learn_from", units, on_message)
            norm = float(nn.utils.clip_grad_norm_(learner.masters.parameters, step.grad_clip))
            if not step.skips(norm):
                learner.optimizer.step()
                learner.masters.publish()
        learner.optimizer.zero_grad(set_to_none=True)
        losses, parts = zip(*found, strict=True)
        return StepResult(loss=sum(losses), grad_norm=norm, parts=list(parts))

    def learn_from(
        self, step: Step, rows: Sequence[TokenRow], images: Images, done: OnMessage
    ) -> tuple[float, dict[str, Aggregate]]:
        """One unit of `_step`: adds to the gradients; returns the loss and its metrics."""
        learner = self.learners[step.network]
        learner.module.train()
        value, part = learner.loss(rows, self._pack(rows, images, learner.mask), step)
        value.backward()
        learner.module.eval()
        done(len(rows))
        return float(value.detach()), part

    @torch.no_grad()
    def _shift_values(self, shift: float) -> None:
        assert self.critic is not None
        self.critic.head.bias.add_(shift)

    def _actor_loss(self, rows: Sequence[TokenRow], packed: PackedRows, step: Step) -> Loss:
        logprobs, entropies = self._distributions(self.actor, packed, entropies=True)
        return actor_objective(
            logprobs,
            entropies,
            partial(packed.gather, rows),
            row_ids=packed.row_of,
            denominator=step.denominator,
            config=self.config.actor_rollout_ref.actor,
            entropy_coeff=step.entropy_coeff,
        )

    def _critic_loss(self, rows: Sequence[TokenRow], packed: PackedRows, step: Step) -> Loss:
        assert self.critic is not None
        return critic_objective(
            packed.spread(self.critic(**packed.inputs)[0]),
            partial(packed.line, rows),
            denominator=step.denominator,
            cliprange_value=step.cliprange_value,
            value_shift=step.value_shift,
        )

    def _distributions(
        self, model: LanguageModel, packed: PackedRows, *, entropies: bool
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities of the action tokens at the rollout's temperature, and the entropies of
        their distributions if asked for: both float32 [M].
        """
        targets = packed.targets
        hidden = model.hidden(**packed.inputs)[0].index_select(0, packed.predictors)
        if not self._options.gradient_checkpointing:
            return self._read(model, hidden, targets, entropies)
        found = [
            checkpoint(self._read, model, *part, entropies, use_reentrant=False)
            for part in zip(hidden.split(SLICE), targets.split(SLICE), strict=True)
        ]
        return torch.cat([one for one, _ in found]), torch.cat([other for _, other in found])

    def _read(
        self, model: LanguageModel, hidden: Tensor, targets: Tensor, entropies: bool
    ) -> tuple[Tensor, Tensor]:
        """`_distributions` from hidden states [M, hidden], with logits float32 [M, V] in memory."""
        logits = model.logits(hidden)
        if self.temperature not in (0, 1):  # greedy (0) is treated as 1
            logits = logits / self.temperature
        logprobs = torch.log_softmax(logits, -1).gather(-1, targets[:, None])[:, 0]
        return logprobs, entropy_from_logits(logits) if entropies else logprobs


def _some(
    rows: Sequence[TokenRow], images: Images, indices: Iterable[int]
) -> tuple[list[TokenRow], Images]:
    """The selected rows, and the images they show."""
    chosen = [rows[i] for i in indices]
    return chosen, {digest: images[digest] for row in chosen for digest in row.images}


def _learnt(row: TokenRow) -> NDArray[np.bool_]:
    """Bool [T]: tokens before which the critic learns the value of the state."""
    return row.columns[CRITIC_MASK] != 0
