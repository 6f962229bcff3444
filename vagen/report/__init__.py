"""Pages and pictures: runs, evaluations, trajectories, learning curves."""

from vagen.report.curves import Mark, write_comparison_curve, write_curves
from vagen.report.viewer import write_report

__all__ = ["Mark", "write_comparison_curve", "write_curves", "write_report"]
