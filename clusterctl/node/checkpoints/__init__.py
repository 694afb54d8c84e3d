"""Which checkpoints a folder holds, and whether each is complete."""
