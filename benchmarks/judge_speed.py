"""Speed of the rule judge, and the calls of a language model that it saves.

Speed is counted in scored texts per second of processor time, on one core. *Cold*: every text is
new and has to be
read; *warm*: texts come again, as they do in training, where thousands of turns share some hundred
sentences. The states are real, each verdict is asked through `score_sync` as the judge step does,
observation and prediction together.

Saved calls: asked is a cascade (gate, rules, then an endpoint that counts and answers at once) with
its cache. Without all this every text takes one call. Two batches: the statements of a calibration,
of which many are odd on purpose, each once and then, as a step that is repeated, again; and the
turns of stored rollouts, if any are given.

    python benchmarks/judge_speed.py [--texts 4000] [--seconds 2] [--output results/judge.json]
        [--rollout RUN/iterations/0000/rollout ...]
"""

import argparse
import asyncio
import datetime
import json
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from machine import describe_machine

from vagen.config.judge_options import JudgeConfig, LLMJudgeConfig
from vagen.envs import parse_env_config
from vagen.judge import AnswerCache, CascadeJudge, ChatClient, RuleJudge
from vagen.judge.calibration import ClaimWriter, TextKind, writer_of
from vagen.judge.calibration.samples import Sample, sample_statements
from vagen.judge.calibration.writer import sample_scenes
from vagen.judge.scoring import judge_of, statements
from vagen.rollout.batch import TrajectoryBatch

ENVIRONMENTS = ("FrozenLake", "Sokoban")


def main() -> None:
    """Measures and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=4000)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results/judge.json")
    parser.add_argument("--rollout", type=Path, nargs="*", default=[])
    options = parser.parse_args()
    result: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "machine": describe_machine(),
        "unit": "scored texts per second of processor time, one core",
        "aim": {"warm": 20_000, "calls_saved": 0.9},
    }
    result["speed"] = {name: speed(name, options.texts, options.seconds) for name in ENVIRONMENTS}
    saved: dict[str, Any] = {}
    for name in ENVIRONMENTS:
        saved[name] = asyncio.run(calls(name, options.texts))
    if options.rollout:
        saved["stored rollouts"] = asyncio.run(rollout_calls(options.rollout))
    result["calls"] = saved
    options.output.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


def speed(env_name: str, count: int, seconds: float) -> dict[str, float]:
    """Texts per second, cold and warm, medians of five rounds, and of the environment's own."""
    config = _writer(env_name).env_configs[0]
    samples = sample_statements(_writer(env_name), [config], count, 0)
    plain = _plain(env_name, config, count)
    return {
        "cold": round(_median([_cold(env_name, config, samples) for _ in range(3)])),
        "warm": round(_median([_warm(env_name, config, samples, seconds) for _ in range(5)])),
        "warm_expert_texts": round(
            _median([_warm(env_name, config, plain, seconds) for _ in range(5)])
        ),
    }


def _writer(env_name: str) -> type[ClaimWriter]:
    writer = writer_of(env_name)
    assert writer is not None
    return writer


def _plain(env_name: str, config: dict[str, Any], count: int) -> list[Sample]:
    """The prompt's own words about real states: what a trained agent writes."""
    writer = _writer(env_name)(parse_env_config(env_name, config))
    scenes = sample_scenes(env_name, [config], count, 1)
    return [
        Sample(TextKind.TRUE, writer.plain(scene.state), "plain", scene, "observation")
        for scene in scenes
    ]


def _cold(env_name: str, config: dict[str, Any], samples: list[Sample]) -> float:
    judge = judge_of(JudgeConfig(), env_name, config)
    assert isinstance(judge, RuleJudge)
    texts = {sample.text: sample for sample in samples}.values()
    start = time.process_time()
    for sample in texts:
        _score(judge, sample)
    return 2 * len(texts) / (time.process_time() - start)


def _warm(env_name: str, config: dict[str, Any], samples: list[Sample], seconds: float) -> float:
    judge = judge_of(JudgeConfig(), env_name, config)
    assert isinstance(judge, RuleJudge)
    for sample in samples:
        _score(judge, sample)
    done, start = 0, time.process_time()
    while time.process_time() - start < seconds:
        for sample in samples:
            _score(judge, sample)
        done += 2 * len(samples)
    return done / (time.process_time() - start)


def _score(judge: RuleJudge, sample: Sample) -> None:
    state = sample.scene.state
    judge.score_sync(sample.text, sample.text, state, state)


def _median(values: list[float]) -> float:
    return statistics.median(values)


class CountingClient(ChatClient):
    """Answers at once that nothing is stated, and counts how often it is asked."""

    def __init__(self) -> None:
        super().__init__(
            LLMJudgeConfig(base_url="http://localhost/v1", model="counting", api_key_env=None)
        )
        self.calls = 0

    async def ask(self, question: Any, read: Callable[[str], Any]) -> Any:
        """Reads the empty answer of an extraction."""
        self.calls += 1
        return read('{"claims": []}')


def cascade(
    env_name: str, config: dict[str, Any], client: ChatClient, cache: AnswerCache
) -> CascadeJudge:
    """A cascade of one environment."""
    judge = judge_of(JudgeConfig(type="cascade"), env_name, config, client=client, cache=cache)
    assert isinstance(judge, CascadeJudge)
    return judge


async def calls(env_name: str, count: int) -> dict[str, float]:
    """Calls for the statements of a calibration, and for the same ones again."""
    config = _writer(env_name).env_configs[0]
    samples = sample_statements(_writer(env_name), [config], count, 0)
    with tempfile.TemporaryDirectory() as folder:
        cache = AnswerCache(Path(folder))
        spent = []
        for _ in range(2):
            client = CountingClient()
            judge = cascade(env_name, config, client, cache)
            for sample in samples:
                await judge.score(sample.text, None, sample.scene.state, sample.scene.state)
            spent.append(client.calls)
        cache.close()
    first, again = spent
    return {
        "texts": len(samples),
        "calls": first,
        "saved": round(1 - first / len(samples), 4),
        "calls_again": again,
    }


async def rollout_calls(folders: list[Path]) -> dict[str, dict[str, float]]:
    """Calls for the texts of stored batches, one after the other with one cache; by environment."""
    texts: Counter[str] = Counter()
    clients: dict[str, CountingClient] = {}
    judges: dict[str, CascadeJudge] = {}
    with tempfile.TemporaryDirectory() as folder:
        cache = AnswerCache(Path(folder))
        for path in folders:
            for trajectory in TrajectoryBatch.load(path, kind="rollout").trajectories:
                name = trajectory.env_name
                if name not in judges:
                    clients[name] = CountingClient()
                    judges[name] = cascade(name, {"prompt_detail": "brief"}, clients[name], cache)
                for turn in statements(trajectory):
                    said = turn.parsed.observation, turn.parsed.prediction
                    texts[name] += sum(text is not None for text in said)
                    await judges[name].score(*said, turn.state, turn.next_state)
        cache.close()
    return {
        name: {
            "texts": texts[name],
            "calls": client.calls,
            "saved": round(1 - client.calls / max(texts[name], 1), 4),
        }
        for name, client in clients.items()
    }


if __name__ == "__main__":
    main()
