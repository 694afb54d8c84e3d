"""Writes docs/reference/json.md and its JSON schema: `python docs/make_json.py`.

`json_nodes.py` and `json_runs.py` have the types of the documents, and the meanings of their keys.
"""
# ruff: noqa: INP001  (a script, not a module of a package)

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
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import json_nodes as nodes
import json_runs as runs
from typing_extensions import is_typeddict

from clusterctl.inventory.settings import settings_of
from clusterctl.plan.plan import Plan
from clusterctl.verbs.events import Waiting
from clusterctl.verbs.launch.join_monitor import JoinProgress, StartTimeout
from clusterctl.verbs.pull.result import PullResult
from clusterctl.verbs.push.result import PushResult
from clusterctl.verbs.stop import StopResult

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


EVENTS = {
    "check": nodes.CheckDocument,
    "waiting": Waiting,
    "sync": nodes.SyncDocument,
    "checkpoint": runs.CheckpointEvent,
    "plan": Plan,
    "started": runs.StartedEvent,
    "gathering": JoinProgress,
    "start-timeout": StartTimeout,
    "line": runs.LineEvent,
    "event": runs.EventEvent,
    "verdict": runs.VerdictEvent,
    "node-lost": runs.LostEvent,
    "node-back": runs.BackEvent,
    "stopping": runs.StoppingEvent,
    "stopped": StopResult,
    "message": runs.MessageEvent,
    "ended": runs.EndedEvent,
}
"""`kind` of a line of `launch` and `resume` → what else it has."""
DOCUMENTS = {
    "check": nodes.CheckDocument,
    "check-list": nodes.CheckListDocument,
    "check-explain": nodes.CheckInfoDocument,
    "exec": nodes.ExecDocument,
    "export": nodes.ExportDocument,
    "forget": nodes.ForgetDocument,
    "init": nodes.InitDocument,
    "quarantine": nodes.QuarantineDocument,
    "setup": nodes.SetupDocument,
    "pull": PullResult,
    "push": PushResult,
    "sync": nodes.SyncDocument,
    "join": runs.JoinDocument,
    "status": runs.StatusDocument,
    "top": runs.TopDocument,
    "dump": runs.DumpDocument,
    "stop": runs.StopDocument,
    "notify": nodes.NotifyDocument,
    "runs": runs.RunsDocument,
    "runs-prune": runs.PruneDocument,
    "runs-show": runs.RunDocument,
    "runs-show-events": runs.MomentsDocument,
    "runs-compare": runs.CompareDocument,
    "sandbox-status": nodes.SandboxDocument,
    "detached": runs.DetachedDocument,
}


@dataclasses.dataclass(frozen=True)
class Key:
    """A key of a document."""

    name: str
    hint: Any
    required: bool
    meaning: str


def _is_plus(kind: Any) -> bool:  # noqa: ANN401  (a type)
    return isinstance(kind, type) and issubclass(kind, nodes.Plus)


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
