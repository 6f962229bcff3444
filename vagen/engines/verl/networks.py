"""verl's FSDP2 engines, adapted to compute the same as the local engine.

Registered with verl under the vendor `env_vars.VENDOR`. Differences from verl: banned tokens have
probability 0; frames arrive as PNG; the critic is the policy's network with a linear value head;
each batch brings its learning rate and limits.

A frozen vision tower gives the same features of a frame at any time, and for policy, reference and
critic, which are loaded from one model directory. The policy's tower computes them once, and rows
carry the features in place of frames.

The policy's output layer sees only the states that predict action tokens (those of the policy
loss): logits at every token, pictures included, would be the largest tensor of all.
`logprobs_and_entropies` replaces verl's functions. Without flash-attn those work token by token and
divide by the temperature in the network's bfloat16, which is too coarse for the ratio of two
policies. Here logits are rounded to the network's type once, by the output layer, as in the rollout
servers. The rest is in float32, one slice of tokens at a time, also in the backward pass. A fused
output layer would save those logits too. Of those that the pinned versions have, verl's in torch
divides in bfloat16 as well, and neither that one nor its Triton kernel knows banned tokens.

Shape legend: N tokens laid end to end, M action tokens, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from tensordict import TensorDict
from torch import Tensor, nn
from torch.distributed.fsdp import register_fsdp_forward_method
from torch.distributed.tensor import DTensor
from verl.utils.device import get_device_name
from verl.utils.fsdp_utils import fsdp2_clip_grad_norm_
from verl.utils.torch_dtypes import PrecisionType
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp import transformer_impl
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead, FSDPEngineWithValueHead

from vagen.engines.local.packing import layout_of
from vagen.engines.verl.checkpoint import ShardedState, whole
from vagen.engines.verl.env_vars import VENDOR
from vagen.engines.verl.mapping import FROZEN_TOWER, SLICE, STRATEGY
from vagen.engines.verl.rows import ACTIONS, ROWS, prepare_micro_batches, rows_of
from vagen.envs.images import decode_png
from vagen.models.lora import merged_weights
from vagen.models.processor import Processor, load_processor
from vagen.models.vision import SHARED, freeze_tower, image_inputs, prepare_vision, tower_inputs

FRAMES_AT_ONCE = 32
"""Batch size of a frozen vision tower."""
IMPOSSIBLE = -1e9
"""Logit of a banned token: probability 0. Minus infinity would make entropies NaN."""


class Learner:
    """Common part of both networks."""

    engine_config: Any
    model_config: Any
    checkpoint_config: Any
    module: Any
    optimizer: Any
    lr_scheduler: Any
    processor: Processor
    answers_every_token = False
    """Whether there is an output at every token, not only at those before action tokens."""
    takes_features: bool
    """Whether rows carry features of their frames, see `features`."""

    def initialize(self) -> None:
        """Loads the model and its processor."""
        self.processor = load_processor(self.model_config.local_path)
        # For the engine only: rows are packed, but verl must not replace the configured attention.
        self.use_remove_padding = False
        super().initialize()  # type: ignore[misc]
        self.checkpoint_manager = ShardedState(
            self.module, self.optimizer, self.lr_scheduler, checkpoint_config=self.checkpoint_config
        )
        self.takes_features = self._pass_on_features()

    def prepare_model_inputs(self, micro_batch: TensorDict) -> tuple[dict[str, Any], dict]:
        """Inputs of the rows, packed or padded, and of their frames.

        Returns:
            Keyword arguments of the model, and `places`, int64 [N]: the place of each token of the
            rows among the flattened hidden states.
        """
        rows = rows_of(micro_batch)
        if self.model_config.use_remove_padding:
            inputs, frames, places = self._line(micro_batch, rows)
        else:
            frames = [frame for row in rows for frame in row["frames"] or ()]
            inputs, _ = super().prepare_model_inputs(micro_batch.exclude(ROWS))  # type: ignore[misc]
            lengths = micro_batch["input_ids"].offsets().diff()
            padding = inputs["input_ids"].shape[1] - lengths
            places = torch.repeat_interleave(padding.cumsum(0) - padding, lengths)
            places += torch.arange(len(places), device=places.device)
        if self.processor.has_vision:
            inputs |= self._feature_inputs(frames) if self.takes_features else self._pixels(frames)
        return inputs, {"places": places}

    def _line(
        self, micro_batch: TensorDict, rows: list[Any]
    ) -> tuple[dict[str, Any], list[Any], Tensor]:
        """Rows laid end to end, with what they share at the start once: inputs, frames, places."""
        image, positions = self.processor.image_ids, micro_batch["position_ids"].values()
        wholes = [row["whole"] for row in rows]
        lengths = [len(whole.ids) for whole in wholes]
        starts = [0, *np.cumsum(lengths)[:-1].tolist()]
        stretches = wholes
        if not self.answers_every_token:
            actions = micro_batch[ACTIONS].values().cpu().numpy()
            stretches = [
                whole.until(actions[start : start + len(whole.ids)], image)
                for whole, start in zip(wholes, starts, strict=True)
            ]
        layout = layout_of(stretches, lengths, image, positions.device)
        ids, line_positions, frames = [], [], []
        parts = zip(rows, stretches, starts, layout.skipped, strict=True)
        for row, stretch, start, (tokens, shown) in parts:
            ids.append(stretch.ids[tokens:])
            line_positions.append(positions[..., start + tokens : start + len(stretch.ids)])
            frames += (row["frames"] or [])[shown : len(stretch.images)]
        inputs = {
            "input_ids": torch.from_numpy(np.concatenate(ids)).long()[None].to(positions.device),
            "attention_mask": None,
            "position_ids": torch.cat(line_positions, -1).unsqueeze(-2),
            "segments": layout.segments,
        }
        return inputs, frames, layout.places.to(positions.device)

    def train_batch(self, data: TensorDict, loss_function: Any) -> Any:
        """One optimizer step with the learning rate and limits in `data`."""
        self._limits = (data["grad_clip"], data["grad_norm_threshold"])
        for group in self.optimizer.param_groups:
            group["lr"] = data["lr"]
        return super().train_batch(data, loss_function)  # type: ignore[misc]

    def optimizer_step(self) -> float:
        """Steps unless the gradient norm is not finite or too large.

        Returns:
            The norm before clipping.
        """
        clip, threshold = self._limits
        norm = fsdp2_clip_grad_norm_(self.module.parameters(), max_norm=clip)
        norm = float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
        if np.isfinite(norm) and norm < threshold:
            self.optimizer.step()
        else:
            self.optimizer.zero_grad()
        return norm

    def features(self, frames: Sequence[bytes]) -> list[NDArray[np.uint8]]:
        """Features of frames from the frozen tower; the number of frames must not vary by rank.

        Args:
            frames: PNG bytes.

        Returns:
            Per frame [image tokens, hidden x (1 + number of deepstack layers)], in the network's
            compute type, viewed as uint8 since numpy has no bfloat16.
        """
        features: list[Tensor] = []
        dtype = self._autocast_dtype
        autocast = torch.autocast(get_device_name(), dtype, enabled=dtype != torch.float32)
        with self.eval_mode(), torch.no_grad(), autocast:  # as verl computes log-probabilities
            for begin in range(0, len(frames), FRAMES_AT_ONCE):
                given = self._pixels(frames[begin : begin + FRAMES_AT_ONCE])
                found = self.module.encode_frames(given["pixel_values"], given["image_grid_thw"])
                parts = [found.pooler_output, *getattr(found, "deepstack_features", ())]
                lengths = given["image_grid_thw"].prod(-1) // self.processor.family.merge_size**2
                features += torch.cat(parts, -1).to("cpu", dtype).split(lengths.tolist())
        return [part.view(torch.uint8).numpy() for part in features]

    def _build_module(self) -> Any:
        module = super()._build_module()  # type: ignore[misc]
        for part in module.modules():
            if "inv_freq" in part._buffers:
                # verl rounds rotary frequencies to bfloat16, which misplaces distant tokens.
                module._init_weights(part.float())
        prepare_vision(module)
        tower = getattr(module.model, "visual", None)
        if tower is not None:
            tower.register_forward_hook(_features)
        if self.model_config.override_config.get(FROZEN_TOWER, False):
            freeze_tower(module)
        return module

    def _pass_on_features(self) -> bool:
        """Makes a frozen tower return features passed as pixels; False if it is not frozen."""
        tower = getattr(self.module.model, "visual", None)
        if tower is None or not self.model_config.override_config.get(FROZEN_TOWER, False):
            return False
        forward = tower.forward

        def encode_frames(pixels: Tensor, grids: Tensor) -> Any:
            sizes = [tuple(grid) for grid in grids.tolist()]
            return forward(pixels, **tower_inputs(tower, sizes, pixels.device))

        self.module.encode_frames = encode_frames
        register_fsdp_forward_method(self.module, "encode_frames")
        tower.forward = partial(_output_from_features, _deepstack_layers(tower))
        return True

    def _feature_inputs(self, features: Sequence[NDArray[np.uint8]]) -> dict[str, Tensor]:
        """Features of a micro batch's frames, in the place of pixels.

        Also for no frames, where verl would otherwise call the tower on a blank one.
        """
        dtype, hidden = self._autocast_dtype, self.module.config.get_text_config().hidden_size
        width = hidden * (1 + _deepstack_layers(self.module.model.visual))
        given = torch.empty((0, width), dtype=dtype)
        if features:
            given = torch.from_numpy(np.concatenate(features)).view(dtype)
        return {"pixel_values": given.to(next(self.module.parameters()).device)}

    def _pixels(self, frames: Sequence[bytes]) -> dict[str, Any]:
        """Inputs of the network for a micro batch's frames, in the order of its image blocks.

        Every rank has to call the vision tower. verl does so for grids of patches; for tiles a
        blank image is encoded whose features are used nowhere.
        """
        device = next(self.module.parameters()).device
        shown = [self.processor.process_image(Image.fromarray(decode_png(png))) for png in frames]
        if not self.processor.family.patch_grids:
            blank = [] if shown else [self.processor.process_image(Image.new("RGB", (1, 1)))]
            inputs = image_inputs(shown or blank, self.processor, device, torch.float32)
            if blank:
                inputs[SHARED] = inputs[SHARED][:0]
            return inputs
        if not shown:
            return {}
        pixels = torch.from_numpy(np.concatenate([image.pixel_values for image in shown]))
        return self.processor.family.inputs(pixels.to(device), [image.grid for image in shown])


def _features(tower: Any, inputs: Any, output: Any) -> Any:
    """A vision tower's output; a plain tensor where the tower has no deepstack layers.

    verl calls the tower even for a micro batch without images, like other ranks, and expects a
    tensor from Qwen2.5-VL's.
    """
    return output if hasattr(output, "deepstack_features") else output.pooler_output


def _deepstack_layers(tower: Any) -> int:
    return len(getattr(tower.config, "deepstack_visual_indexes", ()))


def _output_from_features(deepstack_layers: int, features: Tensor, grid_thw: None = None) -> Any:
    """Builds the output of a vision tower from its features."""
    first, *deeper = features.chunk(1 + deepstack_layers, -1)
    more = {"deepstack_features": deeper} if deeper else {}
    return SimpleNamespace(pooler_output=first, **more)


class BanningHead(nn.Linear):
    """An output layer that gives banned tokens probability 0, as in generation."""

    processor: Processor

    def forward(self, input: Tensor) -> Tensor:
        """Hidden states [..., hidden] to logits [..., vocabulary].

        Banning must happen here, since the model's output is a view that FSDP hooks.
        """
        output = super().forward(input)
        return output.index_fill_(-1, self.processor.banned_on(output.device), IMPOSSIBLE)


@EngineRegistry.register("language_model", backend=STRATEGY, device="cuda", vendor=VENDOR)
class PolicyNetwork(Learner, FSDPEngineWithLMHead):
    """The policy, or the reference."""

    _predictors: Tensor
    """int64 [M]: places of the states that predict action tokens, in the flattened hidden states of
    the micro batch."""

    def prepare_model_inputs(self, micro_batch: TensorDict) -> tuple[dict[str, Any], dict]:
        """Notes which states predict action tokens."""
        inputs, arguments = super().prepare_model_inputs(micro_batch)
        before = micro_batch[ACTIONS].values().nonzero()[:, 0] - 1
        self._predictors = arguments["places"][before]
        targets = micro_batch["input_ids"].values()[before + 1]
        return inputs, {"before": before, "targets": targets}

    def prepare_model_outputs(
        self, output: Any, output_args: dict, micro_batch: TensorDict, logits_processor_func: Any
    ) -> dict[str, Tensor]:
        """Log-probabilities of the next tokens and entropies, jagged float32 [R, T].

        They are 0 except before action tokens.
        """
        found = logprobs_and_entropies(
            output.logits, output_args["targets"], micro_batch["temperature"]
        )
        ids = micro_batch["input_ids"]
        zeros = torch.zeros(ids.values().shape, device=found[0].device)
        lines = [zeros.index_copy(0, output_args["before"], values) for values in found]
        return {
            name: torch.nested.nested_tensor_from_jagged(line, ids.offsets())
            for name, line in zip(("log_probs", "entropy"), lines, strict=True)
        }

    def _build_module(self) -> Any:
        module = super()._build_module()
        head = module.get_output_embeddings()
        head.__class__ = BanningHead
        head.processor = self.processor
        # verl's forward functions of vision-language models have no `logits_to_keep`.
        head.register_forward_pre_hook(
            lambda _, hidden: (hidden[0].flatten(0, -2).index_select(0, self._predictors),)
        )
        return module

    def get_per_tensor_param(self, **kwargs: Any) -> tuple[Iterator[tuple[str, Tensor]], None]:
        """Unsharded weights for the servers, in their compute type, adapters merged.

        They stay on this rank's device. They are rounded before they are gathered; verl would
        gather and send float32.
        """
        adapted = hasattr(self.module, "peft_config")
        model = self.module.get_base_model() if adapted else self.module
        dtype = PrecisionType.to_dtype(self.engine_config.mixed_precision["param_dtype"])
        return merged_weights(model, whole, dtype), None


@EngineRegistry.register("value_model", backend=STRATEGY, device="cuda", vendor=VENDOR)
class ValueNetwork(Learner, FSDPEngineWithValueHead):
    """The critic: the policy's initial network with a value head that starts at 0."""

    answers_every_token = True

    def prepare_model_outputs(
        self, output: Any, output_args: dict, micro_batch: TensorDict, logits_processor_func: Any
    ) -> dict[str, Tensor]:
        """Values after each token, jagged [R, T]."""
        values = output.logits.flatten(0, -2).index_select(0, output_args["places"])[:, 0]
        offsets = micro_batch["input_ids"].offsets()
        return {"values": torch.nested.nested_tensor_from_jagged(values, offsets)}

    def _build_module(self) -> Any:
        kind = self.model_config.model_type
        self.model_config.model_type = "language_model"
        try:
            module = super()._build_module()
        finally:
            self.model_config.model_type = kind
        old = module.get_output_embeddings().weight
        head = nn.Linear(old.shape[1], 1, bias=True, device=old.device, dtype=old.dtype)
        if not head.weight.is_meta:
            nn.init.zeros_(head.weight)
            nn.init.zeros_(head.bias)
        module.set_output_embeddings(head)
        module.config.tie_word_embeddings = False
        module.config.get_text_config().tie_word_embeddings = False
        return module

    def _build_lora_module(self, module: Any) -> Any:
        module = super()._build_lora_module(module)
        module.get_output_embeddings().requires_grad_(True)
        return module

    @torch.no_grad()
    def shift_values(self, shift: float) -> None:
        """Adds to the head's bias, on the rank that holds it."""
        bias = self.module.get_output_embeddings().bias
        (bias.to_local() if isinstance(bias, DTensor) else bias).add_(shift)


