"""A sync of one node, which agrees with whatever it plans."""

from __future__ import annotations

from clusterctl.sync.mirror import Placement
from clusterctl.sync.source import SourceTree
from clusterctl.sync.two_phase import TwoPhaseCommit


def placement_of(source: SourceTree, node: str, *, workdir: str, lock: str) -> Placement:
    return Placement(
        source=source.folder,
        workdir=workdir,
        tree=source.tree,
        listing=source.encoded,
        paths=source.listing.keys(),
        lock=lock,
        holder={"sync": "own"},
        tokens=(),
        together=TwoPhaseCommit([node], lambda _plans: True),
        moved={},
        kept={node: ()},
    )
