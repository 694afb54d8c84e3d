"""Finds where a job's script assigns what the launcher sets for each rank, or starts ranks itself.

Such lines come from examples for one machine: `os.environ["MASTER_ADDR"] = "localhost"`.
"""

import ast
import re
import warnings
from collections.abc import Iterator, Sequence

RENDEZVOUS = frozenset({"MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK"})
_LOCAL_ENDPOINT = re.compile(r"tcp://(?:localhost|127(?:\.\d+){3}|\[::1\])(?::\d+)?")
_LOCAL_TEXT = re.compile(r"""MASTER_ADDR\W+(?:localhost|127(?:\.\d+){3}|::1)["']""")

_LAUNCHES = {
    "LaunchConfig": ("min_nodes", "max_nodes", "rdzv_backend", "rdzv_endpoint"),
    "notebook_launcher": ("num_nodes", "num_nodes", "rdzv_backend", "master_addr"),
}
"""How a program starts ranks: its parameters for the fewest and most nodes, the way, the place."""


def rendezvous_assignments(text: str) -> tuple[tuple[int, str], ...]:
    """Return the lines that assign such variables, with their names.

    A line that keeps a value that is there is left out: `setdefault`, a value that is made of
    `os.environ`, and what a condition or an `except` chooses, except `if __name__ == ...`.
    """
    found = (
        (statement.lineno, name)
        for statement in _in(_parse(text).body)
        for name in _assigned(statement)
    )
    return tuple(sorted({(line, name) for line, name in found if name in RENDEZVOUS}))


def assigns_local(text: str, line: int) -> bool:
    """Tell whether a line that assigns MASTER_ADDR gives it an address of each node's own."""
    return _LOCAL_TEXT.search(text.split("\n")[line - 1]) is not None


def local_rank_flag(text: str) -> int:
    """Return the line of a `--local-rank` that alone tells a rank its GPU; 0: there is none.

    `torch.distributed.launch` and deepspeed give that flag; torchrun sets LOCAL_RANK instead.
    """
    flag = re.search(r"""["']--local[-_]rank["']""", text)
    if flag is None or "LOCAL_RANK" in text or not re.search(r"\w\.local_rank\b(?!\s*=[^=])", text):
        return 0
    return text.count("\n", 0, flag.start()) + 1


def submits_jobs(text: str) -> int:
    """Return the line by which a script gives a job to Slurm with submitit; 0: there is none."""
    found = re.search(r"\.(?:submit|map_array)\(", text)
    if found is None or not re.search(r"^\s*(?:import|from) submitit\b", text, re.MULTILINE):
        return 0
    return text.count("\n", 0, found.start()) + 1


def local_endpoints(text: str, args: Sequence[str] = ()) -> tuple[tuple[int, str], ...]:
    """Return the lines that let the ranks meet at localhost, with the address.

    Args:
        text: of the script.
        args: of the program; a default counts unless its flag is among them.
    """
    found, typed = [], {word.partition("=")[0] for word in args}
    for call in (node for node in ast.walk(_parse(text)) if isinstance(node, ast.Call)):
        name = getattr(call.func, "attr", getattr(call.func, "id", ""))
        keywords = {each.arg: each.value for each in call.keywords}
        given: ast.expr | None = None
        if name == "init_process_group":
            given = keywords.get("init_method", call.args[1] if len(call.args) > 1 else None)
        elif name == "add_argument" and typed.isdisjoint(map(_beginning, call.args)):
            given = keywords.get("default")
        if match := _LOCAL_ENDPOINT.match(_beginning(given)):
            found.append((call.lineno, match[0]))
    return tuple(sorted(set(found)))


def own_launches(text: str) -> tuple[tuple[int, str, tuple[str, ...]], ...]:
    """Return the lines that start ranks from Python, how, and torchrun's words for the same.

    What a condition chooses is left out, and so is a value that is computed.
    """
    if not any(name in text for name in (*_LAUNCHES, "torch.distributed")):
        return ()
    found = []
    body = _in(_parse(text).body)
    calls = (node for one in body for node in ast.walk(one) if isinstance(node, ast.Call))
    for call in calls:
        name = getattr(call.func, "attr", getattr(call.func, "id", ""))
        first = call.args[0] if call.args else None
        if name in _LAUNCHES:
            found.append((call.lineno, name, _words_of_launch(call, name)))
        elif name == "main" and "torch.distributed" in text and isinstance(first, ast.List):
            words = (_beginning(one) or "$" for one in first.elts)
            found.append((call.lineno, "torch.distributed.run.main", tuple(words)))
    return tuple(found)


def _words_of_launch(call: ast.Call, name: str) -> tuple[str, ...]:
    fewest, most, backend, endpoint = _LAUNCHES[name]
    given = {each.arg: each.value for each in call.keywords}
    if name == "LaunchConfig":
        given |= dict(zip((fewest, most), call.args, strict=False))
    elif None not in given:  # no `**options`
        given = {fewest: ast.Constant(1), endpoint: ast.Constant("127.0.0.1"), **given}
    least, top = (_number(given.get(key)) for key in (fewest, most))
    words = []
    if least and top:
        words.append(f"--nnodes={least}" if least == top else f"--nnodes={least}:{top}")
    elif top == "1":  # the fewest cannot be more
        words.append("--nnodes=1")
    if endpoint in given:
        flag = "--rdzv-endpoint" if name == "LaunchConfig" else "--master-addr"
        words.append(f"{flag}={_beginning(given[endpoint]) or '$'}")
    elif None not in given and _beginning(given.get(backend)) == "c10d":
        words.append("--rdzv-endpoint=localhost")
    return tuple(words)


def _number(value: ast.expr | None) -> str:
    """Return a literal number; empty: it is computed."""
    number = str(value.value) if isinstance(value, ast.Constant) else ""
    return number if number.isdecimal() else ""


def _beginning(value: ast.expr | None) -> str:
    """Return a literal text, or the literal beginning of an f-string."""
    match value:
        case ast.Constant(value=str(text)) | ast.JoinedStr(values=[ast.Constant(value=text), *_]):
            return str(text)
    return ""


def _parse(text: str) -> ast.Module:
    """Return a script's tree; an empty one if it is no Python: the check of the job tells that."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of the script's own escapes
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module(body=[], type_ignores=[])


def _in(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that no condition decides of."""
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
            yield statement


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
