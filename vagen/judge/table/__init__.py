"""Descriptions of things on a table, read into statements."""
