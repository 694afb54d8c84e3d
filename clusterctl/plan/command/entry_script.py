"""Finds where a job's script assigns what the launcher sets for each rank, or starts ranks itself.

Such lines come from examples for one machine: `os.environ["MASTER_ADDR"] = "localhost"`.
"""

import ast
import itertools
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence

RENDEZVOUS = frozenset({"MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK"})
_LOCAL_ENDPOINT = re.compile(r"tcp://(?:localhost|127(?:\.\d+){3}|\[::1\])(?::\d+)?")

_LOCAL_TEXT = re.compile(r"""MASTER_ADDR\W+(?:localhost|127(?:\.\d+){3}|::1)["']""")

_LAUNCHES = {
    "LaunchConfig": ("min_nodes", "max_nodes", "rdzv_backend", "rdzv_endpoint"),
    "notebook_launcher": ("num_nodes", "num_nodes", "rdzv_backend", "master_addr"),
}
"""How a program starts ranks: its parameters for the fewest and most nodes, the way, the place."""

_Bindings = dict[str, list[ast.expr | None]]
_DEPTH, _MOST_VALUES = 8, 4
"""How many variables and parts a text is followed through, and how many values of each."""
_OTHER_RANK = re.compile(r"""["'](SLURM_PROCID|OMPI_COMM_WORLD_RANK|PMI_RANK|PMIX_RANK)["']""")


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


def other_rank(text: str) -> tuple[int, str]:
    """Return the line that reads a rank which only srun or mpirun sets, and its variable.

    0 and an empty name: it reads none, or reads RANK, too.
    """
    found = _OTHER_RANK.search(text)
    if found is None or re.search(r"""["']RANK["']""", text):
        return 0, ""
    return text.count("\n", 0, found.start()) + 1, found[1]


def submits_jobs(text: str) -> int:
    """Return the line by which a script gives a job to Slurm with submitit; 0: there is none."""
    found = re.search(r"\.(?:submit|map_array)\(", text)
    if found is None or not re.search(r"^\s*(?:import|from) submitit\b", text, re.MULTILINE):
        return 0
    return text.count("\n", 0, found.start()) + 1


def fixed_rank(args: Sequence[str]) -> str:
    """Return the words of a program that give each node the same rank: `--rank 0`; or nothing."""
    words = [part for word in args for part in word.split("=", 1)]
    for flag, value in itertools.pairwise(words):
        name = flag.replace("_", "-")
        if name in {"--rank", "--node-rank", "--machine-rank"} and value.isdecimal():
            return f"{flag} {value}"
    return ""


def local_endpoints(text: str, args: Sequence[str] = ()) -> tuple[tuple[int, str], ...]:
    """Return the lines that let the ranks meet at localhost, with the address.

    Args:
        text: of the script.
        args: of the program; a default counts unless its flag is among them.
    """
    found = []
    tree = _parse(text)
    bound = _bindings(tree)
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = getattr(call.func, "attr", getattr(call.func, "id", ""))
        keywords = {each.arg: each.value for each in call.keywords}
        flags = [one.value for one in call.args if isinstance(one, ast.Constant)]
        if name == "init_process_group":
            given = keywords.get("init_method", call.args[1] if len(call.args) > 1 else None)
        elif name == "add_argument" and not {str(flag) for flag in flags} & _flags(args):
            given = keywords.get("default")
        else:
            continue
        if given is not None and (match := _LOCAL_ENDPOINT.match(_beginning(given, bound))):
            found.append((call.lineno, match[0]))
    return tuple(sorted(set(found)))


def own_launches(text: str) -> tuple[tuple[int, str, tuple[str, ...]], ...]:
    """Return the lines that start ranks from Python, how, and torchrun's words for the same.

    What a condition chooses is left out, and so is a value that is computed.
    """
    if not any(name in text for name in (*_LAUNCHES, "torch.distributed")):
        return ()
    tree = _parse(text)
    bound, found = _bindings(tree), []
    calls = (node for one in _in(tree.body) for node in ast.walk(one) if isinstance(node, ast.Call))
    for call in calls:
        name = getattr(call.func, "attr", getattr(call.func, "id", ""))
        first = call.args[0] if call.args else None
        if name in _LAUNCHES:
            found.append((call.lineno, name, _words_of_launch(call, name, bound)))
        elif name == "main" and "torch.distributed" in text and isinstance(first, ast.List):
            words = (_beginning(one, bound) or "$" for one in first.elts)
            found.append((call.lineno, "torch.distributed.run.main", tuple(words)))
    return tuple(found)


