"""Whether InfiniBand, RoCE and EFA devices are up, alike, and can reach those of other nodes.

Nodes are compared with each other. A port that is down everywhere is not meant to be used.
"""

import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from ipaddress import IPv6Address

from clusterctl.checks.finding import Finding, fail, unknown, warn
from clusterctl.checks.others import highest_of_most_frequent, most_frequent
from clusterctl.checks.registry import Check, Facts
from clusterctl.checks.software.settings import remove_from, settings_of, tcp_by_choice
from clusterctl.checks.wording import counted
from clusterctl.facts.network.rdma import Gid, RdmaPort
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.facts.software.settings import Setting
from clusterctl.inventory.cluster import Cluster
from clusterctl.network.choice import Network

PORTS = "network.rdma-ports"
FULL_MEMBER = 0x8000
"""A bit of a P_Key: the rest names the partition."""
AMAZON = "0x1d0f"
INSTALL_EFA = "install aws-ofi-nccl (on the node): https://github.com/aws/aws-ofi-nccl"
SYSFS = "https://docs.kernel.org/admin-guide/abi-stable-files.html"
NCCL = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"


def _has_ports(node: NodeFacts, cluster: Cluster) -> bool:
    return bool(node.rdma) and cluster.node(node.node).gpus_wanted != 0


def _using(facts: Facts, network: Network, cluster: Cluster) -> dict[str, tuple[RdmaPort, ...]]:
    """Return the ports of the nodes whose NCCL may use RDMA."""
    found = {}
    for node in facts.values():
        settings = {each.name: each for each in settings_of(node, network, cluster)}
        if (
            node.rdma is not None
            and not tcp_by_choice(settings)
            and cluster.node(node.node).gpus_wanted != 0
        ):
            found[node.node] = node.rdma
    return found


def _active(ports: tuple[RdmaPort, ...]) -> list[RdmaPort]:
    return [port for port in ports if port.active]


