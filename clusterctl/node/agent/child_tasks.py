"""Work in child processes, each with a limit: what hangs in the kernel is left behind.

A stat on a dead mount or a call into a wedged driver cannot be interrupted, not even by SIGKILL.
So everything that may hang runs in a child; past its limit the child is killed and not waited
for. A child gets none of our descriptors, so that it cannot hold the channel open either.
"""

from __future__ import annotations

import contextlib
import os
import select
import time

from clusterctl.wire import decode_line, encode_line, from_json, to_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, ContextManager, Dict, Iterator, Optional, Sequence

OUTPUT_LIMIT = 8 * 1024 * 1024
_STDERR_LIMIT = 4096
_EXEC_FAILED = b"\0exec:"
"""What a child writes on stderr, with errno, where its program could not be started."""
_REAP_SECONDS = 0.005
_ASK_SECONDS = 1.0
_SIGKILL = 9
"""A number, since the module `signal` takes long to import."""


class Child:
    """One child process: its output so far, and how it ended."""

    def __init__(self, key: str, pid: int, output: int, errors: int, limit_s: float) -> None:
        self.key = key
        self.pid = pid
        self.state = "running"
        self.exit_code: Optional[int] = None
        self.output = b""
        self.stderr = b""
        self.started = time.monotonic()
        self.deadline = self.started + limit_s
        self.seconds = 0.0
        self.pipes = {output: "output", errors: "stderr"}

    def read_pipe(self, descriptor: int) -> None:
        """Read what is there from one of the two pipes."""
        data = os.read(descriptor, 1 << 16)
        if not data:
            os.close(descriptor)
            del self.pipes[descriptor]
        elif self.pipes[descriptor] == "output":
            self.output += data
        else:
            self.stderr = (self.stderr + data)[-_STDERR_LIMIT:]
        if len(self.output) > OUTPUT_LIMIT:
            self.abandon("too-long")

    def reap(self) -> bool:
        """Learn how the process ended; False while it runs."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid:
            return False
        self.seconds = time.monotonic() - self.started
        self.exit_code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        self.state = "ok"
        if self.stderr.startswith(_EXEC_FAILED):
            digits, _, why = self.stderr[len(_EXEC_FAILED) :].partition(b" ")
            self.state = "absent" if int(digits) == 2 else "error"  # noqa: PLR2004  (ENOENT)
            self.stderr = why or os.strerror(int(digits)).encode()
        return True

    def abandon(self, state: str) -> None:
        """Kill the child's whole group and do not wait: it may be beyond any signal."""
        self.state = state
        self.seconds = time.monotonic() - self.started
        for descriptor in self.pipes:
            os.close(descriptor)
        self.pipes.clear()
        try:
            os.killpg(self.pid, _SIGKILL)
        except (ProcessLookupError, PermissionError):
            # It ended just now, or runs as another user (setuid): its own limit remains.
            self.exit_code = None


def run_function(
    key: str, function: Callable[[Callable[[bytes], None]], None], limit_s: float
) -> Child:
    """Run a function in a child; what it hands to its argument is the child's output."""

    def body(output: int) -> None:
        def write(data: bytes) -> None:
            view = memoryview(data)
            while view:
                view = view[os.write(output, view) :]

        function(write)

    return _fork(key, body, limit_s)


def run_program(
    key: str,
    argv: Sequence[str],
    limit_s: float,
    *,
    cwd: Optional[str] = None,
    environment: Optional[Callable[[], Dict[bytes, bytes]]] = None,
) -> Child:
    """Run a program in a child, found on PATH; no shell has a part in it."""

    def body(_output: int) -> None:
        # Here and not before the fork: the folder or the program may be on a dead mount.
        try:
            if cwd is not None:
                os.chdir(cwd)
            given = dict(os.environb) if environment is None else environment()
            os.execvpe(argv[0], list(argv), given)  # noqa: S606
        except OSError as error:
            half = _half_there(argv[0]) if error.errno == 2 else b""  # noqa: PLR2004  (ENOENT)
            os.write(2, _EXEC_FAILED + str(error.errno).encode() + half)

    return _fork(key, body, limit_s)


def _half_there(program: str) -> bytes:
    """Return what a program lacks that is there itself, such as the Python that made its venv."""
    if not os.path.lexists(program):
        return b""
    real = os.path.realpath(program)
    missing = "the interpreter or loader that it names" if os.path.exists(real) else real
    return os.fsencode(" it needs %s, which is not there" % missing)


