"""How a run begins, is asked to stop, and says how it ended."""
