"""All metrics as Markdown: `python -m tools.docs.metrics docs/metrics.md`."""

import sys
from pathlib import Path

from vagen.metrics import STEPS


def glossary() -> str:
    """The table as Markdown."""
    lines = [
        "# Metrics",
        "",
        "`make docs` generates this page from `vagen/metrics.py`. `<env>` is a name under `envs`,",
        "`<split>` is `train`, `val` or `test`. A metric is a mean over its unit, unless it says",
        "otherwise. ↑ and ↓ say which direction is good.",
        "",
        "MLflow has all metrics (`make ui`). `infra.trackers=[tensorboard,wandb]` sends them also",
        "to TensorBoard (`tensorboard --logdir outputs`; files in each run's folder) and to",
        "Weights & Biases (`WANDB_API_KEY`; or `WANDB_MODE=offline` and later `wandb sync",
        "outputs/<run>/wandb/offline-run-*`): `pip install 'vagen[tensorboard,wandb]'`. A resumed",
        "run continues its series; a tracker that is added later also gets the earlier metrics.",
    ]
    for step, metrics in STEPS.items():
        lines += [
            "",
            f"## {step}",
            "",
            "| metric | unit | | meaning | logged if |",
            "|---|---|---|---|---|",
        ]
        for metric in metrics:
            arrow = {"up": "↑", "down": "↓", "": ""}[metric.better]
            cells = (f"`{metric.name}`", metric.unit, arrow, metric.meaning, metric.when)
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(glossary(), encoding="utf-8")
