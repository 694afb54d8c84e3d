"""rsync over a connection that is open: no second login, no ssh, no shell in between."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from clusterctl.errors import ClusterError, NodeError
from clusterctl.safe_text import printable_words
from clusterctl.sync import rsync_shim
from clusterctl.transport.agent_call import AgentCall
from clusterctl.transport.connection import Connection
from clusterctl.transport.interface import Request
from clusterctl.transport.ssh.control_master import RSYNC
from clusterctl.transport.stream import Errors, ExitInfo, Stream
from clusterctl.values import dataclass

IO_SECONDS = 60
"""rsync gives up after so long without a byte; so do we."""
CHUNK = 1 << 18
TEMPORARY = ".clusterctl/tmp"
"""Where files stay on a node until they are whole, each sync's in a folder of its own."""
POLL_SECONDS = 1.0
"""How often we look up from waiting for rsync."""
_KILLED = 20
"""rsync's own exit code for an end by a signal."""
NOT_WRITTEN = 11
"""rsync's exit code where a file could not be written."""
VANISHED = 24
"""rsync's exit code where a file went away while it was read."""
ERRORS_LIMIT = 4 << 20
"""Bytes of errors after which rsync is killed: it prints all that a node sends."""
STALL_SECONDS = 600.0
STALL_BYTES = 16 << 10
"""So many bytes must move in so many seconds: comparing a large file on a slow disk moves few."""
LOWEST_RATE = 64 << 10
"""Bytes of the files a second that all transfers must reach together, each an equal share.

For each, the first `STALL_SECONDS` are free. They may have one slow uplink.
"""
ANSWER_BYTES = 16 << 20
ANSWER_BYTES_PER_PATH = 1 << 10
ANSWER_SHARE = 8
"""A node's rsync may send so many bytes, so many for each path, and 1/8 of the files' size.

It has checksums to send, 20 bytes for each block of at least 700.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PushResult:
    """How one rsync ended."""

    code: int
    words: str


def push(
    connection: Connection,
    *,
    source: Path,
    paths: list[bytes],
    workdir: str,
    folder: Path,
    temporary: str,
    alive: Callable[[int], object],
) -> PushResult:
    """Write files of a folder to a node's folder; each is replaced whole or not at all.

    Args:
        paths: files and links in it, relative.
        folder: a private one with a short path, for the socket.
        temporary: the name of the folder within ours that files are written to first.
        alive: called every second meanwhile, with the bytes that were sent.

    Raises:
        NodeError: the way broke.
        ClusterError: there is no rsync here.
    """
    if shutil.which("rsync") is None:
        raise ClusterError("rsync is not installed on this machine", hint="install rsync")
    address = folder / f"{RSYNC}{threading.get_ident()}"
    transfer = _Transfer(source, paths)
    with (
        _under_way(transfer),
        socket.socket(socket.AF_UNIX) as listener,
        tempfile.TemporaryFile() as list_file,
    ):
        listener.bind(str(address))
        listener.listen(1)
        list_file.write(b"\0".join(b"./" + path for path in paths))
        list_file.seek(0)
        process = subprocess.Popen(
            command(address, temporary),
            cwd=source,
            stdin=list_file,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={k: v for k, v in os.environ.items() if not k.startswith("RSYNC_")},
            start_new_session=True,
        )
        assert process.stderr is not None
        carrier = threading.Thread(
            target=_carry, args=(listener, connection, workdir, transfer), daemon=True
        )
        try:
            ended = threading.Event()
            errors = Errors(process.stderr, at_end=ended.set)
            carrier.start()
            while not ended.wait(POLL_SECONDS):
                alive(transfer.sent)
                transfer.require_limits(errors.count, connection.node.host)
        except BaseException:
            process.kill()
            transfer.close()
            raise
        finally:
            process.wait()
            if carrier.ident is not None:
                # An rsync that never reached its shim leaves the carrier waiting. Closing the
                # listener wakes it on Linux only.
                with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as nobody:
                    nobody.settimeout(POLL_SECONDS)
                    nobody.connect(str(address))
                carrier.join()
            address.unlink(missing_ok=True)
    if transfer.failure is not None:
        raise transfer.failure
    code = 0 if process.returncode == VANISHED else process.returncode
    # The node's rsync says its errors there, on stderr, and ends with a status of its own that
    # ours may never learn.
    code = code or transfer.code
    words = printable_words(transfer.errors + b"\n" + errors.read()) if code else ""
    return PushResult(code=code, words=words)


def command(address: Path, temporary: str) -> list[str]:
    """Return rsync's argv.

    The caller has compared contents, so `--ignore-times` sends exactly what is listed. The
    destination is a constant, since rsync would escape a name for a shell that is not there.
    """
    shim = (sys.executable, "-I", "-S", str(Path(rsync_shim.__file__)), str(address))
    return [
        *("rsync", "--links", "--executability", "--times", "--ignore-times"),
        *("--omit-dir-times", "--from0", "--files-from=-"),
        *(f"--temp-dir={TEMPORARY}/{temporary}", f"--timeout={IO_SECONDS}", "--sparse"),
        *("-e", " ".join(_quoted(word) for word in shim), "--", "./", "node:."),
    ]


def _quoted(word: str) -> str:
    """Quote a word as rsync's own splitting of `-e` takes it."""
    return '"' + word.replace('"', '""') + '"'


