"""Which network NCCL uses, from the lines that it prints with NCCL_DEBUG=INFO."""

import re
from collections.abc import Iterable
from itertools import islice

from clusterctl.facts.ladder import NcclTransport

_CHOSEN = re.compile(r"(?:Using network|Assigned NET plugin) (\S.*?)(?: to comm)?\s*$")
_FOUND = re.compile(r"NET/(\w+) : Using (.*)")
_DEVICE = re.compile(r"\[\d+\] ?([\w.-]+(?::\d+/[\w/+]+)?)")
"""As `[0]mlx5_0:1/IB`; of a socket the name, before its address. Merged ones: `[0]={[0] …}`."""
_VIA = re.compile(r"\bvia ([A-Z][\w-]*(?:/[\w -]+)*)")
_NUMBER = re.compile(r"/\d+(?=/|$)")
_VERSION = re.compile(r"NCCL version (\d[\w.+]*)")
_FIRST_PARTY = ("IB", "Socket")
KEPT, LENGTH = 40, 400
"""Lines of a process, and letters of a line, that a node keeps; it may send more."""


def parse_nccl(lines: Iterable[str]) -> NcclTransport | None:
    """Return what the lines of one process tell; None if no line is of use.

    A process tries several networks, and says what each one found. The one that it assigns counts.
    """
    network = version = ""
    found: dict[str, tuple[str, ...]] = {}
    via: dict[str, None] = {}
    for line in (each[:LENGTH] for each in islice(lines, KEPT)):
        if chosen := _CHOSEN.search(line):
            network = chosen[1].strip()
        elif using := _FOUND.search(line):
            found[using[1]] = tuple(_DEVICE.findall(using[2].partition("; OOB")[0]))
        elif way := _VIA.search(line):
            via[_NUMBER.sub("", way[1].strip())] = None
        elif printed := _VERSION.search(line):
            version = printed[1]
    if not network:
        sent = [way.split("/")[1] for way in via if way.startswith("NET/") and way.count("/")]
        network = next((name for name in sent if name), "")
    if not (network or via):
        return None
    remote = [way for way in via if way.startswith("NET/") and not way.startswith("NET/Socket")]
    return NcclTransport(
        network=network,
        devices=found.get(_family(network), ()),
        via=tuple(via),
        gpu_direct=all("/GDRDMA" in way for way in remote) if remote else None,
        version=version,
    )


def _family(network: str) -> str:
    """Return by which name the network lists its devices: `IBext_v8` prints lines of `NET/IB`."""
    return next((name for name in _FIRST_PARTY if network.startswith(name)), network)
