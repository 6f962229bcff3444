"""Generation: against `transformers`' own forward pass and `generate`, and against itself."""

import asyncio
import gc
import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vagen.engines.local.generation import LocalPolicy
from vagen.models.loading import load_model
from vagen.rollout.episodes import training_specs
from vagen.rollout.play import play
from vagen.rollout.runner import run_to_end, turn_seed
from vagen.rollout.types import Generation, Sampling, Trajectory
from vagen.stages.build import load_levels


@pytest.fixture(scope="module", params=["tiny:vl", "tiny:text"])
def setting(request, warm_runs, vl_model, text_model):
    """Experiment, model and episodes of a tiny model."""
    run = warm_runs[request.param]
    model = vl_model if request.param == "tiny:vl" else text_model
    specs = training_specs(run.experiment, load_levels(run), 1)
    return run, model, specs


def plain_model(run) -> Any:
    """The same weights with `transformers`' own attention."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    vision = run.experiment.actor_rollout_ref.model.path == "tiny:vl"
    family = AutoModelForImageTextToText if vision else AutoModelForCausalLM
    return family.from_pretrained(run.warm_start / "policy", attn_implementation="sdpa").eval()


def played(setting, *, concurrency: int = 4, specs: Sequence[Any] | None = None, **sampling: Any):
    """Trajectories and frames of the setting's episodes."""
    run, model, all_specs = setting
    rollout = run.experiment.actor_rollout_ref.rollout
    config = run.experiment.model_copy(
        update={
            "actor_rollout_ref": run.experiment.actor_rollout_ref.model_copy(
                update={"rollout": rollout.model_copy(update={"max_concurrency": concurrency})}
            )
        }
    )
    return play(
        config,
        specs if specs is not None else all_specs,
        policy=LocalPolicy(model, slots=concurrency, length=32),
        processor=model.processor,
        sampling=rollout.model_copy(update=sampling),
        split="train",
    )


def model_inputs(model, ids: list[int], images: list[Image.Image]) -> dict[str, torch.Tensor]:
    """What `transformers` needs to read a whole conversation."""
    inputs: dict[str, Any] = {"input_ids": torch.tensor([ids])}
    if images:
        processed = [model.processor.process_image(image) for image in images]
        inputs["pixel_values"] = torch.from_numpy(
            np.concatenate([p.pixel_values for p in processed])
        )
        inputs["image_grid_thw"] = torch.tensor([p.grid for p in processed])
        inputs["mm_token_type_ids"] = (inputs["input_ids"] == model.processor.image_token_id).int()
    return inputs


def frames_of(trajectory: Trajectory, pngs: dict[str, bytes]) -> list[Image.Image]:
    return [Image.open(io.BytesIO(pngs[d])).convert("RGB") for d in trajectory.rows[0].images]


def sampled_rows(trajectories: Sequence[Trajectory]) -> dict[str, tuple[list[int], list[float]]]:
    return {
        t.trajectory_id: (t.rows[0].input_ids.tolist(), t.rows[0].rollout_logprobs.tolist())
        for t in trajectories
    }


def test_kept_cache_equals_a_full_recompute(setting):
    """Every token: its log-probability, and the draw itself, from the whole context anew."""
    run, model, specs = setting
    plain = plain_model(run)
    trajectories, pngs = played(setting)
    draws = 0
    for spec, trajectory in zip(specs, trajectories, strict=True):
        row = trajectory.rows[0]
        with torch.no_grad():
            inputs = model_inputs(model, row.input_ids.tolist(), frames_of(trajectory, pngs))
            logits = plain(**inputs).logits[0]
        logits[:, model.processor.banned_ids] = -torch.inf
        logprobs = logits.double().log_softmax(-1)
        for turn in range(len(trajectory.turns)):
            places = np.flatnonzero(row.loss_mask & (row.turn_index == turn))
            rng = np.random.Generator(np.random.Philox(key=turn_seed(spec.sampling_seed, turn)))
            for place, uniform in zip(places, rng.random(16), strict=False):
                before = logprobs[place - 1]
                token = int(row.input_ids[place])
                assert float(before[token]) == pytest.approx(row.rollout_logprobs[place], abs=1e-4)
                cumulative = before.exp().cumsum(0)
                assert int((cumulative <= uniform * cumulative[-1]).sum()) == token
                draws += 1
    assert draws > 50
    assert len({len(t.rows[0].input_ids) for t in trajectories}) > 2, "ragged contexts"


