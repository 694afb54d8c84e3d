"""What a run does besides its ranks: its time limit, whom it tells, commands before and after."""
