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
import textwrap
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

from clusterctl.checks.choices import LibraryChoice
from clusterctl.checks.finding import Finding
from clusterctl.facts.values.ladder import Dcgm, GpuTrial
from clusterctl.facts.values.pairwise import PairRate
from clusterctl.logs.first_cause import FirstCause
from clusterctl.plan.plan import Plan
from clusterctl.sandbox.faults.registry import ActiveFault
from clusterctl.sandbox.layout import Host
from clusterctl.verbs.checkpoints.query import ChosenCheckpoint
from clusterctl.verbs.events import Level
from clusterctl.verbs.join import NodeJoin
from clusterctl.verbs.launch.join_monitor import JoinProgress, StartTimeout
from clusterctl.verbs.preflight.check import LastGood
from clusterctl.verbs.preflight.rungs import RungRow
from clusterctl.verbs.push.result import PushResult
from clusterctl.verbs.runs.list_runs import ListedRun
from clusterctl.verbs.runs.prune import Kept
from clusterctl.verbs.runs.run_status import Checkpoint
from clusterctl.verbs.stop import StopResult
from clusterctl.verbs.sync.result import NodeSync

REFERENCE = Path(__file__).parent / "reference"
PAGE = REFERENCE / "json.md"
SCHEMA = REFERENCE / "json.schema.json"

HEAD = """\
# Output for programs

The verbs below print JSON on stdout with `--json`. Messages stay on stderr, and the
[exit code](exit-codes.md) is the same. `schema` is the version of the documents. A later version
may add keys, so ignore keys that you do not know. Times are seconds since 1970, UTC.

[json.schema.json](json.schema.json) has a JSON schema of each document under `$defs`.
`launch --json`, `resume --json` and `logs --json` print one document a line.

Written by `python docs/make_json.py`; a test compares it with what the verbs print.
"""

RunState = Literal[
    "starting", "running", "stopping", "finished", "failed", "stopped", "unreachable", "lost"
]


class Plus:
    """A dataclass of the code to which the document adds keys."""

    base: type
    added: tuple[tuple[str, Any, str], ...]
    """Key, type and meaning."""


class Pair(Plus):
    base = PairRate
    added = (("from", str, "The node that sent."),)


class Trial(Plus):
    base = GpuTrial
    added = (("host", str, ""),)


class NodeDcgm(Plus):
    base = Dcgm
    added = (("host", str, ""),)


class Cause(Plus):
    base = FirstCause
    added = (("exit_status", int, "What `launch` exits with."),)


class CheckedNode(TypedDict):
    """A node of the run, in rank order."""

    host: str
    name: str
    rank: int
    """The node rank."""
    address: str | None
    """On the data network."""
    interface: str | None
    gpus: int | None
    """null: not known."""
    state: str
    """`ok`, or the worst status of a finding that names it; `unreachable` if it is silent."""


class Ladder(TypedDict):
    """What `--deep` tried; empty lists without it."""

    rungs: list[RungRow]
    gpus: list[Trial]
    inside: list[Trial]
    """All-reduces by NCCL over the GPUs of a node."""
    dcgm: list[NodeDcgm]


class CheckDocument(TypedDict):
    """`check`: the verdict."""

    schema: int
    cluster: str
    nodes: list[CheckedNode]
    findings: list[Finding]
    """Those that passed or were skipped, too."""
    pairs: list[Pair]
    """What `--deep` measured between nodes."""
    ladder: Ladder
    last_good: LastGood | None
    seconds: float
    choices: NotRequired[list[LibraryChoice]]
    """With `--explain-network`."""


class CheckInfo(TypedDict):
    """What a check looks for."""

    id: str
    title: str
    why: str
    fix: str
    source: str
    blocks: bool
    """A failure stops `launch`."""
    explained_by: list[str]
    """Checks whose failure on a node explains a failure of this one."""


class CheckListDocument(TypedDict):
    """`check --list`."""

    schema: int
    checks: list[CheckInfo]


class CheckInfoDocument(CheckInfo):
    """`check --explain ID`."""

    schema: int


class NodeProblem(TypedDict):
    """Why a node has no result."""

    node: str
    kind: str
    message: str
    hint: str
    answered: bool
    """false: the node could not be reached."""
    details: dict[str, Any]


