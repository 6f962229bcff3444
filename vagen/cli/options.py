"""Options of each command."""

from typing import Any

from vagen.steps import STEPS

Option = tuple[tuple[str, ...], dict[str, Any]]
"""Names, and arguments of `add_argument`."""


def option(*names: str, **settings: Any) -> Option:
    """An option of a command; see `argparse.ArgumentParser.add_argument`."""
    return names, settings


PIPELINE: Option = option(
    "--pipeline",
    action="store_true",
    help="as the Kubeflow pipeline, each step a process of its own",
)
KUBEFLOW: list[Option] = [
    option("--image", help="container image of the steps"),
    option("--host", help="address of Kubeflow Pipelines"),
    option("--kfp-namespace", help="your namespace, if Kubeflow has many users"),
]
KUBERNETES: list[Option] = [
    option("--namespace", help="instead of the kubeconfig's"),
    option("--context", help="of the kubeconfig, instead of the current one"),
]
TRIALS: list[Option] = [
    option("--jobs", type=int, default=1, metavar="N", help="of a sweep: trainings at a time (1)"),
    option("--rerun", choices=["failed"], help="of a sweep: train again what had failed"),
]

OPTIONS: dict[str, list[Option]] = {
    "run": [
        option("--name", help="name of the run instead of the experiment's"),
        option("--seeds", metavar="LIST", help="train with each: 0-4 or 0,3,7 (a sweep)"),
        *TRIALS,
        PIPELINE,
        option("--stage", choices=STEPS, help="run this step alone"),
        option("--of", metavar="RUN", help="--stage: of this run; without it of a new one"),
        option("--iteration", type=int, metavar="N", help="--stage: its iteration, from 0"),
        option("--evaluation", metavar="NAME", help="--stage evaluate: warm_start, final, ..."),
        option("--split", choices=["test", "val"], default="test", help="--stage evaluate: levels"),
        option(
            "--from",
            dest="batch",
            metavar="BATCH",
            help="--stage judge, advantage, update: again, on this stored batch",
        ),
        option("--to", dest="to", metavar="DIR", help="--from: folder for the result"),
    ],
    "sweep": [
        option("--name", help="name of the sweep's folder instead of the file's"),
        *TRIALS,
        *KUBEFLOW,
    ],
    "resume": [
        option("run", help="the run's folder, or its name under the output folder"),
        option(
            "changes",
            nargs="*",
            metavar="trainer.total_training_steps=N",
            help="make it longer; a run that is at work takes it from its next iteration",
        ),
        PIPELINE,
    ],
    "runs": [
        option("folder", nargs="?", help="that holds the runs (default: the output folder)"),
        option("--json", action="store_true", help="as JSON, with the reason of a failure"),
    ],
    "eval": [
        option(
            "model",
            help="a run (its newest policy), model directory or hub id; with --model the "
            "experiment; or an evaluation: its YAML file, or its folder, to go on",
        ),
        option(
            "--model",
            dest="models",
            action="append",
            default=[],
            metavar="SPEC",
            help="a row: expert, random, blind, openai:NAME@http://host:8000/v1, "
            "anthropic:NAME, a run, ... (docs/evaluation.md); may be repeated",
        ),
        option("--levels", choices=["test", "val"], help="which levels (test)"),
        option("--count", type=int, help="how many levels (default: all of the experiment's)"),
        option("--attempts", type=int, metavar="K", help="--model: episodes on each level"),
        option("--baseline", metavar="SPEC", help="--model: the row to compare with (first)"),
        option("--prices", metavar="FILE", help="--model: what tokens cost"),
        option("--max-cost", type=float, metavar="X", help="--model: ask no more at that"),
        option("--max-tokens", type=int, metavar="N", help="the same of tokens in and out"),
        option(
            "--rerun", choices=["failed"], help="go on, and ask again where an endpoint had failed"
        ),
        option("--to", dest="to", metavar="DIR", help="folder for the result"),
    ],
    "serve": [
        option(
            "model",
            help="a run (its best policy), model directory or hub id, models:/NAME@ALIAS of MLflow",
        ),
        option("--name", help="the model's name in requests (that of the run, folder or model)"),
        option("--host", help="address to listen on (127.0.0.1); 0.0.0.0: all"),
        option("--port", type=int, help="its port (8000); 0: a free one"),
        option("--tokens-file", metavar="FILE", help="a line client:token each"),
        option(
            "--token-env",
            default="VAGEN_SERVE_TOKEN",
            metavar="VAR",
            help="environment variable of the token if there is no file (VAGEN_SERVE_TOKEN)",
        ),
        option("--open", action="store_true", default=None, help="to all, without tokens"),
        option(
            "--vllm",
            nargs="?",
            const="",
            metavar="ARGUMENTS",
            help="by vLLM, without the agent; --vllm='--tensor-parallel-size 2' gives it more",
        ),
        option("--workers", type=int, metavar="N", help="processes with the model (1)"),
        option("--rows", type=int, metavar="N", help="answers at a time, decoded together (16)"),
        option(
            "--wait-seconds", type=float, metavar="S", help="wait for others to begin with (0.005)"
        ),
        option("--max-pending", type=int, metavar="N", help="requests at a time (256); then 429"),
        option("--answer-seconds", type=float, metavar="S", help="time limit of an answer (300)"),
        option(
            "--context",
            type=int,
            metavar="N",
            help="tokens of a conversation with its answer (the model's, at most 8192)",
        ),
        option("--max-sessions", type=int, metavar="N", help="of a run's agent, at a time (64)"),
        option("--idle-seconds", type=float, metavar="S", help="until one is closed (1800)"),
        option("--max-body-bytes", type=int, metavar="N", help="size of a request (16 MiB)"),
    ],
    "view": [
        option(
            "target",
            help="a run, an evaluation, a step such as RUN/iterations/0007/rollout, or a page",
        ),
        option("--follow", action="store_true", help="keep a run's page up to date"),
        option("--no-open", action="store_true", help="print the path only"),
        option("--gif", metavar="FILE", help="draw a level before and after the run's training"),
        option("--level", type=int, metavar="N", help="--gif: its seed (one that was learnt)"),
    ],
    "play": [
        option(
            "--agent",
            metavar="SPEC",
            help="who takes turns besides you: expert (default), random, a run, a model directory, "
            "openai:NAME@http://host:8000/v1, ...",
        ),
        option("--level", type=int, default=0, metavar="N", help="its seed (0)"),
        option("--split", choices=["test", "val", "train"], default="test", help="(test)"),
        option("--env", metavar="ID", help="which environment of the experiment (the first)"),
        option("--terminal", action="store_true", help="play here, without a browser"),
        option("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)"),
        option("--port", type=int, default=8020, help="port to listen on (8020)"),
        option("--no-open", action="store_true", help="print the address only"),
    ],
    "export": [
        option("--to", metavar="FILE", required=True, help="the .jsonl file to write"),
        option(
            "--expert",
            type=int,
            metavar="N",
            help="N episodes of the experiment's expert on training levels, as its warm start "
            "plays them",
        ),
        option(
            "--from",
            dest="batch",
            metavar="BATCH",
            help="the episodes of a step such as RUN/iterations/0007/rollout, or an evaluation",
        ),
        option("--successes", action="store_true", help="only episodes that reached their goal"),
    ],
    "plan": [option("--engine", choices=["local", "verl"], help="instead of infra.engine")],
    "compare": [
        option("runs", nargs="*", metavar="run", help="a run, or a folder of runs"),
        option(
            "--from-mlflow",
            action="append",
            default=[],
            metavar="EXPERIMENT[@URI]",
            help="its runs",
        ),
        option(
            "--by",
            action="append",
            metavar="KEY",
            help="option that makes a method (what differs); may be repeated",
        ),
        option("--over", default="seed", metavar="KEY", help="option that repeats a method (seed)"),
        option("--baseline", metavar="METHOD", help="what others are compared with (first)"),
        option("--price-per-hour", type=float, metavar="X", help="of a GPU; on CPU of the machine"),
        option("--to", metavar="DIR", help="folder for the page and the tables"),
    ],
    "judge": [
        option(
            "action",
            choices=["audit", "calibrate"],
            help="audit: what experts, cheats and losers earn; calibrate: judge generated "
            "statements of known worth",
        ),
        option("--levels", type=int, default=16, help="audit: levels of each environment (16)"),
        option("--env", metavar="NAME", help="this environment instead of an experiment's"),
        option(
            "--statements", type=int, default=5000, help="calibrate: for each environment (5000)"
        ),
        option("--seed", type=int, default=0, help="decides states and texts (0)"),
        option("--texts", metavar="FILE", help="sentence frames: calibrate on their held-out half"),
        option("--out", metavar="DIR", help="folder for the report"),
    ],
    "env": [
        option(
            "action",
            choices=["check", "init", "serve", "show"],
            help="check: play it, and say how it breaks the contract; init: write a new one that "
            "works, with experiment and test; serve: to other tools; show: its prompt, levels, an "
            "expert's episode, the truth, what chance wins, with a page",
        ),
        option(
            "name", help="module:Class, or a registered name such as FrozenLake; init: a new name"
        ),
        option("settings", nargs="*", metavar="key=value", help="options of its env_config"),
        option(
            "--config",
            action="append",
            default=[],
            metavar="KEY=VALUE|FILE",
            help="the same, or a YAML file of options; may be repeated",
        ),
        option(
            "--seconds",
            type=float,
            default=60.0,
            help="check: how long it may take (60); a slow environment is played less",
        ),
        option("--to", metavar="DIR", help="folder: show for the page, init for the files (NAME)"),
        option(
            "--openenv",
            action="store_true",
            help="serve: by OpenEnv's protocol; check: grade OpenEnv's package in the folder NAME",
        ),
        option("--url", help="check --openenv: address of the package's server, if it runs"),
        option("--host", default="127.0.0.1", help="serve: address to listen on (127.0.0.1)"),
        option("--port", type=int, default=8000, help="serve: its port (8000); 0: a free one"),
    ],
    "store": [
        option(
            "action",
            choices=["ls", "put", "fetch", "verify", "gc", "prune"],
            help="list folders; put or fetch one; check all; remove what nothing refers to; "
            "prune: remove the episodes of a run's old iterations",
        ),
        option(
            "uri",
            help="s3://bucket/prefix, file:///folder; of one folder for put and fetch; of a "
            "run, or its folder or name, for prune",
        ),
        option("path", nargs="?", help="the folder of put and fetch on this machine"),
        option(
            "--older-than",
            default="7d",
            metavar="AGE",
            help="gc: remains younger than it stay (7d)",
        ),
        option("--expire", metavar="AGE", help="gc: also runs unchanged for that long"),
        option("--keep", type=int, metavar="N", help="prune: the newest iterations that stay (2)"),
        option("--dry-run", action="store_true", help="gc, prune: only say what would be removed"),
        option("--infra", metavar="FILE", help="whose infra.s3 says how to reach it"),
    ],
    "doctor": [option("--cluster", action="store_true", help="check the Kubernetes cluster, too")],
    "cluster": [
        option(
            "action",
            choices=["status", "logs", "stop", "delete", "gc"],
            help="what to do; gc: remove what has expired, of all runs",
        ),
        option("run", nargs="?", default="latest", help="name, path or URI (default: the newest)"),
        option("--follow", action="store_true", help="logs: until the job ends"),
        option("--dry-run", action="store_true", help="gc: say what would be removed"),
        *KUBERNETES,
    ],
    "deploy": [
        option("run", help="a registered run in a store: its URI, name or folder"),
        option("--count", type=int, metavar="N", help="levels to play (all of the run's)"),
        option("--share", type=int, default=100, metavar="PERCENT", help="of the requests (100)"),
        option("--plain", action="store_true", help="a Deployment, even where KServe is"),
        *KUBERNETES,
    ],
    "undeploy": [option("agent", help="name of its service"), *KUBERNETES],
    "compile": [
        option("--output", default="build/pipeline.yaml", help="file to write"),
        option("--image", help="container image of the steps"),
    ],
    "submit": [
        option("--name", help="name of the run instead of the experiment's"),
        option("--clone", metavar="RUN", help="begin with the configuration of this run (its URI)"),
        option(
            "--evaluate",
            metavar="RUN",
            help="measure this run's newest policy (its URI), or the models of a FILE",
        ),
        option("--cron", help="with --evaluate, when: six fields, seconds first"),
        option("--levels", choices=["test", "val"], help="with --evaluate, which (default: test)"),
        option("--count", type=int, help="with --evaluate, how many (default: all)"),
        *KUBEFLOW,
    ],
}
