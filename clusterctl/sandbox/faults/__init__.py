"""Real faults to put on the hosts of a sandbox, a file a kind of thing that breaks."""
