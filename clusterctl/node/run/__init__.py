"""A run on one node: its files, and the operations on it."""
