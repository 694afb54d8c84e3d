"""Tells people, or their programs, what became of a run."""
