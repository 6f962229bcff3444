"""Packed rows and cached conversations against `transformers`' own forward pass.

Every Qwen-VL family and the text model, random weights, rows of different lengths with and without
pictures; once with nothing in common, once with a common beginning and pictures of one size, once
in groups with one prompt. The reference is the model with sdpa attention on one row alone, or on a
padded batch.
"""

import copy
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.attention.bias import CausalBias
from vl_families import (
    GRID_FAMILIES,
    IMAGE,
    VISION_END,
    VISION_START,
    bare_processor,
    family_class,
    family_config,
    text_config,
)

from vagen.engines.local.packing import RowPrefix, micro_batches, pack, stretch_of
from vagen.models.attention import ATTENTION, SlotCache, packed_attention, segments_of
from vagen.models.loading import LanguageModel
from vagen.models.processor import ImageIds, ProcessedImage, Processor
from vagen.rollout.types import TokenRow

CPU = torch.device("cpu")
GRIDS = {"a": (1, 4, 2), "b": (1, 4, 4), "c": (1, 2, 6), "d": (1, 2, 6), "e": (1, 2, 6)}


def image(name: str) -> ProcessedImage:
    grid = GRIDS[name]
    rng = np.random.Generator(np.random.Philox(ord(name)))
    pixels = rng.standard_normal((grid[1] * grid[2], 3 * 2 * 16 * 16)).astype(np.float32)
    return ProcessedImage(pixels, grid, grid[1] * grid[2] // 4)


IMAGES = {name: image(name) for name in GRIDS}


def row(name: str, pictures: str, texts: tuple[int, ...]) -> TokenRow:
    """Texts of these lengths with a picture between each two."""
    rng = np.random.Generator(np.random.Philox(len(texts) + sum(texts)))
    ids: list[int] = []
    for i, length in enumerate(texts):
        if i:
            grid = GRIDS[pictures[i - 1]]
            ids += [VISION_START, *[IMAGE] * (grid[1] * grid[2] // 4), VISION_END]
        ids += rng.integers(0, 50, length).tolist()
    mask = np.zeros(len(ids), np.bool_)
    mask[-texts[-1] :] = True
    return TokenRow(
        trajectory_id=name,
        row_index=0,
        input_ids=np.asarray(ids, np.int32),
        loss_mask=mask,
        turn_index=np.where(mask, 0, -1).astype(np.int16),
        rollout_logprobs=np.zeros(len(ids), np.float32),
        images=list(pictures),
    )


VISION_ROWS = [
    row("0", "ab", (3, 2, 4)),
    row("1", "ba", (2, 2, 4)),
    row("2", "c", (9, 6)),
    row("3", "", (18,)),
    row("4", "", (18,)),
    row("5", "", (5,)),
]
"""Neighbours of equal, similar and different lengths: attention treats them differently."""
TEXT_ROWS = [row(str(i), "", (length,)) for i, length in enumerate((11, 10, 10, 7, 7, 3))]


def beginning_alike(rows: list[TokenRow], length: int) -> list[TokenRow]:
    """The rows, each with the same `length` first tokens."""
    for r in rows:
        r.input_ids[:length] = np.arange(length)
    return rows


ALIKE_VISION_ROWS = beginning_alike(
    [
        row("0", "cd", (9, 2, 4)),
        row("1", "dc", (9, 3, 4)),
        row("2", "ed", (9, 2, 5)),
        row("3", "", (18,)),
        row("4", "e", (8, 4)),
        row("5", "", (9,)),
    ],
    8,
)
ALIKE_TEXT_ROWS = beginning_alike(
    [row(str(i), "", (length,)) for i, length in enumerate((14, 13, 13, 11, 9, 8))], 7
)


def group(pictures: str, texts: tuple[int, ...], answers: tuple[int, ...]) -> list[TokenRow]:
    """Rows with one prompt and answers of these lengths."""
    *before, last = texts
    rows = [row(str(i), pictures, (*before, last + length)) for i, length in enumerate(answers)]
    for r, length in zip(rows, answers, strict=True):
        r.input_ids[:-length] = rows[0].input_ids[: -answers[0]]
        r.loss_mask[:-length] = False
    return rows


ROWS = {
    ("grouped", "vision"): [
        *group("ab", (3, 2, 1), (9, 5, 4)),
        *group("", (12,), (4, 4)),
        *VISION_ROWS[:1],
        *group("cd", (2, 5, 2), (12, 3)),
    ],
    ("grouped", "text"): [*group("", (9,), (7, 5, 4)), *TEXT_ROWS[:2], *group("", (11,), (3, 3))],
    ("different", "vision"): VISION_ROWS,
    ("different", "text"): TEXT_ROWS,
    ("alike", "vision"): ALIKE_VISION_ROWS,
    ("alike", "text"): ALIKE_TEXT_ROWS,
}


@pytest.fixture(
    scope="module",
    params=itertools.product([*GRID_FAMILIES, "qwen3"], ["different", "alike", "grouped"]),
    ids=lambda param: "-".join(param),
)
def pair(request):
    """The model with our attention, the same weights with sdpa, and rows it can read."""
    family, kind = request.param
    rows = ROWS[kind, "text" if family == "qwen3" else "vision"]
    torch.manual_seed(5)
    if family == "qwen3":
        from transformers import Qwen3ForCausalLM

        config, cls = text_config(), Qwen3ForCausalLM
    else:
        config, cls = family_config(family), family_class(family)
    plain = cls._from_config(copy.deepcopy(config), attn_implementation="sdpa").eval()
    for parameter in plain.parameters():  # far from uniform attention
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
    ours = cls._from_config(copy.deepcopy(config), attn_implementation=ATTENTION).eval()
    ours.load_state_dict(plain.state_dict())
    return LanguageModel(ours, bare_processor(config)), plain, rows


def whole(plain, processor: Processor, rows: list[TokenRow]) -> list[torch.Tensor]:
    """Logits [T, V] of each row from `transformers` itself, as one right-padded batch."""
    longest = max(len(r.input_ids) for r in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    mask = torch.zeros(len(rows), longest, dtype=torch.long)
    for i, r in enumerate(rows):
        ids[i, : len(r.input_ids)] = torch.from_numpy(r.input_ids)
        mask[i, : len(r.input_ids)] = 1
    inputs = {}
    pictures = [IMAGES[name] for r in rows for name in r.images]
    if pictures:
        inputs = {
            "pixel_values": torch.from_numpy(np.concatenate([p.pixel_values for p in pictures])),
            "image_grid_thw": torch.tensor([p.grid for p in pictures]),
            "mm_token_type_ids": (ids == processor.image_token_id).int(),
        }
    logits = plain(input_ids=ids, attention_mask=mask, **inputs).logits
    return [logits[i, : len(r.input_ids)] for i, r in enumerate(rows)]


def packed_logits(model: LanguageModel, rows: list[TokenRow]) -> list[torch.Tensor]:
    packed = pack(rows, IMAGES, model.processor, CPU, torch.float32, None)
    line = model.model.lm_head(model.hidden(**packed.inputs)[0])
    return list(packed.spread(line).split(packed.lengths))


def test_packed_rows_are_rows_alone_are_a_padded_batch(pair):
    model, plain, rows = pair
    with torch.no_grad():
        packed = packed_logits(model, rows)
        alone = [packed_logits(model, [r])[0] for r in rows]
        padded = whole(plain, model.processor, rows)
        reference = [whole(plain, model.processor, [r])[0] for r in rows]
    for versions in zip(packed, alone, padded, reference, strict=True):
        for version in versions[1:]:
            torch.testing.assert_close(versions[0], version, atol=2e-5, rtol=1e-4)


def test_gradients_of_packed_rows_are_those_of_a_padded_batch(pair):
    model, plain, rows = pair

    def gradients(network, logits):
        network.zero_grad()
        loss = sum(x.log_softmax(-1)[:-1, 7].mean() for x in logits)
        loss.backward()
        found = {n: p.grad.clone() for n, p in network.named_parameters() if p.grad is not None}
        network.zero_grad()
        return found

    expected = gradients(plain, whole(plain, model.processor, rows))
    found = gradients(model.model, packed_logits(model, rows))
    assert expected.keys() == found.keys()
    assert max(float(g.abs().max()) for g in expected.values()) > 1e-3
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, atol=2e-5, rtol=1e-3, msg=name)


def test_rows_do_not_see_each_other(pair):
    model, _, rows = pair
    with torch.no_grad():
        before = packed_logits(model, rows)
        changed = copy.deepcopy(rows)
        changed[0].input_ids[-4] += 1  # behind what is shared
        after = packed_logits(model, changed)
    assert not torch.equal(before[0], after[0])
    for a, b in zip(before[1:], after[1:], strict=True):
        assert torch.equal(a, b)


def test_what_stands_behind_the_last_token_asked_about_is_not_read(pair):
    model, _, rows = pair
    asked = {id(r): np.arange(len(r.input_ids)) == 1 + i for i, r in enumerate(rows)}
    some = [r for i, r in enumerate(rows) if 1 + i < len(r.input_ids)]

    def ask(r: TokenRow) -> np.ndarray:
        return asked[id(r)]

    packed = pack(some, IMAGES, model.processor, CPU, torch.float32, ask)
    assert packed.inputs["input_ids"].shape[1] <= sum(asked[id(r)].argmax() + 1 for r in some)
    with torch.no_grad():
        found = model.hidden(**packed.inputs)[0][packed.predictors]
        states = pack(some, IMAGES, model.processor, CPU, torch.float32, None)
        line = states.spread(model.hidden(**states.inputs)[0]).split(states.lengths)
    expected = [states[asked[id(r)].argmax() - 1] for r, states in zip(some, line, strict=True)]
    torch.testing.assert_close(found, torch.stack(expected), atol=2e-5, rtol=1e-4)
    assert packed.targets.tolist() == [int(r.input_ids[ask(r)][0]) for r in some]
    assert [len(x) for x in packed.scatter(torch.ones(len(some)))] == packed.lengths


def test_a_frame_is_read_whole():
    r = row("0", "c", (4, 3))
    image = np.flatnonzero(r.input_ids == IMAGE)
    r.loss_mask[:] = np.arange(len(r.input_ids)) == image[1]
    assert len(stretch_of(r, lambda r: r.loss_mask, ImageIds(IMAGE)).ids) == image[-1] + 1


def line_of(rows: list[TokenRow], ask=None) -> tuple[int, int]:
    """Tokens of the rows and of the line."""
    processor = bare_processor(family_config("qwen3_vl"))
    packed = pack(rows, IMAGES, processor, CPU, torch.float32, ask)
    return sum(packed.lengths), packed.inputs["input_ids"].shape[1]


def test_a_common_beginning_of_text_is_laid_once():
    whole, line = line_of(ALIKE_VISION_ROWS)
    assert whole - line == 8 * 5
    alike, other = row("0", "c", (1, 30)), row("1", "d", (1, 30))
    whole, line = line_of([alike, other])
    assert whole - line == 0, "not for the token or two before the image"
    whole, line = line_of(ALIKE_VISION_ROWS[:1])
    assert whole == line


def test_the_prompt_of_a_group_is_laid_once_with_its_frames():
    rows = group("ab", (3, 2, 1), (9, 5, 4))
    prompt = len(rows[0].input_ids) - 9
    whole, line = line_of(rows)
    assert whole - line == 2 * prompt
    others = group("dc", (3, 2, 1), (6, 7))
    whole, line = line_of([*rows[:2], *others])
    assert whole - line == prompt + len(others[0].input_ids) - 6


def test_equal_ids_with_other_frames_are_another_prompt():
    first, second = group("cd", (3, 2, 1), (9, 5))
    assert line_of([first, second])[1] < line_of([first, second])[0]
    second.images = ["d", "c"]
    whole, line = line_of([first, second])
    assert whole - line <= 3, "no more than the text before the first frame"


def stretches(rows: list[TokenRow]) -> list[RowPrefix]:
    return [stretch_of(r, lambda r: r.loss_mask, ImageIds(IMAGE)) for r in rows]


def test_micro_batches_hold_every_row_once_within_the_budget():
    rows = [row(str(i), "", (length,)) for i, length in enumerate([5, 30, 7, 7, 12, 1])]
    groups = list(micro_batches(stretches(rows), 14))
    assert sorted(i for group in groups for i in group) == list(range(6))
    for members in groups:
        assert sum(len(rows[i].input_ids) for i in members) <= 14 or members == [1]
    assert list(micro_batches([], 14)) == []


@pytest.mark.parametrize("parts", [1, 2, 4, 8])
def test_micro_batches_in_parts_are_of_equal_size(parts: int):
    lengths = np.random.default_rng(parts).integers(1, 60, size=40).tolist()
    rows = [row(str(i), "", (length,)) for i, length in enumerate(lengths)]
    groups = micro_batches(stretches(rows), 10_000, lambda _: parts)
    tokens = [sum(lengths[i] for i in members) for members in groups]
    assert len(tokens) == parts
    assert all(abs(size - sum(lengths) / parts) <= max(lengths) for size in tokens)


@pytest.mark.parametrize("budget", [40, 85, 200])
def test_micro_batches_count_the_prompt_of_a_group_once(budget: int):
    groups = [group("", (20 + n,), (9, 5, 4)) for n in range(3)]
    rows = [groups[i % 3][i // 3] for i in range(9)]  # not in order
    found = list(micro_batches(stretches(rows), budget))
    assert sorted(i for members in found for i in members) == list(range(9))
    for members in found:
        assert line_of([rows[i] for i in members])[1] <= budget
    assert len(found) == {40: 3, 85: 2, 200: 1}[budget]
    tokens = []
    list(micro_batches(stretches(rows), budget, lambda total: tokens.append(total) or 1))
    assert tokens == [sum(line_of(members)[1] for members in groups)]


def cache(slots: int, length: int) -> SlotCache:
    config = SimpleNamespace(
        num_key_value_heads=1, num_attention_heads=2, hidden_size=4, num_hidden_layers=2
    )
    return SlotCache(config, slots, length, CPU, torch.float32)


def write(slots: SlotCache, first: int, starts: list[int], new: torch.Tensor) -> torch.Tensor:
    """Writes keys [B, H, n, D] behind each slot's `starts`; returns all keys of the focus."""
    count = new.shape[2]
    reach = max(starts) + count
    slots.grow(reach)
    slots.focus(first, first + len(starts), torch.tensor(starts), count, reach)
    keys, values = slots.update(new, -new, 1)
    assert torch.equal(keys, -values)
    return keys.reshape(len(starts), 1, -1, 2)[:, :, :reach].clone()


def test_slots_keep_their_own_lengths():
    slots = cache(3, 4)
    new = torch.arange(1.0, 9.0).reshape(2, 1, 2, 2)
    keys = write(slots, 1, [0, 2], new)
    torch.testing.assert_close(keys[0, 0, :2], new[0, 0])
    torch.testing.assert_close(keys[1, 0, 2:], new[1, 0])
    assert not keys[1, 0, :2].any()


def test_growing_and_swapping_keep_what_is_cached():
    slots = cache(3, 4)
    first, second = torch.full((1, 1, 4, 2), 2.0), torch.full((1, 1, 3, 2), 3.0)
    write(slots, 0, [0], first)
    write(slots, 2, [0], second)
    slots.grow(5)
    assert slots.length >= 5
    slots.swap(0, 2, 4)
    more = torch.full((1, 1, 1, 2), 9.0)
    torch.testing.assert_close(write(slots, 2, [4], more), torch.cat([first, more], 2))
    torch.testing.assert_close(write(slots, 0, [3], more), torch.cat([second, more], 2))


def test_equal_beginnings_are_read_once():
    torch.manual_seed(2)
    batch, heads, size, reach, prefix = 3, 2, 4, 9, 5
    keys, values = torch.randn(2, batch, heads, reach, size)
    keys[:, :, :prefix], values[:, :, :prefix] = (keys[:1, :, :prefix], values[:1, :, :prefix])
    query = torch.randn(batch, 2 * heads, 1, size)
    mask = cache(3, reach).masks(torch.tensor([8, 5, 6]), 1, reach)["attention_mask"]

    def attended(prefix: int) -> torch.Tensor:
        module = torch.nn.Module()
        return packed_attention(module, query, keys, values, mask, 0.3, prefix=prefix)[0]

    expected = attended(0)
    torch.testing.assert_close(attended(prefix), expected)
    keys[1:, :, :prefix] = torch.nan
    torch.testing.assert_close(attended(prefix), expected)


def test_a_gpu_needs_no_mask_in_memory():
    """Its groups carry `causal_lower_right`, which flash attention computes itself."""
    torch.manual_seed(2)
    found = []
    for device in ("cpu", "cuda"):
        segments = segments_of([6, 6, 3], torch.device(device), shared=5)
        assert isinstance(segments[1].mask, CausalBias) == (device == "cuda")
        torch.manual_seed(2)
        query, key = torch.randn(1, 4, 20, 8), torch.randn(1, 2, 20, 8)
        module = torch.nn.Module()
        found.append(packed_attention(module, query, key, key, None, segments=segments)[0])
    torch.testing.assert_close(*found)


def test_cached_attention_adds_up_in_float32():
    """In bfloat16 too, whose rounded scores would be twice as far from float64."""
    torch.manual_seed(3)
    batch, heads, size, reach, prefix = 3, 2, 16, 40, 20
    keys, values = torch.randn(2, batch, heads, reach, size, dtype=torch.float64)
    keys[:, :, :prefix], values[:, :, :prefix] = keys[:1, :, :prefix], values[:1, :, :prefix]
    query = 3 * torch.randn(batch, 2 * heads, 1, size, dtype=torch.float64)
    mask = cache(3, reach).masks(torch.tensor([39, 30, 25]), 1, reach)["attention_mask"]

    def attended(dtype: torch.dtype) -> torch.Tensor:
        q, k, v = (part.to(torch.bfloat16).to(dtype) for part in (query, keys, values))
        module = torch.nn.Module()
        found = packed_attention(module, q, k, v, mask.to(dtype), 0.25, prefix=prefix)
        return found[0].double()

    assert (attended(torch.bfloat16) - attended(torch.float64)).abs().max() < 0.008
