"""The training pipeline: definition, compilation, local execution, and submission."""
