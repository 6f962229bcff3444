"""Adapters: what they leave alone, and the merged model against the adapted one."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from test_attention import TEXT_ROWS, VISION_ROWS, packed_logits, whole
from vl_families import GRID_FAMILIES, bare_processor, family_class, family_config, text_config

from vagen.config.schema import LoraConfig
from vagen.models import ModelError
from vagen.models.attention import ATTENTION
from vagen.models.loading import LanguageModel, copy_of, load_model
from vagen.models.lora import (
    adapted_layers,
    adapter_parameters,
    add_adapters,
    has_adapters,
    merged_state,
)

CONFIG = LoraConfig(lora_rank=3, lora_alpha=6)


def qwen3(tied: bool = False) -> Any:
    from transformers import Qwen3ForCausalLM

    return Qwen3ForCausalLM, text_config(tied=tied)


@pytest.fixture(params=[*GRID_FAMILIES, "qwen3", "qwen3, tied"])
def setting(request):
    """A model with our attention and rows that it can read."""
    torch.manual_seed(5)
    text = request.param.startswith("qwen3") and request.param != "qwen3_vl"
    if text:
        cls, config = qwen3(tied="tied" in request.param)
    else:
        cls, config = family_class(request.param), family_config(request.param)
    model = cls._from_config(config, attn_implementation=ATTENTION).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
    return LanguageModel(model, bare_processor(config)), TEXT_ROWS if text else VISION_ROWS


def learn(model: Any) -> None:
    """Moves every adapter away from 0, as training would."""
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_B." in name:
                parameter.normal_(std=0.1, generator=generator)


def trained(model: Any) -> dict[str, torch.Tensor]:
    return {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}


def test_fresh_adapters_change_nothing_and_are_all_that_learns(setting):
    model, rows = setting
    with torch.no_grad():
        before = packed_logits(model, rows)
        expected = adapter_parameters(model.model, CONFIG)
        add_adapters(model.model, CONFIG, seed=1)
        after = packed_logits(model, rows)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    learning = trained(model.model)
    assert all(".lora_" in name for name in learning)
    assert sum(p.numel() for p in learning.values()) == expected > 0
    sum(logits.logsumexp(-1).sum() for logits in packed_logits(model, rows)).backward()
    for name, parameter in model.model.named_parameters():
        assert (parameter.grad is not None) == (name in learning), name
        if ".lora_B." in name:
            assert parameter.grad.abs().max() > 0, f"{name}: every adapted layer takes part"


def test_the_merged_export_is_the_adapted_model(setting, tmp_path: Path):
    """Loaded by `transformers` alone, with its own attention; float32."""
    model, rows = setting
    add_adapters(model.model, CONFIG, seed=1)
    with torch.no_grad():
        base = packed_logits(model, rows)
        learn(model.model)
        adapted = packed_logits(model, rows)
        model.model.save_pretrained(tmp_path, state_dict=merged_state(model.model))
        again = packed_logits(model, rows)
        plain, found = type(model.model).from_pretrained(
            tmp_path, attn_implementation="sdpa", output_loading_info=True
        )
        exported = whole(plain.eval(), model.processor, rows)
    assert not any(found.values()), "no key is missing, unexpected or of another shape"
    assert not (tmp_path / "adapter_config.json").exists()
    for a, b, same, other in zip(base, adapted, again, exported, strict=True):
        assert (a - b).abs().max() > 0.1
        assert torch.equal(b, same), "the model itself was left as it was"
        # Two attention implementations on top of the merge: as far apart as without adapters.
        torch.testing.assert_close(other, b, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("tied", [True, False])
def test_merging_alone_is_exact_to_1e5(tied, tmp_path: Path):
    """The same attention on both sides."""
    cls, config = qwen3(tied)
    torch.manual_seed(3)
    model = cls._from_config(config, attn_implementation=ATTENTION).eval()
    plain = cls._from_config(copy.deepcopy(config), attn_implementation=ATTENTION).eval()
    layers = "all-linear" if tied else ("q_proj", "down_proj", "lm_head")
    add_adapters(model, LoraConfig(lora_rank=4, target_modules=layers), seed=0)
    learn(model)
    plain.load_state_dict(merged_state(model))
    assert (plain.lm_head.weight is plain.model.embed_tokens.weight) == tied
    ids = torch.arange(40)[None] % 64
    with torch.no_grad():
        torch.testing.assert_close(plain(ids).logits, model(ids).logits, atol=1e-5, rtol=0)


def test_a_tied_output_layer_stays_tied(tmp_path: Path):
    cls, config = qwen3(tied=True)
    model = cls._from_config(config, attn_implementation=ATTENTION)
    embedding = model.model.embed_tokens.weight.detach().clone()
    add_adapters(model, CONFIG, seed=0)
    learn(model)
    model.save_pretrained(tmp_path, state_dict=merged_state(model))
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    loaded = cls.from_pretrained(tmp_path)
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    assert torch.equal(loaded.lm_head.weight, embedding)


@pytest.mark.parametrize("which", ["vl_model", "text_model"])
def test_a_saved_model_directory_is_read_by_the_usual_loader(which, request, tmp_path: Path):
    """Tokenizer and image processor included; the vision tower is adapted too."""
    model = copy.deepcopy(request.getfixturevalue(which))
    base = {name: value.clone() for name, value in model.model.state_dict().items()}
    add_adapters(model.model, CONFIG, seed=1)
    learn(model.model)
    model.save(tmp_path)
    loaded = load_model(tmp_path)
    state = loaded.model.state_dict()
    assert state.keys() == base.keys()
    changed = {name for name in base if not torch.equal(state[name], base[name])}
    layers = adapted_layers(loaded.model, "all-linear")
    assert changed == {f"{name}.weight" for name in layers}
    assert any("visual" in name for name in changed) == (which == "vl_model")
    assert not has_adapters(loaded.model) and has_adapters(model.model)


def test_the_seed_decides_the_beginning(text_model):
    copies = [copy.deepcopy(text_model).model for _ in range(3)]
    state = torch.random.get_rng_state()
    for model, seed in zip(copies, (1, 1, 2), strict=True):
        add_adapters(model, CONFIG, seed=seed)
    assert torch.equal(torch.random.get_rng_state(), state)
    one, same, other = (trained(model) for model in copies)
    drawn = [name for name in one if ".lora_A." in name]
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not any(torch.equal(one[name], other[name]) for name in drawn)


@pytest.mark.parametrize("down", ["layers.1.mlp.down_proj", "layers.1.*.down*"])
def test_named_layers_only(text_model, down):
    model = copy.deepcopy(text_model).model
    names = ("q_proj", down)
    add_adapters(model, LoraConfig(lora_rank=2, target_modules=names), seed=0)
    adapted = {name.partition(".lora_")[0] for name in trained(model)}
    depth = model.config.num_hidden_layers
    attention = {f"model.layers.{i}.self_attn.q_proj" for i in range(depth)}
    assert adapted == attention | {"model.layers.1.mlp.down_proj"}


@pytest.mark.parametrize("target", ["nothing", "proj", "embed_tokens", "layers", ""])
def test_a_name_that_means_no_linear_layer_is_refused(text_model, target):
    with pytest.raises(ModelError) as error:
        adapted_layers(text_model.model, (target, "q_proj"))
    assert f"has no linear layer {target!r}; there are down_proj, gate_proj" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_tied_layer_is_refused_by_name():
    cls, config = qwen3(tied=True)
    model = cls._from_config(config)
    with pytest.raises(ModelError, match="the weight of lm_head is that of the input embedding"):
        adapted_layers(model, "lm_head")
    assert "lm_head" not in adapted_layers(model, "all-linear")


def test_adapters_of_a_bfloat16_model_are_float32(tmp_path: Path):
    cls, config = qwen3()
    model = cls._from_config(config, attn_implementation=ATTENTION, dtype=torch.bfloat16)
    add_adapters(model, CONFIG, seed=0)
    learn(model)
    assert {p.dtype for p in trained(model).values()} == {torch.float32}
    assert model(torch.arange(5)[None]).logits.dtype == torch.bfloat16
    assert {value.dtype for value in merged_state(model).values()} == {torch.bfloat16}


def test_a_copy_that_shares_weights_has_its_own_adapters(text_model):
    model = copy.deepcopy(text_model).model
    weights = {p.data_ptr() for p in model.parameters()}
    shared, own = copy_of(model, share_weights=True), copy_of(model)
    assert {p.data_ptr() for p in shared.parameters()} == weights
    assert not {p.data_ptr() for p in own.parameters()} & weights
    add_adapters(shared, CONFIG, seed=0)
    assert not has_adapters(model) and has_adapters(shared)
