"""What differs between the facts of two times: a driver that was updated, a GPU that is missing."""

from collections.abc import Iterator, Mapping
from ipaddress import ip_interface

from clusterctl.facts.gpu.accelerators import Gpus
from clusterctl.facts.network.interfaces import Interface
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.facts.software.python import Python
from clusterctl.values import dataclass

BOOT = "boot"
SETTINGS = ("MTU of", "speed of", "state of", "filesystem of")
"""Facts that add nothing new where what they belong to has come or gone."""
GIB = 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A fact that was another one before, on some nodes."""

    what: str
    """`driver`, `torch`, `MTU of eth0`, …"""
    nodes: tuple[str, ...]
    before: str
    """Empty for what did not exist."""
    after: str

    def text(self) -> str:
        """Return it in words: `driver 560.35 → 570.86`."""
        if self.what == BOOT:
            return "restarted"
        return f"{self.what} {self.before or 'none'} → {self.after or 'none'}"


def changes(before: Mapping[str, NodeFacts], now: Mapping[str, NodeFacts]) -> tuple[Change, ...]:
    """Return what changed on the nodes that are in both and answered, folded over nodes.

    A fact that is unknown at either time is no change.
    """
    folded: dict[tuple[str, str, str], list[str]] = {}
    for name, node in now.items():
        earlier = before.get(name)
        if earlier is None or not (node.answered and earlier.answered):
            continue
        for old, new in zip(_compared(earlier), _compared(node), strict=True):
            if old is None or new is None:
                continue
            for what in {**old, **new}:
                absent = None if what.startswith(SETTINGS) else ""
                was, is_now = old.get(what, absent), new.get(what, absent)
                if was is not None and is_now is not None and was != is_now:
                    folded.setdefault((what, was, is_now), []).append(name)
    return tuple(
        Change(what=what, nodes=tuple(nodes), before=was, after=is_now)
        for (what, was, is_now), nodes in folded.items()
    )


Group = Mapping[str, str | None] | None
"""Facts by name, each None if it is unknown; None: all of them are."""


def traits(node: NodeFacts) -> dict[str, str | None]:
    """Return what is compared of a node, each None if it is unknown; nothing of unknown groups."""
    return {what: value for group in _compared(node) if group for what, value in group.items()}


def _compared(node: NodeFacts) -> tuple[Group, ...]:
    """Return what stays the same from run to run on a healthy node."""
    rdma = node.rdma or ()
    return (
        _machine(node),
        _gpus(node.gpus),
        _python(node.python),
        None if node.interfaces is None else dict(_interfaces(node.interfaces)),
        {f"state of {port.device} port {port.port}": port.state or None for port in rdma},
        {
            f"filesystem of {path.path}": f"{path.source} on {path.mount}" if path.mount else None
            for path in node.paths
        },
        {f"{conf.name} in {conf.origin}": conf.value for conf in node.nccl_conf},
    )


def _machine(node: NodeFacts) -> Group:
    return {
        BOOT: node.boot_id,
        "kernel": node.kernel,
        "operating system": node.os,
        "CPUs": _text(node.cpus),
        "memory": _text(node.memory_bytes and f"{node.memory_bytes / GIB:.0f} GiB"),
        "shared memory": _text(node.shm_bytes and f"{node.shm_bytes / GIB:.0f} GiB"),
        "rsync": node.rsync,
    }


def _gpus(gpus: Gpus | None) -> Group:
    if gpus is None:
        return None
    return {
        "GPUs": _counted([gpu.name for gpu in gpus.devices]),
        "driver": gpus.driver or None,
        "CUDA of the driver": gpus.cuda or None,
        **{f"GPU {gpu.index}": gpu.uuid or None for gpu in gpus.devices},
    }


def _python(python: Python | None) -> Group:
    if python is None or not python.version:
        return None
    return {
        "Python": python.version,
        **{package.name: package.version for package in python.packages},
        "NCCL": (python.torch.nccl or None) if python.torch else None,
    }


def _interfaces(interfaces: tuple[Interface, ...]) -> Iterator[tuple[str, str | None]]:
    for interface in interfaces:
        addresses = [a for a in interface.addresses if not ip_interface(a).is_link_local]
        if addresses and not interface.loopback:
            yield f"addresses of {interface.name}", ", ".join(addresses)
            yield f"MTU of {interface.name}", _text(interface.mtu)
            yield f"speed of {interface.name}", _text(interface.speed_mbps)


def _counted(names: list[str]) -> str:
    counts = {name: names.count(name) for name in names}
    return ", ".join(f"{count} x {name}" for name, count in counts.items()) or "none"


def _text(value: object) -> str | None:
    return None if value is None else str(value)
