"""Checks of a node's machine, its limits, and SSH to it."""
