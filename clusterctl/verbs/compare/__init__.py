"""What became of runs: the story of one, and what differs between several."""
