"""Options of each command."""

from typing import Any

from vagen.steps import STEPS

Option = tuple[tuple[str, ...], dict[str, Any]]
"""Names, and arguments of `add_argument`."""

PIPELINE: Option = (
    ("--pipeline",),
    {"action": "store_true", "help": "as the Kubeflow pipeline, each step a process of its own"},
)
KUBEFLOW: list[Option] = [
    (("--image",), {"help": "container image of the steps"}),
    (("--host",), {"help": "address of Kubeflow Pipelines"}),
    (("--kfp-namespace",), {"help": "your namespace, if Kubeflow has many users"}),
]
TRIALS: list[Option] = [
    (
        ("--jobs",),
        {"type": int, "default": 1, "metavar": "N", "help": "of a sweep: trainings at a time (1)"},
    ),
    (("--rerun",), {"choices": ["failed"], "help": "of a sweep: train again what had failed"}),
]

OPTIONS: dict[str, list[Option]] = {
    "run": [
        (("--name",), {"help": "name of the run instead of the experiment's"}),
        (("--seeds",), {"metavar": "LIST", "help": "train with each: 0-4 or 0,3,7 (a sweep)"}),
        *TRIALS,
        PIPELINE,
        (("--stage",), {"choices": STEPS, "help": "run this step alone"}),
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
    "sweep": [
        (("--name",), {"help": "name of the sweep's folder instead of the file's"}),
        *TRIALS,
        *KUBEFLOW,
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
        PIPELINE,
    ],
    "runs": [
        (("folder",), {"nargs": "?", "help": "that holds the runs (default: the output folder)"}),
        (("--json",), {"action": "store_true", "help": "as JSON, with the reason of a failure"}),
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
    "compare": [
        (("runs",), {"nargs": "*", "metavar": "run", "help": "a run, or a folder of runs"}),
        (
            ("--from-mlflow",),
            {"action": "append", "default": [], "metavar": "EXPERIMENT[@URI]", "help": "its runs"},
        ),
        (
            ("--by",),
            {
                "action": "append",
                "metavar": "KEY",
                "help": "option that makes a method (what differs); may be repeated",
            },
        ),
        (
            ("--over",),
            {"default": "seed", "metavar": "KEY", "help": "option that repeats a method (seed)"},
        ),
        (("--baseline",), {"metavar": "METHOD", "help": "what others are compared with (first)"}),
        (
            ("--price-per-hour",),
            {"type": float, "metavar": "X", "help": "of a GPU; on CPU of the machine"},
        ),
        (("--to",), {"metavar": "DIR", "help": "folder for the page and the tables"}),
    ],
    "judge": [
        (
            ("action",),
            {
                "choices": ["audit", "calibrate"],
                "help": "audit: what experts, cheats and losers earn; calibrate: judge generated "
                "statements of known worth",
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
                "help": "sentence frames: calibrate on their held-out half",
            },
        ),
        (("--out",), {"metavar": "DIR", "help": "folder for the report"}),
    ],
    "env": [
        (
            ("action",),
            {
                "choices": ["check", "show"],
                "help": "check: play it, and say how it breaks the contract; show: its prompt, "
                "levels, an expert's episode, the truth, what chance wins, with a page",
            },
        ),
        (("name",), {"help": "module:Class, or a registered name such as FrozenLake"}),
        (
            ("settings",),
            {"nargs": "*", "metavar": "key=value", "help": "options of its env_config"},
        ),
        (
            ("--config",),
            {
                "action": "append",
                "default": [],
                "metavar": "KEY=VALUE|FILE",
                "help": "the same, or a YAML file of options; may be repeated",
            },
        ),
        (
            ("--seconds",),
            {
                "type": float,
                "default": 60.0,
                "help": "check: how long it may take (60); a slow environment is played less",
            },
        ),
        (
            ("--to",),
            {"metavar": "DIR", "help": "show: folder for the page (outputs/environments/NAME)"},
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
            {
                "metavar": "RUN",
                "help": "measure this run's newest policy (its URI), or the models of a FILE",
            },
        ),
        (("--cron",), {"help": "with --evaluate, when: six fields, seconds first"}),
        (
            ("--levels",),
            {"choices": ["test", "val"], "help": "with --evaluate, which (default: test)"},
        ),
        (("--count",), {"type": int, "help": "with --evaluate, how many (default: all)"}),
        *KUBEFLOW,
    ],
}
