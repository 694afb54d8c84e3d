"""Both streams: safe text, progress that a pipe never sees, sentences that it does."""

from __future__ import annotations

import io
from collections.abc import Iterator

from rich.console import Console

from clusterctl.errors import NodeError
from clusterctl.report.console import (
    Screen,
    make_console,
    print_table,
    progress_line,
    safe_line,
    safe_text,
)
from clusterctl.verbs.events import Event, Notice, Progress


def test_plain_text_is_one_line_without_controls() -> None:
    assert safe_line("a\nb\x1b[31mc\x1b[0m\r\x07\x9bd") == "a bcd"


def test_markup_is_text() -> None:
    stream = io.StringIO()
    make_console(stream).print(safe_text("[red]x[/red] :smile:"))
    assert stream.getvalue() == "[red]x[/red] :smile:\n"


def test_a_phase_names_whom_it_waits_for() -> None:
    event = Progress(phase="facts", done=1, total=6, waiting_for=("b", "c", "d", "e", "f"))
    assert progress_line(event) == "facts 1/6, waiting for b, c, d and 2 more"
    assert progress_line(Progress(phase="facts", done=6, total=6)) == "facts 6/6"


def test_each_line_of_a_hint_is_one_and_a_node_may_send_few() -> None:
    out = io.StringIO()
    screen = Screen(Console(file=out, width=80), Console(file=out, width=80))
    screen.say(Notice(text="a", hint="\n".join("bcdefg")))
    assert out.getvalue() == "a\nhint: b\nhint: c\nhint: d\nhint: e\n"


def test_a_hint_of_several_nodes_is_given_once() -> None:
    err = io.StringIO()
    hint = "clusterctl check --accept-new"
    errors = [NodeError("hostkey", "hostkey", hint=hint, node=node) for node in ("a", "b")]

    Screen(make_console(io.StringIO()), make_console(err)).show_errors(errors)

    assert err.getvalue() == (
        "warning: a: hostkey\nhint: clusterctl check --accept-new\nwarning: b: hostkey\n"
    )


def steps() -> Iterator[Event]:
    yield Progress(phase="facts", done=1, total=2)
    yield Notice(text="it is\x1b[2J late", level="warning", node="gpu1")


def test_a_pipe_gets_sentences_but_no_progress() -> None:
    out, err = io.StringIO(), io.StringIO()
    screen = Screen(make_console(out), make_console(err))

    with screen.progress() as progress:
        for event in steps():
            progress.show(event)
    assert (out.getvalue(), err.getvalue()) == ("", "warning: gpu1: it is late\n")


def test_a_sentence_in_a_pipe_is_one_line() -> None:
    stream = io.StringIO()
    make_console(stream).print(safe_text("word " * 50))
    assert stream.getvalue().count("\n") == 1


def test_a_terminal_gets_both_and_keeps_the_sentences() -> None:
    err = io.StringIO()
    screen = Screen(make_console(io.StringIO()), Console(file=err, force_terminal=True, width=80))

    with screen.progress() as progress:
        for event in steps():
            progress.show(event)
    assert "it is late" in err.getvalue()
    assert "\x1b[2K" in err.getvalue()  # the moving line is wiped


def test_no_line_of_a_table_in_a_pipe_ends_with_spaces() -> None:
    stream = io.StringIO()
    rows = [("a", "x\x1b[2Jy"), ("a longer one", "")]
    print_table(make_console(stream), {"run": 9, "why": 20}, rows, cut=("run",))
    assert stream.getvalue() == "run        why\na          xy\na longer…\n"
