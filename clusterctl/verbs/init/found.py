"""Decides, of what the nodes answered, on interpreters, shared paths and folders for the code."""

import json
import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Self

from clusterctl.facts.answers import Answers
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.facts.storage.storage import NETWORK, Mount, parse_mounts
from clusterctl.inventory.cluster import Cluster, Node
from clusterctl.values import dataclass

SHARES_LIMIT = 8
"""Shared paths that the nodes try together, at most."""
INTERPRETERS = "interpreters"
"""The key of the answer that lists them."""
MOUNTS = "/proc/self/mountinfo"
HOME = "~"
"""Asked as a path too: the search for interpreters needs a `python3` on the session's PATH."""

_SYSTEM = re.compile(r"/($|(boot|dev|etc|proc|root|run|snap|sys|tmp|usr|var|lib\w*|s?bin)(/|$))")
_PLAIN_PARTS = 2
"""Parts of the path of a mount that may be shared by other means, such as a container's volume."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """An interpreter of a node."""

    path: str
    version: str
    torch: str
    """The version of torch; empty: it has none."""
    build: str
    """What torch was built for: `cpu`, a version of CUDA, `rocm…`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one node told of itself."""

    home: str = ""
    interpreters: tuple[Interpreter, ...] = ()
    slow: tuple[str, ...] = ()
    """Interpreters that did not answer in time: whether they have torch is unknown."""
    mounts: tuple[Mount, ...] = ()

    @classmethod
    def of(cls, answers: Answers) -> Self:
        """Return what is in the answers; what is missing or of another form is left out."""
        documents = list(_documents(answers.command(INTERPRETERS).text))
        path = answers.json("path:" + HOME)
        homes = [str(one["home"]) for one in documents if "home" in one]
        homes += [str(path.get("real", ""))] if isinstance(path, dict) else []
        return cls(
            home=next((home for home in homes if home.startswith("/")), ""),
            interpreters=tuple(
                Interpreter(
                    path=str(one["python"]),
                    version=str(one.get("version", "")),
                    torch=str(one.get("torch", "")),
                    build=str(one.get("build", "")),
                )
                for one in documents
                if str(one.get("python", "")).startswith("/")
            ),
            slow=tuple(
                path
                for one in documents
                if (path := str(one.get("slow", ""))).startswith("/") and path.isprintable()
            ),
            mounts=parse_mounts(answers.text(MOUNTS) or ""),
        )

    @property
    def with_torch(self) -> tuple[Interpreter, ...]:
        """The interpreters that have torch."""
        return tuple(one for one in self.interpreters if one.torch or one.build)


def _documents(text: str) -> Iterator[dict[str, object]]:
    for line in text.splitlines():
        try:
            document = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(document, dict):
            yield document


def choose_interpreters(seen: Mapping[str, Seen]) -> dict[str, Interpreter]:
    """Return the interpreter with torch of each node that has one.

    One that most nodes have at the same path goes first, then one that can use GPUs, then the
    likeliest place.
    """
    at: dict[str, dict[str, Interpreter]] = {}
    for name, node in seen.items():
        for one in node.with_torch:
            at.setdefault(one.path, {})[name] = one

    def rank(name: str, one: Interpreter) -> tuple[int, int, bool, int]:
        alike = at[one.path]
        versions = {each.torch for each in alike.values()}
        order = seen[name].with_torch.index(one)
        return -len(alike), len(versions), one.build == "cpu", order

    return {
        name: min(node.with_torch, key=lambda one: rank(name, one))
        for name, node in seen.items()
        if node.with_torch
    }


def possible_shares(seen: Mapping[str, Seen], *, one_machine: bool) -> tuple[str, ...]:
    """Return the mounts that all nodes have and that may be one filesystem; network ones first."""
    if not seen or (len(seen) == 1 and not one_machine):
        return ()
    homes = {node.home for node in seen.values()}
    if one_machine:
        return tuple(homes) if len(homes) == 1 and "" not in homes else ()
    points = [{mount.point: mount for mount in node.mounts} for node in seen.values()]
    common = set(points[0]).intersection(*points[1:])
    found = [
        point
        for point in sorted(common)
        if all(_may_be_shared(one[point]) for one in points)
        and len({one[point].filesystem for one in points}) == 1
    ]
    kinds = {point: points[0][point].filesystem for point in found}
    found.sort(key=lambda point: (not NETWORK.fullmatch(kinds[point]), point.count("/")))
    # One that is mounted twice counts once: tokens would meet themselves.
    once = {(points[0][point].source, points[0][point].root): point for point in reversed(found)}
    return tuple(point for point in found if point in once.values())[:SHARES_LIMIT]


def _may_be_shared(mount: Mount) -> bool:
    if mount.read_only or _SYSTEM.match(mount.point):
        return False
    plain = mount.point.count("/") <= _PLAIN_PARTS and mount.filesystem not in {"tmpfs", "ramfs"}
    return plain or NETWORK.fullmatch(mount.filesystem) is not None


def shared_paths(cluster: Cluster, facts: Mapping[str, NodeFacts]) -> tuple[str, ...]:
    """Return the paths on which every node saw what every other one wrote."""
    known = [facts[node.name] for node in cluster.nodes if facts[node.name].answered]
    tokens = [token for node in known if node.between for token in node.between.tokens]
    writers = len(known)
    found = []
    for path in cluster.shared:
        own = [token.seen for token in tokens if token.path == path]
        if writers > 1 and len(own) >= writers and all(own):
            found.append(path)
    return tuple(found)


def with_workdirs(cluster: Cluster, seen: Mapping[str, Seen], folder: str) -> Cluster:
    """Return the cluster with a folder for the code on each node that has none.

    The first shared path has it, else each home.
    """
    homes = {node.name: seen[node.name].home for node in cluster.nodes if node.name in seen}
    share = next(iter(cluster.shared), None)

    def workdir(node: Node) -> str | None:
        home = homes.get(node.name, "")
        if share is not None and not _inside(home, share):
            return posixpath.join(share, folder)
        return posixpath.join(home, folder) if home else None

    nodes = tuple(
        node if node.workdir else replace(node, workdir=workdir(node)) for node in cluster.nodes
    )
    return replace(cluster, nodes=nodes)


def _inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
