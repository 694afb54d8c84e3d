"""Runs a function of the caller on every rank: sends it, follows it, returns what ranks returned.

The nodes may run what the caller sends. What they answer is JSON and text, never code.
"""

from __future__ import annotations

import ast
import base64
import functools
import importlib
import inspect
import io
import json
import pickle
import sys
import textwrap
from collections import ChainMap, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from clusterctl.api.run import LogLine, OnEvent, Run, lines_of
from clusterctl.errors import ClusterError, CouldNotTell, FunctionFailed, UsageError
from clusterctl.node.commands import call_function
from clusterctl.node.commands.call_function import MARK, PART, VALUE_LIMIT
from clusterctl.safe_text import keep_colors
from clusterctl.verbs.events import Event
from clusterctl.verbs.runs.records import write_private

if TYPE_CHECKING:
    from clusterctl.logs.first_cause import FirstCause

SENT_LIMIT = 8 * 1024 * 1024
"""Bytes of a function with its arguments; more is data, which `push` brings."""
TRACEBACK_LINES = 200
_NO_FILE = "<dynamic-code>"
_BEGINS = "Traceback (most recent call last):"
_INSTALL = "pip install cloudpickle, here and on the nodes; or import and define it in the function"

Function = Callable[..., object]


@contextmanager
def script_of(
    function: Function, args: tuple[object, ...], folder: Path, token: str
) -> Iterator[str]:
    """Write the script that calls a function, for a sync to bring; yield its name in the folder.

    Raises:
        UsageError: the function or an argument cannot be sent.
        ClusterError: the folder cannot be written to.
    """
    # A name for what is sent: a traceback shows the line of the call.
    sent = f"\n\nSENT = {packed(function, args)!r}\nmain({token!r}, SENT)\n"
    text = inspect.getsource(call_function) + sent
    path = folder / f"clusterctl_call_{token}.py"
    try:
        write_private(path, text)  # arguments may be secrets
    except OSError as error:
        raise ClusterError(
            f"{path}: {error.strerror}: the function is sent as this file"
        ) from error
    try:
        yield path.name
    finally:
        path.unlink(missing_ok=True)


def packed(function: Function, args: tuple[object, ...]) -> dict[str, str]:
    """Return what a rank needs to call a function, each as base64.

    Raises:
        UsageError: it cannot be sent, or is too large.
    """
    kwargs: Mapping[str, object] = {}
    if isinstance(function, functools.partial):
        args, kwargs = (*function.args, *args), function.keywords
        function = function.func
    sent = {**_packed_function(function), "arguments": _pickled((args, kwargs), "an argument")}
    size = sum(map(len, sent.values()))
    if size > SENT_LIMIT:
        raise UsageError(
            f"the function and its arguments have {size:,} bytes: expected at most {SENT_LIMIT:,}",
            hint="bring data to the nodes with session.push, and pass its path",
        )
    return {name: base64.b64encode(data).decode() for name, data in sent.items()}


def _packed_function(function: Function) -> dict[str, bytes]:
    """Return it by its name in a module; else by cloudpickle and its source, as far as they go."""
    with suppress(UsageError):
        return {"named": _pickled(function, "")}
    sent = {}
    with suppress(ImportError):
        cloudpickle = importlib.import_module("cloudpickle")
        # A pickled function is byte code of this Python.
        sent["python"] = "{}.{}".format(*sys.version_info).encode()
        sent["pickled"] = _pickled_whole(function, cloudpickle)
    try:
        sent["source"] = _source_of(function)
    except UsageError:
        if not sent:
            raise
    return sent


