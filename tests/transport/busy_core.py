"""A stand-in for a core that many sshd share: each connection through it gets its share of it."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

STEP = 0.005


class BusyCore:
    """Takes connections to any loopback address; each waits for so much of the core, then goes on.

    All that wait have equal shares, as processes have. An address in `dead` never gets any.
    """

    def __init__(self, port: int, *, seconds: float) -> None:
        """Listen; `seconds` of the core is what a login costs at the server on `port`."""
        self.most = 0
        """The most that waited at once."""
        self.dead: set[str] = set()
        self.refused = 0
        """How often a dead address was tried."""
        self._to, self._seconds = port, seconds
        self._waiting: dict[socket.socket, float] = {}
        self._held: list[socket.socket] = []
        self._lock = threading.Lock()
        self._server = socket.create_server(("0.0.0.0", 0), backlog=1024)
        self.port = self._server.getsockname()[1]
        for work in (self._accept, self._work):
            threading.Thread(target=work, daemon=True).start()

    def close(self) -> None:
        """Take no more."""
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for held in (*self._held, *self._waiting):
            held.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                found, _ = self._server.accept()
                if found.getsockname()[0] in self.dead:
                    self.refused += 1
                    self._held.append(found)
                    continue
                with self._lock:
                    self._waiting[found] = self._seconds
                    self.most = max(self.most, len(self._waiting))

    def _work(self) -> None:
        before = time.monotonic()
        while self._server.fileno() >= 0:
            time.sleep(STEP)
            now = time.monotonic()
            with self._lock:
                share = (now - before) / max(1, len(self._waiting))
                self._waiting = {one: left - share for one, left in self._waiting.items()}
                done = [one for one, left in self._waiting.items() if left <= 0]
                for one in done:
                    del self._waiting[one]
            before = now
            for one in done:
                other = socket.create_connection(("127.0.0.1", self._to))
                for pair in ((one, other), (other, one)):
                    threading.Thread(target=_copy, args=pair, daemon=True).start()
                self._held += [one, other]


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for one in (source, target):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def busy_core(port: int, *, seconds: float) -> Iterator[BusyCore]:
    """Run one."""
    core = BusyCore(port, seconds=seconds)
    try:
        yield core
    finally:
        core.close()