def _words_of_launch(call: ast.Call, name: str, bound: _Bindings) -> tuple[str, ...]:
    fewest, most, backend, endpoint = _LAUNCHES[name]
    given = {each.arg: each.value for each in call.keywords}
    if name == "LaunchConfig":
        given |= dict(zip((fewest, most), call.args, strict=False))
    elif None not in given:  # no `**options`
        given = {fewest: ast.Constant(1), endpoint: ast.Constant("127.0.0.1"), **given}
    least, top = (_number(given.get(key), bound) for key in (fewest, most))
    words = []
    if least and top:
        words.append(f"--nnodes={least}" if least == top else f"--nnodes={least}:{top}")
    elif top == "1":  # the fewest cannot be more
        words.append("--nnodes=1")
    if endpoint in given:
        flag = "--rdzv-endpoint" if name == "LaunchConfig" else "--master-addr"
        words.append(f"{flag}={_beginning(given[endpoint], bound) or '$'}")
    elif None not in given and _beginning(given.get(backend, ast.Constant(0)), bound) == "c10d":
        words.append("--rdzv-endpoint=localhost")
    return tuple(words)


def _number(value: ast.expr | None, bound: _Bindings) -> str:
    """Return a literal number; empty: it is computed."""
    values = bound.get(value.id, []) if isinstance(value, ast.Name) else [value]
    found = {str(one.value) if isinstance(one, ast.Constant) else "" for one in values}
    number = found.pop() if len(found) == 1 else ""
    return number if number.isdecimal() else ""


def _flags(args: Sequence[str]) -> set[str]:
    return {word.partition("=")[0] for word in args}


def _beginning(value: ast.expr, bound: _Bindings, depth: int = _DEPTH) -> str:
    """Return a string's text, or as much of its beginning as the script itself tells."""
    parts: list[ast.expr]
    match value:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            pass
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            parts = [left, right]
        case ast.FormattedValue(value=inner):
            parts = [inner]
        case ast.Name(id=name) if depth:
            values = bound.get(name, [])
            if len(values) > _MOST_VALUES:
                return ""
            texts = {_beginning(one, bound, depth - 1) if one else "" for one in values}
            return texts.pop() if len(texts) == 1 else ""
        case _:
            return ""
    text = ""
    for part in parts if depth else ():
        found = _beginning(part, bound, depth - 1)
        text += found
        if not found:
            break
    return text


def _bindings(tree: ast.Module) -> _Bindings:
    """Return the values of each variable and parameter, all scopes together.

    None: one that the script does not set to a literal.
    """
    bound: _Bindings = {}
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    told: set[ast.expr] = set()
    given: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    bound.setdefault(target.id, []).append(node.value)
                    told.add(target)
        elif isinstance(node, ast.Call):
            for name, value in _arguments(node, functions):
                bound.setdefault(name, []).append(value)
                given.add(name)
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.arg not in given:
            bound.setdefault(node.arg, []).append(None)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node not in told:
            bound.setdefault(node.id, []).append(None)
    return bound


def _arguments(
    call: ast.Call, functions: Mapping[str, ast.FunctionDef]
) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield what a call, or what `mp.spawn` calls in turn, gives to parameters of a function."""
    function, given, skipped = call.func, call.args, 0
    keywords = {each.arg: each.value for each in call.keywords}
    if getattr(function, "attr", getattr(function, "id", "")) in {"spawn", "start_processes"}:
        args = keywords.pop("args", given[1] if len(given) > 1 else None)
        function = keywords.pop("fn", given[0] if given else function)
        given = args.elts if isinstance(args, ast.Tuple | ast.List) else []
        keywords, skipped = {}, 1  # the first parameter is the number of the process
    called = functions.get(function.id) if isinstance(function, ast.Name) else None
    if called is None:
        return
    names = [each.arg for each in (*called.args.posonlyargs, *called.args.args)][skipped:]
    starred = any(isinstance(each, ast.Starred) for each in given)
    yield from zip(names, [None] * len(names) if starred else given, strict=False)
    yield from ((name, value) for name, value in keywords.items() if name is not None)


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