def _pickled_whole(function: Function, cloudpickle: ModuleType) -> bytes:
    """Return the function with its code; a traceback names the files that the code came from."""

    def with_its_file(code: CodeType) -> tuple[object, ...]:
        make, parts, *rest = reducers[CodeType](code)
        # cloudpickle 3.1 writes `<dynamic-code>` for every file.
        return (make, tuple(code.co_filename if p == _NO_FILE else p for p in parts), *rest)

    reducers = cloudpickle.CloudPickler.dispatch_table
    table = {"dispatch_table": ChainMap({CodeType: with_its_file}, reducers)}
    data = io.BytesIO()
    type("_WithFiles", (cloudpickle.CloudPickler,), table)(data).dump(function)
    return data.getvalue()


def _pickled(value: object, what: str) -> bytes:
    """Return it as Python's own pickle, which names functions and classes.

    Raises:
        UsageError: there is none, or it needs what only this program defines.
    """
    data = io.BytesIO()
    try:
        _Pickler(data, protocol=4).dump(value)
    except Exception as error:  # `__reduce__` of any class
        text = f"cannot send {what} ({type(value).__name__}): {error}"
        raise UsageError(text, hint=_INSTALL) from error
    return data.getvalue()


class _Pickler(pickle.Pickler):
    """Refuses what only this program defines, which a node would look for in vain."""

    def reducer_override(self, value: object) -> Any:  # noqa: ANN401  (as pickle has it)
        """Refuse a class or function of the program itself."""
        if isinstance(value, type | FunctionType) and value.__module__ == "__main__":
            raise pickle.PicklingError(f"the nodes do not have {value.__name__} of this program")
        return NotImplemented


def _source_of(function: Function) -> bytes:
    """Return the function's source, with the functions, modules and values that it names.

    Raises:
        UsageError: something of it cannot be sent.
    """
    known: set[str] = set()
    texts: list[tuple[str, str]] = []
    modules: dict[str, str] = {}
    values: dict[str, object] = {}

    def add(name: str, value: object) -> None:
        known.add(name)
        if isinstance(value, ModuleType):
            modules[name] = value.__name__
        elif isinstance(value, FunctionType) and value.__module__ == "__main__":
            file, text, names = _text_of(name, value)
            for used in sorted(names & value.__globals__.keys() - known):
                add(used, value.__globals__[used])
            # After what it names: decorators and defaults are evaluated.
            texts.append((file, text))
        else:
            _pickled(value, name)
            values[name] = value

    if not isinstance(function, FunctionType) or function.__name__ == "<lambda>":
        found = getattr(function, "__name__", type(function).__name__)
        raise UsageError(f"expected a function with a name, found {found}", hint=_INSTALL)
    add(function.__name__, function)
    source = {"name": function.__name__, "texts": texts, "modules": modules, "values": values}
    return pickle.dumps(source, protocol=4)


def _text_of(name: str, function: FunctionType) -> tuple[str, str, set[str]]:
    """Return a function's file, its source at its lines of that file, and the names in it.

    Raises:
        UsageError: it has none that stands alone.
    """
    try:
        lines, first = inspect.getsourcelines(function)
        text = textwrap.dedent("".join(lines))
        tree = ast.parse(text)
    except (OSError, TypeError, SyntaxError) as error:
        raise UsageError(f"cannot send {name}: its source: {error}", hint=_INSTALL) from error
    if function.__closure__ or not isinstance(tree.body[0], ast.FunctionDef):
        why = "it uses variables of the function around it"
        raise UsageError(f"cannot send {name}: {why}", hint=_INSTALL)
    if tree.body[0].name != name:
        why = f"it is defined as {tree.body[0].name}"
        raise UsageError(f"cannot send {name}: {why}", hint=_INSTALL)
    names: set[str] = set()
    for node in ast.walk(tree):
        # Annotations are not evaluated there.
        if isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
        elif isinstance(node, ast.Name):
            names.add(node.id)
    return inspect.getsourcefile(function) or "<source>", "\n" * (first - 1) + text, names


