"""Modules from which environments written for VAGEN's main branch import their base classes."""
