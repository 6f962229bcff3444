"""The `vagen` command: arguments, and errors as one message each.

Exit codes: 0 done, 1 a run failed, 2 the user can put it right, 130 interrupted. Commands import
what they need when they run, so that `vagen --help` answers at once.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vagen.run.layout import STAGES

FAILED, USER_ERROR, INTERRUPTED = 1, 2, 130

DEFAULT_EXPERIMENT = "frozenlake-tiny"


@dataclass(frozen=True, slots=True)
class Command:
    """A subcommand and the function `module:function` that executes it."""

    target: str
    summary: str
    words: str | None = None
    """Help of the experiment and the overrides, if the command takes them."""


_WORDS = "experiment (a name under experiments/, or a file), then dotted overrides: key=value"

COMMANDS = {
    "run": Command("vagen.cli.run:run", "train: the whole pipeline, or one step of it", _WORDS),
    "resume": Command("vagen.cli.run:resume", "go on with a run that stopped"),
    "eval": Command("vagen.cli.evaluate:evaluate", "measure a model or a run on levels", _WORDS),
    "view": Command("vagen.cli.view:view", "look at a run, an evaluation, or any step's episodes"),
    "plan": Command("vagen.cli.plan:plan", "what would run: steps, sizes, memory", _WORDS),
    "doctor": Command("vagen.cli.doctor:doctor", "check this machine and this model", _WORDS),
    "judge": Command("vagen.cli.judge:judge", "how good a judge is, and what it pays for", _WORDS),
    "env": Command("vagen.cli.env:env", "check an environment of your own"),
    "store": Command("vagen.cli.store:store", "what is in a store: list, check, copy, tidy up"),
    "cluster": Command("vagen.cli.cluster:cluster", "runs on Kubernetes: status, logs, end"),
    "compile": Command("vagen.cli.run:compile_ir", "write the pipeline as Kubeflow YAML", _WORDS),
    "submit": Command("vagen.cli.submit:submit", "train, or evaluate a run, on Kubernetes", _WORDS),
}


class UsageError(ValueError):
    """A command line that makes no sense."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Executes a command line and returns its exit code."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    module, _, function = COMMANDS[options.command].target.partition(":")
    try:
        return getattr(importlib.import_module(module), function)(options) or 0
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if options.debug:
            raise
        from vagen.config.addresses import redact

        print(redact(_message(error)), file=sys.stderr)
        return USER_ERROR if is_user_error(error) else FAILED


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads a command line; options and words may stand in any order.

    Raises:
        SystemExit: With code 2 and a message for what it does not understand; 0 for `--help`.
    """
    parser, commands = _parsers()
    options, rest = parser.parse_known_args(arguments)
    flags = [word for word in rest if word.startswith("-")]
    command = commands[options.command]
    if flags or (rest and not hasattr(options, "words")):
        command.error(f"unrecognized arguments: {' '.join(flags or rest)}")
    if hasattr(options, "words"):
        try:
            options.words = [*options.words, *rest]
            _read_words(options, options.words)
        except UsageError as error:
            command.error(str(error))
    return options


def is_user_error(error: Exception) -> bool:
    """Whether the user can put it right: errors for users are `ValueError`s of this package."""
    return isinstance(error, ValueError) and type(error).__module__.partition(".")[0] in (
        "vagen",
        "pydantic_core",
    )


def _message(error: Exception) -> str:
    module = type(error).__module__.partition(".")[0]
    if is_user_error(error) or module in ("vagen", "pipelines"):
        return f"error: {error}"
    if isinstance(error, OSError):
        return f"error: {error}"
    return (
        f"error: {type(error).__name__}: {error}\n"
        "This is a fault of the program; `--debug` shows where."
    )


def _read_words(options: argparse.Namespace, words: list[str]) -> None:
    """Sorts words into `experiment`, `overrides`, `infra_overrides` and `eval_overrides`."""
    options.overrides, options.infra_overrides, options.eval_overrides, names = [], [], [], []
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            names.append(word)
        elif key == "experiment":
            names.append(value)
        elif key.startswith("infra."):
            options.infra_overrides.append(word.removeprefix("infra."))
        elif key.startswith("eval."):
            options.eval_overrides.append(word.removeprefix("eval."))
        else:
            options.overrides.append(word)
    if len(names) > 1:
        raise UsageError(
            f"one experiment at a time, not {', '.join(names)}; overrides are written key=value"
        )
    options.experiment = names[0] if names else None


class _Version(argparse.Action):
    """Looks the version up only where it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import version

        print(f"vagen {version('vagen')}")
        parser.exit()