@dataclass(slots=True)
class _Heard:
    """What a rank printed."""

    parts: list[str] = field(default_factory=list)
    """Of its value."""
    wanted: int = 0
    last: deque[str] = field(default_factory=lambda: deque(maxlen=TRACEBACK_LINES))
    """Its last lines."""

    def take(self, head: str, part: str) -> None:
        """Take a part of its value; the first part starts again, as a restarted rank does."""
        number, _, wanted = head.partition("/")
        if number == "0" and wanted.isdecimal():
            # Python reads no number of thousands of digits.
            self.parts, self.wanted = [], min(int(wanted[:4]), -(-VALUE_LIMIT // PART))
        if number == str(len(self.parts)) and len(self.parts) < self.wanted:
            self.parts.append(part[:PART])

    @property
    def value(self) -> str | None:
        """Its value as JSON; None: it has printed none."""
        complete = self.wanted and len(self.parts) == self.wanted
        return "".join(self.parts) if complete else None

    @property
    def traceback(self) -> str:
        """What it printed from its last traceback on."""
        lines = list(self.last)
        starts = [at for at, line in enumerate(lines) if line.startswith(_BEGINS)]
        return "\n".join(map(keep_colors, lines[starts[-1] :])) if starts else ""


@dataclass(slots=True)
class _Ear:
    """Hears the run of a function: keeps values apart from what is shown."""

    token: str
    ranks: dict[tuple[str, int | None], _Heard]
    on_line: Callable[[LogLine], object]
    on_event: OnEvent

    def hear(self, event: Event) -> None:
        """Take an event, and pass on what the caller may see of it."""
        from clusterctl.verbs.follow import LogLines, Tick

        if isinstance(event, LogLines):
            for line in lines_of(event):
                self._take(line)
        elif not isinstance(event, Tick):
            self.on_event(event)

    def _take(self, line: LogLine) -> None:
        rank = self.ranks.get((line.node, line.rank))
        if rank is None:  # its launcher's: the first cause names what matters of it
            return
        # A rank may have printed before it without the end of the line.
        shown, mark, rest = line.text.partition(f"{MARK} {self.token} ")
        if mark:
            rank.take(*rest.partition(" ")[::2])
        if shown or not mark:
            rank.last.append(shown)
            self.on_line(line._replace(text=shown))


def returned(
    run: Run, token: str, *, on_line: Callable[[LogLine], object], on_event: OnEvent
) -> list[Any]:
    """Follow the run to its end; return the value of each rank, by rank.

    Raises:
        FunctionFailed: a rank failed, or ended without a value.
        CouldNotTell: a node did not answer, or what it answered is no value.
    """
    from clusterctl.logs.deduplicate import PassThrough

    ear = _Ear(token, {(node, rank): _Heard() for rank, node in run.ranks}, on_line, on_event)
    try:
        ended = run._monitor(PassThrough()).run(emit=ear.hear)  # noqa: SLF001  (how lines come)
    except KeyboardInterrupt:
        run.stop(reason="its caller was interrupted", on_event=on_event)
        raise
    if ended.ended_by == "unknown":
        raise CouldNotTell(str(ended.view), hint=f"clusterctl status {run.id}")
    if ended.exit_code:
        raise _failed(run, str(ended.view), ear, ended.view.first_cause)
    return [_value(run, ear, node, rank) for node, rank in ear.ranks]


def _value(run: Run, ear: _Ear, node: str, rank: int | None) -> object:
    text = ear.ranks[node, rank].value
    if text is None:
        raise _failed(run, f"{run.id}: rank {rank} ({node}) ended without a value", ear)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        words = f"{run.id}: {node}: the value of rank {rank} cannot be read: {error}"
        raise CouldNotTell(words) from error


def _failed(run: Run, text: str, ear: _Ear, cause: FirstCause | None = None) -> FunctionFailed:
    heard = ear.ranks.get((cause.node, cause.rank)) if cause else None
    traceback = heard.traceback if heard else ""
    return FunctionFailed(
        "\n".join(filter(None, (text, traceback))),
        node=cause.node if cause else "",
        rank=cause.rank if cause else None,
        traceback=traceback,
        hint=f"clusterctl logs {run.id}",
    )
