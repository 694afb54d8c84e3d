"""What a supervisor watches in its ranks: start, life, pace, GPUs and printed lines."""
