"""Facts about a node's file systems."""
