"""The models built in code."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from vagen.models.loading import load_model
from vagen.models.processor import load_processor
from vagen.models.tiny import (
    SPECIAL_TOKENS,
    TINY_MODELS,
    PixelStatistics,
    build_tiny_model,
    build_tokenizer,
)

CORPUS = ["The player is above the target. <answer>Down</answer>"] * 3
TAGS = ["<answer>", "</answer>"]


def build(name: str, directory: Path, seed: int = 3) -> dict[str, torch.Tensor]:
    build_tiny_model(name, directory, corpus=CORPUS, tags=TAGS, seed=seed)
    return load_file(directory / "model.safetensors")


@pytest.mark.parametrize("name", TINY_MODELS)
def test_weights_are_a_function_of_the_seed(name, tmp_path):
    torch.manual_seed(1)
    first = build(name, tmp_path / "a")
    torch.manual_seed(2)
    state = torch.random.get_rng_state()
    again = build(name, tmp_path / "b")
    assert torch.equal(state, torch.random.get_rng_state()), "the global generator moved"
    other = build(name, tmp_path / "c", seed=4)
    assert first.keys() == again.keys()
    assert all(torch.equal(first[key], again[key]) for key in first)
    drawn = [key for key in first if "embed_tokens" in key or "q_proj.weight" in key]
    assert drawn and not any(torch.equal(first[key], other[key]) for key in drawn)
    assert 0.4e6 < sum(weight.numel() for weight in first.values()) < 1.6e6
    for file in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


@pytest.mark.parametrize("name", TINY_MODELS)
def test_layers_are_drawn_wide_enough_to_see(name, tmp_path):
    """With the library's own .02 the vision path learns nothing at this size."""
    weights = build(name, tmp_path / "a")
    for key, weight in weights.items():
        if weight.ndim == 2 and "embed" not in key:
            assert float(weight.std()) == pytest.approx(weight.shape[1] ** -0.5, rel=0.15), key


def test_there_is_no_other_tiny_model(tmp_path):
    with pytest.raises(ValueError, match="tiny:vl, tiny:text"):
        build_tiny_model("tiny:vlm", tmp_path, corpus=CORPUS, tags=TAGS, seed=0)


@pytest.mark.parametrize("name", TINY_MODELS)
def test_the_directory_is_an_ordinary_one(name, tmp_path):
    """`transformers` itself reads it, with its own attention, and computes the same."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer

    build(name, tmp_path / "a")
    family = AutoModelForImageTextToText if name == "tiny:vl" else AutoModelForCausalLM
    plain = family.from_pretrained(tmp_path / "a").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "a")
    ours = load_model(tmp_path / "a")
    ids = torch.tensor([tokenizer.encode(CORPUS[0])])
    with torch.no_grad():
        expected = plain(input_ids=ids).logits
        hidden = ours.hidden(input_ids=ids, position_ids=torch.arange(ids.shape[1])[None])
        found = ours.model.lm_head(hidden)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert plain.generation_config.eos_token_id == tokenizer.eos_token_id


@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=40))
def test_any_text_comes_back(text):
    tokenizer = _tokenizer()
    ids = tokenizer.encode(text, add_special_tokens=False)
    if not any(token in text for token in SPECIAL_TOKENS):
        assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_tags_are_single_tokens_and_survive_decoding():
    tokenizer = _tokenizer()
    text = "<answer>Down</answer>"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert ids[0] == tokenizer.convert_tokens_to_ids("<answer>")
    assert ids[-1] == tokenizer.convert_tokens_to_ids("</answer>")
    assert tokenizer.decode([*ids, tokenizer.eos_token_id], skip_special_tokens=True) == text
    assert all(len(tokenizer.encode(token)) == 1 for token in SPECIAL_TOKENS)


def _tokenizer(cache: list = []):  # noqa: B006
    if not cache:
        cache.append(build_tokenizer(CORPUS, tags=TAGS))
    return cache[0]


def test_pixel_statistics():
    frames = [np.zeros((2, 2, 3), np.uint8), np.full((2, 2, 3), 255, np.uint8)]
    frames[1][..., 2] = 0
    statistics = PixelStatistics.of(frames)
    assert statistics.mean == pytest.approx((0.5, 0.5, 0.0))
    assert statistics.std == pytest.approx((0.5, 0.5, 0.01)), "a constant channel keeps a width"
    assert PixelStatistics.of([]) == PixelStatistics()


def test_pixel_statistics_of_a_large_frame_are_nearly_those_of_all_its_pixels():
    frame = np.random.default_rng(0).integers(0, 255, (1100, 2600, 3), np.uint8)
    frame[..., 1] //= 2
    statistics = PixelStatistics.of([frame])
    assert statistics.mean == pytest.approx(frame.mean((0, 1)) / 255, abs=2e-3)
    assert statistics.std == pytest.approx(frame.std((0, 1)) / 255, abs=2e-3)


def test_frames_are_shown_in_their_own_statistics(tmp_path):
    statistics = PixelStatistics((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    build_tiny_model("tiny:vl", tmp_path / "a", corpus=CORPUS, tags=TAGS, seed=0, pixels=statistics)
    from PIL import Image

    processor = load_model(tmp_path / "a").processor
    values = processor.process_image(Image.new("RGB", (32, 32), (255, 0, 0))).pixel_values
    channels = values.reshape(len(values), 3, -1)
    expected = [(1 - 0.1) / 0.4, -0.2 / 0.5, -0.3 / 0.6]
    np.testing.assert_allclose(channels.mean((0, 2)), expected, rtol=1e-4)


def test_transformers_serve_samples_and_takes_no_thought_out_of_an_answer(tmp_path):
    from transformers.cli.serving import utils

    tags = [*TAGS, "<think>", "</think>"]
    build_tiny_model("tiny:text", tmp_path / "a", corpus=CORPUS, tags=tags, seed=3)
    unsaved = load_processor(tmp_path / "a").tokenizer
    load_model(tmp_path / "a").save(tmp_path / "b")
    saved = load_model(tmp_path / "b")
    answer = "<think>left</think><answer>Up</answer>"

    def served(tokenizer):
        made = tokenizer.encode(answer + tokenizer.eos_token)
        if hasattr(utils, "parse_assistant_message"):
            return utils.parse_assistant_message(tokenizer, saved.model, made, [])[:2]
        about = utils.get_reasoning_config(tokenizer, saved.model)  # transformers 5.10
        return utils.parse_reasoning(tokenizer, made[:-1], answer, about)

    assert served(unsaved) == ("<answer>Up</answer>", "left")
    assert served(saved.processor.tokenizer) == (answer, None)
    assert saved.model.generation_config.do_sample
