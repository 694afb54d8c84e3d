"""The process that supervises a run on a node: starts, watches and ends its ranks."""
