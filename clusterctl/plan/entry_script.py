"""Finds where a job's script assigns the variables that the launcher sets for each rank.

Such lines come from examples for one machine: `os.environ["MASTER_ADDR"] = "localhost"`.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Sequence

RENDEZVOUS = frozenset({"MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK"})
_LOCAL_ENDPOINT = re.compile(r"tcp://(?:localhost|127(?:\.\d+){3}|\[::1\])(?::\d+)?")


def rendezvous_assignments(text: str) -> tuple[tuple[int, str], ...]:
    """Return the lines that assign such variables, with their names.

    A line that keeps a value that is there is left out: `setdefault`, a value that is made of
    `os.environ`, and what a condition or an `except` chooses, except `if __name__ == ...`.
    """
    return tuple(sorted({(line, n) for line, n in _in(_parse(text).body) if n in RENDEZVOUS}))


def local_endpoints(text: str, args: Sequence[str] = ()) -> tuple[tuple[int, str], ...]:
    """Return the lines that let the ranks meet at localhost, with the address.

    Args:
        text: of the script.
        args: of the program; a default counts unless its flag is among them.
    """
    found = []
    for call in (node for node in ast.walk(_parse(text)) if isinstance(node, ast.Call)):
        name = getattr(call.func, "attr", getattr(call.func, "id", ""))
        keywords = {each.arg: each.value for each in call.keywords}
        flags = [one.value for one in call.args if isinstance(one, ast.Constant)]
        if name == "init_process_group":
            given = keywords.get("init_method", call.args[1] if len(call.args) > 1 else None)
        elif name == "add_argument" and not {str(flag) for flag in flags} & _flags(args):
            given = keywords.get("default")
        else:
            continue
        if given is not None and (match := _LOCAL_ENDPOINT.match(_beginning(given))):
            found.append((call.lineno, match[0]))
    return tuple(sorted(set(found)))


def _flags(args: Sequence[str]) -> set[str]:
    return {word.partition("=")[0] for word in args}


def _beginning(value: ast.expr) -> str:
    """Return a string's text, or what an f-string begins with."""
    if isinstance(value, ast.JoinedStr):
        value = value.values[0] if value.values else value
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""


def _parse(text: str) -> ast.Module:
    """Return a script's tree; an empty one if it is no Python: the check of the job tells that."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of the script's own escapes
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module(body=[], type_ignores=[])


def _in(body: list[ast.stmt]) -> Iterator[tuple[int, str]]:
    for statement in body:
        if isinstance(statement, ast.If):
            if _is_main(statement.test):
                yield from _in(statement.body)
        elif isinstance(statement, ast.Try):
            yield from _in([*statement.body, *statement.finalbody])
        elif isinstance(
            statement,
            (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.With, ast.For, ast.While),
        ):
            yield from _in(statement.body)
        else:
            yield from ((statement.lineno, name) for name in _assigned(statement))


def _is_main(test: ast.expr) -> bool:
    return any(isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(test))


def _assigned(statement: ast.stmt) -> Iterator[str]:
    match statement:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                if isinstance(target, ast.Subscript) and _is_environ(target.value):
                    yield from _named(target.slice, value)
        case ast.AugAssign(target=target, op=ast.BitOr(), value=value) if _is_environ(target):
            yield from _of_mapping(value)
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner, attr=attr)) as call):
            if attr == "update" and _is_environ(owner):
                for given in call.args:
                    yield from _of_mapping(given)
                for keyword in call.keywords:
                    yield from _named(ast.Constant(keyword.arg), keyword.value)
            elif attr == "putenv" and len(call.args) == 2:  # noqa: PLR2004  (name and value)
                yield from _named(*call.args)


def _of_mapping(given: ast.expr) -> Iterator[str]:
    if isinstance(given, ast.Dict):
        for key, value in zip(given.keys, given.values, strict=True):
            if key is not None:
                yield from _named(key, value)


def _named(key: ast.expr, value: ast.expr) -> Iterator[str]:
    kept = any(
        _is_environ(node) or (isinstance(node, ast.Attribute) and node.attr == "getenv")
        for node in ast.walk(value)
    )
    if isinstance(key, ast.Constant) and isinstance(key.value, str) and not kept:
        yield key.value


def _is_environ(node: ast.AST) -> bool:
    """Tell whether it is `os.environ`, or `environ` by itself."""
    return "environ" in {getattr(node, "attr", ""), getattr(node, "id", "")}
