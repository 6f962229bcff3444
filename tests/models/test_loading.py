"""Models from directories, and what is refused."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from vagen.models import ModelError
from vagen.models.loading import load_model, value_model_from


@pytest.fixture
def copied(vl_dir, tmp_path) -> Path:
    return shutil.copytree(vl_dir, tmp_path / "model")


def test_what_save_writes_load_reads(vl_model, tmp_path):
    vl_model.save(tmp_path / "again")
    again = load_model(tmp_path / "again")
    state = again.model.state_dict()
    for name, weight in vl_model.model.state_dict().items():
        assert torch.equal(weight, state[name]), name
    ids = "system <|im_start|>user\n<answer>Down</answer>"
    assert again.processor.tokenizer.encode(ids) == vl_model.processor.tokenizer.encode(ids)
    assert again.processor.banned_ids == vl_model.processor.banned_ids
    assert again.processor.image_processor.image_mean == (
        vl_model.processor.image_processor.image_mean
    )
    assert not again.model.training


def test_tied_weights_are_not_missing(tmp_path, text_model):
    from transformers import Qwen3Config, Qwen3ForCausalLM

    options = text_model.model.config.to_dict() | {"tie_word_embeddings": True}
    Qwen3ForCausalLM(Qwen3Config(**options)).save_pretrained(tmp_path / "tied")
    text_model.processor.tokenizer.save_pretrained(tmp_path / "tied")
    tied = load_model(tmp_path / "tied")
    assert tied.model.lm_head.weight is tied.model.model.embed_tokens.weight


def test_weights_in_another_type(vl_dir):
    model = load_model(vl_dir, dtype=torch.bfloat16)
    assert {p.dtype for p in model.model.parameters()} == {torch.bfloat16}
    logits = model.logits(torch.zeros(1, 2, model.text_config.hidden_size, dtype=torch.bfloat16))
    assert logits.dtype == torch.float32


def test_logits_hold_the_ban(vl_model):
    logits = vl_model.logits(torch.randn(2, 3, vl_model.text_config.hidden_size))
    banned = vl_model.processor.banned_ids
    assert torch.isneginf(logits[..., banned]).all()
    assert torch.isfinite(logits).sum() == logits.numel() - 6 * len(banned)


def test_value_model_starts_from_the_policy_and_says_nothing(vl_model):
    critic = value_model_from(vl_model)
    for name, weight in vl_model.model.model.state_dict().items():
        copy = critic.backbone.state_dict()[name]
        assert torch.equal(weight, copy) and weight.data_ptr() != copy.data_ptr()
    ids = torch.tensor([[3, 4, 5]])
    values = critic(input_ids=ids, position_ids=torch.arange(3)[None])
    assert values.shape == (1, 3) and not values.detach().any()


def refused(path: Path | str) -> str:
    with pytest.raises(ModelError) as error:
        load_model(path)
    assert "\n" not in str(error.value) and str(path) in str(error.value)
    return str(error.value)


def test_directory_without_weights(copied):
    (copied / "model.safetensors").unlink()
    assert "no weights could be loaded" in refused(copied)


@pytest.mark.parametrize("keep", [0, 100, 50_000])
def test_weights_that_were_cut(copied, keep):
    weights = copied / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:keep])
    assert "no weights could be loaded" in refused(copied)


def test_weights_of_a_part(copied):
    """`transformers` would draw the missing ones at random and only warn."""
    weights = load_file(copied / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, copied / "model.safetensors", metadata={"format": "pt"})
    assert "1 weights are missing, lm_head.weight among them" in refused(copied)


def test_weights_of_another_shape(copied):
    weights = load_file(copied / "model.safetensors")
    weights["lm_head.weight"] = weights["lm_head.weight"][:, :64].contiguous()
    save_file(weights, copied / "model.safetensors", metadata={"format": "pt"})
    assert "no weights could be loaded" in refused(copied)


def test_no_such_directory(tmp_path):
    assert "no model configuration" in refused(tmp_path / "nowhere")


def test_configuration_that_is_no_json(copied):
    (copied / "config.json").write_text("{")
    assert "no model configuration" in refused(copied)


def test_no_tokenizer(copied):
    for file in copied.glob("tokenizer*"):
        file.unlink()
    assert "tokenizer.json" in refused(copied)


def test_no_chat_template(copied):
    (copied / "chat_template.jinja").unlink()
    assert "no chat template" in refused(copied)


def test_no_end_of_turn(copied):
    path = copied / "tokenizer_config.json"
    options = json.loads(path.read_text())
    del options["eos_token"]
    path.write_text(json.dumps(options))
    assert "eos_token" in refused(copied)


def test_no_image_processor(copied):
    (copied / "preprocessor_config.json").unlink()
    assert "no image processor" in refused(copied)


def test_a_family_that_reads_images_otherwise(copied):
    from transformers import LlavaConfig

    LlavaConfig().save_pretrained(copied)
    assert "llava" in refused(copied)


@pytest.mark.parametrize(
    ("name", "options", "kind"),
    [
        ("MistralConfig", {}, r"sliding_attention \(sliding_window = 4096\)"),
        ("Gemma3TextConfig", {}, r"sliding_attention \(sliding_window = 4096\)"),
        ("Qwen2Config", {"use_sliding_window": True, "max_window_layers": 2}, "sliding_attention"),
        ("Qwen3NextConfig", {}, "linear_attention; only full attention is supported"),
    ],
)
def test_attention_that_does_not_see_everything(copied, name, options, kind):
    """Before any weights are read: packed rows and the cache would compute something else."""
    import transformers

    getattr(transformers, name)(**options).save_pretrained(copied)
    assert re.search(kind, refused(copied))


def test_a_window_that_is_switched_off_is_no_reason(copied):
    from transformers import Qwen2Config

    from vagen.models.processor import load_processor

    Qwen2Config(sliding_window=4096, use_sliding_window=False).save_pretrained(copied)
    assert load_processor(copied).family.model_type == "qwen2"


def test_a_model_of_another_build(copied):
    from transformers import GPT2Config, GPT2LMHeadModel

    (copied / "model.safetensors").unlink()
    config = GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=640, n_positions=32)
    GPT2LMHeadModel(config).save_pretrained(copied)
    assert "GPT2LMHeadModel lacks the parts" in refused(copied)


def test_a_model_that_is_no_language_model(copied):
    from transformers import ViTConfig

    ViTConfig().save_pretrained(copied)
    assert "no weights could be loaded" in refused(copied)


def test_a_process_with_a_model_loads_neither_scikit_learn_nor_scipy():
    """They would take two seconds of every start."""
    code = (
        "import sys, vagen.models.loading; from transformers import Qwen3VLForConditionalGeneration"
        "\nassert not {'sklearn', 'scipy'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
