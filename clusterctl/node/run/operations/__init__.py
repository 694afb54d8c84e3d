"""The operations on a run: start, status, tail, stop and others."""
