"""Environments of this project in the harnesses of others: verifiers and Inspect AI."""
