"""Speed of multi-turn generation: the cache kept across turns against re-encoding every turn.

Ours is the rollout of a training run: `EpisodeRunner` over `LocalPolicy`. The baseline plays the
same episodes in the same process with the same weights through `generate` of `transformers`: every
turn it encodes the whole conversation of every episode again, images included, as one left-padded
batch (sdpa attention, cache within the call). Both use the same environment, renderer, processed
images, sampling options and banned tokens. Two things are set aside so that both do the same work:
episodes do not end (the environment is played by its expert and moves on to another level), and
every answer has the same number of tokens (the end-of-turn token is banned). Equal lengths favour
the baseline, which otherwise waits for the longest answer of its batch; it also returns no
log-probabilities, which ours does.

    python benchmarks/rollout.py [--repeats 3] [--batches 32,128] [--turns 3,5,10]
"""

import argparse
import datetime
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import transformers
from machine import describe_machine

from vagen.config.schema import ExperimentConfig
from vagen.engines.local.generation import LocalPolicy
from vagen.envs import make
from vagen.envs.base import AgentEnv, Observation, State
from vagen.experiment.load import load_experiment, load_infra
from vagen.models.loading import LanguageModel, load_model
from vagen.rollout.conversation import ChatRenderer
from vagen.rollout.runner import EpisodeLimits, EpisodeRunner, EpisodeSpec, run_episodes, run_to_end
from vagen.rollout.types import Sampling
from vagen.run.run import Run
from vagen.service import LocalEnv
from vagen.stages.build import build
from vagen.stages.warm_start import warm_start

ROOT = Path(__file__).parent.parent
EXPERIMENT = "experiments/frozenlake-tiny.yaml"
AIM = {"prompt": "brief", "turns": 5, "times": 3.0}
UNLIMITED = 1 << 30


class EndlessEnv(AgentEnv):
    """An environment whose episodes never end: its expert plays on, level after level."""

    env_name: ClassVar[str] = "Endless"

    def __init__(self, inner: AgentEnv):
        self.inner = inner
        self._seed = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Begins at the level of `seed`."""
        self._seed = (seed or 0) * 1000
        return self.inner.reset(seed=self._seed)

    def step(self, response: str) -> Any:
        """Parses the response as usual, then plays the expert's action instead."""
        self.inner.step(response)
        observation, reward, terminated, truncated, info = self.inner.step(
            self.inner.expert_response()
        )
        if terminated or truncated:
            self._seed += 1
            observation, _ = self.inner.reset(seed=self._seed)
        return observation, reward, False, False, info

    def system_prompt(self) -> str:
        """Of the environment inside."""
        return self.inner.system_prompt()

    def state(self) -> State:
        """Of the environment inside."""
        return self.inner.state()

    def expert_response(self) -> str:
        """Of the environment inside."""
        return self.inner.expert_response()


@dataclass(frozen=True)
class Case:
    """What is measured."""

    prompt: str
    batch: int
    turns: int
    tokens: int
    """Tokens of an answer."""

    @property
    def sampled(self) -> int:
        """Tokens sampled in all."""
        return self.batch * self.turns * self.tokens