_transfers: set[_Transfer] = set()
"""Those under way, to all nodes."""


@contextlib.contextmanager
def _under_way(transfer: _Transfer) -> Iterator[None]:
    _transfers.add(transfer)
    try:
        yield
    finally:
        _transfers.discard(transfer)


class _Transfer:
    """What one rsync has moved, against its limits, and how the node's part of it ended."""

    def __init__(self, source: Path, paths: list[bytes]) -> None:
        self.errors = b""
        """What the node's rsync wrote to stderr."""
        self.code = 0
        """The node's rsync's exit status."""
        self.failure: NodeError | None = None
        self.sent = self.received = 0
        """Bytes."""
        self.stream: Stream | None = None
        """The node's rsync."""
        self._source = os.fsencode(source)
        self._paths = paths
        self._began = self._window = time.monotonic()
        """When it began, and when the last `STALL_SECONDS` did."""
        self._due_at = self._began + STALL_SECONDS
        self._due = 0.0
        """Bytes of the files that had to be there by then."""
        self._before = 0
        """Bytes that had moved by then."""

    @functools.cached_property
    def size(self) -> int:
        """The files' bytes; only asked for where a transfer is unusual."""
        size = 0
        for path in self._paths:
            with contextlib.suppress(OSError):
                size += os.lstat(self._source + b"/" + path).st_size
        return size

    def close(self) -> None:
        """Let go of the node."""
        if self.stream is not None:
            self.stream.close()

    def require_limits(self, errors: int, host: str) -> None:
        """Check what the host may send, and how slowly it may take; `errors` is in bytes."""
        came = f"{errors} bytes of errors came" if errors > ERRORS_LIMIT else ""
        if excess := came or self._excess():
            hint = f"look at the host's load and disks: ssh {host} uptime"
            raise NodeError("bad-output", "answer", f"rsync was stopped: {excess}", hint)

    def _excess(self) -> str:
        free = ANSWER_BYTES + ANSWER_BYTES_PER_PATH * len(self._paths)
        if self.received > free and self.received > free + self.size // ANSWER_SHARE:
            return f"{self.received} bytes came for {self.size} bytes of files"
        now, moved = time.monotonic(), self.sent + self.received
        if now - self._window > STALL_SECONDS:
            if moved - self._before < STALL_BYTES:
                return f"{moved - self._before} bytes moved in {STALL_SECONDS:.0f} s"
            self._window, self._before = now, moved
        if now > self._due_at:
            share = max(len(_transfers), 1)
            self._due += (now - self._due_at) * LOWEST_RATE / share
            self._due_at = now
            if self._due > self.size:
                seconds = now - self._began
                return f"{self.size} bytes of files are not there after {seconds:.0f} s"
        return ""


