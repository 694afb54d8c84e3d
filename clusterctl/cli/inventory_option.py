"""The options that say which inventory, and which of its nodes; shared by the verbs."""

from __future__ import annotations

import argparse
from pathlib import Path

from clusterctl.inventory import default_path, load
from clusterctl.inventory.cluster import Cluster
from clusterctl.inventory.load import DEFAULT, VARIABLE


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
        help="only these nodes: names and ranges such as gpu[02-04,07], or the first N",
    )
    parser.add_argument("--exclude", metavar="SPEC", help="leave these nodes out")


def complete_files(action: argparse.Action) -> None:
    """Let shells complete an argument to file names (shtab.FILE, without importing it)."""
    words = {"bash": "_shtab_compgen_files", "zsh": "_files", "tcsh": "f"}
    action.complete = words  # type: ignore[attr-defined]


def inventory_path(args: argparse.Namespace) -> Path:
    """Return the inventory's path: the flag, the variable, else ./hosts.yaml."""
    given: Path | None = args.inventory
    return given or default_path()


def load_all(args: argparse.Namespace) -> Cluster:
    """Load the inventory with all its nodes.

    Raises:
        InventoryError: the file is missing or has problems.
    """
    return load(inventory_path(args))
