"""Checkpoints: written whole or not at all, verified, found and resumed from."""
