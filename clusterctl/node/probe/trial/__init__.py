"""What `check --deep` tries on a node: its GPUs, and collectives between nodes."""
