"""What starts the ranks of a node: words and variables, planned again for other nodes."""
