"""The doctor's checks of the judge: whether its language model answers."""

import asyncio

from vagen.cli.findings import Findings, bad, good, guarded
from vagen.config import ExperimentConfig
from vagen.config.judge_options import LLMJudgeConfig
from vagen.judge.llm.llm_judge import probe


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
