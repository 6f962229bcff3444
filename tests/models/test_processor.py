"""Positions, image lengths, banned ids."""

import functools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from vl_families import (
    FAMILIES,
    IMAGE,
    MERGE,
    VISION_END,
    VISION_START,
    family_class,
    family_config,
)

from vagen.models import ModelError, Processor


@functools.cache
def reference_model(family: str) -> Any:
    with torch.device("meta"):
        return family_class(family)(family_config(family)).model


def processor(family: str) -> Processor:
    return Processor(
        tokenizer=None,
        image_processor=object(),
        model_type=family,
        image_token_id=IMAGE,
        merge_size=MERGE,
    )


def image_block(grid: tuple[int, int, int]) -> list[int]:
    return [VISION_START, *[IMAGE] * (grid[1] * grid[2] // MERGE**2), VISION_END]


sides = st.integers(1, 5).map(lambda side: side * MERGE)
grids = st.tuples(st.just(1), sides, sides)
texts = st.lists(st.integers(0, 59), max_size=7)
contexts = st.lists(st.tuples(texts, st.none() | grids), min_size=1, max_size=6)


@pytest.mark.parametrize("family", FAMILIES)
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
    ours = processor(family)
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
    text = Processor(tokenizer=None, image_processor=None, model_type="qwen3", image_token_id=None)
    places, after = text.positions(np.arange(4, dtype=np.int32), [], 3)
    assert after == 7
    np.testing.assert_array_equal(places, np.tile(np.arange(3, 7), (3, 1)))


@pytest.mark.parametrize("size", [(32, 32), (64, 32), (128, 96)])
def test_an_image_token_stands_for_each_tile(vl_model, size):
    image = Image.new("RGB", size, (200, 10, 10))
    ours = vl_model.processor
    assert ours.image_length(ours.image_grid(image)) == size[0] // 32 * size[1] // 32
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
    banned = set(ours.tokenizer.convert_ids_to_tokens(ours.banned_ids))
    assert banned == {
        "<|image_pad|>",
        "<|video_pad|>",
        "<|vision_start|>",
        "<|vision_end|>",
        "<|vision_pad|>",
        "<|im_start|>",
    }
    assert ours.eos_id not in ours.banned_ids


def test_a_familys_own_image_token_is_banned_whatever_its_name(vl_model):
    other = Processor(
        tokenizer=vl_model.processor.tokenizer,
        image_processor=object(),
        model_type="qwen3_vl",
        image_token_id=5,
    )
    assert 5 in other.banned_ids
