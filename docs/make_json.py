"""Writes docs/reference/json.md and its JSON schema: `python docs/make_json.py`.

What a verb prints with `--json` is a dataclass of the code, or one of the types below if the code
builds the document by hand. The meaning of a key is the text below it, here or in the code.
"""
# ruff: noqa: INP001, D101  (a script, not a module of a package; what adds keys needs no words)

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import (
    Any,
    Literal,
    NotRequired,
    TypedDict,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from clusterctl.checks.finding import Finding
from clusterctl.checks.network.choices import LibraryChoice
from clusterctl.facts.ladder import Dcgm, GpuTrial, Rail
from clusterctl.facts.network.pairwise import PairRate
from clusterctl.inventory.other_programs.export import ExportedNode
from clusterctl.inventory.settings import settings_of
from clusterctl.logs.first_cause import FirstCause
from clusterctl.logs.progress_line import JobProgress
from clusterctl.model.checkpoint import Checkpoint
from clusterctl.model.dump import NodeDump
from clusterctl.model.node_run import (
    Again,
    Hung,
    LastLine,
    NodeEnd,
    RankState,
    Straggler,
    Supervisor,
    Usage,
)
from clusterctl.model.verdict import Verdict
from clusterctl.plan.plan import Plan
from clusterctl.sandbox.faults.registry import ActiveFault
from clusterctl.sandbox.layout import Host
from clusterctl.verbs.checkpoints.query import ChosenCheckpoint
from clusterctl.verbs.events import Level
from clusterctl.verbs.forget import Forgotten
from clusterctl.verbs.init.look import Remark
from clusterctl.verbs.join import NodeJoin
from clusterctl.verbs.launch.join_monitor import JoinProgress, StartTimeout
from clusterctl.verbs.preflight.check import LastGood
from clusterctl.verbs.preflight.rungs import RungRow
from clusterctl.verbs.pull.result import PullResult
from clusterctl.verbs.push.result import PushResult
from clusterctl.verbs.runs.list_runs import ListedRun
from clusterctl.verbs.runs.prune import Kept
from clusterctl.verbs.stop import StopResult
from clusterctl.verbs.sync.result import NodeSync

REFERENCE = Path(__file__).parent / "reference"
PAGE = REFERENCE / "json.md"
SCHEMA = REFERENCE / "json.schema.json"

HEAD = """\
# Output for programs

With `--json`, these commands print JSON on stdout for your scripts. Messages stay on stderr, and
the [exit code](exit-codes.md) is the same as without `--json`.

- Most commands print one document. `launch`, `resume` and `logs` print one document per line.
- `schema` is the version of the documents. Later versions may add keys, so ignore keys that you do
  not know.
- Times are in seconds since 1970, UTC.
- [json.schema.json](json.schema.json) has a JSON schema of each document under `$defs`.
"""

RunState = Literal[
    "queued",
    "starting",
    "running",
    "stopping",
    "finished",
    "failed",
    "stopped",
    "unreachable",
    "lost",
]


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


class Cause(Plus):
    base = FirstCause
    added = (("exit_status", int, "The exit code of `launch`."),)


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


class CheckDocument(TypedDict):
    """The nodes, and what the checks found on them."""

    schema: int
    """Version of the document."""
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


class CheckListDocument(TypedDict):
    """All checks, from `check --list`."""

    schema: int
    """Version of the document."""
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


class ExecDocument(TypedDict):
    """The command's result on each node."""

    schema: int
    """Version of the document."""
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


class SetupDocument(TypedDict):
    """The environment of each node."""

    schema: int
    """Version of the document."""
    requirements: str
    """The file that was installed."""
    nodes: list[SetupNode]
    """The nodes, in the order of the inventory."""
    differences: dict[str, dict[str, str]]
    """Packages whose versions differ: by name, then by node."""


class SyncDocument(TypedDict):
    """What was mirrored, and what each node has now."""

    schema: int
    """Version of the document."""
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


class RunsDocument(TypedDict):
    """The runs of the cluster, the newest first."""

    schema: int
    """Version of the document."""
    runs: list[ListedRun]
    """The runs."""
    troubles: list[NodeProblem]
    """Nodes that did not answer."""
    rebuilt: list[str]
    """Runs whose record `--discover` rebuilt."""


class PruneDocument(TypedDict):
    """What `runs --prune` deleted."""

    schema: int
    """Version of the document."""
    removed: list[str]
    """Runs that were deleted."""
    kept: list[Kept]
    """Runs that were kept although they are old."""
    troubles: list[NodeProblem]
    """Nodes that did not answer."""


class StatusNode(TypedDict):
    """A node of the run, in launch order."""

    node: str
    """The node's name."""
    host: str
    """The host of the inventory."""
    state: str
    """[A state of a run](run-states.md), or `absent` if the node has nothing of it."""
    rank0: int | None
    """The node's first rank."""
    ranks: int
    """The number of its ranks."""
    joined: int
    """How many of them have joined the rendezvous."""
    supervisor: Supervisor | None
    """clusterctl's process there."""
    usage: Usage | None
    """While the run lives on the node."""
    end: NodeEnd | None
    """Once the run has ended there."""
    message: str
    """Why the node did not answer."""
    hint: str
    """What to do about it; may be empty."""


class StatusRank(Plus):
    base = RankState
    added = (("node", str, "The node's name."),)


class StatusStraggler(Plus):
    base = Straggler
    added = (("node", str, "The node's name."),)


class StatusDocument(TypedDict):
    """A run; see [what the states mean](run-states.md)."""

    schema: int
    """Version of the document."""
    run: str
    """The run's id."""
    cluster: str
    """The cluster's name."""
    name: str | None
    """The name given by `--name`."""
    state: RunState
    """The state of the run."""
    ended_by: str | None
    """What ended it, as in [the exit codes of launch](launch.md#exit-codes)."""
    began: float | None
    """When it began."""
    ended: float | None
    """When it was over on all nodes."""
    command: list[str]
    """The job's command."""
    nodes: list[StatusNode]
    """Its nodes."""
    ranks: list[StatusRank]
    """Its ranks."""
    ray: dict[str, Any] | None
    """With the launcher `ray`: `address`, `version`, `nodes`."""
    slurm: dict[str, str] | None
    """In a batch job: `job`, `state`, `reason`, `nodes`."""
    last_line: LastLine | None
    """The newest line of the logs."""
    progress: JobProgress | None
    """How far the job is, by the newest line that tells."""
    restarts: int
    """How often the launcher has started its ranks again."""
    attempt: int
    """Which attempt of a run that restarts it is, or was the last; 1 of any other run."""
    attempts: int
    """The most that it may have."""
    again: Again | None
    """The attempt that is about to begin; null: there is none."""
    no_restart: str | None
    """Why a run that restarts was not started again."""
    hung: Hung | None
    """That no rank has shown a sign of life for too long; null: it is not hung."""
    verdict: Verdict | None
    """Why, by the stacks that the nodes kept; also of a run that was ended for it."""
    false_alarms: int
    """How often it was hung, and then ran again."""
    stragglers: list[StatusStraggler]
    """The ranks that keep the others waiting, while the run is `running`."""
    checkpoints: str | None
    """The folder of this run's checkpoints, which was searched."""
    checkpoint: Checkpoint | None
    """The newest one that looks complete."""
    first_cause: Cause | None
    """Why the run failed."""


class RunDocument(Plus):
    """One run in full, from `runs show`."""

    base = ListedRun
    added = (
        ("schema", int, "Version of the document."),
        ("chain", list[str], "The runs that it resumes, itself and its resumes, oldest first."),
        ("launcher", str, "What starts its ranks; empty if this machine has no record of it."),
        ("source", str, "The folder that was synced."),
        ("tree", str, "Hash of what was synced."),
        ("options", dict[str, Any], "The options of the launch."),
        ("findings", list[Finding], "Checks that did not pass before the launch."),
        ("record", str | None, "The folder of its record; null if there is none."),
        ("status", StatusDocument, "Its status, as `status --json` has it."),
    )


class StopDocument(TypedDict):
    """What is left of each run that was stopped."""

    schema: int
    """Version of the document."""
    runs: list[StopResult]
    """The runs."""
    silent: list[str]
    """With `--all`: nodes that did not answer."""


class DumpDocument(TypedDict):
    """Where every rank of a run is; of a run that is over, the stacks that its nodes kept."""

    schema: int
    """Version of the document."""
    run: str
    """The run's id."""
    time: float
    """When the nodes were asked, by this machine's clock."""
    nodes: list[NodeDump]
    """The nodes that told something."""
    states: dict[str, str]
    """The state of the run on each node that answered, by the node's name."""
    notes: dict[str, str]
    """What was not as it should be, by the node's name."""
    verdict: Verdict | None
    """Why the run stands still; null with `--rank` or `--nodes`, or if no node told anything."""
    silent: dict[str, str]
    """Why a node did not answer, by its name."""


class JoinDocument(TypedDict):
    """`join`: which nodes joined a run."""

    schema: int
    run: str
    nodes: list[NodeJoin]


class InitDocument(TypedDict):
    """`init`: what was found at the hosts."""

    schema: int
    """Version of the document."""
    file: str
    """The inventory: written, or kept as it was with `--with-train`."""
    undecided: list[Remark]
    """What you have to write into the file."""
    failed: list[Remark]
    """Why nodes did not answer."""


class ExportDocument(TypedDict):
    """`export --json`: the inventory's nodes."""

    schema: int
    """Version of the document."""
    cluster: str
    """The cluster's name."""
    nodes: list[ExportedNode]
    """The nodes, the master first."""


class ForgetDocument(TypedDict):
    """`forget`: which host keys were removed."""

    schema: int
    """Version of the document."""
    nodes: list[Forgotten]


class SandboxDocument(TypedDict):
    """The hosts of a sandbox."""

    schema: int
    """Version of the document."""
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


class LineEvent(TypedDict):
    """A line of a log."""

    run: NotRequired[str]
    """The run, with `logs --chain`."""
    time: float
    """When it was printed."""
    node: str
    """The node's name."""
    rank: int | None
    """null: the launcher printed it."""
    offset: int
    """Offset of its first byte in the file."""
    line: str
    """The line, without its newline."""


class StartedEvent(TypedDict):
    """The run is up on a node."""

    node: str
    """The node's name."""
    pid: int
    """The process id of the node's supervisor."""


class EventEvent(TypedDict):
    """A line of a node's [events.jsonl](run-folder.md#events)."""

    node: str
    """The node's name."""
    event: dict[str, Any]
    """The event."""


class VerdictEvent(TypedDict):
    """The run is hung: why, as `dump` says it; sent once for each time that it is."""

    run: str
    """The run's id."""
    time: float
    """When the nodes were asked, by this machine's clock."""
    states: dict[str, str]
    """The state of the run on each node that answered, by the node's name."""
    notes: dict[str, str]
    """What was not as it should be, by the node's name."""
    verdict: Verdict
    """Why the run stands still."""
    silent: dict[str, str]
    """Why a node did not answer, by its name."""


class LostEvent(TypedDict):
    """The connection to a node broke; clusterctl tries to reconnect."""

    node: str
    """The node's name."""
    message: str
    """Why it broke."""


class BackEvent(TypedDict):
    """A lost node answers again."""

    node: str
    """The node's name."""


class StoppingEvent(TypedDict):
    """A node has reached a stage of stopping."""

    node: str
    """The node's name."""
    stage: str
    """`asking`, `killing` or `verifying` (that nothing is left)."""


class CheckpointEvent(TypedDict):
    """`resume` has verified a checkpoint."""

    chosen: ChosenCheckpoint
    """The checkpoint."""


class MessageEvent(TypedDict):
    """A notice or a warning."""

    level: Level
    """How serious it is."""
    node: str | None
    """The node's name; null if the message is not about one node."""
    text: str
    """The message."""
    hint: str
    """What to type or to do next; may be empty."""


class EndedEvent(TypedDict):
    """How the run ended; always the last event."""

    run: str | None
    """The run's id; null: nothing was launched."""
    state: RunState | None
    """The state of the run; null: nothing was launched."""
    exit_code: int
    """The exit code of the command."""
    ended_by: str
    """What ended the run, as in [the exit codes of launch](launch.md#exit-codes)."""
    first_cause: NotRequired[FirstCause | None]
    false_alarms: NotRequired[int]
    """How often it was hung, and then ran again."""
    """Why the run failed."""
    message: NotRequired[str]
    """Why nothing was launched."""


class DetachedDocument(TypedDict):
    """The last line of `launch --detach`."""

    schema: int
    """Version of the document."""
    run: str
    """The run's id."""


EVENTS = {
    "check": CheckDocument,
    "sync": SyncDocument,
    "checkpoint": CheckpointEvent,
    "plan": Plan,
    "started": StartedEvent,
    "gathering": JoinProgress,
    "start-timeout": StartTimeout,
    "line": LineEvent,
    "event": EventEvent,
    "verdict": VerdictEvent,
    "node-lost": LostEvent,
    "node-back": BackEvent,
    "stopping": StoppingEvent,
    "stopped": StopResult,
    "message": MessageEvent,
    "ended": EndedEvent,
}
"""`kind` of a line of `launch` and `resume` → what else it has."""
DOCUMENTS = {
    "check": CheckDocument,
    "check-list": CheckListDocument,
    "check-explain": CheckInfoDocument,
    "exec": ExecDocument,
    "export": ExportDocument,
    "forget": ForgetDocument,
    "init": InitDocument,
    "setup": SetupDocument,
    "pull": PullResult,
    "push": PushResult,
    "sync": SyncDocument,
    "join": JoinDocument,
    "status": StatusDocument,
    "dump": DumpDocument,
    "stop": StopDocument,
    "runs": RunsDocument,
    "runs-prune": PruneDocument,
    "runs-show": RunDocument,
    "sandbox-status": SandboxDocument,
    "detached": DetachedDocument,
}


@dataclasses.dataclass(frozen=True)
class Key:
    """A key of a document."""

    name: str
    hint: Any
    required: bool
    meaning: str


def _is_plus(kind: Any) -> bool:  # noqa: ANN401  (a type)
    return isinstance(kind, type) and issubclass(kind, Plus)


@cache
def keys_of(kind: Any) -> tuple[Key, ...]:  # noqa: ANN401  (a type)
    """Return the keys of a dataclass or TypedDict, with the text below each in its source."""
    if _is_plus(kind):
        added = [Key(name, hint, True, meaning) for name, hint, meaning in kind.added]
        return (*added, *keys_of(kind.base))
    texts: dict[str, str] = {}
    for each in reversed(_bases(kind)):
        texts |= _texts(each)
    if is_typeddict(kind):
        hints = get_type_hints(kind, include_extras=True)
        return tuple(
            Key(name, hint, get_origin(hint) is not NotRequired, texts.get(name, ""))
            for name, hint in hints.items()
        )
    hints = get_type_hints(kind)
    texts = {
        **{name: _sentence(one.description) for name, one in settings_of(kind).items()},
        **texts,
    }
    names = [field.name for field in dataclasses.fields(kind)]
    return tuple(Key(name, hints[name], True, texts.get(name, "")) for name in names)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _bases(kind: type) -> tuple[type, ...]:
    return (*getattr(kind, "__orig_bases__", ()), *kind.__mro__)


def _texts(kind: Any) -> dict[str, str]:  # noqa: ANN401  (a class, or TypedDict itself)
    if not isinstance(kind, type):
        return {}
    tree = _classes(kind.__module__).get(kind.__name__)
    if tree is None:
        return {}
    found = {}
    for line, following in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(line, ast.AnnAssign) and isinstance(following, ast.Expr):
            text = ast.literal_eval(following.value)
            found[ast.unparse(line.target)] = _as_json(" ".join(text.split("\n\n")[0].split()))
    return found


@cache
def _classes(module: str) -> dict[str, ast.ClassDef]:
    """Return the classes of a module's source by their names; Python's own say nothing of keys."""
    if module in sys.stdlib_module_names:
        return {}
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {one.name: one for one in tree.body if isinstance(one, ast.ClassDef)}


def _as_json(text: str) -> str:
    """Return a docstring with JSON's names for Python's constants."""
    names = {"None": "null", "True": "true", "False": "false"}
    return re.sub(r"\b(?:None|True|False)\b", lambda found: names[found[0]], text)


def is_object(kind: Any) -> bool:  # noqa: ANN401  (a type)
    """Whether a type has keys of its own."""
    return _is_plus(kind) or is_typeddict(kind) or dataclasses.is_dataclass(kind)


def name_of(kind: Any) -> str:  # noqa: ANN401  (a type)
    """Return the name of an object's type in the page and the schema."""
    return str(kind.__name__)


def parts(hint: Any) -> tuple[str, tuple[Any, ...]]:  # noqa: ANN401  (a type)
    """Return the form of a type, and the types in it."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is NotRequired:
        return parts(inner[0])
    if origin in {Union, types.UnionType}:
        return "union", inner
    if origin is Literal:
        return "literal", inner
    if origin in {tuple, list, Sequence, frozenset, set}:
        return "array", tuple(one for one in inner if one is not ...)[:1]
    if origin in {dict, Mapping} or hint in {dict, Mapping}:
        return "map", inner[1:]
    return ("object" if is_object(hint) else "simple"), (hint,)


SIMPLE = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def schema_of(hint: Any) -> dict[str, Any]:  # noqa: ANN401  (a type)
    """Return the JSON schema of a type; objects are references."""
    form, inner = parts(hint)
    if form == "union":
        return {"anyOf": [schema_of(one) for one in inner]}
    if form == "literal":
        return {"enum": list(inner)}
    if form == "array":
        return {"type": "array", "items": schema_of(inner[0]) if inner else {}}
    if form == "map":
        return {"type": "object", "additionalProperties": schema_of(inner[0]) if inner else True}
    if form == "object":
        return {"$ref": f"#/$defs/{name_of(hint)}"}
    return {"type": SIMPLE[inner[0]]} if inner[0] in SIMPLE else {}


def object_schema(kind: Any, kinds: Sequence[str] = ()) -> dict[str, Any]:  # noqa: ANN401  (a type)
    """Return the JSON schema of an object; with `kinds`, as an event of one of these."""
    keys = keys_of(kind)
    event = {"schema": {"type": "integer"}, "kind": {"enum": list(kinds)}} if kinds else {}
    properties = {key.name: _described(key) for key in keys} | event
    required = sorted({key.name for key in keys if key.required} | set(event))
    return {"type": "object", "properties": properties, "required": required}


def _described(key: Key) -> dict[str, Any]:
    meaning = {"description": key.meaning} if key.meaning else {}
    return {**schema_of(key.hint), **meaning}


def nested(kind: Any) -> Iterator[Any]:  # noqa: ANN401  (a type)
    """Yield the objects in an object, each once, in the order of their keys."""
    seen = []
    for key in keys_of(kind):
        for one in _objects(key.hint):
            seen += [each for each in (one, *nested(one)) if each not in seen]
    yield from seen


def _objects(hint: Any) -> Iterator[Any]:  # noqa: ANN401  (a type)
    form, inner = parts(hint)
    if form == "object":
        yield hint
    elif form in {"union", "array", "map"}:
        for one in inner:
            yield from _objects(one)


def schema() -> dict[str, Any]:
    """Return the schema of all documents."""
    definitions = {}
    for name, kind in DOCUMENTS.items():
        definitions[name] = {"$ref": f"#/$defs/{name_of(kind)}"}
    for name, kind in EVENTS.items():
        definitions[f"event-{name}"] = object_schema(kind, [name])
    for kind in [*DOCUMENTS.values(), *EVENTS.values()]:
        for one in (kind, *nested(kind)):
            definitions[name_of(one)] = object_schema(one)
    definitions["event"] = {"oneOf": [{"$ref": f"#/$defs/event-{name}"} for name in EVENTS]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What clusterctl prints with --json",
        "$defs": dict(sorted(definitions.items())),
    }


def render() -> str:
    """Return the page."""
    blocks = [HEAD]
    shown: list[Any] = []
    for name, kind in DOCUMENTS.items():
        blocks += _section(f"## {name.replace('-', ' ')}", kind, shown)
    blocks.append(
        "## Events of launch and resume\n\n"
        "`launch --json` and `resume --json` print one event per line. "
        "Each has `schema`, `kind` and the keys of its kind. `ended` is the last one.\n"
    )
    for name, kind in EVENTS.items():
        blocks += _section(f"### {name}", kind, shown)
    return "\n".join(blocks)


def _section(title: str, kind: Any, shown: list[Any]) -> list[str]:  # noqa: ANN401  (a type)
    if kind in shown:
        place = _section_of(kind)
        return [f"{title}\n\nHas the keys of {name_of(kind)}, under [{place}](#{place}).\n"]
    blocks = [f"{title}\n\n{_summary(kind)}\n\n{_table(kind)}\n"]
    shown.append(kind)
    for one in nested(kind):
        if one not in shown:
            shown.append(one)
            blocks.append(f"**{name_of(one)}**: {_summary(one)}\n\n{_table(one)}\n")
    return blocks


def _section_of(kind: Any) -> str:  # noqa: ANN401  (a type)
    """Return the section that has the keys of an object."""
    return next(
        name
        for name, one in (DOCUMENTS | EVENTS).items()
        if one is kind or (name in DOCUMENTS and kind in nested(one))
    )


def _summary(kind: Any) -> str:  # noqa: ANN401  (a type)
    own = vars(kind).get("__doc__")  # what adds keys may have words of its own
    described = kind.base if _is_plus(kind) and not own else kind
    return (inspect.getdoc(described) or "").split("\n\n")[0].replace("\n", " ")


def _table(kind: Any) -> str:  # noqa: ANN401  (a type)
    rows = ["| key | type | meaning |", "|---|---|---|"]
    for key in keys_of(kind):
        optional = "" if key.required else " (may be missing)"
        meaning = (key.meaning + optional).replace("|", "\\|")
        rows.append(f"| `{key.name}` | {_words(key.hint)} | {meaning} |")
    return "\n".join(rows)


def _words(hint: Any) -> str:  # noqa: ANN401  (a type)
    form, inner = parts(hint)
    if form == "union":
        return " or ".join(_words(one) for one in inner)
    if form == "literal":
        return ", ".join(f"`{one}`" for one in inner)
    if form == "array":
        return f"list of {_words(inner[0])}" if inner else "list"
    if form == "map":
        return f"object of {_words(inner[0])}" if inner and inner[0] is not Any else "object"
    if form == "object":
        return name_of(hint)
    return SIMPLE.get(inner[0], "any")


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
    SCHEMA.write_text(json.dumps(schema(), indent=1) + "\n", encoding="utf-8")
