"""Work in a child process that must keep moving: what hangs is left behind within a time.

A read on a dead mount cannot be interrupted, and a damaged file may crash its reader. So the
child tells on a pipe how far it is, and its silence ends the work. It ends with the controller
too: no one is left to read the answer.
"""

from __future__ import annotations

import select
import time
from typing import Any, Callable, Dict, Generator, Iterator

from clusterctl.node.agent import child_tasks
from clusterctl.node.agent.call_channel import CallChannel, ControllerDisconnected
from clusterctl.wire import LineReader, encode_line

Report = Callable[[Dict[str, Any]], None]
_POLL_SECONDS = 0.25


class ChildStalled(Exception):  # noqa: N818  (a state of the world, not a fault)
    """The child was silent for too long."""


class ChildCrashed(Exception):  # noqa: N818  (a state of the world, not a fault)
    """The child ended before its work did; `str()` says how."""


def watch_child(
    work: Callable[[Report], None], channel: CallChannel, *, silence: float
) -> Generator[Dict[str, Any], None, None]:
    """Run work in a child process; yield what it reports.

    After `silence` seconds without a report the child is left behind.

    Raises:
        ChildStalled: it was silent for too long.
        ChildCrashed: it ended by a signal or an exception.
        ControllerDisconnected: the controller has closed the connection.
    """

    def body(write: Callable[[bytes], None]) -> None:
        work(lambda report: write(encode_line(report)))

    child = child_tasks.run_function("keep moving", body, silence)
    try:
        yield from _lines(child, channel, silence)
        while not child.reap():
            _check(child, channel)
            time.sleep(0.005)
    finally:
        if child.state == "running":
            child.abandon("left")
    if child.exit_code:
        words = child.stderr.decode("utf-8", "replace").strip()
        raise ChildCrashed(words or "exit code %d" % child.exit_code)


def _lines(
    child: child_tasks.Child, channel: CallChannel, silence: float
) -> Iterator[Dict[str, Any]]:
    ready = select.poll()
    for descriptor in child.pipes:
        ready.register(descriptor, select.POLLIN)
    lines = LineReader()
    while child.pipes:
        for descriptor, _ in ready.poll(1000 * _POLL_SECONDS):
            child.read_pipe(descriptor)
            if descriptor not in child.pipes:
                ready.unregister(descriptor)
        if child.output:
            child.deadline = time.monotonic() + silence
            lines.feed(child.output)
            child.output = b""
            yield from iter(lambda: lines.next(child_tasks.OUTPUT_LIMIT), None)
        _check(child, channel)


def _check(child: child_tasks.Child, channel: CallChannel) -> None:
    if channel.disconnected:
        raise ControllerDisconnected("the controller has closed the connection")
    if time.monotonic() >= child.deadline:
        raise ChildStalled
