"""The page of open ports names every kind of port that opens, and no other, as a node joins."""

from __future__ import annotations

import ctypes
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import cast

import pytest

from clusterctl.node.tcp_sockets import LISTEN, asked
from clusterctl.sandbox.netns import Netns
from clusterctl.sandbox.sandbox import Sandbox
from tests.cli.runs import Project
from tests.cli.test_join import grown, is_seen_by_everybody, stop_everywhere, training

__all__ = ["training"]

pytestmark = [pytest.mark.netns, pytest.mark.torch]

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "strangers.md"
COMMANDS = ("check --deep", "push", "pull", "launch")
CONTROLLER = "controller"
ACCEPTS = 1 << 16
"""The kernel's flag of a Unix socket that listens."""
CLONE_NEWNET, NETLINK_SOCK_DIAG = 0x40000000, 4
MASTER_PORTS = range(29500, 29600)
"""Below those that the kernel chooses."""
PROCESSES = {
    "ranks/%s.log": "ranks",
    "clusterctl.node.supervisor": "supervisor",
    "clusterctl.node.probe.trial.job_ladder": "ranks",
    "train.py": "ranks",
    "agent.main import serve": "agent",
}
"""By a part of its command line, what the page calls a process."""


@dataclass(frozen=True)
class Port:
    """A kind of port: everything that the page tells apart."""

    command: str
    master_only: bool
    process: str
    place: str


MOMENTARY = ", for a moment"
"""How the page marks a port that may be open only between two looks."""


def listed(*, momentary: bool) -> set[Port]:
    """Return what the page says of these commands, on hosts without GPUs."""
    rows = re.findall(
        r"^\| (`.*?) \| (.*?) \| (.*?) \| (.*?) \| .* \|$", PAGE.read_text(), re.MULTILINE
    )
    return {
        Port(command, node == "the master", process, place.removesuffix(MOMENTARY))
        for commands, node, process, place in rows
        for command in re.findall(r"`(.*?)`", commands)
        if command in COMMANDS and "on GPUs" not in commands
        if momentary or not place.endswith(MOMENTARY)
    }


TRIES = 3


class Watch:
    """Looks again and again at what listens on the hosts, and who does."""

    def __init__(self, box: Sandbox) -> None:
        backend = cast("Netns", box.backend)
        self._hosts = {host.name: host.address for host in box.hosts}
        self._pids = {name: backend.init_pid(name) for name in self._hosts}
        self._pids[CONTROLLER] = backend._controller_pid()
        self._asked = {name: _netlink_in(pid) for name, pid in self._pids.items()}
        self._known = {name: set(self._listening(name)) for name in self._pids}
        self._over = threading.Event()
        self.found: set[tuple[str, str, str]] = set()
        """Host, process and place."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()
            for channel in self._asked.values():
                channel.close()

    def _run(self) -> None:
        # What opens for a moment has to be seen by a busy machine too.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), -20)
        while not self._over.is_set():
            began = time.monotonic()
            for name in self._pids:
                for inode, where in self._listening(name).items():
                    if inode not in self._known[name]:
                        self._known[name].add(inode)
                        self._note(name, inode, where)
            time.sleep(9 * (time.monotonic() - began))  # most of the core is for the others

    def _listening(self, name: str) -> dict[str, str]:
        """Return what listens on a host, by inode."""
        found = {}
        for kind, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
            for one in asked(self._asked[name], family, 1 << int(LISTEN, 16)):
                found[one.inode] = f"{kind} {one.local} {one.local_port}"
        network = Path(f"/proc/{self._pids[name]}/net")
        for kind in ("udp", "udp6"):
            for line in (network / kind).read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == "07":
                    address, port = words[1].split(":")
                    found[words[9]] = f"{kind} {_address(address)} {int(port, 16)}"
        for line in (network / "unix").read_text().splitlines()[1:]:
            words = line.split(maxsplit=7)
            if int(words[3], 16) & ACCEPTS:
                found[words[6]] = f"unix {words[7] if words[7:] else ''}"
        return found

    def _note(self, name: str, inode: str, where: str) -> None:
        if name == CONTROLLER and not where.startswith(("tcp", "udp")):
            return  # in a private folder
        self.found.add((name, _owner(self._pids[name], inode), self._place(name, where)))

    def _place(self, name: str, where: str) -> str:
        if where.startswith("unix"):
            return re.sub(r"^unix @(.*)", r"the abstract socket `\1`", where)
        kind, address, port = where.split()
        parsed = ip_address(address)
        number = "the master port" if int(port) in MASTER_PORTS else "a free port"
        if parsed.is_unspecified:
            place = f"{number} of all addresses"
        elif address == "::1":
            place = f"{number} of localhost"
        elif address == self._hosts.get(name):
            place = f"{number} of the data address"
        else:
            place = f"{number} of {address}"
        return place if kind.startswith("tcp") else f"{kind}: {place}"


def _netlink_in(pid: int) -> socket.socket:
    """Return a socket that asks the kernel about the network of a process.

    A thread enters that network, and ends.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def make() -> socket.socket:
        with Path(f"/proc/{pid}/ns/net").open("rb") as network:
            assert libc.setns(network.fileno(), CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
        return socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, NETLINK_SOCK_DIAG)

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(make).result()


