"""What a run would need: lengths of conversations, memory, and options that make it fit."""
