"""What clip-cov and KL-cov do to entropy and to what is learnt, against PPO's loss alone.

As `benchmarks.method.entropy`, from a confident start and without a bonus. Of a mini batch's 768
tokens 15 are held back.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.machine import describe_machine, header, write_result
from benchmarks.method import arms, entropy, report
from benchmarks.method.learner import Arm
from vagen.learning import LossMode

FILES = "covariance"
ITERATIONS = entropy.ITERATIONS
MODES: tuple[LossMode, ...] = ("vanilla", "clip_cov", "kl_cov")
RESULT = report.ROOT / "benchmarks" / "results" / "method-covariance.json"


def arms_of(task: str) -> dict[str, Arm]:
    """Every loss."""
    start = replace(entropy.TASKS[task], sharpness=entropy.STARTS["confident"])
    return {mode: replace(start, loss_mode=mode) for mode in MODES}


def write(outputs: Path, note: str) -> None:
    """From the files of finished arms to the result and the table of `docs/method.md`."""
    found: report.Found = {}
    for path in sorted((outputs / FILES).glob("*/*.json")):
        row = json.loads(path.read_text())
        found.setdefault(path.parent.name, {})[path.stem] = {
            **{key: row[key] for key in ("arm", "seeds", "iterations")},
            **report.measures(row["curves"]),
            "final_entropy": np.mean(np.asarray(row["entropy"])[:, -report.LAST :], 1).tolist(),
        }
    contrasts = [arms.Contrast(f"{mode} against vanilla", "vanilla", mode) for mode in MODES[1:]]
    result = {
        **header(note),
        "machine": describe_machine(),
        "arms": found,
        "contrasts": report.contrasts_of(found, contrasts),
    }
    write_result(RESULT, result)
    report.write_tables({FILES: entropy.table(found, contrasts, arms_of, "loss")})
    print(RESULT)
