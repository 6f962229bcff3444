"""What the losses beside PPO's do: to entropy, and where an iteration's episodes are used often."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.machine import describe_machine, header, write_result
from benchmarks.method import arms, entropy, report
from benchmarks.method.learner import Arm
from vagen.learning import LossMode

ITERATIONS = entropy.ITERATIONS


@dataclass(frozen=True)
class Study:
    """Losses that are compared with PPO's on the tasks of `benchmarks.method.entropy`."""

    FILES: str
    modes: tuple[LossMode, ...]
    """The first is what the others are compared with."""
    sharpness: float
    epochs: int

    def arms_of(self, task: str) -> dict[str, Arm]:
        """Every loss."""
        start = replace(entropy.TASKS[task], sharpness=self.sharpness, epochs=self.epochs)
        return {mode: replace(start, loss_mode=mode) for mode in self.modes}

    def write(self, outputs: Path, note: str) -> None:
        """From the files of finished arms to the result and the table of `docs/method.md`."""
        found: report.Found = {}
        for path in sorted((outputs / self.FILES).glob("*/*.json")):
            row = json.loads(path.read_text())
            found.setdefault(path.parent.name, {})[path.stem] = {
                **{key: row[key] for key in ("arm", "seeds", "iterations")},
                **report.measures(row["curves"]),
                "final_entropy": np.mean(np.asarray(row["entropy"])[:, -report.LAST :], 1).tolist(),
            }
        first, *others = self.modes
        contrasts = [arms.Contrast(f"{mode} against {first}", first, mode) for mode in others]
        result = {
            **header(note),
            "machine": describe_machine(),
            "arms": found,
            "contrasts": report.contrasts_of(found, contrasts),
        }
        path = report.ROOT / "benchmarks" / "results" / f"method-{self.FILES}.json"
        write_result(path, result)
        tables = {self.FILES: entropy.table(found, contrasts, self.arms_of, "loss")}
        report.write_tables(tables)
        print(path)


COVARIANCE = Study("covariance", ("vanilla", "clip_cov", "kl_cov"), entropy.STARTS["confident"], 1)
"""Of a mini batch's 768 tokens 15 are held back."""
RATIOS = Study("ratios", ("vanilla", "gspo", "gspo_turn", "cispo"), entropy.STARTS["fresh"], 4)
"""Eight steps an iteration, so that ratios leave 1."""
