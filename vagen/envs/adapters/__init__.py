"""Environments that were written for something else: Gymnasium's, and VAGEN's `GymImageEnv`."""
