"""Counting tokens without a tokenizer: conversations add up, and nothing in a text is left out."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vagen.config import ExperimentConfig
from vagen.envs import make
from vagen.experiment.load import load_experiment
from vagen.models.published import IMAGE_TOKEN
from vagen.plan.parts import notes
from vagen.plan.sizes import END, PIECES, CountingTokenizer, counting_processor, measure
from vagen.rollout.conversation import ChatRenderer

MODEL = "Qwen/Qwen2.5-VL-3B-Instruct"


@given(st.text(alphabet=st.characters(codec="utf-8")))
def test_every_character_is_in_some_token(text: str) -> None:
    assert "".join(PIECES.findall(text)) == text


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("box is below and right", 5),
        ("coordinates, 12", 6),  # a long word is two; a space before a digit is a token
        ("<answer>Up,Down</answer>", 10),
        ("\n\n", 1),
    ],
)
def test_hand_counted_texts(text: str, count: int) -> None:
    assert len(CountingTokenizer().encode(text)) == count


def test_special_tokens_have_ids_of_their_own() -> None:
    ids = CountingTokenizer().encode("<|im_start|>user\n<|image_pad|><|im_end|>")
    assert ids.count(IMAGE_TOKEN) == 1
    assert ids[-1] == END
    assert len(ids) == 5


def test_a_conversation_in_parts_counts_as_the_whole() -> None:
    """The same check that every real model passes before a run."""
    experiment = load_experiment("sokoban-qwen25vl-3b")
    env = make("Sokoban", experiment.envs["sokoban"].env_config)
    first, _ = env.reset(seed=0)
    second, *_ = env.step(env.expert_response())
    ChatRenderer(counting_processor(MODEL)).check(env.system_prompt(), [first, second, first])


def test_sizes_of_a_published_model_need_no_files_of_it() -> None:
    experiment = load_experiment("frozenlake-qwen25vl-3b")
    size = measure(experiment, MODEL)["frozenlake"]
    assert size.image_tokens == 25
    assert size.patches == 100
    env = make("FrozenLake", experiment.envs["frozenlake"].env_config)
    words = len(re.findall(r"\w+", env.system_prompt()))
    assert words < size.prompt - size.image_tokens < 3 * words


SIMULATED = ("navigation", "primitive-skill", "web")
SHIPPED = [
    pytest.param(f"{game}-{model}", marks=[pytest.mark.slow] if game in SIMULATED else [])
    for game in ("frozenlake", "sokoban", "blackjack", "svg", "household", *SIMULATED)
    for model in ("qwen25vl-3b", "qwen3vl-4b")
]


@pytest.mark.parametrize("name", SHIPPED)
def test_what_ships_resizes_no_frame_and_asks_for_no_reserved_tag(name: str) -> None:
    experiment = load_experiment(name)
    assert _about_environments(experiment) == []


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        (
            "frozenlake-qwen25vl-3b",
            "tile_size=32",
            "frames of 128 x 128 pixels are resized to 140 x 140; sides that are multiples of 28, "
            "56 or more, are left as they are",
        ),
        (
            "frozenlake-qwen25vl-3b",
            "tile_size=36",
            "frames of 144 x 144 pixels are scaled down to 140 x 140",
        ),
        (
            "frozenlake-qwen3vl-4b",
            "tile_size=40",
            "frames of 160 x 160 pixels are resized to 256 x 256; sides that are multiples of 32, "
            "256 or more",
        ),
        (
            "frozenlake-qwen3vl-4b",
            "tags.think=think",
            "<think>, </think>: one added token of the tokenizer each",
        ),
    ],
)
def test_a_plan_says_what_a_published_model_would_make_of_it(
    name: str, words: str, said: str
) -> None:
    experiment = load_experiment(name, [f"envs.frozenlake.env_config.{words}"])
    (note,) = _about_environments(experiment)
    assert f"frozenlake: {said}" in note


def _about_environments(experiment: ExperimentConfig) -> list[str]:
    sizes = measure(experiment, experiment.actor_rollout_ref.model.path)
    return [note for note in notes(experiment, sizes) if note.split(": ")[0] in sizes]
