"""FrozenLake: walk over the ice to the target, around the holes."""
