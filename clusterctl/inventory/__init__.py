"""hosts.yaml and other dialects become a `Cluster`; errors carry file and line."""

from clusterctl.inventory.load import default_path, load
from clusterctl.inventory.select import select

__all__ = ["default_path", "load", "select"]
