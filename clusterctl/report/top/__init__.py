"""`top`: a run at a moment, as lines that fit a screen."""
