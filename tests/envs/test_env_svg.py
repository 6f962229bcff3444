"""SVG: the data set, the scores, the episode, the scorers from a local directory."""

import json
import shutil

import numpy as np
import pytest
from pydantic import ValidationError
from svg_attacks import svg

from vagen import envs
from vagen.envs.levels import split_of
from vagen.envs.svg.features import ADAPTERS, PROJECTIONS, ScorerError, load_scorer
from vagen.envs.svg.icons import LEVELS, sample_icon
from vagen.envs.svg.raster import rasteriser
from vagen.envs.svg.safety import colours_and_shapes, read_document
from vagen.envs.svg.score import Target, compare

WEIGHTS = {"structure": 0.3, "colour": 0.3, "edges": 0.4}


def score(target, picture):
    parts = compare(target, picture)
    assert all(0.0 <= value <= 1.0 for value in parts.values())
    return sum(weight * parts[part] for part, weight in WEIGHTS.items())


def shifted(picture, down, right):
    moved = np.full_like(picture, 255)
    rows, columns = picture.shape[:2]
    moved[max(down, 0) : rows + min(down, 0), max(right, 0) : columns + min(right, 0)] = picture[
        max(-down, 0) : rows + min(-down, 0), max(-right, 0) : columns + min(-right, 0)
    ]
    return moved


THIN = svg(
    '<g fill="none" stroke="black" stroke-width="1.5"><circle cx="128" cy="128" r="90"/>'
    '<path d="M40 40 L216 216 M40 216 L216 40"/></g>'
)
PALE = svg('<circle cx="128" cy="128" r="100" fill="#ffffd8"/>')
FULL = svg('<rect width="256" height="256" fill="teal"/><circle cx="99" cy="99" r="60"/>')


@pytest.mark.parametrize("document", [THIN, PALE, FULL], ids=["thin", "pale", "full"])
def test_copies_shifts_and_empty_sheets_of_drawings_by_hand(document):
    picture = rasteriser(256).draw(document)
    target = Target.of(picture)
    assert score(target, picture.copy()) == 1.0
    assert score(target, np.full_like(picture, 255)) < 0.05
    for down, right in ((2, 0), (-2, 0), (0, 2), (0, -2)):
        assert score(target, shifted(picture, down, right)) > 0.8


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_copies_shifts_and_empty_sheets_of_icons(level):
    drawer, pictures = rasteriser(256), []
    for seed in range(4):
        picture = drawer.draw(sample_icon((level, level), seed, "test").document)
        pictures.append(picture)
        target = Target.of(picture)
        assert score(target, picture.copy()) >= 0.99
        assert score(target, np.full_like(picture, 255)) < 0.3
        assert score(target, shifted(picture, 2, 0)) > 0.8
        assert score(target, shifted(picture, 0, -2)) > 0.8
        assert score(target, shifted(picture, 1, 1)) > 0.8
        assert score(target, shifted(picture, 40, 40)) < 0.75
    strangers = [
        score(Target.of(one), other) for one in pictures for other in pictures if one is not other
    ]
    assert np.mean(strangers) < 0.4


def test_each_part_falls_with_what_it_measures():
    def parts(document):
        return compare(target, rasteriser(256).draw(document))

    box = '<rect x="48" y="48" width="160" height="160" fill="{}"/>'
    target = Target.of(rasteriser(256).draw(svg(box.format("red"))))
    other_colour, outline = (
        parts(svg(box.format("blue"))),
        parts(svg('<rect x="48" y="48" width="160" height="160" fill="none" stroke="red"/>')),
    )
    assert other_colour["edges"] == 1.0 and other_colour["colour"] <= 0.5
    assert outline["edges"] > 0.9 and outline["colour"] < 0.3
    disc = parts(svg('<circle cx="128" cy="128" r="80" fill="red"/>'))
    assert disc["colour"] > 0.8 and disc["edges"] < 0.5
    assert parts(svg(""))["edges"] == 0.0


@pytest.mark.parametrize("level", LEVELS)
def test_icons_are_drawable_distinct_and_in_their_split(level):
    seen = {}
    for split in envs.SPLITS:
        for seed in range(12):
            icon = sample_icon((level, level), seed, split)
            assert icon == sample_icon((level, level), seed, split)
            assert split_of(icon.level_hash) == split and icon.difficulty == level
            shapes = colours_and_shapes(read_document(icon.document))
            assert len(shapes) >= {1: 1, 2: 2, 3: 3}.get(level, 2)
            assert seen.setdefault(icon.level_hash, icon.document) == icon.document
    assert len(seen) > 30


def test_levels_grow_in_size():
    lengths = [
        np.mean([len(sample_icon((level, level), seed, "train").document) for seed in range(30)])
        for level in LEVELS
    ]
    assert lengths == sorted(lengths)