@dataclass(frozen=True)
class Player:
    """One model in two dresses, and the environment's options."""

    ours: LanguageModel
    plain: Any
    """The same weights as a `transformers` model with sdpa attention."""
    options: dict[str, Any]

    def environment(self) -> EndlessEnv:
        """A fresh environment."""
        return EndlessEnv(make("FrozenLake", self.options))

    async def make_env(self, spec: EpisodeSpec) -> LocalEnv:
        """The environment of an episode, in this process."""
        return LocalEnv(self.environment())

    def cached(self, case: Case, sampling: Sampling) -> list[list[int]]:
        """Plays with our rollout; returns the ids of every conversation."""
        runner = EpisodeRunner(
            policy=LocalPolicy(self.ours, slots=case.batch),
            renderer=ChatRenderer(self.ours.processor),
            limits=EpisodeLimits(
                max_turns=case.turns,
                max_prompt_length=UNLIMITED,
                max_response_length=case.tokens,
                max_trajectory_length=UNLIMITED,
            ),
            sampling=sampling,
            frame_digest=lambda frame: ("", b""),
        )
        specs = [EpisodeSpec(str(i), str(i), "", "", "", i, i) for i in range(case.batch)]
        trajectories = run_to_end(
            run_episodes(runner, specs, self.make_env, max_concurrency=case.batch)
        )
        return [trajectory.rows[0].input_ids.tolist() for trajectory in trajectories]

    def reencoded(self, case: Case, sampling: Sampling) -> list[list[int]]:
        """Plays with `generate` of `transformers`; returns the ids of every conversation."""
        processor = self.ours.processor
        renderer = ChatRenderer(processor)
        environments = [self.environment() for _ in range(case.batch)]
        conversations: list[list[int]] = []
        images: list[list[Any]] = []
        for i, environment in enumerate(environments):
            observation, _ = environment.reset(seed=i)
            first = renderer.initial(environment.system_prompt(), observation)
            conversations.append(list(first.ids))
            images.append(list(first.images))
        for turn in range(case.turns):
            answers = self._generate(conversations, images, case.tokens, sampling)
            for i, environment in enumerate(environments):
                conversations[i] += [*answers[i], processor.eos_id]
                text = renderer.tokenizer.decode(answers[i], skip_special_tokens=True)
                observation: Observation = environment.step(text)[0]
                if turn + 1 < case.turns:
                    rendered = renderer.following(observation)
                    conversations[i] += rendered.ids
                    images[i] += rendered.images
        return conversations

    @torch.no_grad()
    def _generate(
        self,
        conversations: Sequence[list[int]],
        images: Sequence[Sequence[Any]],
        tokens: int,
        sampling: Sampling,
    ) -> list[list[int]]:
        """One call of `generate` for the whole batch."""
        processor = self.ours.processor
        longest = max(len(ids) for ids in conversations)
        ids = torch.full((len(conversations), longest), processor.pad_id)
        mask = torch.zeros_like(ids)
        for i, row in enumerate(conversations):
            ids[i, longest - len(row) :] = torch.tensor(row)
            mask[i, longest - len(row) :] = 1
        processed = [processor.process_image(image) for row in images for image in row]
        draw: dict[str, Any] = {"do_sample": False}
        if sampling.temperature > 0:
            draw = {"do_sample": True, "temperature": sampling.temperature}
            draw |= {"top_p": sampling.top_p, "top_k": max(sampling.top_k, 0)}
        out = self.plain.generate(
            input_ids=ids,
            attention_mask=mask,
            # pyrefly: ignore[missing-attribute]
            mm_token_type_ids=(ids == processor.image_token_id).int(),
            pixel_values=torch.from_numpy(np.concatenate([p.pixel_values for p in processed])),
            image_grid_thw=torch.tensor([p.grid for p in processed]),
            min_new_tokens=tokens,
            max_new_tokens=tokens,
            suppress_tokens=processor.banned_ids,
            pad_token_id=processor.pad_id,
            use_cache=True,
            **draw,
        )
        return out[:, longest:].tolist()


def make_player(prompt: str, scratch: Path) -> tuple[Player, int]:
    """A tiny model for prompts of this detail, and the mean length of an expert's answer."""
    overrides = [
        f"envs.frozenlake.env_config.prompt_detail={prompt}",
        "warm_start.steps=0",
        "data.max_prompt_length=1024",
        "data.max_trajectory_length=8192",
    ]
    experiment = load_experiment(str(ROOT / EXPERIMENT), overrides)
    infra = load_infra(
        str(ROOT / "experiments/infra/laptop.yaml"),
        [f"output_dir={scratch}", "device=cpu", f"threads={torch.get_num_threads()}"],
    )
    run = Run.create(experiment, infra, name=prompt)
    build(run)
    warm_start(run)
    path = run.warm_start / "policy"
    ours = load_model(path)
    # Never drawn by either side: every answer then has the same length.
    ours.processor.banned_ids = sorted({*ours.processor.banned_ids, ours.processor.eos_id})
    plain = transformers.AutoModelForImageTextToText.from_pretrained(
        str(path), dtype=torch.float32, attn_implementation="sdpa"
    ).eval()
    options = _options(experiment)
    return Player(ours, plain, options), _answer_length(ours, options)


def _options(experiment: ExperimentConfig) -> dict[str, Any]:
    return dict(experiment.envs["frozenlake"].env_config)


