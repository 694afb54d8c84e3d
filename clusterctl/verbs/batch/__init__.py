"""A launch as a Slurm batch job: submit it, follow it, see what became of it, cancel it."""