def test_greedy_answers_are_those_of_generate(setting):
    """Turn by turn the conversation is handed to `transformers`' own `generate`."""
    run, model, specs = setting
    plain = plain_model(run)
    trajectories, pngs = played(setting, specs=specs[:3], temperature=0.0)
    for trajectory in trajectories:
        row = trajectory.rows[0]
        frames = frames_of(trajectory, pngs)
        for turn in range(len(trajectory.turns)):
            places = np.flatnonzero(row.loss_mask & (row.turn_index == turn))
            prompt = row.input_ids[: places[0]].tolist()
            shown = [] if not frames else frames[: turn + 1]
            out = plain.generate(
                **model_inputs(model, prompt, shown),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                max_new_tokens=16,
                do_sample=False,
                suppress_tokens=model.processor.banned_ids,
            )
            assert out[0, len(prompt) :].tolist() == row.input_ids[places].tolist()


@pytest.mark.parametrize("concurrency", [1, 3, 6])
def test_answers_do_not_depend_on_who_else_is_served(setting, concurrency):
    expected = sampled_rows(played(setting, concurrency=4)[0])
    found = sampled_rows(played(setting, concurrency=concurrency)[0])
    assert found.keys() == expected.keys()
    for name, (ids, logprobs) in expected.items():
        assert found[name][0] == ids
        np.testing.assert_allclose(found[name][1], logprobs, atol=1e-4)


def test_answers_do_not_depend_on_order_or_company(setting):
    _, _, specs = setting
    expected = sampled_rows(played(setting)[0])
    found = sampled_rows(played(setting, specs=[specs[4], specs[1]], concurrency=2)[0])
    assert {name: row[0] for name, row in found.items()} == {
        name: expected[name][0] for name in (specs[4].trajectory_id, specs[1].trajectory_id)
    }


def test_other_seeds_give_other_answers(setting):
    _, _, specs = setting
    other = [replace(spec, sampling_seed=spec.sampling_seed + 1) for spec in specs]
    first, second = played(setting)[0], played(setting, specs=other)[0]
    assert sampled_rows(first) != sampled_rows(second)


def test_image_blocks_are_the_frames(vl_model, batch):
    pad = vl_model.processor.image_token_id
    for trajectory in batch.trajectories:
        row = trajectory.rows[0]
        starts = row.input_ids[np.flatnonzero(row.input_ids == pad) - 1] != pad
        assert int(starts.sum()) == len(row.images)
        assert int((row.input_ids == pad).sum()) == 16 * len(row.images)
        assert not np.isin(row.input_ids[row.loss_mask], vl_model.processor.banned_ids).any()


def prompt_of(model, text: str = "Go.") -> list[int]:
    messages = [{"role": "user", "content": text}]
    rendered = model.processor.tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )
    return model.processor.tokenizer.encode(rendered)


def ask(policy: LocalPolicy, name: str, prompt: list[int], **sampling: Any) -> Generation:
    return run_to_end(
        policy.generate(
            request_id=name, prompt_ids=prompt, images=[], sampling=Sampling(**sampling)
        )
    )


def test_banned_tokens_are_never_sampled_and_the_ban_is_in_the_logprobs(vl_dir):
    """The head is made to want nothing but banned tokens."""
    model = load_model(vl_dir)
    banned = model.processor.banned_ids
    prompt = prompt_of(model)
    with torch.no_grad():
        hidden = model.hidden(
            input_ids=torch.tensor([prompt]), position_ids=torch.arange(len(prompt))[None]
        )[0, -1]
        model.model.lm_head.weight[banned] = hidden * 10 / hidden.norm()
        logits = model.model.lm_head(hidden)
        assert int(logits.argmax()) in banned and logits.softmax(-1)[banned].sum() > 0.99
    policy = LocalPolicy(model, slots=1)
    for seed in range(20):
        out = ask(policy, "a", prompt, seed=seed, max_new_tokens=2)
        policy.release("a")
        assert not set(out.ids) & set(banned)
        logits[banned] = -torch.inf
        expected = float(logits.log_softmax(-1)[out.ids[0]])
        assert out.logprobs[0] == pytest.approx(expected, abs=1e-4)


@pytest.mark.slow
def test_a_turn_ends_with_the_end_of_turn_or_at_its_limit(text_model):
    policy = LocalPolicy(text_model, slots=1)
    eos = text_model.processor.eos_id
    reasons = set()
    for seed in range(12):
        for limit in (3, 64):
            out = ask(policy, "a", prompt_of(text_model), seed=seed, max_new_tokens=limit)
            policy.release("a")
            reasons.add(out.stop_reason)
            assert len(out.ids) == len(out.logprobs) <= limit
            assert eos not in out.ids[:-1]
            assert (out.stop_reason == "stop") == (out.ids[-1] == eos)
            if out.stop_reason == "length":
                assert len(out.ids) == limit
    assert reasons == {"stop", "length"}


