"""Which deletions a sync may make unasked: not the command's files, nor most of what was placed."""

import posixpath
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from clusterctl.checks.wording import counted
from clusterctl.errors import SyncRefused
from clusterctl.inventory.ranges import fold_hosts
from clusterctl.sync.mirror import planned_deletions
from clusterctl.values import dataclass
from clusterctl.verbs.events import Emit, Notice
from clusterctl.verbs.sync.result import NodeSync, SyncOptions
from clusterctl.wire import Message

FEW = 5
"""So many deletions from the folder that placed the files are the person's own doing."""
SHOWN = 3
REMARKED = 5
"""Paths that a line names at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncOrigin:
    """Where files are placed from."""

    host: str
    folder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletions:
    """What a sync would delete on one node."""

    node: str
    paths: tuple[str, ...]
    """Files that an earlier sync placed and the folder here lacks."""
    moved: int
    """How many of them are here under another name."""
    placed: int
    """Files that the earlier sync placed."""
    origin: SyncOrigin | None
    """Where that one placed them from; None: it did not record that."""


def deletions_of(node: str, plan: Message, kept: Collection[str] = ()) -> Deletions:
    """Read a node's plan; what makes no sense in it is taken as nothing known.

    `kept` stays there after all. The node counted moved files with it: better too few than too many
    count as moved.
    """
    head, stays = plan.head, frozenset(kept)
    return Deletions(
        node=node,
        paths=tuple(path for path in planned_deletions(plan) if path not in stays),
        moved=max(_whole(head.get("moved")) - len(kept), 0),
        placed=_whole(head.get("placed")),
        origin=_origin(head.get("from")),
    )


def refusal(
    found: Sequence[Deletions],
    *,
    here: SyncOrigin,
    workdirs: Mapping[str, str],
    options: SyncOptions,
) -> SyncRefused | None:
    """Return why a sync of the folder `here` is not to delete what it would; None: it may."""
    for one in found:
        paths = set(one.paths)
        named = [p for p in _paths_in(options.command, workdirs[one.node]) if p in paths]
        if named or _most(one, here):
            alike = [other for other in found if other.paths == one.paths]
            return _refused(one, named, [other.node for other in alike], here, options)
    return None


def warn_of_other_folder(found: Sequence[Deletions], here: SyncOrigin, *, emit: Emit) -> None:
    """Warn that the nodes have the code of another folder of this machine, until now."""
    for one in found:
        if one.origin and one.origin.host == here.host and one.origin != here:
            text = f"its workdir had the code of {one.origin.folder} until now"
            hint = "for a project of its own: another `cluster:` and `workdir:` in hosts.yaml"
            emit(Notice(text=text, node=one.node, level="warning", hint=hint))
            return


def remarks(kept: Mapping[str, Sequence[str]], nodes: Iterable[NodeSync], *, emit: Emit) -> None:
    """Emit what a sync did not delete.

    Args:
        kept: by node, files that are no longer synced, but still in the folder here.
        nodes: what was done on each.
    """
    alike: dict[str, list[str]] = {}
    for name, paths in kept.items():
        if paths:
            alike.setdefault(_first(paths), []).append(name)
    for first, names in alike.items():
        text = f"no longer synced, but still in this folder, so kept there as last synced: {first}"
        emit(Notice(text=text, node=fold_hosts(names)))
    for node in nodes:
        if node.set_aside:
            where = f"{node.workdir}/.clusterctl/replaced"
            text = f"changed on the node, moved to {where}: {_first(node.set_aside)}"
            emit(Notice(text=text, level="warning", node=node.node))


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:REMARKED]) + (", …" if len(names) > REMARKED else "")


def _most(one: Deletions, here: SyncOrigin) -> bool:
    """Say whether most of what was placed would go, with all copies of its content."""
    lost = len(one.paths) - one.moved
    if one.origin == here:
        return lost > FEW and 2 * lost > one.placed
    return lost > 0 and 2 * lost >= one.placed


def _refused(
    one: Deletions, named: list[str], nodes: list[str], here: SyncOrigin, options: SyncOptions
) -> SyncRefused:
    placed = "that were synced"
    if one.origin is not None:
        placed += f" from {one.origin.host}:{one.origin.folder}"
    count = f"{len(one.paths)} of {counted(one.placed, 'file')}"
    first = named or list(one.paths)
    names = ", ".join(first[:SHOWN]) + (", …" if len(one.paths) > SHOWN else "")
    why = " that the command needs" if named else ""
    message = f"this folder lacks {count} {placed} ({', '.join(nodes)}): {names}{why}"
    alternatives = []
    if one.origin is not None and one.origin != here:
        there = "" if one.origin.host == here.host else f" on {shlex.quote(one.origin.host)}"
        alternatives.append(f"cd {shlex.quote(one.origin.folder)}{there}")
        alternatives.append("--workdir DIR for another folder on the nodes")
    elif one.origin is None:
        alternatives.append("cd to the folder of the code")
    if options.launching:
        alternatives.append("--no-sync to run what is there")
    alternatives.append("--delete to delete them on the nodes")
    return SyncRefused(message, hint=", or ".join(alternatives))


def _paths_in(command: Iterable[str], workdir: str) -> Iterator[str]:
    """Yield the paths in workdir that the words of a command may name."""
    words = list(command)
    for before, word in zip(["", *words], words, strict=False):
        if before == "-m":
            module = word.replace(".", "/")
            yield from (f"{module}.py", f"{module}/__main__.py")
        for name in (word, word.partition("=")[2]):
            if name:
                path = posixpath.normpath(posixpath.join(workdir, name))
                yield posixpath.relpath(path, posixpath.normpath(workdir))


def _origin(known: object) -> SyncOrigin | None:
    """Read where files came from; a host may say anything, and this becomes a command to type."""
    if not isinstance(known, dict):
        return None
    host, folder = str(known.get("host")), str(known.get("folder"))
    plain = re.fullmatch(r"[\w.-]+", host) and folder.startswith("/") and folder.isprintable()
    return SyncOrigin(host=host, folder=folder) if plain else None


def _whole(value: object) -> int:
    return value if isinstance(value, int) and value >= 0 else 0
