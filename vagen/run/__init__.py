"""A run: its folder, its copy in a store, and the right to write it."""
