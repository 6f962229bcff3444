"""Evaluates hosted models, runs and scripts in any environment, on the same levels and prompts."""

from vagen.evaluation.evaluate import OPTIONS, PAGE, Evaluated, evaluate, load_evaluation
from vagen.evaluation.record import record

__all__ = ["OPTIONS", "PAGE", "Evaluated", "evaluate", "load_evaluation", "record"]
