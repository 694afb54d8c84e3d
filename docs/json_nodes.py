"""What verbs about nodes print with `--json`, where the code builds the document by hand.

All others are dataclasses of the code. The meaning of a key is the text below it, here or there.
"""
# ruff: noqa: INP001, D101  (for a script; what adds keys needs no words)

from __future__ import annotations

from typing import Any, NotRequired

from typing_extensions import TypedDict

from clusterctl.checks.finding import Finding
from clusterctl.checks.network.choices import LibraryChoice
from clusterctl.facts.ladder import Dcgm, GpuTrial, Rail
from clusterctl.facts.network.pairwise import PairRate
from clusterctl.inventory.other_programs.export import ExportedNode
from clusterctl.model.answers import Told
from clusterctl.model.quarantine import Quarantined
from clusterctl.sandbox.faults.registry import ActiveFault
from clusterctl.sandbox.layout import Host
from clusterctl.verbs.forget import Forgotten
from clusterctl.verbs.init.look import Remark
from clusterctl.verbs.preflight.check import LastGood
from clusterctl.verbs.preflight.rungs import RungRow
from clusterctl.verbs.sync.result import NodeSync


class Document(TypedDict):
    schema: int
    """Version of the document."""


class Plus:
    """A dataclass of the code to which the document adds keys."""

    base: type
    added: tuple[tuple[str, Any, str], ...]
    """Key, type and meaning."""


class Pair(Plus):
    base = PairRate
    added = (("from", str, "The node that sends."),)


class Trial(Plus):
    base = GpuTrial
    added = (("host", str, "The host of the inventory."),)


class NodeRail(Plus):
    base = Rail
    added = (("host", str, "The host of the inventory."),)


class NodeDcgm(Plus):
    base = Dcgm
    added = (("host", str, "The host of the inventory."),)


class CheckedNode(TypedDict):
    """A node of the run, in rank order."""

    host: str
    """The host of the inventory."""
    name: str
    """The node's name; other documents use it too."""
    rank: int
    """The node rank, from 0."""
    address: str | None
    """The address on the data network."""
    interface: str | None
    """The interface of that address."""
    gpus: int | None
    """The number of GPUs; null if it is not known."""
    state: str
    """`ok`, `unreachable`, or the worst status of a finding that names the node."""


class Ladder(TypedDict):
    """What `--deep` tried; the lists are empty without it."""

    rungs: list[RungRow]
    """The steps, in order."""
    gpus: list[Trial]
    """Each GPU alone."""
    inside: list[Trial]
    """NCCL all-reduces over the GPUs of each node."""
    rails: list[NodeRail]
    """Each GPU with the GPUs of the same place on the other nodes."""
    dcgm: list[NodeDcgm]
    """DCGM's short diagnostic on each node."""


class CheckDocument(Document):
    """The nodes, and what the checks found on them."""

    cluster: str
    """The cluster's name."""
    nodes: list[CheckedNode]
    """The nodes that were checked."""
    findings: list[Finding]
    """All findings, including those that passed or were skipped."""
    pairs: list[Pair]
    """Speeds between nodes, measured by `--deep`."""
    ladder: Ladder
    """The steps of `--deep`."""
    last_good: LastGood | None
    """What changed since the last run that finished well; null if there was none."""
    seconds: float
    """How long the check took."""
    choices: NotRequired[list[LibraryChoice]]
    """What each library will use, with `--explain-network`."""


class CheckInfo(TypedDict):
    """What a check looks for."""

    id: str
    """The name for `--only`, `--skip` and `--explain`."""
    title: str
    """What holds if the check passes."""
    why: str
    """What goes wrong otherwise."""
    fix: str
    """What to do about it."""
    source: str
    """A page to read; empty if there is none."""
    blocks: bool
    """A failure stops `launch`."""
    explained_by: list[str]
    """Checks whose failure on a node explains a failure of this one."""


class CheckListDocument(Document):
    """All checks, from `check --list`."""

    checks: list[CheckInfo]
    """The checks, in the order in which they run."""


