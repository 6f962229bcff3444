"""How a pipeline's step reaches its stage: in its own process, or in the run's Ray cluster."""
