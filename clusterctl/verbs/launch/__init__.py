"""Launch a job: validate it, start it on all nodes, monitor who joins and how it ends."""
