"""Household: tasks in a text-only home."""
