"""The steps of a training, each a function on a run's folder.

A step reads the previous step's folder, commits its own folder atomically, and returns `uri`,
`sha256` and `metrics`. `vagen.stages.execute` runs a step unless its folder is already committed.
"""