def test_temperature_zero_is_greedy_and_one_hot_top_k_too(text_model):
    policy = LocalPolicy(text_model, slots=3)
    prompt = prompt_of(text_model)
    greedy = ask(policy, "a", prompt, temperature=0.0, seed=1, max_new_tokens=12)
    narrow = ask(policy, "b", prompt, top_k=1, seed=2, max_new_tokens=12)
    tight = ask(policy, "c", prompt, top_p=1e-6, seed=3, max_new_tokens=12)
    assert greedy.ids == narrow.ids == tight.ids


def test_a_prompt_that_is_no_continuation_is_refused(text_model):
    policy = LocalPolicy(text_model, slots=1)
    prompt = prompt_of(text_model)
    ask(policy, "a", prompt, max_new_tokens=4)
    for other in (prompt, [*prompt[:-1], 5, 6, 7, 8, 9, 10, 11]):
        with pytest.raises(ValueError, match="does not continue"):
            ask(policy, "a", other, max_new_tokens=4)


def test_more_conversations_than_slots_are_refused(text_model):
    policy = LocalPolicy(text_model, slots=1)
    ask(policy, "a", prompt_of(text_model), max_new_tokens=2)
    with pytest.raises(ValueError, match="all 1 slots are taken"):
        ask(policy, "b", prompt_of(text_model), max_new_tokens=2)
    policy.release("a")
    ask(policy, "b", prompt_of(text_model), max_new_tokens=2)


def test_a_used_slot_leaves_no_trace(text_model):
    fresh = ask(LocalPolicy(text_model, slots=1), "a", prompt_of(text_model), seed=5)
    policy = LocalPolicy(text_model, slots=1)
    ask(policy, "long", prompt_of(text_model, "word " * 60), seed=9)
    policy.release("long")
    assert ask(policy, "a", prompt_of(text_model), seed=5) == fresh


def test_only_what_is_new_is_computed(text_model):
    policy = LocalPolicy(text_model, slots=1)
    prompt = prompt_of(text_model)
    out = ask(policy, "a", prompt, max_new_tokens=6)
    assert policy.tokens_prefilled == len(prompt)
    more = text_model.processor.tokenizer.encode("\nAnd now?")
    ask(policy, "a", [*prompt, *out.ids, *more], max_new_tokens=6)
    assert policy.tokens_prefilled == len(prompt) + 1 + len(more)


def test_a_dropped_request_leaves_the_others_alone(text_model):
    expected = ask(LocalPolicy(text_model, slots=1), "a", prompt_of(text_model), seed=5)

    async def race() -> Generation:
        policy = LocalPolicy(text_model, slots=3, length=1)  # the cache grows

        def request(name: str, seed: int) -> asyncio.Task[Generation]:
            sampling = Sampling(seed=seed, max_new_tokens=200)
            return asyncio.ensure_future(
                policy.generate(
                    request_id=name, prompt_ids=prompt_of(text_model), images=[], sampling=sampling
                )
            )

        others = [request("x", 1), request("y", 2)]
        kept = request("a", 5)
        for _ in range(4):
            await asyncio.sleep(0)
        for name, other in zip("xy", others, strict=True):
            other.cancel()
            policy.release(name)
        waiting = request("z", 3)
        await asyncio.sleep(0)
        waiting.cancel()
        policy.release("z")
        out = await kept
        policy.release("a")
        assert not policy._active and not policy._waiting and policy._order == [None] * 3
        return out

    found = run_to_end(race())
    assert found.ids == expected.ids
    assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-5)


def test_an_error_reaches_everyone_who_waits(vl_dir):
    model = load_model(vl_dir)
    policy = LocalPolicy(model, slots=2)
    del model.model.lm_head

    async def both() -> list[Any]:
        prompt = prompt_of(model)
        requests = [
            policy.generate(request_id=name, prompt_ids=prompt, images=[], sampling=Sampling())
            for name in "ab"
        ]
        return await asyncio.gather(*requests, return_exceptions=True)

    assert [type(error) for error in run_to_end(both())] == [AttributeError] * 2


def test_an_interrupt_while_tokens_are_drawn_is_raised_once(setting, monkeypatch, caplog):
    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(LocalPolicy, "_decode", interrupted)
    with pytest.raises(KeyboardInterrupt):
        played(setting)
    gc.collect()
    assert not [record for record in caplog.records if record.name == "asyncio"]
