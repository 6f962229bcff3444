"""Estimates what a run needs: conversation lengths, memory, time, and options that make it fit."""
