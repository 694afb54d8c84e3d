"""Verbs that move files between this machine and the nodes."""
