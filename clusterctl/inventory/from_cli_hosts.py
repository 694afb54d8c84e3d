"""Makes a cluster of hosts on the command line, such as `user@gpu[01-04]:2222`."""

from __future__ import annotations

from collections.abc import Sequence

from clusterctl.inventory.build import build
from clusterctl.inventory.cluster import Cluster
from clusterctl.inventory.document import Document, Plain
from clusterctl.inventory.login import split_login
from clusterctl.inventory.problems import ArgumentProblems, Path


def cluster_from_hosts(name: str, words: Sequence[str]) -> Cluster:
    """Return the cluster of hosts in the form that ssh takes.

    Raises:
        InventoryError: with every word that is not a host, or is there twice.
    """
    nodes = [_entry(word) for word in words]
    lines: dict[Path, int] = {("nodes", at): at + 1 for at in range(len(nodes))}
    lines["cluster",] = 0
    document = Document(value={"cluster": name, "nodes": nodes}, lines=lines)
    return build(document, ArgumentProblems("the command line"))


def _entry(word: str) -> dict[str, object]:
    login = split_login(word)
    entry: dict[str, object] = {"host": login.host}
    if login.user is not None:
        entry["user"] = login.user
    if login.port is not None:
        entry["port"] = Plain(login.port)
    return entry
