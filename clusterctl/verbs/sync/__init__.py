"""Mirror the current folder to the nodes: who shares a folder, what may be deleted."""
