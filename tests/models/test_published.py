"""Published architectures are those of the models: the same parameters, the same image sizes."""

import pytest

from vagen.plan.shape import read_shape
from vagen.plan.sizes import counting_processor, must_estimate

QWEN25_3B = "Qwen/Qwen2.5-VL-3B-Instruct"
QWEN25_7B = "Qwen/Qwen2.5-VL-7B-Instruct"
QWEN3_4B = "Qwen/Qwen3-VL-4B-Instruct"


@pytest.mark.parametrize(
    ("model", "parameters"),
    [(QWEN25_3B, 3_754_622_976), (QWEN25_7B, 8_292_166_656), (QWEN3_4B, 4_437_815_808)],
)
def test_parameters_are_those_that_the_hub_shows(model: str, parameters: int) -> None:
    assert read_shape(model).parameters == parameters


def test_an_output_layer_of_its_own_is_not_in_the_critic() -> None:
    """The 7B model's output layer has vocabulary x hidden weights; the others share theirs."""
    shape = read_shape(QWEN25_7B)
    assert shape.parameters - shape.backbone_parameters == 152_064 * 3584
    assert read_shape(QWEN25_3B).backbone_parameters == read_shape(QWEN25_3B).parameters
    assert not shape.tied
    assert read_shape(QWEN3_4B).tied


@pytest.mark.parametrize(
    ("model", "side", "tokens"),
    [
        # Sides are rounded to multiples of 28 pixels, a token each.
        (QWEN25_3B, 128, 25),
        (QWEN25_3B, 192, 49),
        (QWEN25_3B, 255, 81),
        # Multiples of 32 pixels, and at least 256 x 256 pixels.
        (QWEN3_4B, 128, 64),
        (QWEN3_4B, 320, 100),
    ],
)
def test_images_take_the_tokens_that_the_scaling_rule_gives(
    model: str, side: int, tokens: int
) -> None:
    processor = counting_processor(model)
    assert processor.shape_of((side, side)).tokens == tokens


def test_only_published_models_are_estimated() -> None:
    assert not must_estimate("somebody/unheard-of")
    assert not must_estimate("tiny:vl")
