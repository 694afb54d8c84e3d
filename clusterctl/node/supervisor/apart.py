"""Does what can take long, or hang, in a process of its own: the supervisor's loop continues."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Any, Callable, Dict

from clusterctl.node.event_loop import EventLoop
from clusterctl.node.supervisor.ranks.rank import die_with_parent
from clusterctl.wire import from_json, to_json

MOST_BYTES = 16 << 20
"""Of a result."""
_CHUNK = 1 << 16


def run_apart(
    loop: EventLoop,
    work: Callable[[], Dict[str, Any]],
    on_result: Callable[[Dict[str, Any]], None],
    *,
    seconds: float,
) -> int:
    """Do something in a child; `on_result` gets what it returns, or {} if it fails or is killed.

    It is killed if it is late. One that is stuck in the kernel is never reported, so that no
    second one follows it.

    The caller's watcher of children takes in its end. Returns the child's pid.

    Raises:
        OSError: no process or descriptor is left.
    """
    reader, writer = os.pipe()
    try:
        pid = os.fork()
    except OSError:
        os.close(reader)
        os.close(writer)
        raise
    if pid == 0:
        _be_child(work, writer)
    os.close(writer)
    os.set_blocking(reader, False)
    found: list[bytes] = []

    def over() -> None:
        deadline.cancel()
        loop.remove_descriptor(reader)
        os.close(reader)
        on_result(_read(b"".join(found)))

    def read() -> None:
        data = os.read(reader, _CHUNK)
        found.append(data)
        if not data or sum(map(len, found)) > MOST_BYTES:
            over()

    def late() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)  # the pipe's end follows, unless it is stuck in the kernel

    deadline = loop.call_later(seconds, late)
    loop.add_descriptor(reader, read)
    return pid


class Helper:
    """Does one thing at a time apart: while one has not ended, no second one begins."""

    def __init__(self, loop: EventLoop, seconds: float) -> None:
        """Do nothing yet; `seconds`: how long a thing may take."""
        self._loop, self._seconds = loop, seconds
        self._busy = False

    def start(
        self, work: Callable[[], Dict[str, Any]], on_result: Callable[[Dict[str, Any]], None]
    ) -> bool:
        """Begin, as `run_apart` does; return False if that is not possible now."""

        def over(told: Dict[str, Any]) -> None:
            self._busy = False
            on_result(told)

        if self._busy:
            return False
        try:
            run_apart(self._loop, work, over, seconds=self._seconds)
        except OSError:
            return False
        self._busy = True
        return True


def _read(data: bytes) -> Dict[str, Any]:
    try:
        value = from_json(data)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _be_child(work: Callable[[], Dict[str, Any]], writer: int) -> None:
    """Do the work and exit. Nothing of the supervisor's is kept: its lock ends with it alone."""
    try:
        die_with_parent()
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(writer, 3)
        os.closerange(4, 1 + max(map(int, os.listdir("/proc/self/fd"))))
        with open(3, "wb") as result:
            result.write(to_json(work()))
        os._exit(0)
    except BaseException:  # noqa: BLE001  (a child must not become a second supervisor)
        import traceback  # noqa: PLC0415  (start-up counts)

        traceback.print_exc()
    finally:
        os._exit(1)
