"""What stopping came to: all that is not as wished on a node, not only the first of it."""

from __future__ import annotations

import io

from clusterctl.model.answers import LeftProcess, PortHolder
from clusterctl.report.console import make_console
from clusterctl.report.stop import show_stop
from clusterctl.verbs.stop import StoppedNode, StopResult


def shown(*nodes: StoppedNode) -> list[str]:
    stream = io.StringIO()
    show_stop(make_console(stream), StopResult(run="lab-1", nodes=nodes))
    return stream.getvalue().splitlines()


def test_what_is_left_is_said_beside_what_could_not_be_seen() -> None:
    node = StoppedNode(
        node="a",
        gone=False,
        left=(LeftProcess(pid=7, cmd="train.py", why="stuck in the kernel"),),
        failure="could not see whether its port is free",
    )
    *problems, hint = shown(node)
    assert problems == [
        "lab-1: a: not verified: could not see whether its port is free",
        "lab-1: a: still running: pid 7 train.py: stuck in the kernel",
    ]
    assert hint.startswith("hint: what is left on a is unknown")
    assert hint.endswith("else again: clusterctl stop lab-1")


def test_a_silent_node_that_was_left_out_is_a_warning() -> None:
    told, hint = shown(StoppedNode(node="a", gone=False, failure="timeout", left_out=True))
    assert told == "lab-1: a: not verified, but the run had continued without it: timeout"
    assert hint.startswith("hint: what is left on a is unknown")


def test_what_nobody_looked_at_is_said_beside_what_is_verified() -> None:
    assert shown(StoppedNode(node="a", gone=True, elsewhere=("ssh n2 torchrun",))) == [
        "lab-1: stopped and verified on a",
        "lab-1: a: not verified: what the job started by `ssh n2 torchrun`",
    ]


def test_who_has_the_port_is_named() -> None:
    holder = PortHolder(pid=8, cmd="nc -l")
    nodes = (
        StoppedNode(node="a", gone=False, port_free=False, port_holder=holder),
        StoppedNode(node="b", gone=True, port_free=True),
    )
    assert shown(*nodes) == [
        "lab-1: stopped and verified on b",
        "lab-1: a: the master port is not free: pid 8 nc -l holds it",
    ]


def test_a_run_that_had_ended_by_itself_was_not_stopped() -> None:
    nodes = [
        StoppedNode(node=name, gone=True, ended=ended)
        for name, ended in (("a", "finished"), ("b", "finished"), ("c", "stopped"), ("d", ""))
    ]
    assert shown(*nodes) == [
        "lab-1: had finished before; verified that nothing is left on a, b",
        "lab-1: stopped and verified on c, d",
    ]


def test_many_nodes_are_folded() -> None:
    names = [f"n{number}" for number in range(1, 65)]
    nodes = (
        StoppedNode(node=name, gone=name != "n9", failure="" if name != "n9" else "no answer")
        for name in names
    )
    first, *_ = shown(*nodes)
    assert first == "lab-1: stopped and verified on n[1-8,10-64]"


def test_a_stranger_on_the_gpus_is_named_and_nothing_is_verified() -> None:
    why = "holds 10 MiB of GPU 0; not of the run's processes (a container?)"
    node = StoppedNode(
        node="a", gone=False, port_free=True, strangers=(LeftProcess(pid=9, cmd="python", why=why),)
    )
    assert shown(node) == [f"lab-1: a: left: pid 9 python {why}"]
    assert StopResult(run="lab-1", nodes=(node,)).exit_code == 3
