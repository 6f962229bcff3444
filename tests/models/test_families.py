"""Every family that reads images, against its own processor and forward pass in `transformers`."""

import asyncio
import copy
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from image_families import (
    FRAMES,
    IMAGE_FAMILIES,
    SYSTEM,
    conversation,
    plain_inputs,
    shown,
    write_family,
)
from PIL import Image

from vagen.config.schema import LoraConfig
from vagen.engines.local.generation import LocalPolicy
from vagen.engines.local.packing import pack, stretch_of
from vagen.envs.base import IMAGE_PLACEHOLDER, Observation
from vagen.models.loading import LanguageModel, load_model
from vagen.models.lora import add_adapters
from vagen.models.processor import ImageIds, load_processor
from vagen.models.vision import freeze_tower
from vagen.plan.shape import read_shape
from vagen.rollout.conversation import ChatRenderer
from vagen.rollout.types import Sampling, TokenRow

CPU = torch.device("cpu")


@pytest.fixture(scope="module", params=IMAGE_FAMILIES)
def directory(request, tmp_path_factory) -> Path:
    return write_family(request.param, tmp_path_factory.mktemp("families") / request.param)


@pytest.fixture(scope="module")
def ours(directory) -> LanguageModel:
    return load_model(directory)


@pytest.fixture(scope="module")
def plain(directory) -> Any:
    """The same weights with `transformers`' own attention."""
    from transformers import AutoModelForImageTextToText

    model = AutoModelForImageTextToText.from_pretrained(directory, attn_implementation="sdpa")
    return model.eval()


def packed_logits(model: LanguageModel, rows: list[TokenRow]) -> tuple[list[torch.Tensor], int]:
    """Logits [T, V] of each row, and the tokens of the line."""
    images = {d: model.processor.process_image(Image.fromarray(f)) for d, f in FRAMES.items()}
    packed = pack(rows, images, model.processor, CPU, torch.float32, None)
    logits = model.model.lm_head(packed.spread(model.hidden(**packed.inputs)[0]))
    return list(logits.split(packed.lengths)), packed.inputs["input_ids"].shape[1]


def own_processor(directory: Path, processor: Any) -> Any:
    """The family's processor class of `transformers`, without videos, which need torchvision."""
    import transformers

    names = {"glm4v": "Glm4vProcessor", "glm46v": "Glm46VProcessor"}
    name = processor.family.processor_config.get("processor_class")
    cls = getattr(transformers, name or names[processor.family.model_type])
    options = {k: v for k, v in processor.family.processor_config.items() if k != "processor_class"}
    if "video_processor" not in cls.get_attributes():
        return cls(processor.image_processor, processor.tokenizer, **options)

    class WithoutVideos(cls):
        get_attributes = classmethod(lambda _: ["image_processor", "tokenizer"])

        def check_argument_for_proper_class(self, name, argument):
            return (
                None
                if name == "video_processor"
                else super().check_argument_for_proper_class(name, argument)
            )

    return WithoutVideos(processor.image_processor, processor.tokenizer, None, **options)


@pytest.mark.parametrize("frames", [["0", "1"], ["0", "wide", "2"]])
def test_ids_are_those_of_the_models_own_processor(directory, ours, frames, monkeypatch):
    """Turn by turn, as a whole, and as `transformers` tokenises the whole conversation."""
    from transformers.models.smolvlm import processing_smolvlm

    monkeypatch.setattr(processing_smolvlm, "num2words", object())  # it reads no video
    processor = ours.processor
    renderer = ChatRenderer(processor)
    observations = [shown(name) for name in frames]
    renderer.check(SYSTEM, observations)
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": [{"type": "text", "text": SYSTEM}]}
    ]
    for i, observation in enumerate(observations):
        if i:
            messages.append({"role": "assistant", "content": [{"type": "text", "text": "ab"}]})
        before, after = observation["text"].split(IMAGE_PLACEHOLDER)
        content = [{"type": "text", "text": before}, {"type": "image"}]
        messages.append({"role": "user", "content": [*content, {"type": "text", "text": after}]})
    text = processor.tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )
    pictures = [Image.fromarray(FRAMES[name]) for name in frames]
    own = own_processor(directory, processor)(
        text=[text], images=[pictures], add_special_tokens=False, return_tensors="np"
    )
    ids, images = renderer._tokenize(text, [FRAMES[name] for name in frames]), own["pixel_values"]
    assert own["input_ids"][0].tolist() == ids
    patches = sum(processor.shape_of(p.size).tokens for p in pictures)
    assert ids.count(processor.image_token_id) == patches
    mine = np.concatenate([processor.process_image(p).pixel_values for p in pictures])
    np.testing.assert_array_equal(np.reshape(images, mine.shape), mine)


