"""Checkpoints: written whole or not at all, verified, found again and gone on from."""
