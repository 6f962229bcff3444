"""Compares trainings: curves, final success over seeds and levels, costs."""

from vagen.compare.comparing import compare
from vagen.compare.reading import ComparisonError, RunSummary, read_mlflow, read_runs

__all__ = ["ComparisonError", "RunSummary", "compare", "read_mlflow", "read_runs"]
