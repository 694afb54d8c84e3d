"""Ranks, ports, environment and argv per node: pure functions of inventory, facts and network."""
