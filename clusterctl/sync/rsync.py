"""rsync over a connection that is open: no second login, no ssh, no shell in between."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from clusterctl.errors import ClusterError, NodeError
from clusterctl.safe_text import printable_words
from clusterctl.sync import rsync_shim
from clusterctl.transport.agent_call import AgentCall
from clusterctl.transport.connection import Connection
from clusterctl.transport.control_master import RSYNC
from clusterctl.transport.interface import Request
from clusterctl.transport.stream import ExitInfo, Stream

IO_SECONDS = 60
"""rsync gives up after so long without a byte; so do we."""
CHUNK = 1 << 18
TEMPORARY = ".clusterctl/tmp"
"""Where files lie on a node until they are whole, each sync's in a folder of its own."""
POLL_SECONDS = 1.0
"""How often we look up from waiting for rsync."""
_KILLED = 20
"""rsync's own exit code for an end by a signal."""
VANISHED = 24
"""rsync's exit code where a file went away while it was read."""


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
    alive: Callable[[], object],
) -> PushResult:
    """Write files of a folder to a node's folder; each is replaced whole or not at all.

    Args:
        connection: the open way to the node.
        source: the folder here.
        paths: files and links in it, relative.
        workdir: the folder there.
        folder: a private one with a short path, for the socket.
        temporary: the name of the folder within ours that files are written to first.
        alive: called every few seconds meanwhile.

    Raises:
        NodeError: the way broke.
        ClusterError: there is no rsync here.
    """
    if shutil.which("rsync") is None:
        raise ClusterError("rsync is not installed on this machine", hint="install rsync")
    address = folder / f"{RSYNC}{threading.get_ident()}"
    with socket.socket(socket.AF_UNIX) as listener, tempfile.TemporaryFile() as list_file:
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
        outcome = _Outcome()
        carrier = threading.Thread(
            target=_carry, args=(listener, connection, workdir, outcome), daemon=True
        )
        carrier.start()
        errors = _waited(process, alive)
        # An rsync that never came to its shim leaves the carrier waiting.
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        carrier.join()
    address.unlink(missing_ok=True)
    if outcome.failure is not None:
        raise outcome.failure
    code = 0 if process.returncode == VANISHED else process.returncode
    # The node's rsync says its errors there, on stderr, and ends with a status of its own that
    # ours may never learn.
    code = code or outcome.code
    return PushResult(
        code=code, words=printable_words(outcome.errors + b"\n" + errors) if code else ""
    )


def _waited(process: subprocess.Popen[bytes], alive: Callable[[], object]) -> bytes:
    """Wait for rsync and return what it wrote to stderr."""
    while True:
        try:
            return process.communicate(timeout=POLL_SECONDS)[1]
        except subprocess.TimeoutExpired:
            alive()


def command(address: Path, temporary: str) -> list[str]:
    """Return rsync's argv.

    Whoever calls has compared contents, so `--ignore-times` sends exactly what is listed. The
    destination is a constant, since rsync would escape a name for a shell that is not there.
    """
    shim = (sys.executable, "-I", "-S", str(Path(rsync_shim.__file__)), str(address))
    return [
        *("rsync", "--links", "--executability", "--times", "--ignore-times"),
        *("--omit-dir-times", "--no-implied-dirs", "--from0", "--files-from=-"),
        *(f"--temp-dir={TEMPORARY}/{temporary}", f"--timeout={IO_SECONDS}", "--sparse"),
        *("-e", " ".join(_quoted(word) for word in shim), "--", "./", "node:."),
    ]


def _quoted(word: str) -> str:
    """Quote a word as rsync's own splitting of `-e` takes it."""
    return '"' + word.replace('"', '""') + '"'


@dataclass(slots=True)
class _Outcome:
    """What the carrying thread leaves behind."""

    errors: bytes = b""
    code: int = 0
    failure: NodeError | None = None


def _carry(
    listener: socket.socket, connection: Connection, workdir: str, outcome: _Outcome
) -> None:
    """Serve the shim: start the node's rsync and move bytes until it ends."""
    try:
        shim, _ = listener.accept()
    except OSError:
        return
    with shim:
        try:
            with _handed_over(shim) as (argv, source, sink):
                ending = _run(connection, argv, workdir, (source, sink))
            outcome.errors = ending.errors
            # None: killed, or its status was not told.
            outcome.code = status = _KILLED if ending.exit_code is None else ending.exit_code
        except NodeError as failed:
            outcome.failure = failed
            status = 1
        with contextlib.suppress(OSError):
            shim.sendall(bytes([status]))


@contextlib.contextmanager
def _handed_over(shim: socket.socket) -> Iterator[tuple[list[str], int, int]]:
    data, descriptors, _, _ = socket.recv_fds(shim, 1 << 16, 2)
    try:
        source, sink = descriptors
        for descriptor in descriptors:
            os.set_blocking(descriptor, True)  # rsync may have it otherwise
        yield json.loads(data), source, sink
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _run(connection: Connection, argv: list[str], workdir: str, pipes: tuple[int, int]) -> ExitInfo:
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
        source, sink = pipes
        up = threading.Thread(target=_send, args=(os.dup(source), stream), daemon=True)
        up.start()
        _receive(received, stream, sink)
        return stream.ending()


def _send(source: int, stream: Stream) -> None:
    receives = True
    try:
        while data := os.read(source, CHUNK):
            # Where nobody listens any more it is read all the same: an rsync whose pipe breaks
            # ends before it has told what the other side said.
            if receives:
                try:
                    stream.send(data, IO_SECONDS)
                except OSError:
                    receives = False
    finally:
        os.close(source)


def _receive(received: bytes, stream: Stream, sink: int) -> None:
    data = received
    try:
        while True:
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
