"""Makes the same virtual environment on every node."""
