"""The ranks of a node: started, watched, asked to end."""
