"""`top`: how a run is on all its nodes, live."""
