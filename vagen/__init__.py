"""Training vision-language agents by multi-turn reinforcement learning."""

import gc
import os

# Torch's threads otherwise spin at every barrier; where another process has a core, as on any
# laptop in use, a training step then takes five times as long. Read when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Python looks for garbage once there are 700 objects more, which takes a fifth of the seconds in
# which a process imports torch, transformers and verl.
gc.set_threshold(50_000, 10, 10)
