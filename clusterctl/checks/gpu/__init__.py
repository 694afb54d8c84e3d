"""Checks of GPUs and other accelerators."""