def _carry(
    listener: socket.socket, connection: Connection, workdir: str, transfer: _Transfer
) -> None:
    """Serve the shim: start the node's rsync and move bytes until it ends."""
    shim, _ = listener.accept()
    with shim:
        try:
            with _handed_over(shim) as (argv, source, sink):
                if not argv:
                    return  # rsync ended before it had a shim
                ending = _run(connection, argv, workdir, (source, sink), transfer)
            transfer.errors = ending.errors
            # None: killed, or its status was not told.
            transfer.code = status = _KILLED if ending.exit_code is None else ending.exit_code
        except NodeError as failed:
            transfer.failure = failed
            status = 1
        with contextlib.suppress(OSError):
            shim.sendall(bytes([status]))


@contextlib.contextmanager
def _handed_over(shim: socket.socket) -> Iterator[tuple[list[str], int, int]]:
    data, descriptors, _, _ = socket.recv_fds(shim, 1 << 16, 2)
    try:
        if not data:
            yield [], -1, -1
            return
        source, sink = descriptors
        for descriptor in descriptors:
            os.set_blocking(descriptor, True)  # rsync may have it otherwise
        yield json.loads(data), source, sink
    finally:
        for descriptor in descriptors:
            # openrsync has one socket for both ways, and waits for its end.
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                with socket.socket(fileno=descriptor) as end, contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_WR)
            else:
                os.close(descriptor)


def _run(
    connection: Connection,
    argv: list[str],
    workdir: str,
    pipes: tuple[int, int],
    transfer: _Transfer,
) -> ExitInfo:
    """Start the node's rsync, move the bytes, and return how it ended."""
    call = connection.call(Request(op="rsync", args={"argv": argv, "workdir": workdir}))
    with contextlib.closing(call):
        assert isinstance(call, AgentCall), "every real connection's call is one"
        first = next(call.messages(), None)
        if first is None:
            reply = call.reply()
            raise reply.error or NodeError("bad-output", "answer", "it ended without an answer")
        error = first.head.get("error")
        if isinstance(error, dict):
            words = str(error.get("message") or "rsync cannot be started there")
            raise NodeError("bad-output", "exec", words, "install rsync on the node")
        if not first.head.get("exec"):
            raise NodeError("bad-output", "answer", "rsync was not started there")
        received, stream = call.take_over()
        transfer.stream = stream
        source, sink = pipes
        up = threading.Thread(target=_send, args=(os.dup(source), stream, transfer), daemon=True)
        up.start()
        _receive(received, stream, sink, transfer)
        return stream.ending()


def _send(source: int, stream: Stream, transfer: _Transfer) -> None:
    receives = True
    try:
        while data := os.read(source, CHUNK):
            # Where no caller listens any more it is read anyway: an rsync whose pipe breaks
            # ends before it has told what the other side said.
            if receives:
                try:
                    stream.send(data, IO_SECONDS)
                    transfer.sent += len(data)
                except OSError:
                    receives = False
    finally:
        os.close(source)


def _receive(received: bytes, stream: Stream, sink: int, transfer: _Transfer) -> None:
    data = received
    try:
        while True:
            transfer.received += len(data)
            view = memoryview(data)
            while view:
                view = view[os.write(sink, view) :]
            data = stream.receive(IO_SECONDS)
            if not data:
                return
    except BrokenPipeError:
        return  # rsync has what it wants
    except TimeoutError as error:
        words = f"rsync on the node was silent for {IO_SECONDS} s"
        raise NodeError("timeout", "answer", words) from error
    except OSError as error:
        raise NodeError("lost", "answer", str(error)) from error