class ExecNode(TypedDict):
    """What the command did on a node."""

    node: str
    exit_code: int | None
    timed_out: bool
    stdout: str
    stderr: str
    truncated_bytes: int
    error: NodeProblem | None


class ExecDocument(TypedDict):
    """`exec`."""

    schema: int
    command: list[str]
    nodes: list[ExecNode]


class SetupNode(TypedDict):
    """The environment of a node."""

    node: str
    state: str
    venv: str
    version: str
    """Of its Python."""
    packages: dict[str, str]
    error: NodeProblem | None


class SetupDocument(TypedDict):
    """`setup`."""

    schema: int
    requirements: str
    nodes: list[SetupNode]
    differences: dict[str, dict[str, str]]
    """Packages of different versions: by name, then by node."""


class SyncDocument(TypedDict):
    """`sync`."""

    schema: int
    cluster: str
    source: str
    """The folder that was mirrored."""
    tree: str
    """Hash of all files and their contents."""
    files: int
    bytes: int
    commit: str | None
    dirty: bool
    """The folder has changes that are not in the commit."""
    nodes: list[NodeSync]
    seconds: float


class RunsDocument(TypedDict):
    """`runs`: the newest first."""

    schema: int
    runs: list[ListedRun]
    troubles: list[NodeProblem]
    """Nodes that did not answer."""
    rebuilt: list[str]
    """Runs whose record `--discover` rebuilt."""


class PruneDocument(TypedDict):
    """`runs --prune`."""

    schema: int
    removed: list[str]
    kept: list[Kept]
    troubles: list[NodeProblem]


class Supervisor(TypedDict):
    """clusterctl's own process on a node."""

    pid: int
    alive: bool
    beat_age_s: float | None
    rebooted: bool
    """The machine was rebooted since."""


class GpuUsage(TypedDict):
    """A GPU as nvidia-smi reports it."""

    index: int
    percent: int | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None


class Usage(TypedDict):
    """What a live run uses of a node."""

    processes: int
    memory_bytes: int
    """Without what its processes share."""
    gpus: list[GpuUsage] | None
    """All of the node."""


class NodeEnd(TypedDict):
    """How a node's part ended."""

    state: str
    reason: str
    exit_code: int | None
    by: str
    time: float
    over: float | None
    """When nothing of it was left."""


class StatusNode(TypedDict):
    """A node's part of the run, in launch order."""

    node: str
    host: str
    state: str
    """A state of a run, or `absent`: it has no part of the run."""
    rank0: int | None
    """Its first rank."""
    ranks: int
    joined: int
    supervisor: Supervisor | None
    usage: Usage | None
    """While its part lives."""
    end: NodeEnd | None
    message: str
    """Why the node did not answer."""


class StatusRank(TypedDict):
    """A rank."""

    rank: int
    node: str
    local_rank: int
    restarts: int
    """How often the launcher had restarted its ranks."""
    state: Literal["starting", "running", "ended"]
    pid: int | None
    exit_code: int | None
    signal: int | None
    began: float | None
    ended: float | None
    joined: bool


class LastLine(TypedDict):
    """What was printed last, on any node."""

    node: str
    rank: int | None
    line: str
    age_s: float


class StatusDocument(TypedDict):
    """`status`; [what the states mean](run-states.md)."""

    schema: int
    run: str
    cluster: str
    name: str | None
    state: RunState
    ended_by: str | None
    began: float | None
    ended: float | None
    command: list[str]
    nodes: list[StatusNode]
    ranks: list[StatusRank]
    ray: dict[str, Any] | None
    """With the launcher `ray`: `address`, `version`, `nodes`."""
    slurm: dict[str, str] | None
    """In a batch job: `job`, `state`, `reason`, `nodes`."""
    last_line: LastLine | None
    checkpoint: Checkpoint | None
    """The newest that looks complete."""
    first_cause: Cause | None


class StopDocument(TypedDict):
    """`stop`."""

    schema: int
    runs: list[StopResult]
    silent: list[str]
    """With `--all`: nodes that did not answer."""


class JoinDocument(TypedDict):
    """`join`: which nodes joined a run."""

    schema: int
    run: str
    nodes: list[NodeJoin]


