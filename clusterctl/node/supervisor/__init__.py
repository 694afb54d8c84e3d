"""The process that looks after a run on a node: starts, watches and ends its ranks."""
