"""Verbs about the nodes of an inventory."""
