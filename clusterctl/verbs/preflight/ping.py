"""Pings to all nodes, a few at once, while the facts are read."""

import shutil
import subprocess
import sys
import threading
import time
from collections import deque
from ipaddress import ip_address

from clusterctl.inventory.cluster import Cluster, Node

SECONDS = 1
AT_ONCE = 24
"""Processes; a container may allow few (its pids limit), and SSH needs some too."""
POLL = 0.01
_NO_ANSWER = 1
"""ping's exit code for silence; others mean that it could not try."""
_MEANING: dict[int | None, str] = {0: "ok", _NO_ANSWER: "silent"}
_UNIT = 1000 if sys.platform == "darwin" else 1
"""`-W` counts milliseconds on macOS."""


class Pings:
    """A `ping` to each node that this machine reaches directly."""

    def __init__(self, cluster: Cluster) -> None:
        """Begin; one thread starts the processes, a few at once."""
        self._answers: dict[str, str] = {}
        self._closed = threading.Event()
        self._done = threading.Event()
        program = shutil.which("ping")
        nodes = [node for node in cluster.nodes if program and _is_direct(node)]
        thread = threading.Thread(target=self._run, args=(program, nodes), name="ping", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # this machine allows no more threads
            self._done.set()

    def answers(self) -> dict[str, str]:
        """Wait for all; return each node's: `ok`, `silent`, or nothing if it could not be tried."""
        self._done.wait()
        return self._answers

    def close(self) -> None:
        """Start no more, and end what still runs."""
        self._closed.set()
        self._done.wait()

    def _run(self, program: str | None, nodes: list[Node]) -> None:
        waiting = deque(nodes)
        running: dict[str, tuple[subprocess.Popen[bytes], float]] = {}
        while (waiting or running) and not self._closed.is_set():
            while waiting and len(running) < AT_ONCE:
                try:
                    process = _start(str(program), waiting[0].host)
                except OSError:
                    if not running:
                        waiting.clear()  # not even one may run here
                    break
                running[waiting.popleft().name] = process, time.monotonic() + SECONDS + 1
            time.sleep(POLL)
            for name, (process, deadline) in tuple(running.items()):
                code = process.poll()
                if code is None:
                    if time.monotonic() < deadline:
                        continue
                    _end(process)
                self._answers[name] = _MEANING.get(code, "")
                del running[name]
        for process, _ in running.values():
            _end(process)
        self._done.set()


def _start(program: str, host: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [program, "-n", "-c", "1", "-W", str(SECONDS * _UNIT), "--", host],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _is_direct(node: Node) -> bool:
    if node.local or node.ssh.jump:
        return False
    try:
        return not ip_address(node.host).is_loopback
    except ValueError:
        return True  # a name; one that only ssh_config knows is not found, which is not silence
