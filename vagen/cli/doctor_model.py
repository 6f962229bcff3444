"""The doctor's checks of an experiment's environments and model."""

import asyncio
from pathlib import Path
from typing import Any

from vagen.cli.findings import Findings, bad, good, guarded, warning
from vagen.config import ExperimentConfig, InfraConfig
from vagen.config.infra import EnvironmentsConfig
from vagen.config.judge_options import LLMJudgeConfig
from vagen.envs import get_environment, parse_env_config
from vagen.envs.parsing import tags_in
from vagen.judge.llm.llm_judge import probe
from vagen.models.files import check_model
from vagen.models.processor import load_processor
from vagen.models.tiny import TINY_MODELS
from vagen.plan.sizes import (
    SAMPLED_LEVELS,
    environments_here,
    expert_turns,
    learns_tags,
    model_directory,
    reserved_tags,
    reserved_text,
)
from vagen.rollout.conversation import ChatRenderer
from vagen.service import environments_of
from vagen.service.client import served


def service(infra: InfraConfig) -> Findings:
    """Checks that the environment service accepts sessions, if runs use one."""
    place = environments_here(infra)
    if place is not None and place.placement == "service":
        yield from guarded(
            "service",
            "start it (`python -m vagen.service`, docs/service.md), or set "
            "infra.environments.placement to auto",
            lambda: _service(place),
        )


def _service(place: EnvironmentsConfig) -> Findings:
    names = served(place)
    yield good("service", f"{place.url} serves environments: {', '.join(names)}")


def environments(experiment: ExperimentConfig, place: EnvironmentsConfig | None = None) -> Findings:
    """Checks that each environment makes a level and parses an expert's response to it."""
    for env_id, spec in experiment.envs.items():
        yield from guarded(
            "environment",
            f"check `envs.{env_id}.env_config`",
            lambda env_id=env_id, spec=spec: _environment(env_id, spec, place),
        )


def _environment(env_id: str, spec: Any, place: EnvironmentsConfig | None) -> Findings:
    env = environments_of(place).open(spec.env_name, spec.env_config)
    env.reset(seed=0)
    response = env.expert_response()
    *_, info = env.step(response)
    env.close()
    if not get_environment(spec.env_name).load().has_expert:
        yield good("environment", f"{env_id}: a level of {spec.env_name}; it has no expert")
    elif info["parsed"]["format_correct"]:
        yield good("environment", f"{env_id}: a level of {spec.env_name}, an expert's response")
    else:
        yield bad(
            "environment",
            f"{env_id}: {spec.env_name} refuses its expert's response {response!r}",
            "check `env_config.tags` and `env_config.action_sep`",
        )


def model(experiment: ExperimentConfig, place: EnvironmentsConfig | None = None) -> Findings:
    """Checks that the model directory is complete and its tokenizer keeps the tags."""
    path = experiment.actor_rollout_ref.model.path
    advice = "give a model directory as `save_pretrained` writes it, or a hub id"
    if path in TINY_MODELS:
        yield good("model", f"{path} ({TINY_MODELS[path]}), built when the run starts")
    else:
        complete = True
        for finding in guarded("model", advice, lambda: _directory(path)):
            complete = complete and finding.verdict != "✗"
            yield finding
        if not complete:
            return
    yield from guarded("tokenizer", advice, lambda: _tokenizer(experiment, place))


def _directory(path: str) -> Findings:
    check_model(path)
    folder = Path(path)
    if folder.is_dir():
        size = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
        yield good("model", f"{folder}, {size / 1e6:,.1f} MB")
        return
    from huggingface_hub import try_to_load_from_cache

    if isinstance(try_to_load_from_cache(path, "config.json"), str):
        yield good("model", f"{path}, in the local cache")
    else:
        yield warning("model", f"{path}, not downloaded yet", "the run downloads it")


def _tokenizer(experiment: ExperimentConfig, place: EnvironmentsConfig | None) -> Findings:
    with model_directory(experiment, place) as directory:
        processor = load_processor(directory)
    for env_id, spec in experiment.envs.items():
        yield from _tags(env_id, spec, processor, place, not learns_tags(experiment))
        yield from _conversation(env_id, spec, processor, place)


def _tags(
    env_id: str, spec: Any, processor: Any, place: EnvironmentsConfig | None, prompted: bool
) -> Findings:
    """Each tag, and a whole response, after encoding and decoding without special tokens.

    Where only the prompt asks for the tags, none should be a token of its own.
    """
    lost, tokenizer = [], processor.tokenizer
    thoughts = ChatRenderer(processor).thoughts
    config = parse_env_config(spec.env_name, spec.env_config)
    for tag in tags_in(config.layout, config.tags):
        text = f"left{tag}right"
        if survives(text, tokenizer) != text:
            lost.append(tag)
    if lost:
        yield bad(
            "tags",
            f"{env_id}: {', '.join(lost)} do not survive the tokenizer: every response would be "
            "malformed",
            f"rename them in `envs.{env_id}.env_config.tags`",
        )
        return
    env = environments_of(place).open(spec.env_name, spec.env_config)
    env.reset(seed=0)
    response = env.expert_response()
    env.close()
    if survives(response, tokenizer) != response:
        yield bad(
            "tags",
            f"{env_id}: the tokenizer turns {response!r} into {survives(response, tokenizer)!r}",
            "take a tokenizer that keeps text as it is",
        )
    elif prompted and (reserved := reserved_tags(config, tokenizer, thoughts)):
        text, _, advice = reserved_text(env_id, reserved).partition("; ")
        yield warning("tags", f"{env_id}: {text}", advice)
    else:
        yield good("tags", f"{env_id}: all survive encoding and decoding")


def survives(text: str, tokenizer: Any) -> str:
    """The text after encoding and decoding without special tokens."""
    ids = tokenizer.encode(text, add_special_tokens=False)
    return tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def _conversation(
    env_id: str, spec: Any, processor: Any, place: EnvironmentsConfig | None
) -> Findings:
    """Checks on an episode that turns rendered one by one equal the whole conversation."""
    env = environments_of(place).open(spec.env_name, spec.env_config)
    episodes = ([shown for shown, _ in expert_turns(env, seed)] for seed in range(SAMPLED_LEVELS))
    observations = max(episodes, key=len)
    renderer = ChatRenderer(processor)
    renderer.check(env.system_prompt(), observations)
    if len(observations) > 1:  # a context that begins with a later turn
        renderer.check(env.system_prompt(), observations[1:])
    images = sum(len(shown["images"]) for shown in observations)
    env.close()
    yield good(
        "conversation",
        f"{env_id}: {len(observations)} turns with {images} images render token-exactly",
    )


def judge(experiment: ExperimentConfig) -> Findings:
    """Asks each endpoint that the experiment's judges use one question."""
    for key, llm in experiment.judge.endpoints().items():
        yield from _endpoint(llm, key)


def _endpoint(llm: LLMJudgeConfig, key: str) -> Findings:
    advice = f"see `{key}.base_url`, `{key}.model` and `{key}.api_key_env`"

    def check() -> Findings:
        found = asyncio.run(probe(llm, key))
        if found.problem:
            yield bad("judge", f"{llm.model} {llm.where}: {found.problem}", advice)
        else:
            yield good("judge", f"{llm.model} {llm.where} answers in {found.seconds:.1f} s")

    yield from guarded("judge", advice, check)
