"""The vision tower in batches against `transformers`' own loop over images and windows."""

import copy
from types import SimpleNamespace

import pytest
import torch
from vl_families import GRID_FAMILIES, family_class, family_config

from vagen.models import vision
from vagen.models.vision import prepare_vision

SQUARE, WIDE = (1, 10, 10), (1, 6, 14)
"""Windows of 4 x 4 patches: of both sizes some are cut at the right and at the bottom."""


def pixels(grids) -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(sum(t * h * w for t, h, w in grids), 3 * 2 * 16 * 16)


@pytest.fixture(scope="module", params=GRID_FAMILIES)
def towers(request):
    """The tower as `transformers` runs it, and the prepared one with the same weights."""
    torch.manual_seed(5)
    config = family_config(request.param)
    plain = family_class(request.param)._from_config(config, attn_implementation="sdpa").eval()
    ours = copy.deepcopy(plain)
    prepare_vision(ours)
    return plain.model.visual, ours.model.visual


def read(tower, grids) -> torch.Tensor:
    output = tower(pixels(grids), grid_thw=torch.tensor(grids))
    return torch.cat([output.pooler_output, *getattr(output, "deepstack_features", ())])


@pytest.mark.parametrize("grids", [[SQUARE], [SQUARE] * 3, [SQUARE, WIDE, SQUARE]])
def test_features_and_gradients_are_those_of_the_loop(towers, grids):
    gradients = []
    for tower in towers:
        tower.zero_grad()
        found = read(tower, grids)
        found.square().sum().backward()
        gradients.append((found, [p.grad for p in tower.parameters() if p.grad is not None]))
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-5)


def test_calls_of_attention_do_not_grow_with_the_number_of_frames(towers, monkeypatch):
    calls = []

    def counted(*args, **kwargs):
        calls.append(args[0].shape)
        return torch.nn.functional.scaled_dot_product_attention(*args, **kwargs)

    monkeypatch.setattr(vision, "scaled_dot_product_attention", counted)
    _, ours = towers
    numbers = []
    for grids in ([SQUARE], [SQUARE] * 20):
        calls.clear()
        read(ours, grids)
        numbers.append(len(calls))
    # Two blocks; the windowed one of Qwen2.5-VL has windows of 16, 8 and 4 patches.
    assert numbers == ([4, 4] if hasattr(ours, "window_size") else [2, 2])


def test_a_training_after_generation_uses_what_generation_laid_out(towers):
    _, ours = towers
    grids = [(1, 6, 10)]
    with torch.inference_mode():
        seen = read(ours, grids)
    trained = read(ours, grids)
    trained.sum().backward()
    assert torch.equal(seen, trained.detach())


def test_a_model_without_a_tower_stays_as_it_is():
    linear = torch.nn.Linear(2, 2)
    prepare_vision(SimpleNamespace(model=linear, modules=linear.modules))
    assert not linear._forward_hooks
