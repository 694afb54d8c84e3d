"""The session of verbs that read the inventory, not a run's record, and its progress line."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

from clusterctl.api.session import Session
from clusterctl.cli.shared.options import load_all
from clusterctl.report.console import Progressing, Screen


@contextmanager
def connected(args: argparse.Namespace, screen: Screen) -> Iterator[tuple[Session, Progressing]]:
    """Yield a session for the inventory, and what shows its progress.

    Args:
        args: with the options of `add_inventory` and `add_login`.

    Raises:
        InventoryError: the inventory is missing or has problems.
    """
    session = Session(load_all(args), accept_new=args.accept_new, fanout=args.fanout)
    with session, screen.progress() as progress:
        yield session, progress
