"""Runs what a user asks for on a node, outside of any run."""
