"""The values that make up a node's facts; one file an area. None always means unknown."""
