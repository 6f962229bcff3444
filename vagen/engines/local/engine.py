"""The engine for one machine: actor, critic and reference in this process, torch only.

Shape legend: R rows, T tokens of a row, N tokens of a packed line, M action tokens of a line.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vagen.advantage import ESTIMATORS, make_credit
from vagen.config import config_digest
from vagen.config.schema import ExperimentConfig, OptimConfig, SamplingConfig
from vagen.engines.base import Images, OnProgress
from vagen.engines.local.checkpoint import (
    load_learner,
    load_module,
    save_learner,
    save_module,
    write_json,
)
from vagen.engines.local.generation import LocalPolicy
from vagen.engines.local.images import Frames
from vagen.engines.local.losses import action_logprobs, actor_loss, critic_loss
from vagen.engines.local.packing import PackedRows, micro_batches, pack
from vagen.engines.objectives import CRITIC_MASK, Loss, actor_denominator, critic_denominator
from vagen.learning import combine_metrics, make_kl_controller
from vagen.models.loading import LanguageModel, copy_of, load_model, value_model_from
from vagen.models.lora import add_adapters, has_adapters
from vagen.rollout.play import play
from vagen.rollout.runner import EpisodeSpec, derive_seed
from vagen.rollout.types import TokenRow, Trajectory


class LocalEngine:
    """Implements `vagen.engines.base.Engine`."""

    def __init__(
        self,
        config: ExperimentConfig,
        model_path: str | Path,
        *,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        version: str = "initial",
    ):
        """Loads the policy, copies it as reference if the experiment needs one, makes a critic.

        Args:
            config: The experiment.
            model_path: Weights of the policy at the start of reinforcement learning; also the
                reference.
            device: Where all of it goes.
            dtype: Of the weights.
            version: Name of the weights.

        Raises:
            ModelError: The model cannot be loaded.
        """
        self.config = config
        self.config_digest = config_digest(config)
        self.device = device
        self.dtype = dtype
        self.version = version
        self.actor = load_model(model_path, device=device, dtype=dtype)
        self.processor = self.actor.processor
        self._frames = Frames(self.processor)
        actor = config.actor_rollout_ref.actor
        self.kl_controller = make_kl_controller(
            config.algorithm.kl_ctrl.type,
            kl_coef=config.algorithm.kl_ctrl.kl_coef,
            target_kl=config.algorithm.kl_ctrl.target_kl,
            horizon=config.algorithm.kl_ctrl.horizon,
        )
        # With adapters the base is frozen, and whoever else starts from it reads the same weights.
        adapters = config.actor_rollout_ref.model.lora_rank > 0
        critic_adapters = config.critic.model.lora_rank > 0
        self.critic = self.critic_optimizer = None
        if ESTIMATORS[config.algorithm.adv_estimator].needs_critic:
            share = adapters and critic_adapters
            self.critic = value_model_from(self.actor, share_weights=share)
            if critic_adapters:
                seed = derive_seed(config.seed, "adapters", "critic")
                add_adapters(self.critic.backbone, config.critic.model, seed=seed)
            self.critic_optimizer = _optimizer(self.critic, config.critic.optim)
        needs_reference = config.algorithm.kl_ctrl.kl_coef > 0 or actor.use_kl_loss
        self.reference = _frozen_copy(self.actor, adapters) if needs_reference else None
        if adapters:
            seed = derive_seed(config.seed, "adapters", "actor")
            add_adapters(self.actor.model, config.actor_rollout_ref.model, seed=seed)
        self.actor_optimizer = _optimizer(self.actor.model, actor.optim)
        self.credit = (
            make_credit(
                gamma=config.algorithm.high_level_gamma,
                **config.algorithm.adaptive_credit.model_dump(),
            )
            if ESTIMATORS[config.algorithm.adv_estimator].adapts
            else None
        )
        self._value_shift = 0.0
        self.updates = 0
        self.lr_scale = 1.0

    @property
    def learns_values(self) -> bool:
        """Whether there is a critic."""
        return self.critic is not None

    @property
    def kl_coef(self) -> float:
        """Present coefficient of the KL penalty in the reward."""
        return self.kl_controller.kl_coef

    def policy(self, *, slots: int) -> LocalPolicy:
        """A policy over the present weights."""
        return LocalPolicy(self.actor, slots=slots)

    def play(
        self,
        specs: Sequence[EpisodeSpec],
        *,
        sampling: SamplingConfig,
        split: str,
        on_finish: Callable[[Trajectory], None] | None = None,
    ) -> tuple[list[Trajectory], Images]:
        """Plays episodes with the present weights; see `Engine.play`."""
        return play(
            self.config,
            specs,
            policy=self.policy(slots=self.config.actor_rollout_ref.rollout.max_concurrency),
            processor=self.processor,
            sampling=sampling,
            split=split,
            on_finish=on_finish,
        )

    @torch.no_grad()
    def logprobs(
        self, rows: Sequence[TokenRow], images: Images, *, reference: bool = False
    ) -> list[NDArray[np.float32]]:
        """Log-probabilities of the action tokens, float32 [T] per row, 0 elsewhere."""
        model = self.reference if reference else self.actor
        assert model is not None
        out: list[NDArray[np.float32]] = [np.empty(0, np.float32)] * len(rows)
        for indices, packed in self._micro_batches(rows, images):
            logits = model.logits(_predictors(model.hidden(**packed.inputs), packed))
            values = packed.scatter(action_logprobs(logits, packed, self._temperature))
            for i, value in zip(indices, values, strict=True):
                out[i] = value
        return out

    @torch.no_grad()
    def values(
        self, rows: Sequence[TokenRow], images: Images
    ) -> tuple[list[NDArray[np.float32]], NDArray[np.float32]]:
        """Values before each token, float32 [T] per row, and after the last one, float32 [R]."""
        assert self.critic is not None
        out: list[NDArray[np.float32]] = [np.empty(0, np.float32)] * len(rows)
        last = np.zeros(len(rows), dtype=np.float32)
        for indices, packed in self._micro_batches(rows, images):
            after = packed.spread(self.critic(**packed.inputs)[0])
            for i, value in zip(indices, packed.split(after), strict=True):
                out[i] = np.concatenate([[np.float32(0)], value[:-1]])
                last[i] = value[-1]
        return out, last

    def update(
        self,
        rows: Sequence[TokenRow],
        images: Images,
        *,
        seed: int,
        actor: bool = True,
        on_progress: OnProgress | None = None,
    ) -> dict[str, float]:
        """One PPO update of actor and critic; see `Engine.update`.

        Rows carry `old_logprobs`, `advantages`, and for a critic `values`, `returns`,
        `critic_mask`; `ref_logprobs` if there is a KL loss. An optimizer step whose gradient norm
        is not finite or too large is skipped and counted. Without a row, as where the rollout
        filter keeps nothing, weights and optimizers stay and the update counts as one.
        """
        if not rows:
            self.updates += 1
            return {}
        config = self.config.actor_rollout_ref.actor
        order = np.random.Generator(np.random.Philox(key=seed))
        metrics: dict[str, float] = {}
        if self.critic is not None and self.critic_optimizer is not None:
            critic = self.config.critic
            self._value_shift = self._center_critic(rows) if critic.center_values else 0.0
            metrics |= self._train(
                rows,
                images,
                module=self.critic,
                optimizer=self.critic_optimizer,
                optim=critic.optim,
                loss=self._critic_loss,
                denominator_of=critic_denominator,
                limits=(critic.grad_clip, critic.grad_norm_threshold),
                size=critic.ppo_mini_batch_size or config.ppo_mini_batch_size,
                epochs=critic.ppo_epochs,
                order=order,
                prefix="critic/",
                on_progress=on_progress,
            )
        if actor:
            metrics |= self._train(
                rows,
                images,
                module=self.actor.model,
                optimizer=self.actor_optimizer,
                optim=config.optim,
                loss=self._actor_loss,
                denominator_of=self._actor_denominator,
                limits=(config.grad_clip, config.grad_norm_threshold),
                size=config.ppo_mini_batch_size,
                epochs=config.ppo_epochs,
                order=order,
                prefix="actor/",
                on_progress=on_progress,
            )
        self._update_kl_controller(rows)
        self.updates += 1
        return metrics

    def save(self, directory: Path) -> None:
        """Writes weights, optimizers and counters.

        `policy` and `critic.safetensors` hold merged weights, which can be read without adapters;
        `load` takes the adapters themselves, which merged weights no longer tell exactly.
        """
        self.actor.save(directory / "policy")
        save_learner(directory, "actor", self.actor.model, self.actor_optimizer)
        if self.critic is not None and self.critic_optimizer is not None:
            save_module(directory / "critic.safetensors", self.critic)
            save_learner(directory, "critic", self.critic, self.critic_optimizer)
        write_json(
            directory / "engine.json",
            {
                "updates": self.updates,
                "lr_scale": self.lr_scale,
                "kl_controller": self.kl_controller.state_dict(),
                "credit": None if self.credit is None else self.credit.state_dict(),
            },
        )

    def load(self, directory: Path, *, version: str) -> None:
        """Takes up what `save` wrote; the reference, and the base under adapters, stay."""
        self.version = f"{version}, being loaded"
        if not has_adapters(self.actor.model):
            weights = load_model(directory / "policy", device=self.device, dtype=self.dtype)
            self.actor.model.load_state_dict(weights.model.state_dict())
        load_learner(directory, "actor", self.actor.model, self.actor_optimizer)
        if self.critic is not None and self.critic_optimizer is not None:
            if not has_adapters(self.critic):
                load_module(directory / "critic.safetensors", self.critic)
            load_learner(directory, "critic", self.critic, self.critic_optimizer)
        state = json.loads((directory / "engine.json").read_text())
        self.updates = state["updates"]
        self.lr_scale = state["lr_scale"]
        self.kl_controller.load_state_dict(state["kl_controller"])
        if self.credit is not None:
            self.credit.load_state_dict(state["credit"])
        self.version = version

    def action_mask(self, row: TokenRow) -> NDArray[np.bool_]:
        """Bool [T]: tokens the policy loss reads (M^loss, or every token it could have sampled)."""
        if self.config.rollout_manager.use_loss_mask:
            return row.loss_mask
        mask = ~np.isin(row.input_ids, self.processor.banned_ids)
        mask[0] = False
        return mask

    @torch.no_grad()
    def _center_critic(self, rows: Sequence[TokenRow]) -> float:
        """Moves the value head's bias such that the mean value is the mean return.

        Returns:
            By how much; the value clip is around the old values moved alike.
        """
        assert self.critic is not None
        error = np.concatenate([row.columns["returns"] - row.columns["values"] for row in rows])
        mask = np.concatenate([row.columns[CRITIC_MASK] for row in rows]) != 0
        shift = float(error[mask].mean()) if mask.any() else 0.0
        if not np.isfinite(shift):  # the steps will be skipped as well
            return 0.0
        self.critic.head.bias.add_(shift)
        return shift

    def _update_kl_controller(self, rows: Sequence[TokenRow]) -> None:
        """Shows the controller the batch's mean divergence from the reference."""
        if not rows or "ref_logprobs" not in rows[0].columns:
            return
        total = sum(
            float((row.columns["old_logprobs"] - row.columns["ref_logprobs"])[row.loss_mask].sum())
            for row in rows
        )
        tokens = sum(int(row.loss_mask.sum()) for row in rows)
        trajectories = len({row.trajectory_id for row in rows})
        self.kl_controller.update(total / tokens, trajectories)

    def _micro_batches(self, rows: Sequence[TokenRow], images: Images) -> Any:
        """Yields row indices and their packed inputs."""
        budget = self.config.actor_rollout_ref.actor.ppo_max_token_len
        for indices in micro_batches(rows, budget):
            part = [rows[i] for i in indices]
            yield indices, self._pack(part, images)

    def _pack(self, rows: Sequence[TokenRow], images: Images) -> PackedRows:
        processed = self._frames.shown_by(rows, images)
        return pack(rows, processed, self.processor, self.device, self.dtype, self.action_mask)

    @property
    def _temperature(self) -> float:
        """The rollout's."""
        return self.config.actor_rollout_ref.rollout.temperature

    def _train(
        self,
        rows: Sequence[TokenRow],
        images: Images,
        *,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        optim: OptimConfig,
        loss: Callable[[Sequence[TokenRow], PackedRows, Tensor], Loss],
        denominator_of: Callable[[Sequence[TokenRow]], Tensor],
        limits: tuple[float, float],
        size: int,
        epochs: int,
        order: np.random.Generator,
        prefix: str,
        on_progress: OnProgress | None,
    ) -> dict[str, float]:
        """Mini batches of one network; micro batches add up to the mini batch exactly.

        A mini batch is `size` trajectories with all of their rows.
        """
        parts = []
        norms: list[float] = []
        skipped = 0
        total = 0.0
        mini_batches = 0
        whole = _by_trajectory(rows)
        _set_learning_rate(optimizer, optim, self.updates, self.lr_scale)
        module.train()
        for _ in range(epochs):
            for chosen in np.array_split(order.permutation(len(whole)), -(-len(whole) // size)):
                mini = [row for i in chosen for row in whole[i]]
                optimizer.zero_grad(set_to_none=True)
                denominator = denominator_of(mini)
                for indices, packed in self._micro_batches(mini, images):
                    value, part = loss([mini[i] for i in indices], packed, denominator)
                    value.backward()
                    parts.append(part)
                    total += float(value.detach())
                    if on_progress is not None:
                        on_progress(len(indices))
                mini_batches += 1
                clip, threshold = limits
                norm = float(nn.utils.clip_grad_norm_(module.parameters(), clip))
                if np.isfinite(norm) and norm < threshold:
                    optimizer.step()
                    norms.append(norm)
                else:
                    skipped += 1
        module.eval()
        optimizer.zero_grad(set_to_none=True)
        metrics = {f"{prefix}{name}": value for name, value in combine_metrics(parts).items()}
        metrics[f"{prefix}loss"] = total / mini_batches
        metrics[f"{prefix}grad_norm"] = float(np.mean(norms)) if norms else float("nan")
        metrics[f"{prefix}skipped_steps"] = float(skipped)
        metrics[f"{prefix}lr"] = optimizer.param_groups[0]["lr"]
        return metrics

    def _actor_denominator(self, rows: Sequence[TokenRow]) -> Tensor:
        config = self.config.actor_rollout_ref.actor
        return actor_denominator(rows, action_mask=self.action_mask, config=config)

    def _actor_loss(
        self, rows: Sequence[TokenRow], packed: PackedRows, denominator: Tensor
    ) -> Loss:
        logits = self.actor.logits(_predictors(self.actor.hidden(**packed.inputs), packed))
        return actor_loss(
            logits,
            rows,
            packed,
            denominator,
            config=self.config.actor_rollout_ref.actor,
            temperature=self._temperature,
        )

    def _critic_loss(
        self, rows: Sequence[TokenRow], packed: PackedRows, denominator: Tensor
    ) -> Loss:
        assert self.critic is not None
        return critic_loss(
            packed.spread(self.critic(**packed.inputs)[0]),
            rows,
            packed,
            denominator,
            cliprange_value=self.config.critic.cliprange_value,
            value_shift=self._value_shift,
        )


def _by_trajectory(rows: Sequence[TokenRow]) -> list[list[TokenRow]]:
    """The rows of each trajectory, both in order of appearance."""
    found: dict[str, list[TokenRow]] = {}
    for row in rows:
        found.setdefault(row.trajectory_id, []).append(row)
    return list(found.values())


def _predictors(hidden: Tensor, packed: PackedRows) -> Tensor:
    """Hidden states [M, hidden] that predict the action tokens, from the line [1, L, hidden]."""
    return hidden[0].index_select(0, packed.predictors)


def _frozen_copy(language_model: LanguageModel, share_weights: bool) -> LanguageModel:
    model = copy_of(language_model.model, share_weights=share_weights)
    model.requires_grad_(False)
    return LanguageModel(model, language_model.processor)


def _optimizer(module: nn.Module, config: OptimConfig) -> torch.optim.AdamW:
    return torch.optim.AdamW(
        [parameter for parameter in module.parameters() if parameter.requires_grad],
        lr=config.lr,
        betas=config.betas,
        weight_decay=config.weight_decay,
    )


def _set_learning_rate(
    optimizer: torch.optim.Optimizer, config: OptimConfig, updates: int, scale: float
) -> None:
    """Linear warm-up over iterations, then constant; times `scale`."""
    warm = min(1.0, (updates + 1) / config.lr_warmup_steps) if config.lr_warmup_steps else 1.0
    for group in optimizer.param_groups:
        group["lr"] = config.lr * warm * scale
