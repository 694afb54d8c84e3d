"""Which world the ranks of a node join: the planned one, or another."""