def test_packed_rows_are_what_transformers_computes(ours, plain):
    """Rows of several lengths, one of whose frames is shown twice."""
    rows = [
        conversation(ours.processor, "a", ["ab", "no"], "0", "1"),
        conversation(ours.processor, "b", ["yes ab."], "wide"),
        conversation(ours.processor, "c", ["ab", "b", "a"], "0", "2", "0"),
    ]
    with torch.no_grad():
        found, _ = packed_logits(ours, rows)
        for row, logits in zip(rows, found, strict=True):
            expected = plain(**plain_inputs(ours.processor, row.input_ids, list(row.images)))
            torch.testing.assert_close(
                logits.log_softmax(-1), expected.logits[0].log_softmax(-1), atol=1e-4, rtol=0
            )


def test_a_shared_prompt_stands_once_with_its_frames(ours):
    rows = [conversation(ours.processor, a, [a, "ab"], "0", "1") for a in ("no ab", "yes", "a")]
    alone = [packed_logits(ours, [row])[0][0] for row in rows]
    found, line = packed_logits(ours, rows)
    prompt = int(rows[0].loss_mask.argmax())
    assert line == sum(len(row.input_ids) for row in rows) - 2 * prompt
    for logits, expected in zip(found, alone, strict=True):
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


def test_an_image_is_encoded_once_however_often_it_is_shown(ours):
    """And gradients of every place flow back to its pixels' encoder."""
    calls: list[int] = []
    backbone = ours.model.model
    tower = next(m for n, m in backbone.named_children() if "vis" in n)
    hook = tower.register_forward_pre_hook(
        lambda _, args, kwargs: calls.append(len([*args, kwargs.get("pixel_values")][0])),
        with_kwargs=True,
    )
    twice = conversation(ours.processor, "a", ["ab", "b"], "0", "0")
    once = conversation(ours.processor, "b", ["ab"], "0")
    with torch.no_grad():
        packed_logits(ours, [twice])
        packed_logits(ours, [once])
    hook.remove()
    assert calls[0] == calls[1]


def test_greedy_answers_are_those_of_generate(ours, plain):
    """Over two turns of two conversations, with a frame each turn."""
    processor = ours.processor
    policy = LocalPolicy(ours, slots=2, length=16)
    renderer = ChatRenderer(processor)
    greedy = Sampling(temperature=0.0, max_new_tokens=5, seed=0)

    async def play(name: str, frames: list[str]) -> None:
        ids: list[int] = []
        for turn, shown_frame in enumerate(frames):
            ids = [
                *ids,
                *(
                    renderer.following(shown(shown_frame))
                    if turn
                    else renderer.initial(SYSTEM, shown(shown_frame))
                ).ids,
            ]
            out = await policy.generate(
                request_id=name,
                prompt_ids=ids,
                images=[Image.fromarray(FRAMES[f]) for f in frames[: turn + 1]],
                sampling=greedy,
            )
            inputs = plain_inputs(processor, ids, frames[: turn + 1])
            expected = plain.generate(
                **inputs,
                attention_mask=torch.ones(1, len(ids), dtype=torch.long),
                max_new_tokens=5,
                do_sample=False,
                suppress_tokens=processor.banned_ids,
            )
            assert out.ids == expected[0, len(ids) :].tolist()
            ids += out.ids
            with torch.no_grad():
                logits = plain(**plain_inputs(processor, ids, frames[: turn + 1])).logits[0]
            logits[:, processor.banned_ids] = -torch.inf
            logprobs = logits.log_softmax(-1)[-len(out.ids) - 1 : -1]
            drawn = logprobs.gather(1, torch.tensor(out.ids)[:, None])[:, 0]
            np.testing.assert_allclose(out.logprobs, drawn.numpy(), atol=1e-4)

    async def both() -> None:
        await asyncio.gather(play("a", ["0", "1"]), play("b", ["wide", "2"]))

    asyncio.run(both())


def test_adapters_of_all_layers_learn(ours):
    model = copy.deepcopy(ours)
    add_adapters(model.model, LoraConfig(lora_rank=2), seed=0)
    rows = [conversation(model.processor, "a", ["ab", "no"], "0", "1")]
    loss = sum(logits.logsumexp(-1).sum() for logits in packed_logits(model, rows)[0])
    loss.backward()
    learning = {n: p for n, p in model.model.named_parameters() if ".lora_B." in n}
    assert any("vis" in name for name in learning)
    for name, parameter in learning.items():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0, name


