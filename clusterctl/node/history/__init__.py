"""What a node and a run on it used over time: sampled, kept, answered, and judged."""
