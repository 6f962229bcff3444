"""Any model on any environment: hosted models, runs and scripts, on the same levels and prompts."""

from vagen.evaluation.evaluate import OPTIONS, PAGE, Evaluated, evaluate, load_evaluation

__all__ = ["OPTIONS", "PAGE", "Evaluated", "evaluate", "load_evaluation"]
