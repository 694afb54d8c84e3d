"""Parses InfiniBand, RoCE and EFA devices from /sys/class/infiniband."""

from __future__ import annotations

import re
from ipaddress import IPv6Address

from clusterctl.facts.answers import NOT_ASKED, Answers
from clusterctl.facts.network.interfaces import counters_of
from clusterctl.facts.network.network import Counters, Gid, RdmaPort
from clusterctl.facts.request import OFI_PLUGINS, RDMA_COUNTERS, RDMA_GIDS

_PORT = re.compile(r"\d{1,5}")
_NAMED = re.compile(r"\d+: ?(\w+)")
_RATE = re.compile(r"(\d{1,9})(?:\.\d+)? Gb/sec")
_HEX = re.compile(r"0x[0-9a-fA-F]{1,8}")
ROOT = "/sys/class/infiniband/"


def parse_rdma(answers: Answers) -> tuple[RdmaPort, ...] | None:
    """Return the ports of the RDMA devices; None if reading them was cut off."""
    if rdma_problem(answers):
        return None
    found = []
    for path in answers.below(ROOT):
        parts = path.split("/")
        if len(parts) == 4 and parts[3] == "state" and _PORT.fullmatch(parts[2]):  # noqa: PLR2004
            found.append(_port(answers, parts[0], parts[2]))
    return tuple(sorted(found, key=lambda port: (port.device, port.port)))


def rdma_problem(answers: Answers) -> str:
    """Return why the devices are unknown: a device whose firmware died hangs its readers."""
    answer = answers.by_key.get("rdma", NOT_ASKED)
    return "" if answer.state in {"ok", "not-asked"} else answer.why()


def parse_rdma_counters(
    answers: Answers, ports: tuple[RdmaPort, ...] | None
) -> tuple[Counters, ...]:
    """Return the error counters of the ports."""
    found = []
    for port in ports or ():
        folder = counters_folder(port.name)
        values = {name: answers.word(f"{folder}/{name}") or "" for name in RDMA_COUNTERS}
        found.append(counters_of(port.name, values))
    return tuple(counters for counters in found if counters.values)


def counters_folder(port: str) -> str:
    """Return the folder of a port's counters; `port` as in `mlx5_0/1`."""
    device, _, number = port.partition("/")
    return f"{ROOT}{device}/ports/{number}/counters"


def parse_ofi_plugin(answers: Answers) -> bool | None:
    """Tell whether the plugin that lets NCCL use EFA is in a usual place; None: not known."""
    states = {answers.by_key.get("link:" + path, NOT_ASKED).state for path in OFI_PLUGINS}
    # A file that is no link is an error to a reader of the link: it is there.
    if states & {"ok", "error"}:
        return True
    return False if states == {"absent"} else None


def _port(answers: Answers, device: str, number: str) -> RdmaPort:
    above = ROOT + device
    folder = f"{above}/ports/{number}"
    rate = answers.word(folder + "/rate") or ""
    gbps = _RATE.match(rate)
    indices = range(RDMA_GIDS)
    return RdmaPort(
        device=device,
        port=int(number),
        state=_named(answers.word(folder + "/state")),
        link_layer=answers.word(folder + "/link_layer") or "",
        rate_gbps=int(gbps[1]) if gbps else None,
        rate=rate,
        phys_state=_named(answers.word(folder + "/phys_state")),
        lid=_hex(answers.word(folder + "/lid")),
        pkey=_hex(answers.word(folder + "/pkeys/0")),
        gids=tuple(gid for i in indices if (gid := _gid(answers, folder, i)) is not None),
        gids_read=sum(answers.file(f"{folder}/gids/{i}").good for i in indices),
        board=answers.word(above + "/board_id") or "",
        firmware=answers.word(above + "/fw_ver") or "",
        vendor=answers.word(above + "/device/vendor") or "",
    )


def _gid(answers: Answers, folder: str, index: int) -> Gid | None:
    try:
        address = IPv6Address(answers.word(f"{folder}/gids/{index}") or "")
    except ValueError:
        return None
    # An empty place is all zero, or has a prefix alone.
    if not int(address) & ((1 << 64) - 1):
        return None
    return Gid(
        index=index,
        address=str(address),
        kind=answers.word(f"{folder}/gid_attrs/types/{index}") or "",
        interface=answers.word(f"{folder}/gid_attrs/ndevs/{index}") or "",
    )


def _named(text: str | None) -> str:
    match = _NAMED.match(text or "")
    return match[1] if match else ""


def _hex(text: str | None) -> int | None:
    return int(text, 16) if text and _HEX.fullmatch(text) else None
