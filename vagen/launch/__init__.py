"""Runs stages for pipeline steps, in the step's process or in the run's Ray cluster."""
