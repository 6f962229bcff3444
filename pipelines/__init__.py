"""The training pipeline: its definition, its compiled form, its execution on one machine."""
