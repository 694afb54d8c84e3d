"""The interface of the two sandbox backends: network namespaces and loopback."""

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from clusterctl.sandbox import gpus, processes
from clusterctl.sandbox.gpus import Gpus
from clusterctl.sandbox.layout import BackendName, Host, Ip, Layout
from clusterctl.values import dataclass

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def in_folder(folder: str, argv: Sequence[str]) -> list[str]:
    """Return the argv that runs a command in a folder."""
    return ["sh", "-c", 'cd -- "$0" && exec "$@"', folder, *argv]


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """The hosts that a sandbox should have."""

    nodes: int = 3
    gpus: Gpus = gpus.NONE
    """The GPUs that the fake nvidia-smi shows on each host."""
    shells: tuple[str, ...] = ("bash",)
    """Login shells; the hosts get them in turn."""
    users: tuple[str, ...] = ()
    """Users that can log in, the inventory's first; by default root and `ada`, or you."""
    ip: Ip = "4"
    """The IP versions of the hosts."""
    jumps: int = 0
    """The number of jump hosts in front of the nodes, each behind the one before it."""


class Backend(ABC):
    """Starts hosts, runs commands on them, and stops them."""

    name: ClassVar[BackendName]

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    @abstractmethod
    def plan(self, spec: SandboxSpec) -> list[Host]:
        """Return the hosts for `start`, which chooses the port if it is 0.

        Jump hosts come first, in the order from the controller to the nodes.

        Raises:
            UsageError: this backend cannot make such hosts.
        """

    @abstractmethod
    def begin(self, hosts: Sequence[Host]) -> None:
        """Create what all hosts share, and each host's folder."""

    @abstractmethod
    def start(self, hosts: Sequence[Host]) -> list[Host]:
        """Start all hosts at once; return them with their final ports, or raise ClusterError."""

    @abstractmethod
    def listen(self, host: Host, environment: Mapping[str, str] | None = None) -> None:
        """Restart a host's sshd, with more variables in every session, or raise ClusterError."""

    @abstractmethod
    def controller(self, argv: Sequence[str], folder: str) -> list[str]:
        """Return the argv that runs a command on the controller's side, in a folder."""

    @abstractmethod
    def on(self, host: Host, argv: Sequence[str]) -> list[str]:
        """Return the argv that runs a command on a host without SSH; ClusterError if it is off."""

    @abstractmethod
    def processes(self, host: Host) -> set[int]:
        """Return every process of a host."""

    @abstractmethod
    def power_off(self, host: Host) -> None:
        """Kill every process of a host at once, like a power failure."""

    @abstractmethod
    def end(self) -> set[int]:
        """Kill every process of the sandbox; return those that are still alive."""

    def master_port(self) -> int:
        """Return a port for the rendezvous."""
        return 29500

    def seen(self, host: Host, path: str) -> str:
        """Return a path in the host's own folder, as the host sees it."""
        return str(self.layout.host(host.name) / path)

    def host_environment(self, host: Host) -> dict[str, str]:
        """Return the environment of a command that `on` starts."""
        return {
            "PATH": f"{self.seen(host, 'bin')}:{PATH}",
            processes.STAMP: str(self.layout.root),
            processes.HOST_STAMP: host.name,
        }

    def environment(self) -> dict[str, str]:
        """Return the environment of commands on the controller's side.

        It does not contain your own HOME, XDG folders and SSH agent.
        """
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("XDG_", "SSH_", "CLUSTERCTL_"))
            or name == "CLUSTERCTL_SANDBOXES"
        }
        tools = f"{self.layout.bin}:{Path(sys.executable).parent}"
        return kept | {
            "HOME": str(self.layout.home),
            "PATH": f"{tools}:{kept.get('PATH', PATH)}",
            "CLUSTERCTL_INVENTORY": str(self.layout.inventory),
            processes.STAMP: str(self.layout.root),
        }
