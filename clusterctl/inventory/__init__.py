"""Reads hosts.yaml and hostfiles into a `Cluster`; errors name the file and the line."""

from clusterctl.inventory.load import default_path, load
from clusterctl.inventory.select import select

__all__ = ["default_path", "load", "select"]
