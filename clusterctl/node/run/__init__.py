"""A node's part of a run: its files and its lock, and the operations on it."""
