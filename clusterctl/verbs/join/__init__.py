"""Lets nodes join a run while it runs."""