def test_later_turns_show_the_target_and_the_last_drawing():
    env = envs.make("SVG", {"prompt_format": "no_think", "success_score": 1.0})
    first, info = env.reset(seed=4)
    assert first["text"].count("<image>") == len(first["images"]) == 1
    drawing = svg('<circle cx="99" cy="99" r="70" fill="green"/>')
    second, reward, terminated, _, after = env.step(f"<answer>\n{drawing}\n</answer>")
    assert second["text"].count("<image>") == len(second["images"]) == 2
    np.testing.assert_array_equal(second["images"][0], first["images"][0])
    np.testing.assert_array_equal(second["images"][1], rasteriser(256).draw(drawing))
    assert 0.5 < reward < 1.0 and not terminated and not after["success"]
    assert after["rewards"] == {"env": pytest.approx(after["state"]["score"]), "format": 0.5}
    assert after["state"]["shapes"] == [["green", "circle"]]
    assert drawing not in second["text"]
    # A response that is not read leaves the drawing where it is.
    third, reward, *_, later = env.step("<answer>a circle</answer>")
    assert reward == 0.0 and len(third["images"]) == 2 and later["state"] == after["state"]
    *_, last = env.step(env.expert_response())
    assert last["success"] and last["state"]["score"] == 1.0
    assert info["state"]["target"] == last["state"]["target"]


def test_improvement_is_paid_once():
    env = envs.make("SVG", {"prompt_format": "no_think", "reward": "vagen-new", "side": 64})
    env.reset(seed=2)
    target = Target.of(env._target.picture)
    paid = []
    for radius in (20, 60, 60, 20):
        document = svg(f'<circle cx="128" cy="128" r="{radius}"/>')
        *_, info = env.step(f"<answer>{document}</answer>")
        paid.append(info["rewards"]["env"])
        assert info["state"]["score"] == pytest.approx(
            score(target, rasteriser(64).draw(document)), abs=1e-5
        )
    assert paid[2] == paid[3] == 0.0
    assert sum(paid) == pytest.approx(info["state"]["best"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"difficulty": [3, 1]}, "least and the greatest level"),
        ({"difficulty": [0, 6]}, "from 1 to 5"),
        ({"scorer": "dino"}, "dino_path"),
        ({"scorer": "dreamsim"}, "dreamsim_path"),
        ({"scorer": "weights"}, "score_weights goes with"),
        ({"score_weights": {"edges": 1.0}}, "score_weights goes with"),
        ({"scorer": "weights", "score_weights": {"edges": 0.0}}, "at least one"),
        ({"scorer": "weights", "score_weights": {"dino": 1.0}}, "dino_path"),
        ({"max_actions_per_step": 2}, "one document"),
        ({"prompt_format": "grounding_symbolic"}, "cannot be written as symbolic"),
    ],
)
def test_options_that_cannot_work_are_refused(options, message):
    with pytest.raises(ValidationError, match=message):
        envs.make("SVG", options)


@pytest.fixture(scope="module")
def dino_folder(tmp_path_factory):
    """A tiny DINOv2 with random weights, saved as a model directory."""
    import torch
    from transformers import Dinov2Config, Dinov2Model

    folder = tmp_path_factory.mktemp("dinov2")
    torch.manual_seed(0)
    config = Dinov2Config(
        hidden_size=48, num_hidden_layers=2, num_attention_heads=4, patch_size=14, image_size=56
    )
    Dinov2Model(config).save_pretrained(folder)
    return folder


@pytest.mark.slow
def test_dino_scores_from_a_local_directory(dino_folder):
    env = envs.make("SVG", {"scorer": "dino", "dino_path": str(dino_folder), "side": 64})
    env.reset(seed=0)
    target, blank = env._target.picture, np.full((64, 64, 3), 255, np.uint8)
    scorer = load_scorer("dino", str(dino_folder))
    assert scorer.score(target, target.copy()) == pytest.approx(1.0, abs=1e-5)
    assert 0.0 <= scorer.score(target, blank) < 0.9999
    *_, info = env.step(env.expert_response())
    assert info["state"]["scores"] == {"dino": pytest.approx(1.0, abs=1e-5)} and info["success"]
    mixed = envs.make(
        "SVG",
        {
            "scorer": "weights",
            "score_weights": {"dino": 1.0, "edges": 3.0},
            "dino_path": str(dino_folder),
            "side": 64,
        },
    )
    mixed.reset(seed=0)
    document = svg('<circle r="90" fill="red"/>')
    *_, info = mixed.step(f"<think>x</think><answer>{document}</answer>")
    scores = info["state"]["scores"]
    assert set(scores) == {"dino", "edges"}
    expected = (scores["dino"] + 3 * scores["edges"]) / 4
    assert info["state"]["score"] == pytest.approx(expected, abs=1e-5)


