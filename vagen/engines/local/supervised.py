"""Supervised learning on expert episodes: the warm start of a model that knows nothing yet."""

import math
from collections.abc import Callable, Sequence

import torch

from vagen.config.schema import WarmStartConfig
from vagen.engines.local.helpers import Hear, Helpers
from vagen.engines.local.packing import micro_batches, pack
from vagen.models.loading import LanguageModel
from vagen.models.processor import ProcessedImage
from vagen.rollout.types import TokenRow

WINDOW = 20
"""Steps over which the loss is averaged."""
MAX_TOKENS = 8192
"""Tokens of a packed line."""
PARTS = 2
"""Parts that a batch is cut into on a CPU."""


def learn_from_experts(
    language_model: LanguageModel,
    batches: Callable[[int], tuple[Sequence[TokenRow], dict[str, ProcessedImage]]],
    config: WarmStartConfig,
    *,
    on_step: Callable[[int, float], None] | None = None,
    helpers: int = 0,
) -> list[float]:
    """Minimises cross-entropy on the expert's tokens (AdamW, cosine schedule).

    Args:
        language_model: Trained in place.
        batches: Gives the expert rows of a step and their processed images.
        config: Steps and learning rate.
        on_step: Called with the step and its loss, nats per token.
        helpers: Processes that compute beside this one, on a CPU only; they change no number.

    Returns:
        Loss of every step that was made.
    """
    model = language_model.model
    optimizer = torch.optim.AdamW(_parameter_groups(language_model), lr=config.lr, weight_decay=0.0)
    losses = []
    model.train()
    work = Helpers(_Imitation(language_model), {"model": model}, helpers)
    parts = PARTS if language_model.device.type == "cpu" else 1
    for step in range(config.steps):
        rate = 0.5 * config.lr * (1 + math.cos(math.pi * step / config.steps))
        for group in optimizer.param_groups:
            group["lr"] = rate * group["scale"]
        rows, images = batches(step)
        total = sum(int(row.loss_mask.sum()) for row in rows)
        optimizer.zero_grad(set_to_none=True)
        units = []
        for group in micro_batches(rows, MAX_TOKENS, parts):
            part = [rows[i] for i in group]
            units.append((part, {d: images[d] for row in part for d in row.images}, total))
        found = work.add_gradients("model", "learn_from", units, lambda _: None)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(sum(found) / total)
        if on_step is not None:
            on_step(step, losses[-1])
        if _reached(losses, config.stop_at_loss):
            break
    work.close()
    model.eval()
    return losses


class _Imitation:
    """Learns what experts said."""

    def __init__(self, language_model: LanguageModel):
        self.language_model = language_model

    def learn_from(
        self, rows: Sequence[TokenRow], images: dict[str, ProcessedImage], total: int, _: Hear
    ) -> float:
        """Adds the gradients of some rows of a batch with `total` tokens; returns their loss."""
        model = self.language_model
        dtype = model.model.dtype
        packed = pack(rows, images, model.processor, model.device, dtype, lambda row: row.loss_mask)
        hidden = model.hidden(**packed.inputs)[0]
        logits = model.logits(hidden.index_select(0, packed.predictors))
        loss = torch.nn.functional.cross_entropy(logits, packed.targets, reduction="sum")
        (loss / total).backward()
        return float(loss.detach())


def _reached(losses: Sequence[float], target: float | None) -> bool:
    """Whether the mean of the last `WINDOW` losses is at most the target."""
    if target is None or len(losses) < WINDOW:
        return False
    return sum(losses[-WINDOW:]) / WINDOW <= target


def _parameter_groups(language_model: LanguageModel) -> list[dict[str, object]]:
    """Adam moves all weights of a neuron alike, so wide ones get a smaller step.

    The patch embedding sums over every pixel of a patch, many more inputs than any other layer has:
    its rate is scaled by hidden size over inputs.
    """
    patches, rest = [], []
    for name, parameter in language_model.model.named_parameters():
        (patches if "patch_embed" in name else rest).append(parameter)
    groups: list[dict[str, object]] = [{"params": rest, "scale": 1.0}]
    if patches:
        inputs = max(parameter[0].numel() for parameter in patches)
        scale = min(1.0, language_model.text_config.hidden_size / inputs)
        groups.append({"params": patches, "scale": scale})
    return groups
