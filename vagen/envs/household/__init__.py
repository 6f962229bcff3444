"""Household: tasks in a home that is known by words only."""
