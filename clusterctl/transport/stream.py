"""The bytes to and from one process on a node, whatever carries them."""

import contextlib
import os
import select
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import IO

from clusterctl.errors import CouldNotTell
from clusterctl.transport.local_limits import start_thread
from clusterctl.values import dataclass

EXIT_SECONDS = 2.0
"""Seconds to wait for the exit status once the output has ended."""
ERRORS_LIMIT = 1 << 16
"""Bytes of stderr that are kept: half of them its first ones, half its last."""
READS_AT_ONCE = 64
"""Of a stderr, before others have their turn: one may be written to without end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitInfo:
    """How a process and its channel ended."""

    connected: bool
    """The connection to the node still stands."""
    exit_code: int | None = None
    """None: unknown, or killed by a signal."""
    errors: bytes = b""
    """What it wrote to stderr."""
    cause: str = ""
    """Why the connection broke, if it did."""


class Stream(ABC):
    """A process's stdin and stdout.

    One thread receives and asks for the ending; one at a time sends; any may close.
    """

    @abstractmethod
    def receive(self, timeout: float) -> bytes:
        """Return the next bytes, empty at the end; raise TimeoutError if none came in time."""

    @abstractmethod
    def send(self, data: bytes, timeout: float) -> None:
        """Send all of the bytes.

        Raises:
            TimeoutError: they were not taken in time.
            OSError: the receiver exited.
        """

    @abstractmethod
    def ending(self) -> ExitInfo:
        """Return how it ended; call it once `receive` has given empty bytes."""

    @abstractmethod
    def close(self) -> None:
        """Close it; never raises."""


class ProcessStream(Stream):
    """A child process on this machine: the agent itself, or an `ssh` that leads to it."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        """Start the program, with its variables; raise OSError if it cannot be started."""
        self._process = subprocess.Popen(
            argv,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # the terminal's Ctrl-C is ours, not the nodes'
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        try:
            self._errors = Errors(self._process.stderr)
        except CouldNotTell:
            with self._process:
                self._process.kill()
            raise
        self._in = self._process.stdin.fileno()
        self._out = self._process.stdout.fileno()
        os.set_blocking(self._in, False)
        self._closed = threading.Event()
        self._closing = threading.Lock()
        # A descriptor that is closed under who waits for it may be another file's by then.
        self._receiving = threading.Lock()
        self._sending = threading.Lock()

    def receive(self, timeout: float) -> bytes:
        """Return the next bytes of its stdout."""
        with self._receiving:
            if self._closed.is_set():
                return b""
            self._wait(self._out, select.POLLIN, timeout)
            return os.read(self._out, 1 << 16)

    def send(self, data: bytes, timeout: float) -> None:
        """Write all of the bytes to its stdin."""
        deadline = time.monotonic() + timeout
        view = memoryview(data)
        with self._sending:
            while view:
                if self._closed.is_set():
                    raise BrokenPipeError
                self._wait(self._in, select.POLLOUT, deadline - time.monotonic())
                try:
                    view = view[os.write(self._in, view) :]
                except BlockingIOError:
                    # A pipe polls writable with less room than asked for on some systems.
                    time.sleep(0.001)

    def ending(self) -> ExitInfo:
        """Return how it ended."""
        try:
            code: int | None = self._process.wait(EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            code = None
        if code is not None and code < 0:
            code = None
        return ExitInfo(connected=True, exit_code=code, errors=self._errors.read())

    def close(self) -> None:
        """Close its pipes; it ends by itself when it sees that."""
        if not self._closing.acquire(blocking=False):
            return
        self._closed.set()
        # Another thread may wait for either, so their numbers stay taken until it has left.
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (self._in, self._out):
            os.dup2(null, descriptor, inheritable=False)
        os.close(null)
        if self._process.poll() is None:
            with contextlib.suppress(RuntimeError):  # no more threads: it ends with us
                threading.Thread(target=self._reap, daemon=True).start()
        else:
            self._reap()

    def _reap(self) -> None:
        self._process.wait()
        with self._receiving, self._sending:
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe is not None
                pipe.close()

    @staticmethod
    def _wait(descriptor: int, event: int, timeout: float) -> None:
        poll = select.poll()
        poll.register(descriptor, event)
        if not poll.poll(max(timeout, 0) * 1000):
            raise TimeoutError


class Errors:
    """The first and the last bytes of a stderr, read as they come: its writer never waits.

    The first have what ssh did on connecting, the last why it ended.
    """

    def __init__(self, pipe: IO[bytes], at_end: Callable[[], object] = lambda: None) -> None:
        """Read the pipe in a thread, which closes it and calls `at_end` when nothing more comes.

        Raises:
            CouldNotTell: this machine allows no further thread.
        """
        self._pipe = pipe
        self._at_end = at_end
        self._first = self._last = b""
        self.count = 0
        """Bytes that came."""
        self._lock = threading.Lock()
        os.set_blocking(pipe.fileno(), False)
        start_thread(self._drain, name="stderr")

    def read(self) -> bytes:
        """Return what was kept, with all that is in the pipe now."""
        with self._lock:
            if not self._pipe.closed:
                self._take()
            return self._first + self._last

    def _drain(self) -> None:
        poll = select.poll()
        poll.register(self._pipe, select.POLLIN)
        ended = False
        while not ended:
            poll.poll()
            with self._lock:
                ended = self._take()
                if ended:
                    self._pipe.close()
        self._at_end()

    def _take(self) -> bool:
        """Take what is in the pipe; True: no more will come."""
        for _ in range(READS_AT_ONCE):
            try:
                data = os.read(self._pipe.fileno(), ERRORS_LIMIT)
            except BlockingIOError:
                return False
            if not data:
                return True
            self.count += len(data)
            room = ERRORS_LIMIT // 2 - len(self._first)
            self._first += data[:room]
            self._last = (self._last + data[room:])[-ERRORS_LIMIT // 2 :]
        return False
