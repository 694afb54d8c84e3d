"""Choose the checkpoint to go on from: complete, and the same, on every node.

First every node says what it sees, quickly; then the one chosen is read to its last byte, by one
node where it lies on shared storage, by every node where not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from clusterctl.errors import LaunchRefused
from clusterctl.inventory.cluster import Cluster, Node
from clusterctl.transport.interface import Request
from clusterctl.verbs.answers import trouble
from clusterctl.verbs.nodes import Nodes

LATEST = "latest"
SAVE_SECONDS = 900.0
"""The ranks' files of one save are all written within this long, clock skew included."""
Seen = Mapping[str, Mapping[str, Any]]
"""Node name → what it says of one checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A checkpoint that is proven complete and the same on every node."""

    path: str
    """As the job is given it."""
    step: int | None
    format: str
    verified_on: tuple[str, ...]
    """The nodes that read it to its last byte."""
    passed_over: tuple[str, ...] = ()
    """Newer ones, each with why it was not taken."""
    doubts: tuple[str, ...] = ()
    """What speaks against it, though it proves nothing."""


class _Unfit(Exception):  # noqa: N818  (a verdict, handled within this module)
    """A candidate is not complete, or not the same everywhere; `str()` says where and why."""


def choose(nodes: Nodes, cluster: Cluster, which: str, *, world_size: int | None = None) -> Chosen:
    """Choose `latest` or a path.

    Args:
        nodes: where it must be.
        cluster: the nodes of the run to come, and the job that says where checkpoints lie.
        which: `latest`, or a path: absolute, or relative to workdir or the checkpoints' folder.
        world_size: of the run that wrote it, where known.

    Raises:
        LaunchRefused: there is none, the path asked for is unfit, or a node did not answer.
    """
    asking = _Asking(nodes=nodes, cluster=cluster, world_size=world_size)
    if which == LATEST:
        if not cluster.job.checkpoints:
            raise LaunchRefused(
                "latest: wanted the job's checkpoint folder, found none in the inventory",
                hint="set `checkpoints:` under `job:`, or name a path: --checkpoint PATH",
                by="checkpoint",
            )
        return _latest(asking, cluster.job.checkpoints)
    try:
        return asking.prove(_one(asking.ask(which=which)), path=which)
    except _Unfit as unfit:
        hint = _hint(asking, which)
        raise LaunchRefused(f"checkpoint {which}: {unfit}", hint=hint, by="checkpoint") from unfit


def _latest(asking: _Asking, folder: str) -> Chosen:
    passed_over: list[str] = []
    for name, seen in _by_name(asking.ask(path=folder)):
        try:
            chosen = asking.prove(seen, path=_path(folder, name, seen))
        except _Unfit as unfit:
            passed_over.append(f"{name}: {unfit}")
            continue
        return replace(chosen, passed_over=tuple(passed_over))
    why = "\n".join(passed_over) or "it holds none"
    raise LaunchRefused(f"no complete checkpoint in {folder}: {why}", by="checkpoint")


def _hint(asking: _Asking, which: str) -> str:
    """Name the newest complete one beside a path that was refused."""
    folder = str(PurePosixPath(which).parent)
    for place in dict.fromkeys((asking.cluster.job.checkpoints or folder, folder)):
        try:
            return f"the newest complete one: --checkpoint {_latest(asking, place).path}"
        except LaunchRefused:
            continue
    return "no complete checkpoint was found beside it"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asking:
    """Asks the nodes about checkpoints."""

    nodes: Nodes
    cluster: Cluster
    world_size: int | None

    def ask(
        self, *, path: str | None = None, which: str = LATEST, among: Sequence[Node] | None = None
    ) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Return each node's candidates; with `among` read to the last byte, by these nodes."""
        requests = {
            node.name: Request(
                op="checkpoints",
                args={
                    "workdir": node.workdir,
                    "path": path or self.cluster.job.checkpoints,
                    "which": which,
                    "verify": among is not None,
                    "world_size": self.world_size,
                },
            )
            for node in among or self.cluster.nodes
        }
        found: dict[str, Sequence[Mapping[str, Any]]] = {}
        for reply in self.nodes.call(requests):
            wrong = trouble(reply)
            if wrong is None:
                found[reply.node] = reply.last.head["candidates"]
            elif wrong.answered:
                found[reply.node] = ({"complete": False, "why": wrong.message, "part": None},)
            else:
                message = f"{wrong.node}: {wrong.message}: cannot prove the checkpoint there"
                raise LaunchRefused(message, hint=wrong.hint or None, by="checkpoint")
        return found

    def prove(self, seen: Seen, *, path: str) -> Chosen:
        """Return the checkpoint when it is complete, the same, and right to its last byte.

        Raises:
            _Unfit: it is not.
        """
        _must_be_fit(seen, self.cluster)
        first = next(iter(seen.values()))
        if _inside(str(first["path"]), self.cluster.shared):
            readers = self.cluster.nodes[:1]
            _must_be_complete(_one(self.ask(which=str(first["path"]), among=readers)))
        else:
            readers = self.cluster.nodes
            _must_be_fit(_one(self.ask(which=path, among=readers)), self.cluster)
        return Chosen(
            path=path,
            step=first.get("step"),
            format=str(first.get("format", "")),
            verified_on=tuple(node.name for node in readers),
            doubts=tuple(
                dict.fromkeys(doubt for one in seen.values() for doubt in one.get("doubts", ()))
            ),
        )


