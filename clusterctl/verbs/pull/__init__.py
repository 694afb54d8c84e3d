"""The use case `pull`: what nodes have written, on this machine."""
