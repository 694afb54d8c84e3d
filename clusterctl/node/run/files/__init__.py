"""The files of a run on a node."""
