"""A function of the caller on every rank: what can be sent, what comes back, and how it fails."""

import base64
import functools
import json
import linecache
import math
import os
import sys
import time
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import clusterctl
from clusterctl import UsageError
from clusterctl.api.function_call import _Ear, _Heard, packed, script_of
from clusterctl.api.run import LogLine
from clusterctl.node.commands.call_function import MARK, main

SCALE = 3


def helper(value: int) -> int:
    return value * SCALE


def work(value: int, *, more: int = 0) -> dict[str, Any]:
    """Use a module, a function and a constant of the program, as a cell of a notebook does."""
    print("at work in", os.environ["RANK"], end="")
    return {"rank": int(os.environ["RANK"]), "value": helper(value) + more + math.floor(math.e)}


def fails() -> None:
    if os.environ["RANK"] == "1":
        raise ValueError("this rank cannot")

    time.sleep(60)


def of_the_program(function: Callable[..., object]) -> Callable[..., object]:
    """Return the function as if this module were the program itself, with what it names."""
    names = {**globals(), "__name__": "__main__"}
    for name in ("helper", function.__name__):
        code = globals()[name].__code__
        names[name] = types.FunctionType(code, names, name)
        names[name].__kwdefaults__ = globals()[name].__kwdefaults__
        names[name].__module__ = "__main__"
    chosen: Callable[..., object] = names[function.__name__]
    return chosen


def test_a_function_of_the_program_is_sent_with_what_it_names(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "7")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(linecache, "cache", {})  # it gets lines of this file
    sent = packed(functools.partial(of_the_program(work), more=1), (5,))
    assert {"source", "arguments"} <= sent.keys()
    main("0123", sent)
    head, _, value = capsys.readouterr().out.partition(f"{MARK} 0123 0/1 ")
    assert head == "at work in 7"
    assert json.loads(value) == {"rank": 7, "value": 18}


def test_a_function_of_a_module_is_sent_by_its_name() -> None:
    assert packed(math.floor, (1.5,)).keys() == {"named", "arguments"}


def test_a_function_that_uses_variables_around_it_is_sent_by_cloudpickle(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    value = 3
    sent = packed(lambda more: value + more, (4,))
    main("0123", sent)
    assert capsys.readouterr().out == f"{MARK} 0123 0/1 7\n"
    other = {**sent, "python": base64.b64encode(b"3.4").decode()}
    with pytest.raises(SystemExit, match=r"cannot load the function: it was sent by Python 3\.4"):
        main("0123", other)


@pytest.mark.parametrize("python", [f"{sys.version_info[0]}.{sys.version_info[1]}", "3.4"])
def test_a_traceback_shows_lines_of_files_that_a_node_does_not_have(
    python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As byte code of this Python and as source: both functions of one file are shown."""
    text = "def inner():\n    raise ValueError('no')\n\n\ndef outer():\n    inner()\n"
    file = tmp_path / "program.py"
    file.write_text(text)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, str(file), "exec"), names)
    sent = {**packed(names["outer"], ()), "python": base64.b64encode(python.encode()).decode()}
    file.unlink()
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(linecache, "cache", {})
    with pytest.raises(ValueError, match="no") as error:
        main("0123", sent)
    shown = "".join(traceback.format_exception(error.value))
    assert f'File "{file}", line 6, in outer\n    inner()\n' in shown
    assert f"File \"{file}\", line 2, in inner\n    raise ValueError('no')\n" in shown


def test_what_cannot_be_sent_is_refused_before_a_node_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    value = 3

    def inner() -> int:
        return value

    inner.__module__ = "__main__"
    with pytest.raises(UsageError, match="uses variables of the function around it"):
        packed(inner, ())
    with pytest.raises(
        UsageError, match="expected a function with a name, found <lambda>"
    ) as error:
        packed(lambda: 1, ())
    assert error.value.hint is not None
    assert error.value.hint.startswith("pip install cloudpickle")
    local = type("Own", (), {"__module__": "__main__"})
    with pytest.raises(UsageError, match="cannot send an argument"):
        packed(math.floor, (local(),))
    with pytest.raises(UsageError, match=r"expected at most 8,388,608"):
        packed(math.floor, ("x" * 9_000_000,))


@pytest.mark.parametrize(
    ("value", "wanted"),
    [({1}, "returned a set: expected what JSON can hold"), ("x" * 1_048_576, "at most 1,048,576")],
)
def test_a_value_that_is_no_json_or_too_large_ends_the_rank(
    value: object, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(SystemExit, match=wanted):
        main("0123", packed(functools.partial(max, [value], key=str), ()))


def test_what_a_rank_prints_is_no_value_of_another_rank_or_token() -> None:
    shown: list[str] = []
    ranks: dict[tuple[str, int | None], _Heard] = {("a", 0): _Heard(), ("b", 1): _Heard()}
    ear = _Ear("t1", ranks, lambda line: shown.append(line.text), lambda _: None)
    for node, rank, text in (
        ("a", 0, f"half a line{MARK} t1 0/2 [1,"),
        ("a", 0, f"{MARK} t1 1/2 2]"),
        ("a", 0, f"{MARK} t1 2/2 ,3]"),  # more than it said
        ("a", 1, f"{MARK} t1 0/1 5"),  # a rank of another node
        ("b", 1, f"{MARK} t2 0/1 5"),
        ("b", 1, f"{MARK} t1 0/{'9' * 5000} 5"),
    ):
        ear._take(LogLine(0.0, node, rank, text))
    assert ranks["a", 0].value == "[1,2]"
    assert ranks["b", 1].value is None
    assert shown == ["half a line", f"{MARK} t2 0/1 5"]


def test_the_script_is_in_the_folder_for_the_run_alone(tmp_path: Path) -> None:
    with script_of(math.floor, (1.5,), tmp_path, "t1") as name:
        compile((tmp_path / name).read_text(), name, "exec")
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
    assert not list(tmp_path.iterdir())
    with (
        pytest.raises(clusterctl.ClusterError, match="No such file"),
        script_of(math.floor, (), tmp_path / "none", "t1"),
    ):
        pass
