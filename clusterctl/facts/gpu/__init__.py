"""Facts about a node's GPUs."""
