"""The encrypted link between the supervisors of a run."""
