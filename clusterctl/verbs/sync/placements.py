"""What a sync gives one node of each filesystem, and why one did not get it."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from clusterctl.inventory.cluster import Cluster, Node
from clusterctl.inventory.machine import own_user
from clusterctl.plan.lock import lock_name
from clusterctl.sync.mirror import Placement
from clusterctl.sync.source import SourceTree, changed_since
from clusterctl.sync.two_phase import TwoPhaseCommit
from clusterctl.verbs.sync.deletions import SyncOrigin
from clusterctl.wire import plain


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
