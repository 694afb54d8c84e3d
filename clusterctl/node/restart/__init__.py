"""Whether a run that failed is started again, from which checkpoint, and on which nodes."""