def logprobs_and_entropies(
    logits: Tensor, labels: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Log-probability of each label, and entropy in nats of its distribution, differentiable.

    Args:
        logits: [M, V], of any floating type.
        labels: int64 [M].
        temperature: Divides the logits.

    Returns:
        float32 [M] each; the gradient has the type of the logits.
    """
    return _LogProbsAndEntropies.apply(logits, labels, temperature)


def _slices(logits: Tensor, temperature: float) -> Iterator[tuple[slice, Tensor]]:
    """Slices of the tokens with their logits at the temperature, float32 copies."""
    for start in range(0, len(logits), SLICE):
        part = slice(start, start + SLICE)
        yield part, logits[part].to(torch.float32, copy=True).div_(temperature)


class _LogProbsAndEntropies(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, labels: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        normalizer = torch.empty(len(logits), device=logits.device)
        chosen, entropies = torch.empty_like(normalizer), torch.empty_like(normalizer)
        for part, values in _slices(logits, temperature):
            normalizer[part] = values.logsumexp(-1)
            chosen[part] = values.gather(-1, labels[part, None])[:, 0]
            entropies[part] = normalizer[part] - (values.softmax(-1) * values).sum(-1)
        ctx.save_for_backward(logits, labels, normalizer, entropies)
        ctx.temperature = temperature
        return chosen - normalizer, entropies

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor, None, None]:
        of_logprobs, of_entropies = (gradient[:, None] for gradient in outputs)
        logits, labels, normalizer, entropies = ctx.saved_tensors
        temperature = ctx.temperature
        found = torch.empty_like(logits)
        for part, values in _slices(logits, temperature):
            logs = values.sub_(normalizer[part, None])
            share = (logs + entropies[part, None]).mul_(-of_entropies[part]).sub_(of_logprobs[part])
            share.mul_(logs.exp_())
            share.scatter_add_(-1, labels[part, None], of_logprobs[part])
            found[part] = share.div_(temperature)
        return found, None, None


# verl's FSDP engines look it up there.
transformer_impl.prepare_micro_batches = prepare_micro_batches
