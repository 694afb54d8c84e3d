"""`clusterctl` on a sandbox's controller, without Python's start and the imports of each command.

One process per test process has imported clusterctl, and forks for each command of any sandbox: a
process of its own with the command's namespaces, words, environment, folder and pipes, which ends
as Python ends. Half of a command's CPU time is what this saves. The pages of docs/, `Project.start`
and the tests of main start Python itself.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import pkgutil
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NoReturn

REQUEST_BYTES = 1 << 20
NAMESPACES = ("net", "uts", "mnt")
ROOMS = (
    "api", "checks", "cli", "facts", "inventory", "logs", "network", "plan", "report", "sync",
    "transport", "verbs",
)  # fmt: skip
LATER = ("encodings.idna", "platformdirs.unix", "rich.table")
"""What commands import when they first need it."""
SENT = ("", "collect-facts", "read", "sync-compare", "start", "status", "stop", "tail")
"""The operations that commands ask nodes for most."""


@dataclass
class Warm:
    """The process that forks, as the tests see it."""

    command: Sequence[str]
    """How Python is started; a descriptor's number follows."""
    environment: Mapping[str, str]
    _started: tuple[subprocess.Popen[bytes], socket.socket] | None = field(default=None, init=False)
    _starting: threading.Lock = field(default_factory=threading.Lock, init=False)

    def run(
        self,
        words: Sequence[str],
        env: Mapping[str, str],
        cwd: Path,
        seconds: float | None,
        *,
        inside: int | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end.

        Args:
            words: after `clusterctl`.
            env: all variables.
            cwd: its folder.
            seconds: that it may take.
            inside: a process in whose namespaces it runs, and whose root it sees.

        Raises:
            subprocess.TimeoutExpired: it takes longer than so many seconds.
        """
        until = None if seconds is None else time.monotonic() + seconds
        asked = json.dumps([[*words], dict(env), str(cwd), inside]).encode()
        assert len(asked) < REQUEST_BYTES
        out, err, code = os.pipe(), os.pipe(), os.pipe()
        with ExitStack() as opened:
            readers = [opened.enter_context(os.fdopen(each, "rb")) for each, _ in (out, err, code)]
            try:
                with self._starting:
                    server = self._server()
                socket.send_fds(server, [asked], [writer for _, writer in (out, err, code)])
            finally:
                for _, writer in (out, err, code):
                    os.close(writer)
            try:
                stdout, stderr, status = read_all(readers, until)
            except TimeoutError:
                self.close()
                raise subprocess.TimeoutExpired(["clusterctl", *words], seconds or 0) from None
        return subprocess.CompletedProcess(
            [sys.executable, "-m", "clusterctl", *words],
            os.waitstatus_to_exitcode(int(status)),
            *(text.decode().replace("\r\n", "\n").replace("\r", "\n") for text in (stdout, stderr)),
        )

    def _server(self) -> socket.socket:
        if self._started is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            for end in (ours, theirs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * REQUEST_BYTES)
            with theirs:
                process = subprocess.Popen(
                    [*self.command, str(theirs.fileno())],
                    env=self.environment,
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,
                )
            self._started = process, ours
        return self._started[1]

    def close(self) -> None:
        """End the process, and the commands that it still runs."""
        if self._started is not None:
            process, ours = self._started
            ours.close()
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            self._started = None


def read_all(readers: Sequence[IO[bytes]], until: float | None) -> list[bytes]:
    """Read pipes to their ends, all at once.

    Raises:
        TimeoutError: an end did not come until then.
    """
    texts = {reader.fileno(): b"" for reader in readers}
    with selectors.DefaultSelector() as selector:
        for reader in readers:
            selector.register(reader, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(None if until is None else max(0, until - time.monotonic()))
            if not ready:
                raise TimeoutError
            for key, _ in ready:
                chunk = os.read(key.fd, 65536)
                texts[key.fd] += chunk
                if not chunk:
                    selector.unregister(key.fd)
    return [*texts.values()]


def serve(link: socket.socket) -> None:
    """Fork for each request, and write how the command ended; returns when nobody asks any more."""
    _import_all()
    gc.collect()
    gc.freeze()
    selector = selectors.DefaultSelector()
    selector.register(link, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.data is not None:
                pid, answer = key.data
                selector.unregister(key.fd)
                os.close(key.fd)
                os.write(answer, str(os.waitpid(pid, 0)[1]).encode())
                os.close(answer)
                continue
            asked, descriptors, _, _ = socket.recv_fds(link, REQUEST_BYTES, 3)
            if not asked:
                return
            *streams, answer = descriptors
            pid = os.fork()
            if pid == 0:
                for other in [each for each in selector.get_map().values() if each.data]:
                    os.close(other.fd)
                    os.close(other.data[1])
                os.close(answer)
                selector.close()
                link.close()
                _become(asked, streams)
            for stream in streams:
                os.close(stream)
            selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, answer))


def _import_all() -> None:
    """Import what commands import, but for the sandbox, and read what they send to nodes."""
    for room in ROOMS:
        package = importlib.import_module(f"clusterctl.{room}")
        for module in pkgutil.walk_packages(package.__path__, f"clusterctl.{room}."):
            importlib.import_module(module.name)
    for name in LATER:
        importlib.import_module(name)
    agent: Any = importlib.import_module("clusterctl.transport.agent")
    for op in SENT:
        agent.modules_for(op)


def _enter(process: Path) -> None:
    """Enter the namespaces of a process, as `nsenter` does, which would start Python in them."""
    libc = ctypes.CDLL(None, use_errno=True)
    opened = [os.open(process / "ns" / name, os.O_RDONLY | os.O_CLOEXEC) for name in NAMESPACES]
    root = os.open(process / "root", os.O_RDONLY | os.O_CLOEXEC)
    for namespace in opened:
        if libc.setns(namespace, 0):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    os.fchdir(root)
    os.chroot(".")
    for each in (*opened, root):
        os.close(each)


def _become(asked: bytes, streams: Sequence[int]) -> NoReturn:
    """Be the command: this process is the fork, and ends with SystemExit."""
    words, env, cwd, inside = json.loads(asked)
    if inside is not None:
        _enter(Path(f"/proc/{inside}"))
    for number, stream in enumerate(streams, start=1):
        os.dup2(stream, number)
        os.close(stream)
    encoding = sys.stdout.encoding
    sys.stdout = open(1, "w", encoding=encoding, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, encoding, "backslashreplace", closefd=False)  # noqa: SIM115
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env, PWD=cwd)
    time.tzset()
    sys.argv[:] = ["clusterctl", *words]
    sys.path[0] = cwd
    main: Any = importlib.import_module("clusterctl.__main__")
    sys.exit(main.run())


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        serve(requests)
