"""Real faults for the hosts of a sandbox, one file per area."""
