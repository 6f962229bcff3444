"""Beginnings that conversations share are computed once and change nothing."""

import asyncio
from typing import Any

import numpy as np
import pytest
import torch

from vagen.engines.local.generation import CAPACITY, LocalPolicy, Prefixes
from vagen.engines.local.packing import common_length
from vagen.models.loading import load_model
from vagen.rollout.runner import run_to_end
from vagen.rollout.types import Generation, Sampling


def ids_of(model: Any, text: str) -> list[int]:
    return model.processor.tokenizer.encode(text)


def ask(policy: LocalPolicy, prompts: list[list[int]], **sampling: Any) -> list[Generation]:
    """All prompts at once, as so many conversations."""

    async def together() -> list[Any]:
        requests = [
            policy.generate(
                request_id=f"{i}",
                prompt_ids=prompt,
                images=[],
                sampling=Sampling(seed=i, max_new_tokens=8, **sampling),
            )
            for i, prompt in enumerate(prompts)
        ]
        return await asyncio.gather(*requests, return_exceptions=True)

    return run_to_end(together())


def test_the_longest_known_beginning_is_found():
    prefixes = Prefixes()
    assert prefixes.longest(np.array([1, 2], np.int32)) is None
    prefixes.add(np.array([1, 2, 3], np.int32), torch.arange(3.0)[None, :, None])
    prefixes.add(np.array([1, 2, 4, 5], np.int32), 10 + torch.arange(4.0)[None, :, None])

    def found(*ids: int) -> list[float] | None:
        known = prefixes.longest(np.array(ids, np.int32))
        return None if known is None else known.flatten().tolist()

    assert found(1, 2, 3, 4) == [0, 1, 2]
    assert found(1, 2, 4, 9) == [10, 11, 12]
    assert found(1, 2) == [0, 1]
    assert found(7, 1, 2) is None
    prefixes.clear()
    assert found(1, 2, 3) is None


def test_shared_beginnings_are_computed_once_and_answers_stay(text_model):
    shared = ids_of(text_model, "<|im_start|>system\nreach the target . avoid holes .")
    tails = [ids_of(text_model, tail) for tail in (" a b c", " d", " a b", " player")]
    prompts = [shared + tail for tail in tails]
    policy = LocalPolicy(text_model, slots=4, length=8)
    found = ask(policy, prompts)
    # The first prompt is the beginning that is computed, its last token excepted.
    others = sum(len(prompt) - len(shared) for prompt in prompts[1:])
    assert policy.tokens_prefilled <= len(prompts[0]) + others
    for i, (prompt, answer) in enumerate(zip(prompts, found, strict=True)):
        alone = LocalPolicy(text_model, slots=1)
        expected = run_to_end(
            alone.generate(
                request_id="a",
                prompt_ids=prompt,
                images=[],
                sampling=Sampling(seed=i, max_new_tokens=8),
            )
        )
        assert alone.tokens_prefilled == len(prompt)
        assert answer.ids == expected.ids
        assert answer.logprobs == pytest.approx(expected.logprobs, abs=1e-5)


def test_a_prompt_of_several_is_fed_once(text_model):
    prompts = [ids_of(text_model, text) for text in ("a b c d", "a b c d", "go right", "a b c d")]
    policy = LocalPolicy(text_model, slots=4)
    found = ask(policy, prompts)
    assert policy.tokens_prefilled == len(prompts[0]) + len(prompts[2])
    for i, (prompt, answer) in enumerate(zip(prompts, found, strict=True)):
        alone = LocalPolicy(text_model, slots=1).generate(
            request_id="a",
            prompt_ids=prompt,
            images=[],
            sampling=Sampling(seed=i, max_new_tokens=8),
        )
        expected = run_to_end(alone)
        assert answer.ids == expected.ids
        assert answer.logprobs == pytest.approx(expected.logprobs, abs=1e-5)
    assert len({tuple(answer.ids) for answer in (found[0], found[1], found[3])}) > 1


def test_a_common_length_is_that_of_all():
    def length(*beginnings: list[int]) -> int:
        return common_length([np.array(ids, np.int32) for ids in beginnings])

    assert length([1, 2, 3], [1, 2, 4], [1, 2, 3, 5]) == 2
    assert length([1, 2], [1, 2, 3]) == 2
    assert length([1, 2]) == 2
    assert length([1], [2]) == 0
    assert length([], [2]) == 0


def test_a_newcomer_that_begins_otherwise_is_not_mistaken_for_the_others(text_model):
    """It starts while the others answer; what all have in common is attended to at once."""
    shared = ids_of(text_model, "<|im_start|>system\nreach the target . avoid holes .")
    prompts = [shared + ids_of(text_model, tail) for tail in (" a b c", " player")]
    prompts.append(shared[:4] + ids_of(text_model, " go right and down , then wait . a b c d"))
    policy = LocalPolicy(text_model, slots=3)

    async def answer(i: int, policy: LocalPolicy, steps: int) -> Generation:
        for _ in range(steps):
            await asyncio.sleep(0)
        return await policy.generate(
            request_id=f"{i}",
            prompt_ids=prompts[i],
            images=[],
            sampling=Sampling(seed=i, max_new_tokens=12),
        )

    seen = []
    forward = policy._forward

    def watched(batch, first, ids, positions, images, prefix=0):
        if ids.shape[1] == 1:
            seen.append(prefix)
        return forward(batch, first, ids, positions, images, prefix)

    policy._forward = watched

    async def together() -> list[Generation]:
        requests = [answer(i, policy, steps) for i, steps in enumerate((0, 0, 6))]
        return await asyncio.gather(*requests)

    found = run_to_end(together())
    assert seen[0] >= len(shared) > 4 and 4 in seen
    for i, generation in enumerate(found):
        alone = run_to_end(answer(i, LocalPolicy(text_model, slots=1), 0))
        assert generation.ids == alone.ids
        assert generation.logprobs == pytest.approx(alone.logprobs, abs=1e-5)


def test_unlike_prompts_share_nothing(text_model):
    prompts = [[i, *ids_of(text_model, "go right")] for i in range(2, CAPACITY + 6)]
    policy = LocalPolicy(text_model, slots=len(prompts))
    ask(policy, prompts)
    assert policy.tokens_prefilled == sum(len(prompt) for prompt in prompts)
    assert len(policy._prefixes) == CAPACITY


def test_nothing_is_remembered_once_all_conversations_are_over(text_model):
    """Weights may change between rollouts."""
    policy = LocalPolicy(text_model, slots=2)
    prompt = ids_of(text_model, "reach the target")
    ask(policy, [prompt, [*prompt, prompt[0]]])
    assert len(policy._prefixes) == 1
    policy.release("0")
    assert len(policy._prefixes) == 1
    policy.release("1")
    assert len(policy._prefixes) == 0


def test_an_error_in_the_prompt_reaches_everyone_who_waits(vl_dir):
    model = load_model(vl_dir)
    del model.model.model.language_model.norm
    errors = ask(LocalPolicy(model, slots=3), [[5, 6, 7], [5, 6, 8], [9, 9]])
    assert [type(error) for error in errors] == [AttributeError] * 3
