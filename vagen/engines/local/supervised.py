"""Supervised learning on expert episodes: the warm start of an untrained model."""

import math
from collections.abc import Callable, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

import torch

from vagen.config.schema import WarmStartConfig
from vagen.engines.local.helpers import Helpers, OnMessage
from vagen.engines.local.masters import MasterWeights
from vagen.engines.local.packing import micro_batches, pack, stretch_of
from vagen.models.loading import LanguageModel
from vagen.models.processor import ProcessedImage
from vagen.rollout.types import TokenRow

WINDOW = 20
"""Steps over which the loss is averaged."""
MAX_TOKENS = 8192
"""Tokens of a packed line."""
PARTS = 2
"""Number of parts that a batch is cut into on a CPU."""
LOSS_MASK = attrgetter("loss_mask")
"""Selects the expert's tokens of a row."""


def learn_from_experts(
    language_model: LanguageModel,
    batches: Callable[[int], tuple[Sequence[TokenRow], dict[str, ProcessedImage]]],
    config: WarmStartConfig,
    *,
    muon: bool = True,
    on_step: Callable[[int, float], None] | None = None,
    helpers: int = 0,
) -> list[float]:
    """Minimises cross-entropy on the expert's tokens (cosine schedule).

    Args:
        language_model: Trained in place.
        batches: Yields the expert rows of a step and their preprocessed images.
        config: Steps and learning rate.
        muon: Muon for inner matrices; otherwise AdamW for all weights.
        on_step: Called with the step and its loss, nats per token.
        helpers: Helper processes, on a CPU only; they do not change results.

    Returns:
        Loss of every step.
    """
    model = language_model.model
    masters = MasterWeights(model)
    hidden_size = language_model.text_config.hidden_size
    optimizers = _optimizers(masters, hidden_size, config.lr, muon=muon)
    losses = []
    model.train()
    work = Helpers(_Imitation(language_model), {"model": model}, helpers)
    image_ids = language_model.processor.image_ids
    parts = PARTS if language_model.device.type == "cpu" else 1
    for step in range(config.steps):
        rate = 0.5 * config.lr * (1 + math.cos(math.pi * step / config.steps))
        for group in chain.from_iterable(each.param_groups for each in optimizers):
            group["lr"] = rate * group["scale"]
        rows, images = batches(step)
        total = sum(int(row.loss_mask.sum()) for row in rows)
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        units = []
        stretches = [stretch_of(row, LOSS_MASK, image_ids) for row in rows]
        for group in micro_batches(stretches, MAX_TOKENS, lambda _: parts):
            part = [rows[i] for i in group]
            units.append((part, {d: images[d] for row in part for d in row.images}, total))
        found = work.add_gradients("model", "learn_from", units, lambda _: None)
        torch.nn.utils.clip_grad_norm_(masters.parameters, 1.0)
        for optimizer in optimizers:
            optimizer.step()
        masters.publish()
        losses.append(sum(found) / total)
        if on_step is not None:
            on_step(step, losses[-1])
    work.close()
    model.eval()
    return losses


class _Imitation:
    """Imitation loss of one network."""

    def __init__(self, language_model: LanguageModel):
        self.language_model = language_model

    def learn_from(
        self, rows: Sequence[TokenRow], images: dict[str, ProcessedImage], total: int, _: OnMessage
    ) -> float:
        """Adds the gradients of some rows of a batch with `total` tokens; returns their loss."""
        model = self.language_model
        dtype = model.model.dtype
        packed = pack(rows, images, model.processor, model.device, dtype, LOSS_MASK)
        hidden = model.hidden(**packed.inputs)[0]
        logits = model.logits(hidden.index_select(0, packed.predictors))
        loss = torch.nn.functional.cross_entropy(logits, packed.targets, reduction="sum")
        (loss / total).backward()
        return float(loss.detach())


def _optimizers(
    masters: MasterWeights, hidden_size: int, lr: float, *, muon: bool
) -> list[torch.optim.Optimizer]:
    """Muon (Jordan et al., 2024) for inner matrices, AdamW for embeddings, logits and vectors.

    From random weights AdamW alone needs more than twice as many steps for the same loss. At equal
    rates both change weights by similar amounts, and matrices tolerate twice that. The patch
    embedding sums over all pixels of a patch, far more inputs than other layers have, while Adam
    changes all weights of a neuron equally: its rate is multiplied by hidden size over inputs.
    """
    matrices, patches, rest = [], [], []
    for name, parameter in masters.named.items():
        if "patch_embed" in name:
            patches.append(parameter)
        elif muon and parameter.ndim == 2 and "embed" not in name and "lm_head" not in name:
            matrices.append(parameter)
        else:
            rest.append(parameter)
    groups: list[dict[str, Any]] = [{"params": rest, "scale": 1.0}]
    if patches:
        inputs = max(parameter[0].numel() for parameter in patches)
        scale = min(1.0, hidden_size / inputs)
        groups.append({"params": patches, "scale": scale})
    optimizers: list[torch.optim.Optimizer] = [torch.optim.AdamW(groups, lr=lr, weight_decay=0.0)]
    if matrices:
        hidden: list[dict[str, Any]] = [{"params": matrices, "scale": 2.0}]
        optimizers.append(
            torch.optim.Muon(hidden, lr=lr, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
        )
    return optimizers
