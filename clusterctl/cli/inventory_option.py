"""The options that say which inventory, and which of its nodes; shared by the verbs."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from clusterctl.inventory import load, select
from clusterctl.inventory.cluster import Cluster

VARIABLE = "CLUSTERCTL_INVENTORY"
DEFAULT = "hosts.yaml"


def add_inventory(parser: argparse.ArgumentParser) -> None:
    """Add `-i FILE`."""
    action = parser.add_argument(
        "-i",
        "--inventory",
        type=Path,
        metavar="FILE",
        help=f"inventory (default: ${VARIABLE}, else ./{DEFAULT})",
    )
    complete_files(action)


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Add `-i FILE`, `--nodes` and `--exclude`."""
    add_inventory(parser)
    parser.add_argument(
        "--nodes",
        metavar="SPEC|N",
        help="only these nodes: names and ranges as gpu[02-04,07], or the first N",
    )
    parser.add_argument("--exclude", metavar="SPEC", help="leave these nodes out")


def complete_files(action: argparse.Action) -> None:
    """Let shells complete an argument to file names (shtab.FILE, without importing it)."""
    words = {"bash": "_shtab_compgen_files", "zsh": "_files", "tcsh": "f"}
    action.complete = words  # type: ignore[attr-defined]


def inventory_path(args: argparse.Namespace) -> Path:
    """Return the inventory's path: the flag, the variable, else ./hosts.yaml."""
    given: Path | None = args.inventory
    return given or Path(os.environ.get(VARIABLE) or DEFAULT)


def load_all(args: argparse.Namespace) -> Cluster:
    """Load the inventory with all its nodes.

    Raises:
        InventoryError: the file is missing or has problems.
    """
    return load(inventory_path(args))


def load_selected(args: argparse.Namespace) -> Cluster:
    """Load the inventory with the nodes that `--nodes` and `--exclude` leave.

    Raises:
        InventoryError: the file is missing or has problems.
        UsageError: the nodes asked for are not there.
    """
    return select(load_all(args), args.nodes, args.exclude)
