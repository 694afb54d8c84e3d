"""Verbs about runs: begin one, look at it, end it."""
