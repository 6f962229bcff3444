"""The `vagen` command: arguments, and errors as one message each.

Exit codes: 0 done, 1 a run failed, 2 the user can put it right, 130 interrupted. Commands import
what they need when they run, so that `vagen --help` answers at once.
"""

import argparse
import importlib
import shlex
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vagen.cli.options import OPTIONS
from vagen.extras import advice

FAILED, USER_ERROR, INTERRUPTED = 1, 2, 130

DEFAULT_EXPERIMENT = "frozenlake-tiny"


@dataclass(frozen=True, slots=True)
class Command:
    """A subcommand and the function `module:function` that executes it."""

    target: str
    summary: str
    words: str | None = None
    """Help of the experiment and the overrides, if the command takes them."""
    examples: tuple[str, ...] = ()
    """Example command lines for the help, without `vagen`."""


_WORDS = "experiment (a name under experiments/, or a file), then dotted overrides: key=value"

COMMANDS = {
    "run": Command(
        "vagen.cli.run:run",
        "train: the whole pipeline, or one step of it",
        _WORDS,
        (
            "run frozenlake-tiny",
            "run frozenlake-tiny trainer.total_training_steps=10 seed=1",
            "run frozenlake-tiny --seeds 0-4 preset=vagen_base",
            "run --stage judge --from outputs/latest/iterations/0003/rollout",
        ),
    ),
    "sweep": Command(
        "vagen.cli.sweep:sweep",
        "train many times: grid, random, TPE, successive halving",
        "sweep (a file, or a name under experiments/sweeps/), then dotted overrides: key=value",
    ),
    "resume": Command("vagen.cli.run:resume", "go on with a run that stopped"),
    "runs": Command("vagen.cli.runs:runs", "list runs: state, iterations, success, time"),
    "eval": Command(
        "vagen.cli.evaluate:evaluate",
        "measure a model or a run on levels",
        _WORDS,
        (
            "eval latest",
            "eval frozenlake-tiny --model expert --model openai:NAME@http://127.0.0.1:8000/v1",
        ),
    ),
    "serve": Command(
        "vagen.cli.serve:serve",
        "serve a model or a run as OpenAI's chat completions",
        "where it runs: infra.device=cuda, infra.threads=8, ...",
        ("serve latest", "serve models:/frozenlake-tiny@champion --port 8001"),
    ),
    "compare": Command(
        "vagen.cli.compare:compare",
        "runs side by side, over their seeds",
        None,
        ("compare outputs --by preset",),
    ),
    "view": Command("vagen.cli.view:view", "look at a run, an evaluation, or any step's episodes"),
    "play": Command(
        "vagen.cli.play:play",
        "play an environment in the browser, in turns with an agent",
        "environment (then options: key=value), experiment (then dotted overrides), or run",
        ("play Sokoban", "play frozenlake-tiny --agent expert", "play FrozenLake --terminal"),
    ),
    "export": Command(
        "vagen.cli.export:export",
        "episodes as OpenAI messages, for training on them",
        _WORDS,
        (
            "export frozenlake-tiny --expert 512 --to expert.jsonl",
            "export --from outputs/latest/evaluations/final --successes --to won.jsonl",
        ),
    ),
    "plan": Command(
        "vagen.cli.plan:plan",
        "what would run: steps, sizes, memory",
        _WORDS,
        ("plan frozenlake-tiny algorithm.lam=0.95", "plan frozenlake-qwen25vl-3b --infra h100x8"),
    ),
    "doctor": Command("vagen.cli.doctor:doctor", "check this machine and this model", _WORDS),
    "judge": Command("vagen.cli.judge:judge", "how good a judge is, and what it pays for", _WORDS),
    "env": Command(
        "vagen.cli.env:env",
        "show or serve an environment; write or check one of your own",
        None,
        ("env show Sokoban", "env init corridor", "env check corridor:CorridorEnv"),
    ),
    "store": Command(
        "vagen.cli.store:store",
        "what is in a store: list, check, copy, tidy up",
        None,
        ("store ls s3://bucket/runs",),
    ),
    "cluster": Command("vagen.cli.cluster:cluster", "runs on Kubernetes: status, logs, end"),
    "deploy": Command(
        "vagen.cli.deploy:deploy",
        "put a run's agent on Kubernetes, if it plays as before",
        "where levels are played: infra.environments.workers=4, ...",
        ("deploy s3://vagen/runs/lake-1 --count 64",),
    ),
    "undeploy": Command("vagen.cli.deploy:undeploy", "delete an agent from Kubernetes"),
    "compile": Command("vagen.cli.run:compile_ir", "write the pipeline as Kubeflow YAML", _WORDS),
    "submit": Command("vagen.cli.submit:submit", "train, or evaluate a run, on Kubernetes", _WORDS),
}


class UsageError(ValueError):
    """The command line is invalid."""


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
        from vagen.config.base import redact

        print(redact(_message(error)), file=sys.stderr)
        return USER_ERROR if is_user_error(error) or advice(error) else FAILED


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads a command line; options and words may stand in any order.

    Raises:
        SystemExit: With code 2 and a message for what it does not understand; 0 after help.
    """
    parser, commands = _parsers()
    if list(arguments) in ([], ["run"]):
        (commands["run"] if arguments else parser).print_help()
        raise SystemExit(USER_ERROR if arguments else 0)
    options, rest = parser.parse_known_args(arguments)
    flags = [word for word in rest if word.startswith("-")]
    command = commands[options.command]
    if flags or (rest and not hasattr(options, "words")):
        command.error(f"unrecognized arguments: {' '.join(flags or rest)}")
    options.line = shlex.join(["vagen", *arguments])
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
    if missing := advice(error):
        return f"error: {missing}"
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
            name,
            help=command.summary,
            description=_sentence(command.summary),
            formatter_class=_Help,
            allow_abbrev=False,
        )
        sub.epilog = _epilog(name, command)
        for flags, settings in OPTIONS.get(name, []):
            sub.add_argument(*flags, **settings)
        if command.words:
            sub.add_argument("words", nargs="*", metavar="word", help=command.words)
            sub.add_argument(
                "--infra", metavar="FILE", help="where to run: a file or a name (experiments/infra)"
            )
        sub.add_argument("--debug", action="store_true", help="show the traceback of an error")
        commands[name] = sub
    return parser, commands


class _Help(argparse.RawDescriptionHelpFormatter):
    """Keeps names whole: argparse breaks them at hyphens."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_on_hyphens=False)


def _epilog(name: str, command: Command) -> str:
    """Examples, and the names of the experiments or sweeps here and in the repository."""
    found = [f"  vagen {line}" for line in command.examples]
    found[:0] = ["examples:"] if found else []
    if command.words:
        folder = "experiments/sweeps" if name == "sweep" else "experiments"
        roots = (Path(), Path(__file__).resolve().parents[1])
        names = {path.stem for root in roots for path in root.glob(f"{folder}/*.yaml")}
        found += ["", f"{folder}:", *(f"  {each}" for each in sorted(names))]
    return "\n".join(found).strip()


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


if __name__ == "__main__":
    sys.exit(main())
