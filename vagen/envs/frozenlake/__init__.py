"""FrozenLake: over the ice to the target, around the holes."""
