"""Nodes that failed a run, remembered on this machine."""