def test_what_save_writes_transformers_and_we_read(ours, plain, tmp_path):
    from transformers import AutoModelForImageTextToText

    ours.save(tmp_path)
    again = load_processor(tmp_path)
    row = conversation(again, "a", ["ab", "no"], "0", "wide")
    before = conversation(ours.processor, "a", ["ab", "no"], "0", "wide")
    assert row.input_ids.tolist() == before.input_ids.tolist()
    loaded = AutoModelForImageTextToText.from_pretrained(tmp_path).eval()
    inputs = plain_inputs(again, row.input_ids, list(row.images))
    with torch.no_grad():
        assert torch.equal(loaded(**inputs).logits, plain(**inputs).logits)


def test_tokens_of_images_are_never_sampled(ours):
    processor = ours.processor
    row = conversation(processor, "a", ["ab"], "0")
    written = set(row.input_ids.tolist()) & set(processor.tokenizer.added_tokens_decoder)
    assert written - {processor.eos_id} <= set(processor.banned_ids)


def test_the_template_of_a_processors_own_file_goes_first(directory, tmp_path):
    """Published models of some families keep it there, and a text one with the tokenizer."""
    copied = shutil.copytree(directory, tmp_path / "model")
    template = (copied / "chat_template.jinja").read_text()
    (copied / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    (copied / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    assert load_processor(copied).tokenizer.chat_template == template


def test_where_images_begin_in_rows_of_several_runs():
    """An image of two tiles, one of one, text of the same tokens cut off."""
    ids = np.array([1, 8, 8, 2, 8, 8, 1, 5, 2, 8, 8, 1, 1, 8, 8, 2, 8, 8], np.int32)
    found = ImageIds(patch=8, last=2)
    assert np.flatnonzero(found.begins(ids)).tolist() == [1, 9, 13]
    assert found.numbered(ids).tolist() == [0, 1, 1, 0, 1, 1, 0, 0, 0, 2, 2, 0, 0, 3, 3, 0, 3, 3]
    assert np.flatnonzero(ImageIds(patch=8).begins(ids)).tolist() == [1, 4, 9, 13, 16]
    assert (found.counts(ids), ImageIds().counts(ids)) == ([4, 2, 4], [])


def test_adjacent_images_are_read_as_separate_ones(ours, plain):
    """Some templates write nothing between them."""
    both: Observation = {"text": IMAGE_PLACEHOLDER * 2, "images": (FRAMES["0"], FRAMES["wide"])}
    ids = ChatRenderer(ours.processor).initial(SYSTEM, both).ids
    row = replace(
        conversation(ours.processor, "a", ["ab"], "0"),
        input_ids=np.asarray(ids, np.int32),
        loss_mask=np.arange(len(ids)) == len(ids) - 1,
        images=["0", "wide"],
    )
    other = replace(row, images=["1", "wide"])
    with torch.no_grad():
        found = packed_logits(ours, [row, row, other])[0]
        for logits, frames in zip(found, (row.images, row.images, other.images), strict=True):
            expected = plain(**plain_inputs(ours.processor, ids, frames)).logits[0]
            torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


def test_a_row_is_never_cut_inside_an_image_of_several_tiles(ours):
    row = conversation(ours.processor, "a", ["ab", "no"], "0", "1")
    patches = np.flatnonzero(ours.processor.image_ids.are_patches(row.input_ids))
    behind = int(np.flatnonzero(ours.processor.image_ids.begins(row.input_ids))[1])
    first = patches[patches < behind]
    for place in (int(first[0]), int(first[-1]), int(patches[-1])):
        asked = np.arange(len(row.input_ids)) == place
        cut = stretch_of(row, lambda _, asked=asked: asked, ours.processor.image_ids)
        frames = 1 if place < behind else 2
        assert len(cut.images) == frames
        assert len(cut.ids) == (first[-1] if frames == 1 else patches[-1]) + 1


def test_a_plan_knows_the_sizes_of_the_network_and_its_tower(directory, ours):
    shape = read_shape(str(directory))
    parameters = dict(ours.model.named_parameters())
    assert shape.parameters == sum(p.numel() for p in parameters.values())
    tower = [p for n, p in parameters.items() if "visi" in n or "visual" in n]
    assert shape.vision_parameters >= sum(p.numel() for p in tower) > 0
    assert (shape.vision_layers, shape.vision_hidden) == (2, 32)


def test_a_frozen_tower_leaves_the_decoder_to_learn(ours):
    model = copy.deepcopy(ours)
    freeze_tower(model.model)
    learning = {n for n, p in model.model.named_parameters() if p.requires_grad}
    assert learning and not any("vis" in n or "projector" in n for n in learning)
    rows = [conversation(model.processor, "a", ["ab"], "0")]
    packed_logits(model, rows)[0][0].sum().backward()
