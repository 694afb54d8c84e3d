"""Pure rules over facts, a file an area, one registry."""
