"""Models from directories, and what is refused."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from image_families import DECODER
from safetensors.torch import load_file, save_file

from vagen.models import ModelError
from vagen.models.attention import segments_of
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
        ("Llama4TextConfig", {}, "chunked_attention"),
        ("Gemma3TextConfig", {"use_bidirectional_attention": True}, "attention to later tokens"),
        ("Qwen3_5Config", {}, r"linear_attention; only .* as Qwen3-VL"),
        ("Qwen3NextConfig", {}, "linear_attention; only full and sliding attention are supported"),
    ],
)
def test_attention_of_another_kind(copied, name, options, kind):
    """Before any weights are read: packed rows and the cache would compute something else."""
    import transformers

    getattr(transformers, name)(**options).save_pretrained(copied)
    assert re.search(kind, refused(copied))


def test_a_model_of_another_build(copied):
    from transformers import GPT2Config, GPT2LMHeadModel

    (copied / "model.safetensors").unlink()
    config = GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=640, n_positions=32)
    GPT2LMHeadModel(config).save_pretrained(copied)
    assert "GPT2LMHeadModel lacks the parts" in refused(copied)


SMALL = {"vocab_size": 640, **DECODER, "pad_token_id": None, "tie_word_embeddings": False}


@pytest.fixture
def small(text_model, tmp_path) -> Callable[..., Path]:
    """Writes a text model of any architecture, with the tokenizer of `tiny:text`."""
    import transformers

    def write(name: str, **options: Any) -> Path:
        torch.manual_seed(2)
        kind = {"Gemma3": "Gemma3Text"}.get(name, name)
        config = getattr(transformers, f"{kind}Config")(**SMALL | options)
        model = getattr(transformers, f"{name}ForCausalLM")(config)
        for parameter in model.parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=2 * parameter[0].numel() ** -0.5)
        model.save_pretrained(tmp_path / name)
        text_model.processor.tokenizer.save_pretrained(tmp_path / name)
        return tmp_path / name

    return write


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("Llama", {}),
        ("Qwen2", {}),
        ("SmolLM3", {"no_rope_layers": [1, 0]}),
        ("Mistral", {"sliding_window": 6}),
        ("Qwen3", {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}),
        ("Gemma3", {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]}),
        ("Granite", {"logits_scaling": 8.0}),
        ("Cohere", {"logit_scale": 0.25}),
        ("Gemma2", {"final_logit_softcapping": 2.0, "attn_logit_softcapping": None}),
    ],
)
def test_logits_are_those_of_the_models_own_forward_pass(small, name, options):
    import transformers

    path = small(name, **options)
    model = load_model(path)
    plain = transformers.AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager")
    ids = torch.arange(20)[None] + 300
    with torch.no_grad():
        hidden = model.hidden(input_ids=ids, segments=segments_of([20], torch.device("cpu")))
        expected = plain.eval()(ids).logits
    allowed = torch.ones(640, dtype=torch.bool)
    allowed[model.processor.banned_ids] = False
    found = model.logits(hidden)[..., allowed]
    torch.testing.assert_close(found, expected[..., allowed], atol=1e-4, rtol=0)


def test_capped_attention_is_refused(small):
    assert re.search(r"caps attention scores \(softcap\)", refused(small("Gemma2")))


def test_a_forward_pass_that_does_more_is_refused(small, monkeypatch):
    """As of a model whose class is not known here: of its logits, and of its rows in one line."""
    from transformers import Qwen3ForCausalLM, Qwen3Model

    path = small("Qwen3")
    load_model(path)
    whole, backbone = Qwen3ForCausalLM.forward, Qwen3Model.forward

    def squared(self, *args, **kwargs):
        output = whole(self, *args, **kwargs)
        output.logits = output.logits.square()
        return output

    def dropping(self, *args, segments=None, **kwargs):
        return backbone(self, *args, **kwargs)

    for cls, forward in ((Qwen3ForCausalLM, squared), (Qwen3Model, dropping)):
        with monkeypatch.context() as patched:
            patched.setattr(cls, "forward", forward)
            assert "rows laid end to end give other logits than Qwen3ForCausalLM" in refused(path)


def test_a_model_that_is_no_language_model(copied):
    from transformers import ViTConfig

    ViTConfig().save_pretrained(copied)
    assert "no weights could be loaded" in refused(copied)


@pytest.mark.slow
def test_a_process_with_a_model_loads_neither_scikit_learn_nor_scipy():
    """They would take two seconds of every start."""
    code = (
        "import sys, vagen.models.loading; from transformers import Qwen3VLForConditionalGeneration"
        "\nassert not {'sklearn', 'scipy'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