class SandboxDocument(TypedDict):
    """`sandbox status`."""

    schema: int
    name: str
    backend: str
    inventory: str
    master_port: int
    hosts: list[Host]
    jumps: list[Host]
    faults: list[ActiveFault]


class LineEvent(TypedDict):
    """A line of a log."""

    time: float
    node: str
    rank: int | None
    """null: the launcher's own."""
    offset: int
    """Of its first byte in the file."""
    line: str


class StartedEvent(TypedDict):
    """A node's part of the run is up."""

    node: str
    pid: int
    """Of its supervisor."""


class EventEvent(TypedDict):
    """A line of a node's events.jsonl."""

    node: str
    event: dict[str, Any]


class LostEvent(TypedDict):
    """The connection to a node broke; it is tried again."""

    node: str
    message: str


class BackEvent(TypedDict):
    """A lost node answers again."""

    node: str


class StoppingEvent(TypedDict):
    """A node has reached a stage of stopping."""

    node: str
    stage: str


class CheckpointEvent(TypedDict):
    """`resume` has verified a checkpoint."""

    chosen: ChosenCheckpoint


class MessageEvent(TypedDict):
    """A notice or a warning."""

    level: Level
    node: str
    text: str


class EndedEvent(TypedDict):
    """The last one: how the run ended."""

    run: str | None
    """null: nothing was launched."""
    state: RunState | None
    exit_code: int
    ended_by: str
    first_cause: NotRequired[FirstCause | None]
    message: NotRequired[str]
    """Why nothing was launched."""


class DetachedDocument(TypedDict):
    """The last line of `launch --detach`."""

    schema: int
    run: str


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
    "setup": SetupDocument,
    "push": PushResult,
    "sync": SyncDocument,
    "join": JoinDocument,
    "status": StatusDocument,
    "stop": StopDocument,
    "runs": RunsDocument,
    "runs-prune": PruneDocument,
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
    names = [field.name for field in dataclasses.fields(kind)]
    return tuple(Key(name, hints[name], True, texts.get(name, "")) for name in names)


def _bases(kind: type) -> tuple[type, ...]:
    return (*getattr(kind, "__orig_bases__", ()), *kind.__mro__)


def _texts(kind: Any) -> dict[str, str]:  # noqa: ANN401  (a class, or TypedDict itself)
    if not isinstance(kind, type):
        return {}
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    except (OSError, TypeError):
        return {}
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for line, following in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(line, ast.AnnAssign) and isinstance(following, ast.Expr):
            text = ast.literal_eval(following.value)
            found[ast.unparse(line.target)] = " ".join(text.split("\n\n")[0].split())
    return found


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
    return {"type": SIMPLE[hint]} if hint in SIMPLE else {}


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
        "Each line has `schema` and a `kind`, and the keys of its kind.\n"
    )
    for name, kind in EVENTS.items():
        blocks += _section(f"### {name}", kind, shown)
    return "\n".join(blocks)


def _section(title: str, kind: Any, shown: list[Any]) -> list[str]:  # noqa: ANN401  (a type)
    if kind in shown:
        return [f"{title}\n\nThe keys of [{name_of(kind)}](#{_anchor(kind)}).\n"]
    blocks = [f"{title}\n\n{_summary(kind)}\n\n{_table(kind)}\n"]
    shown.append(kind)
    for one in nested(kind):
        if one not in shown:
            shown.append(one)
            blocks.append(f"**{name_of(one)}**: {_summary(one)}\n\n{_table(one)}\n")
    return blocks


def _anchor(kind: Any) -> str:  # noqa: ANN401  (a type)
    name = next((name for name, one in DOCUMENTS.items() if one is kind), None)
    return name or next(name for name, one in EVENTS.items() if one is kind)


def _summary(kind: Any) -> str:  # noqa: ANN401  (a type)
    base = kind.base if _is_plus(kind) else kind
    return (inspect.getdoc(base) or "").split("\n\n")[0].replace("\n", " ")


def _table(kind: Any) -> str:  # noqa: ANN401  (a type)
    rows = ["| key | type | |", "|---|---|---|"]
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
    return SIMPLE.get(hint, "any")


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
    SCHEMA.write_text(json.dumps(schema(), indent=1) + "\n", encoding="utf-8")
