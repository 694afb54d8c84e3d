"""What is read from a shell script, without running it."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.plan.command.calls import calls_of
from clusterctl.plan.command.shell import Step, read_script

OURS = {"NNODES": "$NNODES", "MASTER_ADDR": "$MASTER_ADDR"}


def read(text: str, *args: str) -> list[Step]:
    return list(read_script(text, OURS, args))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a b  'c d' \"e f\" g\\ h", ["a", "b", "c d", "e f", "g h"]),
        ("a \\\n  b # c\n", ["a", "b"]),
        ("a b#c '#' #d", ["a", "b#c", "#"]),
        ("a > out 2>&1 b < in &> log", ["a", "b"]),
        ("X='b c'; a $X \"$X\"", ["a", "b", "c", "b c"]),
        ("X=(1 'b c' # n\n 3); a ${X[@]} ${#X[@]} \"${X[1]}\"", [*"a1bc33", "b c"]),
        ("X=(1 'b c'); a \"${X[@]}\"", ["a", "1", "b c"]),
        ("X=1; X+=2; A=(x); A+=(y); a $X ${A[*]}", ["a", "12", "x", "y"]),
        ('a $1 ${2:-8} ${3:-9} "${@:2}" $#', ["a", "first", "2", "3", "9", "2 3", "$#"]),
        ("shift; a $1", ["a", "2", "3"]),
        ('shift 2; a "$@" b', ["a", "b"]),
        ('a "${@:3}" "" "$3"', ["a", "", ""]),
        ('X=(); a "${X[@]}" x"$4" "c${X[@]}"', ["a", "x", "c"]),
        ('a $FOO ${FOO} "$(dirname "$0")/x" `hostname -f`', None),
        ("NNODES=${NNODES:-1}; a $NNODES", ["a", "$NNODES"]),
        ("a ${MASTER_ADDR:-localhost}", ["a", "$MASTER_ADDR"]),
        ("MASTER_ADDR=1.2.3.4; a $MASTER_ADDR", ["a", "$MASTER_ADDR"]),
        ("X=1; read -r X; a $X", ["a", "$X"]),
        ("a $((8 * NNODES)) $'x'", None),
        ("cat <<EOF\nb $X\nEOF\na c", ["a", "c"]),
        ("cat <<-'E F' | b\n\tc\n\tE F\na c", ["a", "c"]),
        ("[[ -z $X && $Y > 1 ]] || exit 1\na", ["a"]),
        ("f() { b $1; }\nfunction g { b; }\na c", ["a", "c"]),
    ],
)  # fmt: skip
def test_the_last_command_has_these_words(text: str, words: list[str] | None) -> None:
    last = read(text, "first", "2 3")[-1]
    assert last.words[0] == "a"
    if words is not None:
        assert list(last.words) == words


@pytest.mark.parametrize(
    ("text", "sure"),
    [
        ("a", True),
        ("cd x && a", True),
        ("{ a; }", True),
        ("(a)", True),
        ("while true; do a; done", True),
        ("for h in 1 2; do a $h; done", True),
        ("if a; then b; fi", True),
        ("if true; then b; fi; a", True),
        ("case x in y) b;; esac\na", True),
        ("if true; then a; fi", False),
        ("if true; then b; else a; fi", False),
        ("[ -z $X ] && a", False),
        ("case $X in y) a;; esac", False),
        ("case $X in (y) b;; esac; a", True),
        ("b || a", False),
        ("case $X in\n b|c) a ;;\nesac", False),
        ("a ${X:-1}", False),
        ("X=${X:-1}\na $X", False),
        ("f() { a; }", False),
        ("function f { a; }; f", False),
        ("f() { b; }; a", True),
        ("[ -z $X ] && { b; a; }", False),
        ("b || ( b; a )", False),
        ("[ -z $X ] && { b; }; a", True),
        ("[ -z $X ] && (b); a", True),
        ("[ -z $X ] && { b; } && a", False),
        ("[ -z $X ] && (b) && a", False),
        ("(b) && a", True),
        ("b | grep -q c && a", False),
        ("if b; then exit; fi; a", False),
        ("if b; then c; exit $?; fi; a", False),
        ("[ -z $X ] && exit 0\na", False),
        ("[ -z $X ] && exec b\na", False),
        ("case $X in y) return;; esac; a", False),
        ("b || exit; a", True),
        ("b || { b; exit 1; }; a", True),
        ("if b; then exit 10; fi; a", True),
        ("f() { return; }; a", True),
        ("exec > log 2>&1; a", True),
        ("read X Y < f; a $X", True),
        ("N=($(scontrol show hostnames $L 2>/dev/null || echo localhost)); a ${N[0]}", False),
    ],
)
def test_a_condition_or_a_default_makes_a_command_unsure(text: str, sure: bool) -> None:  # noqa: FBT001
    (step,) = [step for step in read(text) if step.words[:1] == ("a",)]
    assert step.sure is sure


def test_what_is_never_reached_is_left_out() -> None:
    assert [step.words for step in read("a\nexit 0\nb")] == [("a",), ("exit", "0")]
    assert [step.words for step in read("exec a\nb")] == [("exec", "a")]
    assert read("if x; then exit 1; fi\nb")[-1].words == ("b",)
    assert [step.words for step in read("exit ${X:-0}\nb")] == [("exit", "0")]


def test_lines_assignments_and_the_background_are_kept() -> None:
    steps = read("A=1 \\\n B='x y' \\\n  a\n\nexport C=2\nb > log 2>&1 &\nwait")
    assert [(step.line, step.assigned) for step in steps][:2] == [
        (1, (("A", "1"), ("B", "x y"))),
        (5, (("C", "2"),)),
    ]
    assert [(step.line, step.background) for step in steps][2:] == [(6, True), (7, False)]
    assert [step.assigns for step in steps] == [False, True, False, False]


_PIECES = st.sampled_from(
    ["'", '"', "`", "$(", "${", "}", ")", "(", "((", "\\", "\n", " ", ";", "&", "|", "<<E", "E",
     "if", "then", "fi", "case", "in", "esac", "do", "done", "{", "x() ", "a", "$X", "${@:2}",
     "A=(", "A=1", "bash -c ", "ssh h ", "docker run ", "eval ", "[[", "]]", "#", "shift 9", "\0"]
)  # fmt: skip


@given(st.text() | st.lists(_PIECES).map("".join) | st.lists(_PIECES).map(" ".join))
def test_no_text_breaks_it(text: str) -> None:
    for step in read(text, "x"):
        calls_of(step, OURS)


@pytest.mark.parametrize(
    "piece", ['"$(', "$((", "${", "(", "`", "if ", "case x in a) ", "bash -c '"]
)
def test_a_deep_script_is_no_burden(piece: str) -> None:
    began = time.process_time()
    for step in read(piece * 20_000):
        calls_of(step, OURS)
    assert time.process_time() - began < 60