def write_adapter(folder, blocks, hidden, rank=4, binary=False):
    """A low-rank adapter under the names of DreamSim's releases; returns its weights."""
    import torch

    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(1)
    weights = {}
    for block in range(blocks):
        name = f"base_model.model.extractor_list.0.model.blocks.{block}.attn.qkv.lora_"
        weights[f"{name}A.weight"] = torch.randn(rank, hidden, generator=generator)
        weights[f"{name}B.weight"] = torch.randn(3 * hidden, rank, generator=generator)
    options = {"r": rank, "lora_alpha": 2.0, "target_modules": ["qkv"], "lora_dropout": 0.3}
    (folder / "adapter_config.json").write_text(json.dumps(options))
    if binary:
        torch.save(weights, folder / "adapter_model.bin")
    else:
        from safetensors.torch import save_file

        save_file(weights, folder / "adapter_model.safetensors")
    return weights


@pytest.mark.slow
@pytest.mark.parametrize("binary", [False, True])
def test_dreamsim_is_its_backbone_with_the_adapter_of_its_release(dino_folder, tmp_path, binary):
    import torch
    from transformers import Dinov2Model

    folder = tmp_path / "dreamsim"
    shutil.copytree(dino_folder, folder)
    weights = write_adapter(folder / ADAPTERS[0], blocks=2, hidden=48, binary=binary)
    scorer = load_scorer("dreamsim", str(folder))
    before = Dinov2Model.from_pretrained(dino_folder)
    x = torch.randn(3, 48, generator=torch.Generator().manual_seed(2))
    for block, (plain, merged) in enumerate(
        zip(before.encoder.layer, scorer._model.encoder.layer, strict=True)
    ):
        # As an adapter works: y + alpha / r * B (A x), on the fused projection.
        down, up = (
            weights[
                f"base_model.model.extractor_list.0.model.blocks.{block}.attn.qkv.lora_{k}.weight"
            ]
            for k in "AB"
        )
        change = (2.0 / 4) * (x @ down.T @ up.T)
        before_it, after_it = (
            torch.cat(
                [
                    next(part for name, part in of.named_modules() if name.endswith(names))(x)
                    for names in PROJECTIONS
                ],
                -1,
            )
            for of in (plain, merged)
        )
        expected, found = before_it + change, after_it
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    picture = rasteriser(64).draw(svg('<circle cx="99" cy="99" r="70" fill="green"/>'))
    assert scorer.score(picture, picture.copy()) == pytest.approx(1.0, abs=1e-5)
    assert scorer.score(picture, np.full_like(picture, 255)) < 0.9999


@pytest.mark.slow
def test_dreamsim_on_the_first_dino(tmp_path):
    import torch
    from transformers import ViTConfig, ViTModel

    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        patch_size=16,
        image_size=64,
    )
    ViTModel(config, add_pooling_layer=False).save_pretrained(tmp_path)
    write_adapter(tmp_path / ADAPTERS[1], blocks=2, hidden=48)
    scorer = load_scorer("dreamsim", str(tmp_path))
    picture = rasteriser(64).draw(svg('<circle cx="99" cy="99" r="70" fill="green"/>'))
    assert scorer.score(picture, picture.copy()) == pytest.approx(1.0, abs=1e-5)
    assert scorer.score(picture, np.full_like(picture, 255)) < 0.9999


@pytest.mark.slow
def test_scorers_say_what_is_missing(dino_folder, tmp_path):
    with pytest.raises(ScorerError, match=r"DINOv2 is not in .*config\.json.*dino_path"):
        envs.make("SVG", {"scorer": "dino", "dino_path": str(tmp_path / "nowhere")})
    with pytest.raises(ScorerError, match=r"no DreamSim adapter in .*dinov2_vitb14_single_lora"):
        load_scorer("dreamsim", str(dino_folder))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ScorerError, match="of type 'bert'; DINOv2 is of type dinov2"):
        load_scorer("dino", str(tmp_path))


@pytest.mark.slow
def test_an_adapter_for_another_backbone_is_refused(dino_folder, tmp_path):
    for name, blocks, hidden, message in (
        ("narrow", 2, 32, "shape"),
        ("shallow", 1, 48, "no update of block 1 of 2"),
    ):
        shutil.copytree(dino_folder, tmp_path / name)
        write_adapter(tmp_path / name / ADAPTERS[0], blocks=blocks, hidden=hidden)
        with pytest.raises(ScorerError, match=message):
            load_scorer("dreamsim", str(tmp_path / name))
