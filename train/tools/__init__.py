"""Programs around the training: a smoke test, plots, text from a model, demo data."""
