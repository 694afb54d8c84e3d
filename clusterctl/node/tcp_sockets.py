"""The TCP sockets of this network namespace, and which processes hold them."""

from __future__ import annotations

import os
import socket
import struct
from typing import Iterator, List, NamedTuple, Set

from clusterctl.node.address_family import address_family
from clusterctl.node.file_io import list_folder

_V4_MAPPED = b"\0" * 10 + b"\xff\xff"
ESTABLISHED, SYN_SENT, LISTEN = "01", "02", "0A"
_ANY = 0xFFF
"""All states, a bit each."""
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP = 4, 20, 0x301
_ERROR, _DONE = 2, 3


class TcpSocket(NamedTuple):
    """One socket; the inode tells it from others."""

    state: str
    local_port: int
    remote_port: int
    inode: str
    uid: int
    remote: str
    """The other side's address; one of IPv4 as such, whatever the socket's family."""
    unacknowledged: int = 0
    """Bytes written that the other side has not acknowledged."""
    retransmits: int = 0
    """How often in a row the kernel has sent the same again."""
    local: str = ""
    """This side's address, in the same form."""

    @property
    def is_within(self) -> bool:
        """Both sides are on this machine."""
        return is_loopback(self.remote) or self.remote == self.local


def tcp_table(text: str) -> List[TcpSocket]:
    """Parse /proc/net/tcp or tcp6."""
    rows = []
    for line in text.splitlines()[1:]:
        fields = line.split()
        local, remote = (int(fields[n].rpartition(":")[2], 16) for n in (1, 2))
        near, far = (_address(fields[n].rpartition(":")[0]) for n in (1, 2))
        unacknowledged, retransmits = int(fields[4].partition(":")[0], 16), int(fields[6], 16)
        own = fields[3], local, remote, fields[9], int(fields[7]), far
        rows.append(TcpSocket(*own, unacknowledged, retransmits, near))
    return rows


def _address(words: str) -> str:
    """Return an address from the kernel's form: words of 32 bits, each in the machine's order."""
    numbers = [int(words[n : n + 8], 16) for n in range(0, len(words), 8)]
    return _shown(struct.pack("=%dI" % len(numbers), *numbers))


def _shown(raw: bytes) -> str:
    if len(raw) > len(_V4_MAPPED) and not raw.startswith(_V4_MAPPED):
        return socket.inet_ntop(socket.AF_INET6, raw)
    return socket.inet_ntop(socket.AF_INET, raw[-4:])


def is_loopback(address: str) -> bool:
    """Tell whether an address is of this machine alone."""
    return address == "::1" or address.startswith("127.")


def is_own(address: str) -> bool:
    """Tell whether an address, not a name, is one of this machine's."""
    with socket.socket(address_family(address), socket.SOCK_STREAM) as unused:
        try:
            unused.bind((address, 0))
        except OSError:
            return False
    return True


def plain_address(text: str) -> str:
    """Return an address as the kernel's tables give it here; empty for a name."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            return socket.inet_ntop(family, socket.inet_pton(family, text))
        except OSError:
            continue
    return ""


def read_tcp() -> List[TcpSocket]:
    """Return this network namespace's TCP sockets."""
    return _ask_or_read(_ANY)


def listening(port: int) -> List[TcpSocket]:
    """Return the sockets that listen on a port."""
    found = _ask_or_read(1 << int(LISTEN, 16))
    return [one for one in found if one.state == LISTEN and one.local_port == port]


def _ask_or_read(states: int) -> List[TcpSocket]:
    """Return the sockets in these states, or in any if the kernel must be read instead of asked.

    To write /proc/net/tcp the kernel walks a table of all buckets that there could be, for 5 ms;
    those that listen are in a short one of their own.
    """
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG) as channel:
            return [
                one
                for family in (socket.AF_INET, socket.AF_INET6)
                for one in asked(channel, family, states)
            ]
    except OSError:  # such as in gVisor
        rows: List[TcpSocket] = []
        for name in ("tcp", "tcp6"):
            try:
                with open("/proc/net/" + name) as file:
                    rows += tcp_table(file.read())
            except OSError:
                continue  # a kernel without IPv6
        return rows


def asked(channel: socket.socket, family: int, states: int) -> Iterator[TcpSocket]:
    """Yield the TCP sockets of a family in these states, asked through a sock_diag socket."""
    header = struct.pack("=IHHII", 72, _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 0, 0)
    channel.send(header + struct.pack("=BBBBI48x", family, socket.IPPROTO_TCP, 0, 0, states))
    while True:
        data, offset = channel.recv(1 << 16), 0
        while offset < len(data):
            length, kind = struct.unpack_from("=IH", data, offset)
            if kind == _DONE:
                return
            if kind == _ERROR:
                number: int = -struct.unpack_from("=i", data, offset + 16)[0]
                raise OSError(number, os.strerror(number))
            yield _socket_of(data, offset + 16)
            offset += length + 3 & ~3


def _socket_of(data: bytes, at: int) -> TcpSocket:
    """Read an inet_diag_msg of linux/inet_diag.h."""
    family, state, _, retransmits = struct.unpack_from("=4B", data, at)
    local_port, remote_port = struct.unpack_from(">HH", data, at + 4)
    _, _, written, uid, inode = struct.unpack_from("=5I", data, at + 52)
    length = 4 if family == socket.AF_INET else 16
    near, far = (_shown(data[n : n + length]) for n in (at + 8, at + 24))
    name = "%02X" % state
    own = name, local_port, remote_port, str(inode), uid, far
    # Of one that listens it is the length of its queue.
    return TcpSocket(*own, 0 if name == LISTEN else written, retransmits, near)


def socket_holders(inodes: Set[str]) -> Set[int]:
    """Return the processes that hold one of these sockets, as far as we may see."""
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return {pid for pid in pids if sockets_of(pid) & inodes}


def sockets_of(pid: int) -> Set[str]:
    """Return the inodes of a process's sockets; none where it has exited or is another user's."""
    folder = "/proc/%d/fd" % pid
    found: Set[str] = set()
    for name in list_folder(folder):
        try:
            target = os.readlink(os.path.join(folder, name))
        except OSError:
            continue  # closed while we looked
        if target.startswith("socket:["):
            found.add(target[8:-1])
    return found
