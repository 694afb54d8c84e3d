"""Which nodes see the same folder, and whose live run keeps it as it is."""

import secrets
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from clusterctl.inventory.addresses import own_user
from clusterctl.inventory.cluster import Cluster, Node
from clusterctl.plan.lock import lock_name
from clusterctl.sync.mirror import Placement
from clusterctl.sync.source import SourceTree, changed_since
from clusterctl.sync.two_phase import TwoPhaseCommit
from clusterctl.values import dataclass
from clusterctl.verbs.sync.deletions import SyncOrigin
from clusterctl.wire import plain


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """What one node sees in its workdir."""

    node: str
    tokens: tuple[str, ...]
    """Those of the nodes' tokens that are there, in one order for all nodes."""
    run: Mapping[str, Any] | None
    """Who runs in that folder on this node; None: no run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedFolder:
    """One folder, and the nodes that share it."""

    token: str
    """The first that all its nodes see."""
    nodes: tuple[str, ...]
    user: NodeView | None
    """A node where a run works in it, asked for or not; None: no run uses it."""


def mutually_seen(views: Iterable[NodeView], tokens: Mapping[str, str]) -> list[NodeView]:
    """Believe no node that it shares a folder with another which does not see it there.

    Args:
        views: what each node claims to see.
        tokens: by node, the one that it left in its folder; nodes without one are only readers.
    """
    views = list(views)
    seen = {view.node: view.tokens for view in views}
    owners = {token: node for node, token in tokens.items()}

    def believed(view: NodeView, token: str) -> bool:
        own, owner = tokens.get(view.node), owners.get(token)
        return None in {own, owner} or own == token or own in seen.get(str(owner), ())

    found = []
    for view in views:
        kept = tuple(token for token in view.tokens if believed(view, token))
        # A node that left a token has that folder, even where it is seen no more.
        own_only = (tokens[view.node],) if view.node in tokens else ()
        found.append(replace(view, tokens=kept or own_only))
    return found


def shared_folders(views: Iterable[NodeView]) -> list[SharedFolder]:
    """Return the folders that nodes see, each with the nodes that see it."""
    nodes: dict[str, list[str]] = {}
    users: dict[str, NodeView] = {}
    for view in views:
        if not view.tokens:
            continue  # a folder of its own, that none of the nodes asked for shares
        nodes.setdefault(view.tokens[0], []).append(view.node)
        if view.run is not None:
            users.setdefault(view.tokens[0], view)
    return [
        SharedFolder(token=token, nodes=tuple(names), user=users.get(token))
        for token, names in nodes.items()
    ]


def describe_user(node: str, user: NodeView) -> str:
    """Say which run keeps a node's folder from being changed."""
    run = user.run or {}
    who = f"{run.get('run')} of {run.get('user', 'someone')}"
    if not run.get("run"):
        who = f"an unknown run (pid {run.get('pid', '?')} of uid {run.get('uid', '?')})"
    words = f"{who} is running"
    if user.node == node:
        return f"{words} here with other files"
    return f"{words} on {user.node}, which shares this folder, with other files"


def origin_of(source: SourceTree) -> SyncOrigin:
    """Return where the files of a sync come from."""
    return SyncOrigin(host=socket.gethostname(), folder=str(source.folder))


def placements(
    cluster: Cluster,
    source: SourceTree,
    nodes: Iterable[Node],
    *,
    tokens: Sequence[str],
    together: TwoPhaseCommit,
    moved: dict[str, int],
    kept: Mapping[str, Sequence[str]],
) -> dict[str, Placement]:
    """Return what each of the nodes is to hold.

    `tokens` found the nodes of one folder; `moved` gets the bytes that each is sent, and `kept`
    what stays on each.
    """
    here = origin_of(source)
    holder = {"sync": secrets.token_hex(8), "user": own_user(), **plain(here)}
    return {
        node.name: Placement(
            source=source.folder,
            workdir=str(node.workdir),
            tree=source.tree,
            listing=source.encoded,
            paths=source.listing.keys(),
            lock=lock_name(cluster, node),
            holder=holder,
            tokens=tokens,
            together=together,
            moved=moved,
            kept=kept,
        )
        for node in nodes
    }


def why_different(
    source: SourceTree, workdir: str, sent: Mapping[str, Any], different: Sequence[str]
) -> tuple[str, str]:
    """Say why a node has paths that are not as sent, and what to do.

    `sent` has the `code` and `words` of what sent the files.
    """
    if changed := changed_since(source, different):
        words = f"changed here while it was sent: {', '.join(changed)}"
        return words, "sync again when nothing writes to this folder"
    listed = ", ".join(different)
    if not sent["code"]:
        return f"not as sent: {listed}", "it changed there meanwhile; sync again"
    words = f"not all files could be written ({sent['code']}): {sent['words'] or listed}"
    return words, f"try there: df -h {workdir}; df -i {workdir}; ls -ld {workdir}"
