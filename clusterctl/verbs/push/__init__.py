"""Bring models and data to nodes without shared storage."""
