"""Options that several commands have."""

from typing import Any

Option = tuple[tuple[str, ...], dict[str, Any]]
"""Names, and what `argparse` is told."""

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
