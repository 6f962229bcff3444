"""Training vision-language agents by multi-turn reinforcement learning."""

import gc
import os

# Torch's threads otherwise spin at every barrier; if another process uses a core, a training step
# then takes five times as long. Torch reads this on import.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# By default Python collects garbage every 700 new objects, which takes a fifth of the time to
# import torch, transformers and verl.
gc.set_threshold(50_000, 10, 10)
