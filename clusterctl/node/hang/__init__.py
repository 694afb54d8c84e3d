"""What a node can tell of ranks that stand still: their stacks, and what the kernel knows."""
