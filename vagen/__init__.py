"""Training vision-language agents by multi-turn reinforcement learning."""