def _address(text: str) -> str:
    """Read an address as the kernel prints it: words of the machine's own order."""
    raw = bytes.fromhex(text)
    swapped = b"".join(raw[n : n + 4][::-1] for n in range(0, len(raw), 4))
    address = ip_address(swapped)
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)


def _owner(init: int, inode: str) -> str:
    """Return which kind of process of a host has a socket."""
    for process in Path(f"/proc/{init}/root/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if any(_target(fd) == f"socket:[{inode}]" for fd in process.joinpath("fd").iterdir()):
                words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                known = [kind for part, kind in PROCESSES.items() if part in words]
                return known[0] if known else words
    return "gone"


def _target(descriptor: Path) -> str:
    try:
        return str(descriptor.readlink())
    except OSError:
        return ""  # closed meanwhile, unlike the others of its process


def test_every_port_that_opens_is_on_the_page(training: Project, tmp_path: Path) -> None:
    box = training.sandbox
    (tmp_path / "big").write_bytes(os.urandom(1 << 20))
    opened: set[tuple[str, str, str, str]] = set()

    def note(watch: Watch, command: str) -> None:
        opened.update((command, *found) for found in watch.found)

    commands = (
        ("check --deep", "--nodes", "2"),
        ("push", f"{tmp_path}/big:/workspace/big"),
        ("pull", "/workspace/big", "--to", f"{tmp_path}/pulled"),
    )
    on_page, certain = listed(momentary=True), listed(momentary=False)
    for command, *words in commands:
        # On a busy machine a port may be open too briefly to be seen.
        for _ in range(TRIES):
            watch = Watch(box)
            with watch.watching():
                done = training.run(*command.split(), *words, env={"TOKEN": "x"})
            assert done.returncode == 0, done.stderr
            note(watch, command)
            found = {(process, place) for by, _, process, place in opened if by == command}
            if {(p.process, p.place) for p in certain if p.command == command} <= found:
                break
    watch = Watch(box)
    with watch.watching():
        launched = grown(training, to=2)
    is_seen_by_everybody(training, 2)
    stop_everywhere(training, launched, 2)
    note(watch, "launch")

    missing = {
        found
        for found in opened
        if not {Port(found[0], only, found[2], found[3]) for only in (False, found[1] == "node1")}
        & on_page
    }
    # On a busy machine a process may have ended before it is looked at: its place is known.
    missing -= {
        found
        for found in missing
        if found[2] == "gone" and (found[0], found[3]) in {(p.command, p.place) for p in on_page}
    }
    # getaddrinfo connects a UDP socket to each address, to sort them, and closes it (RFC 6724).
    missing -= {found for found in missing if found[2] == "gone" and found[3].startswith("udp")}
    assert not missing
    seen = {(command, process, place) for command, _, process, place in opened}
    gone = {(command, place) for command, process, place in seen if process == "gone"}
    listed_kinds = {(p.command, p.process, p.place) for p in certain}
    unseen = {kind for kind in listed_kinds - seen if (kind[0], kind[2]) not in gone}
    assert not unseen