def output_of(argv: Sequence[str], limit_s: float) -> Optional[str]:
    """Return what a program prints; None if it fails, or hangs and is left behind."""
    child = run_program(argv[0], argv, limit_s)
    gather([child])
    if child.state != "ok" or child.exit_code:
        return None
    return child.output.decode("utf-8", "replace")


def run_with_timeout(limit_s: float, function: Callable[[], object]) -> Any:  # noqa: ANN401
    """Return what a function returns, as JSON carries it; a child runs it.

    Raises:
        TimeoutError: it did not return in time, and is left behind.
        ChildProcessError: it failed.
    """
    child = run_function("within", lambda write: write(to_json(function())), limit_s)
    gather([child])
    if child.state == "timeout":
        raise TimeoutError("no answer within %g s" % limit_s)
    if child.state != "ok" or child.exit_code != 0:
        raise ChildProcessError(child.stderr.decode("utf-8", "replace") or child.state)
    return from_json(child.output)


@contextlib.contextmanager
def held_by_child(limit_s: float, hold: Callable[[], ContextManager[object]]) -> Iterator[Any]:
    """Hold something for as long as a block runs, in a child, which lets go if we die too.

    Yields:
        What `hold` gives, as JSON carries it.

    Raises:
        TimeoutError: it was not held in time, and the child is left behind.
        ChildProcessError: it failed.
    """

    def body(write: Callable[[bytes], None]) -> None:
        with hold() as given:
            write(encode_line({"given": given}))
            ended = select.poll()
            ended.register(1, 0)  # POLLERR: the reader has closed it
            ended.poll()

    child = run_function("held", body, limit_s)
    (output,) = [descriptor for descriptor, name in child.pipes.items() if name == "output"]
    ready = select.poll()
    ready.register(output, select.POLLIN)
    while output in child.pipes and not child.output.endswith(b"\n"):
        if not ready.poll(1000 * max(child.deadline - time.monotonic(), 0.0)):
            child.abandon("timeout")
            raise TimeoutError("no answer within %g s" % limit_s)
        child.read_pipe(output)
    try:
        if output in child.pipes:
            yield decode_line(child.output)["given"]
    finally:
        if output in child.pipes:
            os.close(output)
            del child.pipes[output]
        child.deadline = time.monotonic() + limit_s
        gather([child])
    if not child.output:
        raise ChildProcessError(child.stderr.decode("utf-8", "replace") or child.state)


def gather(children: Sequence[Child], needless: Optional[Callable[[], bool]] = None) -> None:
    """Read all children until each has ended or reached its limit, or `needless` is true."""
    running = [child for child in children if child.state == "running"]
    ready = select.poll()
    owners = {descriptor: child for child in running for descriptor in child.pipes}
    for descriptor in owners:
        ready.register(descriptor, select.POLLIN)
    while running:
        ending = any(not child.pipes for child in running)
        asked = [] if needless is None else [time.monotonic() + _ASK_SECONDS]
        left = min([*asked, *(child.deadline for child in running)]) - time.monotonic()
        for descriptor, _ in ready.poll(1000 * (_REAP_SECONDS if ending else max(left, 0.0))):
            if descriptor in owners[descriptor].pipes:
                owners[descriptor].read_pipe(descriptor)
        if needless is not None and needless():
            abandon_all(running)
        for child in running:
            ended = not child.pipes and child.state == "running" and child.reap()
            if not ended and child.state == "running" and time.monotonic() >= child.deadline:
                child.abandon("timeout")
        running = [child for child in running if child.state == "running"]
        for descriptor in [d for d, child in owners.items() if d not in child.pipes]:
            ready.unregister(descriptor)
            del owners[descriptor]


def abandon_all(children: Sequence[Child]) -> None:
    """Kill children whose results are no longer needed."""
    for child in children:
        child.abandon("needless")


def _fork(key: str, body: Callable[[int], None], limit_s: float) -> Child:
    output, output_end = os.pipe()
    errors, errors_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            null = os.open(os.devnull, os.O_RDONLY)
            os.dup2(null, 0)
            os.dup2(output_end, 1)
            os.dup2(errors_end, 2)
            os.closerange(3, 1 + max(map(int, os.listdir("/proc/self/fd"))))
            body(1)
        except BaseException as error:  # noqa: BLE001  (a child must never return to our stack)
            # An OperationError says it in words; the ladder runs without its module.
            told = str(error) if hasattr(error, "kind") else repr(error)
            os.write(2, told.encode("utf-8", "backslashreplace")[-_STDERR_LIMIT:])
            os._exit(126)
        os._exit(0)
    os.close(output_end)
    os.close(errors_end)
    return Child(key, pid, output, errors, limit_s)
