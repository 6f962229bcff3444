"""What a judge cannot do: refusals of the section `judge`."""

import re
from urllib.parse import urlsplit

from vagen.config.base import Refusals
from vagen.config.judge_options import JudgeConfig, LLMJudgeConfig
from vagen.config.schema import ExperimentConfig
from vagen.envs.parsing import LAYOUTS
from vagen.judge.rule_judge import rules_for


def judge_refusals(config: ExperimentConfig) -> Refusals:
    """Keys of the judge, or that it does not go with, and why.

    What may be a secret is named by its section: of a key, the override that set it is repeated.
    """
    judge = config.judge
    if not judge.use_state_reward:
        return
    weights = {"observation": judge.observation_weight, "prediction": judge.prediction_weight}
    rewarded = [section for section, weight in weights.items() if weight > 0]
    if not rewarded:
        yield ("judge.use_state_reward", "both weights are 0; give one, or set it to false")
        return
    yield from _environments(config, rewarded)
    yield from _defences(config)
    if judge.type != "rule":
        yield from _endpoint(judge.llm, "judge.llm", f"judge.type = {judge.type}")
    if judge.second.fraction > 0:
        yield from _second(judge)


def _environments(config: ExperimentConfig, rewarded: list[str]) -> Refusals:
    judge = config.judge
    for env_id, spec in config.envs.items():
        without_rules = rules_for(spec.env_name) is None
        if judge.type == "rule" and without_rules:
            yield (
                "judge.use_state_reward",
                f"the rule judge has no rules for {spec.env_name} (`envs.{env_id}`), whose class "
                "has no claims; set it to false, or judge.type to llm or cascade",
            )
        if judge.second.fraction > 0 and judge.second.type == "rule" and without_rules:
            yield (
                "judge.second.type",
                f"the rule judge has no rules for {spec.env_name} (`envs.{env_id}`); take llm, or "
                "set judge.second.fraction to 0",
            )
        prompt_format = spec.env_config.get("prompt_format", "")
        inner = LAYOUTS[prompt_format].inner
        if not any(section in inner for section in rewarded):
            yield (
                f"envs.{env_id}.env_config.prompt_format",
                f"{prompt_format} has no {' or '.join(f'<{name}>' for name in rewarded)} section "
                "for judge.use_state_reward to score; take grounding_worldmodeling, or set "
                "judge.use_state_reward to false",
            )


def _defences(config: ExperimentConfig) -> Refusals:
    judge = config.judge
    if judge.above_chance and judge.information.enable:
        yield (
            "judge.above_chance",
            "judge.information.enable deducts what a text is worth in other states already; set "
            "one of them to false",
        )
    if not judge.gate and judge.type != "rule":
        yield (
            "judge.gate",
            f"texts go to a language model ungated with judge.type = {judge.type}; set it to true",
        )
    for name in ("information", "repetition"):
        if not getattr(judge, name).enable:
            continue
        if judge.type == "llm":
            yield (
                f"judge.{name}.enable",
                "texts are compared with other states by rules; take judge.type = rule or cascade, "
                "or set it to false",
            )
        for env_id, spec in config.envs.items():
            if rules_for(spec.env_name) is None:
                yield (
                    f"judge.{name}.enable",
                    f"there are no rules to compare texts of {spec.env_name} (`envs.{env_id}`) "
                    "with other states; set it to false",
                )


def _endpoint(llm: LLMJudgeConfig, key: str, asker: str) -> Refusals:
    if llm.base_url is None:
        if ":" not in (llm.model or ""):
            yield (
                f"{key}.base_url",
                f"{asker} asks a language model; set it to the base of an OpenAI-compatible API, "
                "such as http://vagen-judge.vagen.svc:8000/v1, or name a vendor's model in "
                f"{key}.model, such as anthropic:MODEL",
            )
    else:
        parts = urlsplit(llm.base_url)
        if parts.username or parts.password or parts.query or parts.fragment:
            yield (
                key,
                "base_url is stored with the run, no user, password or query may stand in it; the "
                f"key is read from the environment variable that {key}.api_key_env names",
            )
        elif parts.scheme not in ("http", "https") or not parts.hostname:
            yield (
                f"{key}.base_url",
                f"{llm.base_url} is no base of an API; write one such as http://host:8000/v1",
            )
    if not llm.model:
        yield (f"{key}.model", f"{asker} asks a language model; name it as the endpoint does")
    if llm.api_key_env is not None and not re.fullmatch(r"[A-Z_][A-Z0-9_]*", llm.api_key_env):
        yield (
            key,
            "api_key_env is no name of an environment variable in capitals, such as "
            "OPENAI_API_KEY; a key itself never stands in a configuration",
        )
    if llm.timeout > llm.deadline:
        yield (
            f"{key}.timeout",
            f"{llm.timeout:g} s for one request is more than {key}.deadline = {llm.deadline:g} s "
            "for all of a batch; make it smaller",
        )
    if llm.tokens_per_minute is not None and llm.tokens_per_minute < llm.max_tokens:
        yield (
            f"{key}.tokens_per_minute",
            f"{llm.tokens_per_minute:g} is less than one answer of {key}.max_tokens = "
            f"{llm.max_tokens}; raise it, or set it to null",
        )


def _second(judge: JudgeConfig) -> Refusals:
    second = judge.second
    if second.type == "llm":
        yield from _endpoint(second.llm, "judge.second.llm", "judge.second.type = llm")
    same_model = (second.llm.base_url, second.llm.model) == (judge.llm.base_url, judge.llm.model)
    if second.type == judge.type and (second.type == "rule" or same_model):
        yield (
            "judge.second.type",
            "it is the first judge again, they would agree on everything; take another one, or set "
            "judge.second.fraction to 0",
        )
