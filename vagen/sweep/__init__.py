"""Sweeps: many trainings with different options, concurrently, with early stopping."""