def _parsers() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    parser = argparse.ArgumentParser(
        prog="vagen",
        description="Trains vision-language agents by multi-turn reinforcement learning.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    choices = parser.add_subparsers(dest="command", required=True, metavar="command")
    commands = {}
    for name, command in COMMANDS.items():
        sub = choices.add_parser(
            name, help=command.summary, description=_sentence(command.summary), allow_abbrev=False
        )
        sub.epilog = _experiments() if command.words else None
        for flags, settings in _OPTIONS.get(name, []):
            sub.add_argument(*flags, **settings)
        if command.words:
            sub.add_argument("words", nargs="*", metavar="word", help=command.words)
            sub.add_argument(
                "--infra", metavar="FILE", help="where to run: a file or a name (experiments/infra)"
            )
        sub.add_argument("--debug", action="store_true", help="show the traceback of an error")
        commands[name] = sub
    return parser, commands


def _experiments() -> str:
    """Names that may stand for an experiment: of files here, and in the repository."""
    roots = (Path(), Path(__file__).resolve().parents[2])
    names = {path.stem for root in roots for path in root.glob("experiments/*.yaml")}
    return f"experiments: {', '.join(sorted(names))}"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


_PIPELINE = (
    ("--pipeline",),
    {"action": "store_true", "help": "as the Kubeflow pipeline, each step a process of its own"},
)
_OPTIONS: dict[str, list[tuple[tuple[str, ...], dict[str, Any]]]] = {
    "run": [
        (("--name",), {"help": "name of the run instead of the experiment's"}),
        _PIPELINE,
        (("--stage",), {"choices": STAGES, "help": "run this step alone"}),
        (("--of",), {"metavar": "RUN", "help": "--stage: of this run; without it of a new one"}),
        (("--iteration",), {"type": int, "metavar": "N", "help": "--stage: its iteration, from 0"}),
        (
            ("--evaluation",),
            {"metavar": "NAME", "help": "--stage evaluate: warm_start, final, ..."},
        ),
        (
            ("--split",),
            {"choices": ["test", "val"], "default": "test", "help": "--stage evaluate: levels"},
        ),
        (
            ("--from",),
            {
                "dest": "batch",
                "metavar": "BATCH",
                "help": "--stage judge, advantage, update: again, on this stored batch",
            },
        ),
        (("--to",), {"dest": "to", "metavar": "DIR", "help": "--from: folder for the result"}),
    ],
    "resume": [
        (("run",), {"help": "the run's folder, or its name under the output folder"}),
        (
            ("changes",),
            {
                "nargs": "*",
                "metavar": "trainer.total_training_steps=N",
                "help": "make it longer; a run that is at work takes it from its next iteration",
            },
        ),
        _PIPELINE,
    ],
    "eval": [
        (
            ("model",),
            {
                "help": "a run (its newest policy), model directory or hub id; with --model the "
                "experiment; or an evaluation: its YAML file, or its folder, to go on",
            },
        ),
        (
            ("--model",),
            {
                "dest": "models",
                "action": "append",
                "default": [],
                "metavar": "SPEC",
                "help": "a row: expert, random, blind, openai:NAME@http://host:8000/v1, "
                "anthropic:NAME, a run, ... (docs/evaluation.md); may be repeated",
            },
        ),
        (
            ("--levels",),
            {"choices": ["test", "val"], "help": "which levels (test)"},
        ),
        (("--count",), {"type": int, "help": "how many levels (default: all of the experiment's)"}),
        (("--attempts",), {"type": int, "metavar": "K", "help": "--model: episodes on each level"}),
        (("--baseline",), {"metavar": "SPEC", "help": "--model: the row to compare with (first)"}),
        (("--prices",), {"metavar": "FILE", "help": "--model: what tokens cost"}),
        (("--max-cost",), {"type": float, "metavar": "X", "help": "--model: ask no more at that"}),
        (("--max-tokens",), {"type": int, "metavar": "N", "help": "the same of tokens in and out"}),
        (
            ("--rerun",),
            {"choices": ["failed"], "help": "go on, and ask again where an endpoint had failed"},
        ),
        (("--to",), {"dest": "to", "metavar": "DIR", "help": "folder for the result"}),
    ],
    "view": [
        (
            ("target",),
            {"help": "a run, an evaluation, a step such as RUN/iterations/0007/rollout, or a page"},
        ),
        (("--follow",), {"action": "store_true", "help": "keep a run's page up to date"}),
        (("--no-open",), {"action": "store_true", "help": "print the path only"}),
    ],
    "plan": [
        (("--engine",), {"choices": ["local", "verl"], "help": "instead of infra.engine"}),
    ],
    "judge": [
        (
            ("action",),
            {
                "choices": ["audit", "calibrate", "train-extractor"],
                "help": "audit: what experts, cheats and losers earn; calibrate: judge generated "
                "statements of known worth; train-extractor: a small model that reads free text",
            },
        ),
        (
            ("--levels",),
            {"type": int, "default": 16, "help": "audit: levels of each environment (16)"},
        ),
        (("--env",), {"metavar": "NAME", "help": "this environment instead of an experiment's"}),
        (
            ("--statements",),
            {"type": int, "default": 5000, "help": "calibrate: for each environment (5000)"},
        ),
        (("--seed",), {"type": int, "default": 0, "help": "decides states and texts (0)"}),
        (
            ("--texts",),
            {
                "metavar": "FILE",
                "help": "sentence frames: calibrate on the held-out half, train on the other",
            },
        ),
        (
            ("--steps",),
            {"type": int, "default": 240, "help": "train-extractor: batches of 64 texts (240)"},
        ),
        (("--out",), {"metavar": "DIR", "help": "folder for the report, or the model"}),
    ],
    "env": [
        (
            ("action",),
            {"choices": ["check"], "help": "play it, and say how it breaks the contract"},
        ),
        (("name",), {"help": "module:Class, or a registered name such as FrozenLake"}),
        (
            ("--config",),
            {
                "action": "append",
                "default": [],
                "metavar": "KEY=VALUE|FILE",
                "help": "an option of its env_config, or a YAML file of them; may be repeated",
            },
        ),
    ],
    "store": [
        (
            ("action",),
            {
                "choices": ["ls", "put", "fetch", "verify", "gc", "prune"],
                "help": "list folders; put or fetch one; check all; remove what nothing refers to; "
                "prune: remove the episodes of a run's old iterations",
            },
        ),
        (
            ("uri",),
            {
                "help": "s3://bucket/prefix, file:///folder; of one folder for put and fetch; of a "
                "run, or its folder or name, for prune"
            },
        ),
        (("path",), {"nargs": "?", "help": "the folder of put and fetch on this machine"}),
        (
            ("--older-than",),
            {"default": "7d", "metavar": "AGE", "help": "gc: remains younger than it stay (7d)"},
        ),
        (("--expire",), {"metavar": "AGE", "help": "gc: also runs unchanged for that long"}),
        (
            ("--keep",),
            {"type": int, "metavar": "N", "help": "prune: the newest iterations that stay (2)"},
        ),
        (
            ("--dry-run",),
            {"action": "store_true", "help": "gc, prune: only say what would be removed"},
        ),
        (("--infra",), {"metavar": "FILE", "help": "whose infra.s3 says how to reach it"}),
    ],
    "doctor": [
        (
            ("--cluster",),
            {"action": "store_true", "help": "check the Kubernetes cluster, too"},
        ),
    ],
    "cluster": [
        (
            ("action",),
            {
                "choices": ["status", "logs", "stop", "delete", "gc"],
                "help": "what to do; gc: remove what has expired, of all runs",
            },
        ),
        (
            ("run",),
            {"nargs": "?", "default": "latest", "help": "name, path or URI (default: the newest)"},
        ),
        (("--follow",), {"action": "store_true", "help": "logs: until the job ends"}),
        (("--dry-run",), {"action": "store_true", "help": "gc: say what would be removed"}),
        (("--namespace",), {"help": "instead of the kubeconfig's"}),
        (("--context",), {"help": "of the kubeconfig, instead of the current one"}),
    ],
    "compile": [
        (("--output",), {"default": "build/pipeline.yaml", "help": "file to write"}),
        (("--image",), {"help": "container image of the steps"}),
    ],
    "submit": [
        (("--name",), {"help": "name of the run instead of the experiment's"}),
        (
            ("--clone",),
            {"metavar": "RUN", "help": "begin with the configuration of this run (its URI)"},
        ),
        (
            ("--evaluate",),
            {"metavar": "RUN", "help": "measure this run's newest policy (its URI) instead"},
        ),
        (("--cron",), {"help": "with --evaluate, when: six fields, seconds first"}),
        (
            ("--levels",),
            {"choices": ["test", "val"], "default": "test", "help": "with --evaluate, which"},
        ),
        (("--count",), {"type": int, "help": "with --evaluate, how many (default: all)"}),
        (("--image",), {"help": "container image of the steps"}),
        (("--host",), {"help": "address of Kubeflow Pipelines"}),
        (("--kfp-namespace",), {"help": "your namespace, if Kubeflow has many users"}),
    ],
}


if __name__ == "__main__":
    sys.exit(main())
