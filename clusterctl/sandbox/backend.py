"""What the two ways to make a sandbox, network namespaces and loopback, have in common."""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from clusterctl.sandbox import gpus, processes
from clusterctl.sandbox.gpus import Gpus
from clusterctl.sandbox.layout import BackendName, Host, Ip, Layout

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def in_folder(folder: str, argv: Sequence[str]) -> list[str]:
    """Return the argv that runs a command in a folder."""
    return ["sh", "-c", 'cd -- "$0" && exec "$@"', folder, *argv]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The hosts that somebody asks for."""

    nodes: int = 3
    gpus: Gpus = gpus.NONE
    """What a stand-in nvidia-smi shows on each host."""
    shells: tuple[str, ...] = ("bash",)
    """Login shells, dealt out to the hosts in turn."""
    users: tuple[str, ...] = ()
    """Who can log in; the first is the inventory's. None: the backend's own."""
    ip: Ip = "4"
    """The versions of the Internet Protocol that hosts speak."""
    jumps: int = 0
    """How many jump hosts lead to the nodes, each behind the one before it."""


class Backend(ABC):
    """Starts hosts, reaches into them, and ends them."""

    name: ClassVar[BackendName]

    def __init__(self, layout: Layout) -> None:
        """Work on the sandbox that lives in this layout."""
        self.layout = layout

    @abstractmethod
    def plan(self, wanted: Wanted) -> list[Host]:
        """Return the hosts that `start` will bring up; a port of 0 is chosen there.

        Jump hosts come first, in the order in which they are passed.

        Raises:
            UsageError: this backend cannot make such hosts.
        """

    @abstractmethod
    def begin(self, hosts: Sequence[Host]) -> None:
        """Make what exists once for all hosts, and the folder of each."""

    @abstractmethod
    def start(self, hosts: Sequence[Host]) -> list[Host]:
        """Start hosts all at once and return them as they came up.

        Raises:
            ClusterError: one did not come up.
        """

    @abstractmethod
    def listen(self, host: Host, environment: Mapping[str, str] | None = None) -> None:
        """Start a host's sshd again, with these variables more in every session.

        Raises:
            ClusterError: it does not come up.
        """

    @abstractmethod
    def controller(self, argv: Sequence[str], folder: str) -> list[str]:
        """Return the argv that runs a command on the controller's side, in a folder."""

    @abstractmethod
    def on(self, host: Host, argv: Sequence[str]) -> list[str]:
        """Return the argv that runs a command on a host, without SSH.

        Raises:
            ClusterError: the host is off.
        """

    @abstractmethod
    def processes(self, host: Host) -> set[int]:
        """Return every process of a host."""

    @abstractmethod
    def power_off(self, host: Host) -> None:
        """End every process of a host at once, as if its power went."""

    @abstractmethod
    def end(self) -> set[int]:
        """End every process of the sandbox; return those that could not be ended."""

    def master_port(self) -> int:
        """Return a port for the ranks to meet at."""
        return 29500

    def seen(self, host: Host, path: str) -> str:
        """Return the path, as the host sees it, of something in its own folder."""
        return str(self.layout.host(host.name) / path)

    def host_environment(self, host: Host) -> dict[str, str]:
        """Return what a command that `on` starts carries."""
        return {
            "PATH": f"{self.seen(host, 'bin')}:{PATH}",
            processes.STAMP: str(self.layout.root),
            processes.HOST_STAMP: host.name,
        }

    def environment(self) -> dict[str, str]:
        """Return the environment of commands on the controller's side.

        The person's own HOME, XDG folders and SSH agent stay out of it.
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
