"""Adapters for other interfaces: Gymnasium's, and VAGEN's `GymImageEnv`."""
