"""Chooses the address and interface of each node, and simulates what each library would pick."""
