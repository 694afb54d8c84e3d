"""Take the stacks of a run's ranks on all its nodes."""
