"""A node that takes part in a transfer: how far it is, and what is wrong with it."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from clusterctl.checks.wording import size_of
from clusterctl.errors import NodeError
from clusterctl.model.push import Compared
from clusterctl.plan.certificate import Identity
from clusterctl.verbs.events import CopyProgress
from clusterctl.verbs.push.result import ELSEWHERE, NodePush, failure


@dataclass(slots=True)
class Member:
    """One node that is to have the path."""

    name: str
    token: str
    """By which nodes find that they share a folder."""
    identity: Identity | None = None
    """By which the node before knows this one, and this one it."""
    step: str = "start"
    """The last step that it answered."""
    missing: int = 0
    received: int = 0
    counted: int = 0
    """How much of it had come when enough last came."""
    received_at: float = 0.0
    """When that was."""
    compared: int = 0
    port: int = 0
    lost: int = 0
    """How often the node before it lost it."""
    seen: tuple[str, ...] = ()
    """The tokens of nodes that write to the same folder."""
    complete: bool = False
    extra: str = ""
    """Names that the source does not have."""
    replaced: str = ""
    """Names of files that have other contents."""
    leader: str = ""
    """The node that is given the blocks, if it shares this one's filesystem."""
    fed: bool = False
    """It was asked what it has since it was last linked: the blocks come through this machine."""
    suspect: bool = False
    """The node after it complained of it, or it of that one."""
    rechecked: bool = False
    """The source was asked whether a block is wrong that this node says was."""
    error: NodeError | None = None

    @property
    def open(self) -> bool:
        """It takes part, and does not have all yet."""
        return self.error is None and not self.complete and not self.leader

    def outcome(self, path: str) -> NodePush:
        """Return what became of the path, which is there."""
        changed = self.received or self.missing or self.replaced
        outcome = NodePush(
            node=self.name,
            state="updated" if changed else "unchanged",
            path=path,
            received=self.received,
            words=f"replaced {self.replaced}" if self.replaced else "",
        )
        if self.error is not None:
            return replace(outcome, **failure(self.error, ELSEWHERE))
        if self.leader:
            return replace(outcome, state="shared", words=f"shared with {self.leader}")
        if self.extra and not _OWN_RANKS.fullmatch(self.extra):
            words = f"it has files that the source does not have: {self.extra}"
            return replace(outcome, state="failed", words=words, hint="remove them on the node")
        return outcome


_OWN_RANKS = re.compile(r"(?:(?:, )?(?:\S*/)?rng_state_\d+\.pth)+")
"""What transformers' Trainer saves on each node for its own ranks: a whole copy lacks it."""


def lacking_room(path: str, found: Compared) -> NodeError | None:
    """Return why a disk would be full; None: there is room."""
    if found.free < found.missing:
        words = f"{size_of(found.missing)} to write, {size_of(found.free)} free"
    elif (found.free_files or found.files) < found.files:
        words = f"{found.files} files to write, {found.free_files} inodes free"
    else:
        return None
    return NodeError("full", "operation", f"{path}: {words}", f"make room for {path}")


def in_the_way(path: str, found: Compared) -> NodeError | None:
    """Return which files of the person's would be replaced; None: no file."""
    if not found.replaced:
        return None
    first = found.replaced_paths
    names = ", ".join(first) + (", …" if found.replaced > len(first) else "")
    hint = "put it elsewhere: --to DIR\nreplace it: --overwrite"
    return NodeError("exists", "operation", f"{path} has other contents: {names}", hint)


def first_names(names: Sequence[str], count: int) -> str:
    """Return the first of so many names."""
    more = count - len(names)
    return ", ".join(names) + (f" and {more} more" if more > 0 else "")


def progress(
    path: str, members: Collection[Member], size: int, seconds: float | None
) -> CopyProgress:
    """Return how far a path is.

    Args:
        path: as it was typed.
        members: the nodes that are to have it.
        size: its bytes.
        seconds: for how long blocks have been sent; None: the nodes compare theirs.
    """
    given = [member for member in members if not member.leader and member.error is None]
    if seconds is None:
        done, total = sum(member.compared for member in given), size * len(given)
    else:
        done, total = sum(m.received for m in given), sum(m.missing for m in given)
    return CopyProgress(
        path=path,
        phase="comparing" if seconds is None else "sending",
        done=done if seconds is None else min(done, total),
        total=total,
        nodes=sum(member.complete for member in members),
        total_nodes=len(members),
        rate=done / seconds if seconds else 0.0,
    )
