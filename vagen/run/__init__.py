"""A run: its folder, the copy of it in a store, and who may write it."""
