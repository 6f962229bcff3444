"""The steps of a training: one function each over a run's folder.

A step finds what the step before wrote, does its work, commits a folder of its own whole, and
returns `uri`, `sha256` and `metrics`. `vagen.stages.execute` runs one: a step whose folder is
committed is not done again.
"""
