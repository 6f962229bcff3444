"""Training vision-language agents by multi-turn reinforcement learning."""

import os

# Torch's threads otherwise spin at every barrier; where another process has a core, as on any
# laptop in use, a training step then takes five times as long. Read when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