class CheckInfoDocument(CheckInfo):
    """One check, from `check --explain ID`."""

    schema: int
    """Version of the document."""


class NodeProblem(TypedDict):
    """Why a node has no result."""

    node: str
    """The node's name."""
    kind: str
    """A [connection state](ssh.md#what-a-node-can-answer), or the kind of the node's error."""
    message: str
    """What happened, for people."""
    hint: str
    """What to do next; may be empty."""
    answered: bool
    """true: the node answered with an error; false: the connection failed."""
    details: dict[str, Any]
    """More about the error; the keys depend on `kind`."""


class ExecNode(TypedDict):
    """What the command did on a node."""

    node: str
    """The node's name."""
    exit_code: int | None
    """null: the command was not started, or its end is unknown."""
    timed_out: bool
    """`--timeout` ended the command."""
    stdout: str
    """What the command printed, at most 1 MiB together with `stderr`."""
    stderr: str
    """What the command printed on stderr."""
    truncated_bytes: int
    """How many bytes of output were not kept."""
    error: NodeProblem | None
    """Why the command was not started, or why its end is unknown."""


class ExecDocument(Document):
    """The command's result on each node."""

    command: list[str]
    """The command, as a list of words."""
    nodes: list[ExecNode]
    """The nodes, in the order of the inventory."""


class SetupNode(TypedDict):
    """The environment of a node."""

    node: str
    """The node's name."""
    state: str
    """`created`, `updated`, `unchanged`, `shared` (by another node), `failed`, `unreachable`."""
    venv: str
    """The path of the virtual environment."""
    version: str
    """The version of its Python."""
    packages: dict[str, str]
    """The version of each installed package."""
    error: NodeProblem | None
    """Why there is no environment."""


class SetupDocument(Document):
    """The environment of each node."""

    requirements: str
    """The file that was installed."""
    nodes: list[SetupNode]
    """The nodes, in the order of the inventory."""
    differences: dict[str, dict[str, str]]
    """Packages whose versions differ: by name, then by node."""


class SyncDocument(Document):
    """What was mirrored, and what each node has now."""

    cluster: str
    """The cluster's name."""
    source: str
    """The folder that was mirrored."""
    tree: str
    """Hash of all files and their contents."""
    files: int
    """The number of files."""
    bytes: int
    """Their size."""
    commit: str | None
    """The git commit; null if there is none."""
    dirty: bool
    """The folder has changes that are not in the commit."""
    nodes: list[NodeSync]
    """The result on each node."""
    seconds: float
    """How long the sync took."""


class InitDocument(Document):
    """`init`: what was found at the hosts."""

    file: str
    """The inventory: written, or kept as it was with `--with-train`."""
    undecided: list[Remark]
    """What you have to write into the file."""
    failed: list[Remark]
    """Why nodes did not answer."""


class ExportDocument(Document):
    """`export --json`: the inventory's nodes."""

    cluster: str
    """The cluster's name."""
    nodes: list[ExportedNode]
    """The nodes, the master first."""


class ForgetDocument(Document):
    """`forget`: which host keys were removed."""

    nodes: list[Forgotten]


class QuarantineDocument(Document):
    """`quarantine`: the nodes in quarantine; with `add` and `remove` those that were meant."""

    nodes: list[Quarantined]
    """Those that stay longest come first."""


class NotifyDocument(Document):
    """`notify --test`: what became of the test."""

    node: str
    """The node that sent it: the master."""
    receivers: list[Told]
    """In the order of `job.notify`."""


class SandboxDocument(Document):
    """The hosts of a sandbox."""

    name: str
    """The sandbox's name."""
    backend: str
    """`netns` or `loopback`."""
    inventory: str
    """The path of its hosts.yaml."""
    master_port: int
    """The port of the rendezvous in that file."""
    hosts: list[Host]
    """Its hosts."""
    jumps: list[Host]
    """Its jump hosts."""
    faults: list[ActiveFault]
    """The faults that are active."""