def _one(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> Seen:
    return {node: candidates[0] for node, candidates in found.items()}


def _by_name(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[tuple[str, Seen]]:
    """Yield what the nodes say of each checkpoint, the newest first."""
    seen: dict[str, dict[str, Mapping[str, Any]]] = {}
    ages: dict[str, tuple[int, float]] = {}
    for node, candidates in found.items():
        for one in candidates:
            if "name" not in one:
                continue
            seen.setdefault(one["name"], {})[node] = one
            age = (-1 if one["step"] is None else one["step"], one["time"])
            ages[one["name"]] = max(age, ages.get(one["name"], age))
    for name in sorted(seen, key=lambda name: ages[name], reverse=True):
        yield name, seen[name]


def _must_be_fit(seen: Seen, cluster: Cluster) -> None:
    """Refuse what is not there, not complete or not the same on some node."""
    absent = [node.name for node in cluster.nodes if node.name not in seen]
    if absent:
        raise _Unfit(f"it is not there on {', '.join(absent)}")
    if any(one.get("part") for one in seen.values()):
        _must_add_up(seen)
        return
    _must_be_complete(seen)
    hashes = {one["hash"] for one in seen.values()}
    if len(hashes) > 1:
        steps = ", ".join(f"{node}: step {one.get('step')}" for node, one in seen.items())
        raise _Unfit(f"it is not the same on all nodes ({steps})")


def _must_be_complete(seen: Seen) -> None:
    broken: dict[str, list[str]] = {}
    for node, one in seen.items():
        if not one["complete"]:
            broken.setdefault(str(one["why"]), []).append(node)
    if broken:
        whys = (f"{why} (on {', '.join(sorted(nodes))})" for why, nodes in broken.items())
        raise _Unfit("it is not complete: " + "; ".join(whys))


def _must_add_up(seen: Seen) -> None:
    """Each node holds its own ranks' files: together they must be all, and nothing broken."""
    broken = [
        f"{one['why']} (on {node})"
        for node, one in seen.items()
        if not one["complete"] and not one.get("part")
    ]
    if broken:
        raise _Unfit("it is not complete: " + "; ".join(broken))
    said = {one["step"] for one in seen.values() if one.get("step") is not None}
    said |= {step for one in seen.values() if one.get("part") for step in one["part"]["steps"]}
    if len(said) > 1:
        raise _Unfit(
            f"it is not the same on all nodes: of steps {', '.join(map(str, sorted(said)))}"
        )
    parts = [one["part"] for one in seen.values() if one.get("part")]
    written = [moment for part in parts for moment in part["saved"]]
    if max(written) - min(written) > SAVE_SECONDS:
        span = max(written) - min(written)
        raise _Unfit(f"two saves are mixed: the ranks' files were written {span:.0f} s apart")
    held = {rank for part in parts for rank in part["ranks"]}
    sizes = [part["world_size"] for part in parts if part["world_size"]]
    missing = sorted(set(range(max(sizes, default=max(held) + 1))) - held)
    if missing:
        raise _Unfit(f"it is not complete: model_state_rank{missing[0]}.pt is on no node")
    if not any(part["metadata"] for part in parts):
        raise _Unfit("it is not complete: metadata.json, which rank 0 writes, is on no node")


def _inside(path: str, folders: Sequence[str]) -> bool:
    return any(PurePosixPath(path).is_relative_to(folder) for folder in folders)


def _path(folder: str, name: str, seen: Seen) -> str:
    """Return the path that is right on every node: absolute where all agree on it."""
    paths = {str(one["path"]) for one in seen.values()}
    return paths.pop() if len(paths) == 1 else str(PurePosixPath(folder) / name)
