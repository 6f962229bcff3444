"""One stage of a run as a program: what a job on the run's Ray cluster executes.

    python -m vagen.launch.job s3://bucket/runs/lake-1 rollout iteration=3

It calls the run's resident actor (`vagen.launch.actor`), prints the actor's output, and finally
the outcome (`vagen.launch.protocol`). SIGTERM stops the job and the stage, by ending the actor.
"""

import logging
import signal
import sys
from collections.abc import Sequence
from typing import Any, cast

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from vagen.engines.verl.env_vars import variables_of
from vagen.launch.actor import NAMESPACE, attach, kind_of, read_lines
from vagen.launch.logs import RAY_LOGS, write_ray_logs
from vagen.launch.protocol import CPU, EXIT_CODES, StepOutcome, format_verdict, parse_command

PAUSE = 2.0
"""Seconds between polls of the actor's output."""
MESSAGE = 1000
"""Maximum characters of Ray's message about a lost actor."""


def main(words: Sequence[str]) -> int:
    """Executes a command line made by `format_command`; returns the exit code."""
    run, stage, arguments = parse_command(words)
    ray.init("auto", namespace=NAMESPACE, log_to_driver=False, logging_level=logging.WARNING)
    verdict = _perform(run, stage, arguments)
    print(format_verdict(verdict), flush=True)
    return EXIT_CODES[verdict["kind"]] if "kind" in verdict else 0


def _perform(run: str, stage: str, arguments: dict[str, Any]) -> StepOutcome:
    try:
        if stage == RAY_LOGS:
            return {"result": {"uri": write_ray_logs(run)}}
        return _ask(run, stage, arguments)
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        return {"kind": kind_of(error), "message": f"{stage} failed: {text[:MESSAGE]}"}


def _ask(run: str, stage: str, arguments: dict[str, Any]) -> StepOutcome:
    """Calls the actor for a stage, and prints its output.

    During the stage a task reads the output, afterwards the actor itself, because the first task of
    a job takes a second to start.
    """
    variables = variables_of(cpu=bool(arguments.pop(CPU, 0)))
    actor = attach(run, variables)

    def stop(*_: Any) -> None:
        ray.kill(actor)
        sys.exit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, stop)
    where = actor.output.remote()
    reply = actor.perform.remote(stage, arguments)
    node, path, position = ray.get(where)
    reader = ray.remote(read_lines).options(
        num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)
    )

    def copy(read: Any) -> None:
        nonlocal position
        while text := cast(bytes, ray.get(read.remote(path, position))):
            sys.stdout.write(text.decode(errors="replace"))
            sys.stdout.flush()
            position += len(text)

    while not ray.wait([reply], timeout=PAUSE)[0]:
        copy(reader)
    try:
        verdict: StepOutcome = ray.get(reply)
        copy(actor.read)
    except RayError:
        copy(reader)
        raise
    if verdict.get("kind", "user") != "user":
        ray.kill(actor)  # its state may be broken: the next attempt starts another
    return verdict


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
