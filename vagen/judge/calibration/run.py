"""Calibrates a configured judge, and compares a run's judge with a stored calibration."""

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from vagen.clients import Usage
from vagen.config.base import ConfigError
from vagen.config.judge_options import JudgeConfig
from vagen.config.schema import ExperimentConfig
from vagen.judge.cache import AnswerCache
from vagen.judge.calibration import ClaimWriter, writer_of
from vagen.judge.calibration.frames import Frames, frame_writer
from vagen.judge.calibration.measure import Calibration, measure
from vagen.judge.calibration.samples import sample_statements
from vagen.judge.llm import PROMPT_VERSION, ChatClient
from vagen.judge.rule_judge import rules_for
from vagen.judge.scoring import judge_of

RULES_VERSION = 3
"""Version of the rules' reading and scoring; other calibrations are invalid."""
FILE = "calibration.json"
_LLM_INFORMATION = 50
"""Texts per kind for the information score with a language model; each takes twelve further
verdicts."""


@dataclass(frozen=True, slots=True)
class Subject:
    """One environment in all configurations to calibrate."""

    name: str
    """Key in the result: the environment's id in the experiment, or its name."""
    env_name: str
    env_configs: tuple[dict[str, Any], ...]
    writer: type[ClaimWriter]
    """Writer of its statements."""


def subjects_of(experiment: ExperimentConfig, frames: Frames | None = None) -> list[Subject]:
    """The environments of an experiment with its options.

    Args:
        experiment: The experiment with resolved environments.
        frames: Frames of the statements; None for the environments' own language.

    Raises:
        ConfigError: There is no writer for one of them.
    """
    return [
        Subject(
            env_id,
            spec.env_name,
            (spec.env_config,),
            _writer(spec.env_name, frames, f" (`envs.{env_id}`)"),
        )
        for env_id, spec in experiment.envs.items()
    ]


def subject_named(env_name: str, frames: Frames | None = None) -> Subject:
    """An environment in its writer's variants; see `subjects_of`."""
    writer = _writer(env_name, frames)
    return Subject(env_name, env_name, writer.env_configs, writer)


def calibrate(
    judge: JudgeConfig,
    subjects: Sequence[Subject],
    *,
    statements: int,
    seed: int = 0,
    cache: Path | None = None,
) -> dict[str, Calibration]:
    """Measures a judge on generated statements about states of each environment.

    Args:
        judge: An experiment's `judge` section.
        subjects: Environments to measure it on.
        statements: Number of statements per environment.
        seed: Seed of states and texts.
        cache: Folder of the cache of answers; None disables it.

    Raises:
        EndpointError: The environment variable of an endpoint's key is not set.
        ConfigError: The judge cannot judge one of the environments.
    """
    for subject in subjects:
        if judge.type == "rule" and rules_for(subject.env_name) is None:
            raise ConfigError(
                f"the rule judge has no rules for {subject.env_name}; calibrate judge.type=llm or "
                "cascade"
            )
    return asyncio.run(_calibrate(judge, subjects, statements, seed, cache))


async def _calibrate(
    judge: JudgeConfig, subjects: Sequence[Subject], statements: int, seed: int, cache: Path | None
) -> dict[str, Calibration]:
    asks = judge.type != "rule"
    client = ChatClient(judge.llm) if asks else None
    answers = AnswerCache(cache) if asks and cache is not None else None
    found: dict[str, Calibration] = {}
    try:
        for subject in subjects:
            judges = [
                judge_of(judge, subject.env_name, env_config, client=client, cache=answers)
                for env_config in subject.env_configs
            ]
            samples = sample_statements(subject.writer, subject.env_configs, statements, seed)
            found[subject.name] = await measure(
                judges,
                subject.env_name,
                samples,
                information_texts=_LLM_INFORMATION if asks else 500,
                usage=lambda: {} if client is None else _usage(client.usage),
            )
    finally:
        if client is not None:
            await client.close()
        if answers is not None:
            answers.close()
    return found


def _usage(usage: Usage) -> dict[str, float]:
    return {
        "calls": float(usage.requests),
        "prompt_tokens": float(usage.prompt_tokens),
        "completion_tokens": float(usage.completion_tokens),
    }


def judge_digest(judge: JudgeConfig) -> str:
    """SHA-256 of the configuration that determines a judge's verdicts; hexadecimal.

    Excludes the endpoint's address, its rate limits and the weights of verdicts.
    """
    content: dict[str, Any] = {"type": judge.type, "gate": judge.gate, "rules": RULES_VERSION}
    if judge.type != "rule":
        content["llm"] = {
            "model": judge.llm.model or "",
            "temperature": judge.llm.temperature,
            "max_tokens": judge.llm.max_tokens,
            "prompts": PROMPT_VERSION,
        }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def write_json(
    folder: Path,
    judge: JudgeConfig,
    found: Mapping[str, Calibration],
    *,
    seed: int,
    texts: str | None = None,
) -> Path:
    """Writes `calibration.json`; returns its path. `texts` names the frames of the statements."""
    content = {
        "judge_digest": judge_digest(judge),
        "judge": {"type": judge.type, "model": None if judge.type == "rule" else judge.llm.model},
        "seed": seed,
        "texts": texts,
        "environments": {name: calibration.to_dict() for name, calibration in found.items()},
    }
    path = folder / FILE
    path.write_text(json.dumps(content, indent=2) + "\n")
    return path


def shortcomings(experiment: ExperimentConfig) -> list[str]:
    """Reasons why the experiment's calibration does not cover its judge; empty if it does.

    Raises:
        ConfigError: There is no such file, or it is not a calibration.
    """
    judge = experiment.judge
    gate = judge.calibration
    if not judge.use_state_reward or gate.path is None:
        return []
    content = _read(Path(gate.path))
    if content["judge_digest"] != judge_digest(judge):
        return [f"{gate.path} is of another judge ({content['judge']}), or of an older version"]
    found: list[str] = []
    for env_id, spec in experiment.envs.items():
        entries = [e for e in content["environments"].values() if e["env_name"] == spec.env_name]
        if not entries:
            found.append(f"{gate.path} does not cover {spec.env_name} (`envs.{env_id}`)")
        for entry in entries:
            for name, least in (("precision", gate.min_precision), ("recall", gate.min_recall)):
                if (reached := entry[name] or 0.0) < least:
                    found.append(
                        f"{name} on {spec.env_name} is {reached:.3f}, below "
                        f"judge.calibration.min_{name} = {least:g}"
                    )
    return found


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ConfigError(
            f"judge.calibration.path: there is no file {path}; `vagen judge calibrate EXPERIMENT "
            f"--out {path.parent}` writes it, or set it to null"
        )
    try:
        return _Stored.model_validate_json(path.read_text()).model_dump()
    except ValueError:
        raise ConfigError(
            f"judge.calibration.path: {path} is no file that `vagen judge calibrate` wrote"
        ) from None


class _Measured(BaseModel):
    env_name: str
    precision: float | None
    recall: float


class _Stored(BaseModel):
    """The part of `calibration.json` that the gate reads."""

    judge_digest: str
    judge: dict[str, str | None]
    environments: dict[str, _Measured]


def _writer(env_name: str, frames: Frames | None, where: str = "") -> type[ClaimWriter]:
    writer = writer_of(env_name)
    if writer is None:
        raise ConfigError(
            f"no statements can be written for {env_name!r}{where}: a judge can be calibrated on "
            "environments that say what their texts claim"
        )
    return writer if frames is None else frame_writer(env_name, frames)
