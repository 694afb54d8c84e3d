"""What a sync gives one node of each filesystem, whether all may change, and why one could not."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clusterctl.errors import SyncRefused
from clusterctl.inventory.cluster import Cluster, Node
from clusterctl.inventory.machine import own_user
from clusterctl.plan.lock import lock_name
from clusterctl.sync.mirror import Placement
from clusterctl.sync.source import SourceTree, changed_since
from clusterctl.sync.two_phase import TwoPhaseCommit
from clusterctl.verbs.sync.deletions import SyncOrigin, deletions_of, refusal
from clusterctl.verbs.sync.result import SyncOptions
from clusterctl.wire import Message


@dataclass(slots=True)
class Placements:
    """The nodes of one sync that are given files, and the verdict on what they would change."""

    cluster: Cluster
    source: SourceTree
    options: SyncOptions
    tokens: Sequence[str] = ()
    """By which the nodes of one folder were found; no longer needed."""
    refused: SyncRefused | None = None
    """Why nothing was changed."""

    def placements(self, nodes: Iterable[Node], together: TwoPhaseCommit) -> dict[str, Placement]:
        """Return what each of the nodes is to hold."""
        listing = self.source.encoded
        here = self._here()
        names = {"user": own_user(), "host": here.host, "folder": here.folder}
        holder = {"sync": secrets.token_hex(8), **names}
        return {
            node.name: Placement(
                source=self.source.folder,
                workdir=str(node.workdir),
                tree=self.source.tree,
                listing=listing,
                paths=self.source.listing.keys(),
                lock=lock_name(self.cluster, node),
                holder=holder,
                tokens=self.tokens,
                together=together,
            )
            for node in nodes
        }

    def agree(self, plans: Mapping[str, Message]) -> bool:
        """Judge what all nodes would do; `refused` says why not."""
        if not self.options.delete:
            self.refused = refusal(
                [deletions_of(name, plan) for name, plan in sorted(plans.items())],
                here=self._here(),
                command=self.options.command,
                workdirs={node.name: str(node.workdir) for node in self.cluster.nodes},
                launching=self.options.launching,
            )
        return self.refused is None

    def _here(self) -> SyncOrigin:
        return SyncOrigin(host=socket.gethostname(), folder=str(self.source.folder))


def why_different(
    source: SourceTree, workdir: str, sent: Mapping[str, Any], different: list[str]
) -> tuple[str, str]:
    """Say why a node did not get the tree, and what to do.

    Args:
        source: what was sent.
        workdir: where to.
        sent: `code` and `words` of what sent it.
        different: paths that are not as sent.
    """
    if changed := changed_since(source, different):
        words = f"changed here while it was sent: {', '.join(changed)}"
        return words, "sync again when nothing writes to this folder"
    listed = ", ".join(different)
    if not sent["code"]:
        return f"not as sent: {listed}", "it changed there meanwhile; sync again"
    words = f"not all files could be written ({sent['code']}): {sent['words'] or listed}"
    return words, f"try there: df -h {workdir}; df -i {workdir}; ls -ld {workdir}"