@Check(
    PORTS,
    title="each node has the active RDMA ports of the other nodes",
    why="Without one of its ports a node is slower, and all others wait for it. If a node has none,"
    " its NCCL uses TCP, which cannot connect to the RDMA of the others.",
    fix="Check the cable and the switch port; INIT means that no subnet manager runs.",
    source=SYSFS,
    blocks=False,
    applies=_has_ports,
)
def ports(facts: Facts, network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Compare the states of ports by name, and their number if the names differ."""
    using = _using(facts, network, cluster)
    counts = {name: len(_active(own)) for name, own in using.items()}
    usual = highest_of_most_frequent(counts.values()) or 0
    active = Counter(port.name for own in using.values() for port in _active(own))
    for node in facts.values():
        own = using.get(node.node)
        if own is None:
            wants_gpus = cluster.node(node.node).gpus_wanted != 0
            if usual and node.answered and node.rdma is None and wants_gpus:
                yield _unread(node, usual)
            continue
        down = [p for p in own if not p.active and 2 * active[p.name] >= max(2, len(using) - 1)]
        lacking = counts[node.node] < usual
        if not down and not lacking:
            continue
        report = warn if counts[node.node] else fail
        yield report(
            node.node,
            f"its RDMA {_named(down)} {'is' if len(down) == 1 else 'are'} not active"
            if down
            else f"it has {_number(counts[node.node])}, and most other nodes have {usual}",
            wanted="ACTIVE, as on other nodes" if down else f"{usual} active ports",
            found=", ".join(_state(port) for port in down or own) or "no RDMA device",
            remedy=_up(down[0])
            if down
            else "ibstat; lspci | grep -i -e mellanox -e infiniband"
            " (on the node) shows the devices that are there",
        )


def _number(active: int) -> str:
    return counted(active, "active RDMA port") if active else "no active RDMA port"


def _unread(node: NodeFacts, usual: int) -> Finding:
    return unknown(
        node.node,
        "its RDMA devices could not be read",
        wanted=f"{usual} active ports, as on other nodes",
        found=node.why_unknown("rdma") or "they were not asked for",
        remedy="sudo dmesg | grep -i mlx (on the node): a device whose firmware died hangs",
    )


def _named(down: list[RdmaPort]) -> str:
    names = ", ".join(port.name for port in down)
    return f"port {names}" if len(down) == 1 else f"ports {names}"


def _state(port: RdmaPort) -> str:
    return f"{port.name} {port.state or 'unknown'}" + (
        f" ({port.phys_state})" if port.phys_state and port.phys_state != "LinkUp" else ""
    )


def _up(port: RdmaPort) -> str:
    device = shlex.quote(port.device)
    if port.state == "INIT":
        return "sudo sminfo (on the node) finds no subnet manager: start opensm, or ask its keeper"
    return (
        f"ibstat {device} {port.port}; rdma link show {device}/{port.port} (on the node);"
        " check cable and switch port"
    )


@Check(
    "network.rdma-links",
    title="RDMA ports of one kind have one rate, one link layer and one MTU",
    why="A bad cable trains at a lower rate or width, and the slowest port sets the"
    " speed of all nodes. NCCL may hang, or end with a local access violation, if the MTU differs.",
    fix="Clean or replace the cable or the optics, and check the port of the switch.",
    source=SYSFS,
    blocks=False,
    explained_by=(PORTS,),
    applies=_has_ports,
)
def links(facts: Facts, network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Compare the rate with ports of the same board, and the link layer with the same port."""
    using = _using(facts, network, cluster)
    usual = _usual(using, lambda p: (p.board, p.link_layer), lambda p: (p.rate_gbps or 0, p.rate))
    for name, own in using.items():
        for port in _active(own):
            rate, text = usual[port.board, port.link_layer]
            if port.rate_gbps is not None and port.rate_gbps < rate:
                yield warn(
                    name,
                    f"its RDMA port {port.name} is slower than others of its kind",
                    wanted=text or f"{rate} Gb/s",
                    found=port.rate or f"{port.rate_gbps} Gb/s",
                    remedy=f"mlxlink -d {shlex.quote(port.device)} (on the node); check cable,"
                    " optics and switch port",
                )
    yield from _differing(
        using,
        lambda port: str(port.mtu or ""),
        "the active MTU of its RDMA port {} is another than on other nodes",
        lambda port: (
            f"ibv_devinfo -d {shlex.quote(port.device)} (on the node); set it as elsewhere"
        ),
        report=warn,
    )
    yield from _differing(
        using,
        lambda port: port.link_layer,
        "the link layer of its RDMA port {} is another than on other nodes",
        lambda port: (
            f"sudo mstconfig -d {shlex.quote(port.device)} query LINK_TYPE_P{port.port}"
            " (on the node)"
        ),
    )


def _usual(
    using: Mapping[str, tuple[RdmaPort, ...]],
    key: Callable[[RdmaPort], tuple[str, ...]],
    value: Callable[[RdmaPort], tuple[int, str]],
) -> dict[tuple[str, ...], tuple[int, str]]:
    """Return the most common value of active ports with one key; of equally common the highest."""
    values: dict[tuple[str, ...], list[tuple[int, str]]] = defaultdict(list)
    for own in using.values():
        for port in _active(own):
            values[key(port)].append(value(port))
    return {each: highest_of_most_frequent(found) for each, found in values.items()}


def _differing(
    using: Mapping[str, tuple[RdmaPort, ...]],
    value: Callable[[RdmaPort], str],
    message: str,
    remedy: Callable[[RdmaPort], str],
    *,
    report: Callable[..., Finding] = fail,
) -> Iterator[Finding]:
    """Report active ports whose value is another than that of most nodes' port of this name."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for own in using.values():
        for port in _active(own):
            found[port.name].update({value(port)} - {""})
    for name, own in using.items():
        for port in _active(own):
            mine, counts = value(port), found[port.name]
            usual, most = max(counts.items(), key=lambda item: item[1], default=("", 0))
            wanted = {usual}
            if len(counts) > most == 1:
                # Ports of one name may be different ones: only what no other node has is wrong.
                others = (p for peer, ports in using.items() if peer != name for p in ports)
                wanted = {value(p) for p in others if p.active} - {""}
            if mine and wanted and mine not in wanted:
                yield report(
                    name,
                    message.format(port.name),
                    wanted=" or ".join(sorted(wanted)),
                    found=mine,
                    remedy=remedy(port),
                )


@Check(
    "network.rdma-firmware",
    title="RDMA devices of one kind have one firmware",
    why="Firmware versions differ in bugs and in defaults, such as those of congestion control.",
    fix="Update the firmware of the nodes that differ.",
    source="https://network.nvidia.com/support/firmware/firmware-downloads/",
    blocks=False,
    applies=_has_ports,
)
def firmware(facts: Facts, network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Compare the firmware of devices with the same board; one node may have several boards."""
    using = _using(facts, network, cluster)
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for own in using.values():
        for board, version in {(port.board, port.firmware) for port in own if port.board}:
            counts[board].update({version} - {""})
    for name, own in using.items():
        for board, version in sorted({(port.board, port.firmware) for port in own}):
            usual = max(counts[board].items(), key=lambda item: item[1], default=("", 0))[0]
            if version and usual and version != usual:
                devices = sorted(
                    {p.device for p in own if (p.board, p.firmware) == (board, version)}
                )
                yield warn(
                    name,
                    "RDMA devices have another firmware than on other nodes",
                    wanted=f"{usual} ({board})",
                    found=f"{version} on {', '.join(devices)}",
                    remedy=f"sudo mstflint -d {shlex.quote(devices[0])} query (on the node)",
                )


@Check(
    "network.rdma-fabric",
    title="InfiniBand ports of one name are in one subnet and partition",
    why="Ports of different subnets or partitions cannot send to each other.",
    fix="Check the cabling, and the partitions of the subnet manager.",
    source="https://docs.nvidia.com/networking/display/mlnxofedv24100700/opensm",
    blocks=False,
    explained_by=(PORTS,),
    applies=_has_ports,
)
def fabric(facts: Facts, network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Compare subnet prefix and partition with the port of the same name; judge the LID itself."""
    using = {
        name: tuple(port for port in own if port.link_layer == "InfiniBand")
        for name, own in _using(facts, network, cluster).items()
    }
    for name, own in using.items():
        none = [port for port in _active(own) if port.lid == 0]
        if none:
            yield fail(
                name,
                f"no subnet manager has given its RDMA {_named(none)} an address",
                wanted="a LID other than 0",
                found="LID 0",
                remedy="sudo sminfo (on the node); start opensm, or ask the keeper of the fabric",
            )
    yield from _differing(
        using,
        _prefix,
        "its RDMA port {} is in another InfiniBand subnet than on other nodes",
        lambda port: (
            f"ibstat {shlex.quote(port.device)} (on the node); check to which switch it is cabled"
        ),
    )
    yield from _differing(
        using,
        lambda port: "" if port.pkey is None else f"P_Key {port.pkey & ~FULL_MEMBER:#x}",
        "its RDMA port {} is in another partition than on other nodes",
        lambda port: f"smpquery pkeys -C {shlex.quote(port.device)} (on the node)",
    )


def _prefix(port: RdmaPort) -> str:
    first = next((gid for gid in port.gids if gid.index == 0), None)
    if first is None:
        return ""
    return f"subnet {str(IPv6Address(int(IPv6Address(first.address)) >> 64 << 64))[:-2]}"


@Check(
    "network.rdma-gids",
    title="RoCE ports have addresses by which NCCL connects",
    why="NCCL connects RoCE ports by RoCE v2 addresses of one family. NCCL_IB_GID_INDEX picks a"
    " place of each port's table, which may hold another address on another node.",
    fix="Give the network interface of the port an IPv4 address, and unset NCCL_IB_GID_INDEX: since"
    " 2.21 NCCL finds the address itself.",
    source=NCCL,
    blocks=False,
    explained_by=(PORTS,),
    applies=_has_ports,
)
def gids(facts: Facts, network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Compare the addresses of Ethernet ports; NCCL uses them where there is no InfiniBand."""
    roce = {
        name: [port for port in _active(own) if port.link_layer == "Ethernet" and port.gids]
        for name, own in _using(facts, network, cluster).items()
        if not any(port.link_layer == "InfiniBand" for port in _active(own))
    }
    every = [port for own in roce.values() for port in own]
    with_ipv4 = [port for port in every if _ipv4(port)]
    for name, own in roce.items():
        bare = [port for port in own if not _ipv4(port) and port.gids_read > len(port.gids)]
        if bare and 2 * len(with_ipv4) > len(every):
            yield fail(
                name,
                f"its RoCE {_named(bare)} has no IPv4 address, as other ports have",
                wanted="a RoCE v2 address with IPv4",
                found="; ".join(sorted({gid.family for port in bare for gid in port.gids})),
                remedy=f"rdma link show {shlex.quote(bare[0].name)} (on the node) names its"
                " network interface: give that one an IPv4 address",
            )
    yield from _by_index(facts, roce, network, cluster)


def _ipv4(port: RdmaPort) -> bool:
    return any(gid.family == "RoCE v2, IPv4" for gid in port.gids)


def _by_index(
    facts: Facts, roce: Mapping[str, list[RdmaPort]], network: Network, cluster: Cluster
) -> Iterator[Finding]:
    """Judge what NCCL_IB_GID_INDEX means on each port."""
    meant: dict[str, tuple[str, RdmaPort, Setting]] = {}
    for name, own in roce.items():
        settings = settings_of(facts[name], network, cluster)
        setting = next((s for s in settings if s.name == "NCCL_IB_GID_INDEX"), None)
        if setting is None or not setting.value.isdecimal():
            continue
        for port in own:
            at: Gid | None = next((g for g in port.gids if g.index == int(setting.value)), None)
            unread = int(setting.value) >= port.gids_read
            found = at.family if at else "no address"
            if not unread and (name not in meant or not found.startswith("RoCE v2")):
                meant[name] = (found, port, setting)
    right = [found for found, _, _ in meant.values() if found.startswith("RoCE v2")]
    wanted = most_frequent(right) or "RoCE v2, IPv4"
    for name, (found, port, setting) in meant.items():
        if found != wanted:
            yield fail(
                name,
                f"NCCL_IB_GID_INDEX={setting.value} means something else on its port {port.name}",
                wanted=wanted,
                found=found,
                remedy=f"{remove_from(setting)}: since 2.21 NCCL finds the address itself",
            )


@Check(
    "network.efa",
    title="NCCL has the plugin for EFA",
    why="NCCL has no code for EFA: without aws-ofi-nccl it uses TCP, which is many times slower.",
    fix="Install the EFA installer of AWS, which brings aws-ofi-nccl, or use an image with it.",
    source="https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start-nccl.html",
    blocks=False,
    applies=lambda node, cluster: (
        _has_ports(node, cluster) and bool(_efa(node)) and node.ofi_plugin is not None
    ),
)
def efa(facts: Facts, network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Look for the plugin in its usual places, and for settings that name another one."""
    using = _using(facts, network, cluster)
    for node in facts.values():
        devices = _efa(node)
        settings = {each.name: each.value for each in settings_of(node, network, cluster)}
        named = settings.get("NCCL_NET_PLUGIN") or "ofi" in settings.get("LD_LIBRARY_PATH", "")
        if devices and node.node in using and node.ofi_plugin is False and not named:
            yield warn(
                node.node,
                "it has EFA devices, and NCCL no plugin for them: it will use TCP",
                wanted="aws-ofi-nccl in /opt/amazon/ofi-nccl, or NCCL_NET_PLUGIN",
                found=f"{counted(len(devices), 'EFA device')} and no libnccl-net.so",
                remedy=INSTALL_EFA,
            )


def _efa(node: NodeFacts) -> list[RdmaPort]:
    return [port for port in node.rdma or () if port.vendor == AMAZON]
