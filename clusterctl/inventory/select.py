"""Selects nodes of a cluster for `--nodes` and `--exclude`: by name, range or count."""

import re

from clusterctl.errors import UsageError
from clusterctl.inventory.cluster import Cluster, Node
from clusterctl.inventory.problems import nearest, printable
from clusterctl.inventory.ranges import BadRange, expand_hosts, fold_hosts

_COUNT = re.compile("[0-9]{1,6}")


def select(cluster: Cluster, nodes: str | None = None, exclude: str | None = None) -> Cluster:
    """Return the cluster with the selected nodes, in launch order.

    The first of them is the master.

    Args:
        nodes: names and ranges (`gpu[02-04],gpu07`), or a count: the first N that are not
            excluded. None: all.
        exclude: names and ranges to leave out.
    """
    left = cluster.nodes
    if exclude is not None:
        out = {node.name for node in named(cluster, exclude, option="--exclude")}
        left = tuple(node for node in left if node.name not in out)
        if not left:
            raise UsageError(
                "--exclude: expected a node left, found none",
                hint=f"--exclude {cluster.nodes[-1].name}" if len(cluster.nodes) > 1 else None,
            )
    if nodes is not None and is_count(nodes):
        count = int(nodes)
        if not 1 <= count <= len(left):
            raise UsageError(
                f"--nodes: expected 1 to {len(left)}, found {count}", hint=f"--nodes {len(left)}"
            )
        left = left[:count]
    elif nodes is not None:
        chosen = {node.name for node in named(cluster, nodes, option="--nodes")}
        picked = tuple(node for node in left if node.name in chosen)
        if not picked:
            raise UsageError(
                f"--nodes: expected a node that is not excluded, found only {printable(nodes)}",
                hint=f"--nodes {left[0].name}",
            )
        left = picked
    return cluster.with_nodes(left)


def is_count(nodes: str) -> bool:
    """Tell whether `--nodes` is a number, rather than names."""
    return _COUNT.fullmatch(nodes.strip()) is not None


def named(cluster: Cluster, spec: str, *, option: str) -> tuple[Node, ...]:
    """Return the nodes that match an expression of names and ranges, in the cluster's order.

    Args:
        spec: `gpu[02-04],10.11.7.50`; a host of several entries names them all.
        option: the flag, for the message.
    """
    try:
        wanted = expand_hosts(spec)
    except BadRange as error:
        raise UsageError(
            f"{option}: {printable(str(error))}", hint=_example(cluster, option)
        ) from error
    known = {node.name for node in cluster.nodes} | {node.host for node in cluster.nodes}
    unknown = [name for name in wanted if name not in known]
    if unknown:
        all_names = printable(fold_hosts(node.name for node in cluster.nodes))
        near = nearest(unknown[0], sorted(known.difference(wanted)))
        meant = (near or "" if name == unknown[0] else name for name in wanted)
        kept = [name for name in meant if name in known]
        raise UsageError(
            f"{option}: expected nodes of {cluster.file or cluster.name} ({all_names}), "
            f'found "{printable(fold_hosts(unknown))}"',
            # Never another node by chance: the command may change something there.
            hint=f"{option} {fold_hosts(kept)}" if near else None,
        )
    return tuple(node for node in cluster.nodes if node.name in wanted or node.host in wanted)


def _example(cluster: Cluster, option: str = "--nodes") -> str:
    """Return an example to type."""
    return f"{option} {cluster.nodes[0].name}"