def _answer_length(model: LanguageModel, options: dict[str, Any]) -> int:
    """Mean tokens of an expert's answer, its end included."""
    env = make("FrozenLake", options)
    lengths = []
    for seed in range(64):
        env.reset(seed=seed)
        lengths.append(len(model.processor.tokenizer.encode(env.expert_response())) + 1)
    return round(statistics.mean(lengths))


def agreement(player: Player, tokens: int) -> float:
    """Share of equal ids when both play greedily: near 1 if both compute the same thing."""
    case = Case("", 8, 3, tokens)
    greedy = Sampling(temperature=0.0)
    pairs = zip(player.cached(case, greedy), player.reencoded(case, greedy), strict=True)
    # The runner also records what the environment says after the last answer.
    return float(
        np.mean([np.mean(np.equal(ours[: len(theirs)], theirs)) for ours, theirs in pairs])
    )


def measure(player: Player, case: Case, repeats: int) -> dict[str, Any]:
    """Both ways in turn, `repeats` times each."""
    wall: dict[str, list[float]] = {"cached": [], "reencoded": []}
    cpu: dict[str, list[float]] = {"cached": [], "reencoded": []}
    for repeat, name in itertools.product(range(repeats), wall):
        torch.manual_seed(repeat)
        started, spent = time.perf_counter(), time.process_time()
        conversations = getattr(player, name)(case, Sampling())
        wall[name].append(time.perf_counter() - started)
        cpu[name].append(time.process_time() - spent)
        lengths = [len(ids) for ids in conversations]
    medians = {name: statistics.median(times) for name, times in wall.items()}
    cpu_medians = {name: statistics.median(times) for name, times in cpu.items()}
    return {
        **vars(case),
        "longest_conversation": max(lengths),
        "cached_tokens_per_s": round(case.sampled / medians["cached"]),
        "reencoded_tokens_per_s": round(case.sampled / medians["reencoded"]),
        "times": round(medians["reencoded"] / medians["cached"], 2),
        "times_cpu": round(cpu_medians["reencoded"] / cpu_medians["cached"], 2),
        "seconds": {name: [round(t, 3) for t in times] for name, times in wall.items()},
        "cpu_seconds": {name: [round(t, 3) for t in times] for name, times in cpu.items()},
    }


def main() -> None:
    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batches", type=numbers, default=[32, 128])
    parser.add_argument("--turns", type=numbers, default=[3, 5, 10])
    parser.add_argument("--prompts", type=lambda text: text.split(","), default=["brief", "full"])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    default = Path(__file__).parent / "results" / "rollout.json"
    parser.add_argument("--output", type=Path, default=default)
    arguments = parser.parse_args()

    torch.set_num_threads(arguments.threads)
    report: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(
            threads=torch.get_num_threads(),
            torch=torch.__version__,
            transformers=transformers.__version__,
        ),
        "experiment": EXPERIMENT,
        "unit": "sampled tokens per second of wall time, median of the repeats, environment "
        "and rendering included; times: ratio of the medians",
        "repeats": arguments.repeats,
        "aim": AIM,
        "equal_greedy_ids": {},
        "results": [],
    }
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        for prompt in arguments.prompts:
            player, tokens = make_player(prompt, Path(scratch))
            equal = report["equal_greedy_ids"][prompt] = agreement(player, tokens)
            print(f"{prompt} prompts: {equal:.1%} of greedy ids are equal", flush=True)
            for batch, turns in itertools.product(arguments.batches, arguments.turns):
                result = measure(player, Case(prompt, batch, turns, tokens), arguments.repeats)
                report["results"].append(result)
                arguments.output.write_text(json.dumps(report, indent=2) + "\n")
                print(_line(result), flush=True)
    print(f"written to {arguments.output}")


def _line(result: dict[str, Any]) -> str:
    """One result for the terminal."""
    aim = ""
    if result["prompt"] == AIM["prompt"] and result["turns"] == AIM["turns"]:
        met = result["times"] >= AIM["times"]
        aim = f" (aim {AIM['times']:g}x: {'met' if met else 'MISSED'})"
    return (
        f"{result['prompt']:5}  B {result['batch']:>3}  turns {result['turns']:>2}  "
        f"cached {result['cached_tokens_per_s']:>7,}/s  "
        f"re-encoded {result['reencoded_tokens_per_s']:>7,}/s  {result['times']:.2f}x{aim}"
    )


if __name__ == "__main__":
    main()
