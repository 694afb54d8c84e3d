"""Pings to all nodes at once, while something else goes on."""

from __future__ import annotations

import shutil
import subprocess
import sys
from ipaddress import ip_address

from clusterctl.inventory.cluster import Cluster, Node

SECONDS = 1
_NO_ANSWER = 1
"""ping's exit code for silence; others mean that it could not try."""
_UNIT = 1000 if sys.platform == "darwin" else 1
"""`-W` counts milliseconds on macOS."""


class Pings:
    """One `ping` process a node that this machine reaches directly."""

    def __init__(self, cluster: Cluster) -> None:
        """Start them all."""
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        program = shutil.which("ping")
        if program is None:
            return
        for node in cluster.nodes:
            if _is_direct(node):
                self._running[node.name] = subprocess.Popen(
                    [program, "-n", "-c", "1", "-W", str(SECONDS * _UNIT), "--", node.host],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )

    def answer(self, node: str) -> str:
        """Return `ok`, `silent`, or empty where it could not be tried."""
        process = self._running.get(node)
        if process is None:
            return ""
        try:
            code = process.wait(SECONDS + 1)
        except subprocess.TimeoutExpired:
            return ""
        return {0: "ok", _NO_ANSWER: "silent"}.get(code, "")

    def close(self) -> None:
        """End what still runs."""
        for process in self._running.values():
            if process.poll() is None:
                process.kill()
            process.wait()


def _is_direct(node: Node) -> bool:
    if node.local or node.ssh.jump:
        return False
    try:
        return not ip_address(node.host).is_loopback
    except ValueError:
        return True  # a name; one that only ssh_config knows is not found, which is not silence
