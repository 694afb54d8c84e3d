"""Prints the stacks of a run's ranks."""
