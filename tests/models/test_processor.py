"""Positions, image lengths, banned ids."""

import copy
import functools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from vl_families import (
    GRID_FAMILIES,
    IMAGE,
    MERGE,
    VISION_END,
    VISION_START,
    bare_processor,
    family_class,
    family_config,
    text_config,
)

from vagen.models import ModelError
from vagen.models.processor import load_processor


@functools.cache
def reference_model(family: str) -> Any:
    with torch.device("meta"):
        return family_class(family)(family_config(family)).model


def image_block(grid: tuple[int, int, int]) -> list[int]:
    return [VISION_START, *[IMAGE] * (grid[1] * grid[2] // MERGE**2), VISION_END]


sides = st.integers(1, 5).map(lambda side: side * MERGE)
grids = st.tuples(st.just(1), sides, sides)
texts = st.lists(st.integers(0, 59), max_size=7)
contexts = st.lists(st.tuples(texts, st.none() | grids), min_size=1, max_size=6)


@pytest.mark.parametrize("family", GRID_FAMILIES)
@settings(max_examples=60, deadline=None)
@given(context=contexts, cut=st.integers(0, 5))
def test_positions_are_those_of_transformers(family, context, cut):
    """Also when the context comes in two parts, as it does over turns."""
    parts = [(text + (image_block(g) if g else []), [g] if g else []) for text, g in context]
    ids = np.array([token for part, _ in parts for token in part], dtype=np.int32)
    if not len(ids):
        return
    all_grids = [grid for _, part in parts for grid in part]
    tensor = torch.from_numpy(ids).long()[None]
    expected, deltas = reference_model(family).get_rope_index(
        tensor,
        mm_token_type_ids=(tensor == IMAGE).int(),
        image_grid_thw=torch.tensor(all_grids) if all_grids else None,
        attention_mask=torch.ones_like(tensor),
    )
    ours = bare_processor(family_config(family))
    whole, after = ours.positions(ids, all_grids, 0)
    np.testing.assert_array_equal(whole, expected[:, 0].numpy())
    assert after == len(ids) + int(deltas[0])

    start, found = 0, []
    for part in (parts[:cut], parts[cut:]):
        part_ids = np.array([token for ids, _ in part for token in ids], dtype=np.int32)
        place, start = ours.positions(part_ids, [g for _, grids in part for g in grids], start)
        found.append(place)
    np.testing.assert_array_equal(np.concatenate(found, axis=1), whole)


def test_positions_of_a_text_model_are_a_line():
    text = bare_processor(text_config())
    places, after = text.positions(np.arange(4, dtype=np.int32), [], 3)
    assert after == 7
    np.testing.assert_array_equal(places, np.tile(np.arange(3, 7), (3, 1)))


@pytest.mark.parametrize("side", [40, 61, 100, 333, 900])
def test_a_grid_is_known_before_the_image_is_processed(vl_model, side):
    ours = vl_model.processor
    for size in ((side, side), (side, 2 * side), (3 * side + 1, side)):
        image = Image.new("RGB", size)
        assert ours.shape_of(image.size).grid == ours.process_image(image).grid


@pytest.mark.parametrize("size", [(4, 4), (96, 96), (100, 97), (333, 70), (513, 512), (900, 2000)])
def test_a_frame_is_scaled_down_as_the_image_processor_does_it(vl_model, size):
    frame = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    ours = vl_model.processor
    fitted, read = ours.fitted(frame), ours.process_image(Image.fromarray(frame))
    np.testing.assert_array_equal(
        ours.process_image(Image.fromarray(fitted)).pixel_values, read.pixel_values
    )
    _, rows, columns = read.grid
    larger = frame[..., 0].size > rows * columns * ours.image_processor.patch_size**2
    assert (fitted is not frame) == larger


@pytest.mark.parametrize("size", [(32, 32), (64, 32), (128, 96)])
def test_an_image_token_stands_for_each_tile(vl_model, size):
    image = Image.new("RGB", size, (200, 10, 10))
    ours = vl_model.processor
    assert ours.shape_of(image.size).tokens == size[0] // 32 * size[1] // 32
    processed = ours.process_image(image)
    assert processed.pixel_values.shape[0] == np.prod(processed.grid)


def test_processed_images_are_kept_apart(vl_model):
    """The memory is keyed by content: equal bytes of another shape are another image."""
    ours = vl_model.processor
    noise = np.random.Generator(np.random.Philox(1)).integers(0, 256, (64, 32, 3), dtype=np.uint8)
    tall, wide = Image.fromarray(noise), Image.fromarray(noise.reshape(32, 64, 3))
    assert ours.process_image(tall).grid != ours.process_image(wide).grid
    again = ours.process_image(Image.fromarray(noise))
    assert again is ours.process_image(tall)
    plain = ours.image_processor(images=[tall], return_tensors="np")["pixel_values"]
    np.testing.assert_array_equal(again.pixel_values, plain)


def test_images_are_refused_by_a_text_model(text_model):
    assert not text_model.processor.has_vision
    with pytest.raises(ModelError, match="render_mode=text"):
        text_model.processor.process_image(Image.new("RGB", (32, 32)))


def test_banned_are_image_video_and_header_tokens(vl_model):
    ours = vl_model.processor
    tokens = len(ours.tokenizer)
    banned = set(ours.tokenizer.convert_ids_to_tokens([i for i in ours.banned_ids if i < tokens]))
    assert banned == {
        "<|image_pad|>",
        "<|video_pad|>",
        "<|vision_start|>",
        "<|vision_end|>",
        "<|vision_pad|>",
        "<|im_start|>",
    }
    assert ours.eos_id not in ours.banned_ids


def test_banned_are_ids_of_no_token(vl_model):
    """The output layer is padded: its last rows are no tokens, and vLLM never samples them."""
    ours = vl_model.processor
    rows = vl_model.model.lm_head.weight.shape[0]
    assert rows > len(ours.tokenizer)
    assert set(range(len(ours.tokenizer), rows)) <= set(ours.banned_ids) <= set(range(rows))


LLAMA = """\
{{ bos_token }}{% for message in messages -%}
<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n{{ message['content'] }}<|eot_id|>
{%- endfor -%}
{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>{% endif %}"""


def retold(text_model, folder, template: str, eos: str) -> str:
    """The text model's tokenizer and configuration with another family's chat template."""
    tokenizer = copy.deepcopy(text_model.processor.tokenizer)
    tokenizer.add_special_tokens(
        {
            "bos_token": "<|begin_of_text|>",
            "eos_token": eos,
            "additional_special_tokens": [
                *("<|start_header_id|>", "<|end_header_id|>", "<|python_tag|>", "<|im_start|>")
            ],
        }
    )
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    text_model.model.config.save_pretrained(folder)
    return str(folder)


def test_header_tokens_are_those_of_the_chat_template(text_model, tmp_path):
    """Not the token that ends a turn, and not special tokens that the template never writes."""
    ours = load_processor(retold(text_model, tmp_path, LLAMA, "<|eot_id|>"))
    banned = set(ours.tokenizer.convert_ids_to_tokens(ours.header_ids))
    assert banned == {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"}
    assert set(ours.header_ids) <= set(ours.banned_ids)
    assert ours.eos_id not in ours.banned_ids


def test_a_template_without_a_system_prompt_is_refused(text_model, tmp_path):
    template = "{{ raise_exception('System role not supported') }}"
    with pytest.raises(ModelError, match=r"with a system prompt \(System role not supported\)"):
        load_processor(retold(text_model, tmp_path, template, "<|im_end|>"))
