"""Merges the ranks' logs, folds equal lines and finds the first cause; does no I/O."""
