"""How fast a node's links are, and how much of that an all-reduce must reach.

Shares are far below what healthy machines reach, so that a warning means a fault. For comparison,
all-reduce bandwidth in GB/s that others published, not measured by us: 8 x A100 SXM 230 to 250 of
300 that NVLink carries, 8 x H100 SXM 460 to 480 of 478, 8 x H100 PCIe 35 to 45 of 63 (alayanew.com,
2026-05-06); two nodes of 8 x H100 with NDR 400 to 450 of 400 (saturncloud.io); three nodes of
8 x A100 with 4 x HDR 85 to 96 of 100 (nccl-tests issue 119); three DGX Spark 13.9 of 25.
"""

from collections.abc import Collection

from clusterctl.checks.finding import Finding, passed, skip
from clusterctl.checks.network.choices import ranks_settings, rdma_choice
from clusterctl.checks.registry import Facts
from clusterctl.checks.wording import counted
from clusterctl.facts.gpu.accelerators import Gpu, PcieLink
from clusterctl.facts.ladder import NO_NETWORK, SOCKET
from clusterctl.facts.network.rdma import RdmaPort
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.inventory.cluster import Cluster
from clusterctl.network.choice import Network
from clusterctl.values import dataclass

NVSWITCH_SHARE = 0.45
BRIDGE_SHARE = 0.3
"""Two H100 PCIe with one bridge were seen at 116 of 318 GB/s (nccl-tests issue 194)."""
PCIE_SHARE = 0.2
"""Without peer-to-peer access all data go through the memory of the machine, twice."""
RDMA_SHARE = 0.4
TCP_SHARE = 0.2
FAST_TCP_SHARE = 0.05
"""One connection of one process uses only a part of a fast link."""
TCP_GBPS = 10
PCIE_GBPS = {1: 2.0, 2: 4.0, 3: 7.9, 4: 15.8, 5: 31.5, 6: 60.5}
"""Gb/s that a lane of each generation carries in one direction."""
BITS = 8
MBPS = 1000
FULL_BLOCK = 1 << 28
"""Bytes from which NVLinks are used well; less moves proportionally slower at worst."""
_PAIR = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What some links carry, and the least that an all-reduce over them must reach."""

    gbps: float
    least: float
    links: str
    """The links in words: `18 NVLinks`, `8 RDMA ports`."""

    def part(self, found: float) -> str:
        """Return what was reached in words: `2890 Gb/s, 76 % of the 3825 Gb/s of 18 NVLinks`."""
        share = 100 * found / self.gbps
        return f"{found:.4g} Gb/s, {share:.0f} % of the {self.gbps:.4g} Gb/s of {self.links}"

    def wanted(self) -> str:
        """Return the least in words: `at least 2295 Gb/s, 60 % of what 18 NVLinks should carry`."""
        share = 100 * self.least / self.gbps
        return f"at least {self.least:.4g} Gb/s, {share:.0f} % of what {self.links} should carry"


def report(
    nodes: str | tuple[str, ...], does: str, gbps: float, expected: Expectation | None, found: str
) -> Finding:
    """Return what was reached, and of what; without an expectation it is no pass."""
    if expected is not None:
        message = f"{does} {expected.part(gbps)}"
        return passed(nodes, message, wanted=expected.wanted(), found=found)
    nothing = "nothing to compare it with: the speed of the links is unknown"
    return skip(nodes, f"{does} {gbps:.4g} Gb/s; {nothing}", found=found)


def between_gpus(
    node: NodeFacts, indexes: Collection[int], block_bytes: int | None
) -> Expectation | None:
    """Return what connects these GPUs of a node; None if that is unknown.

    Args:
        indexes: of the GPUs.
        block_bytes: what they summed; None: unknown. It is small if little memory is free, and
            if the sum is very slow, so that it cannot be left uncompared.
    """
    gpus = [gpu for gpu in node.devices if gpu.index in indexes]
    if len(gpus) != len(indexes) or len(gpus) < _PAIR:
        return None
    switched = _has_switches(node, gpus)
    if not all(gpu.nvlinks == () for gpu in gpus):
        rates = [gpu.nvlink_gb_s or 0.0 for gpu in gpus]
        if not min(rates) or not (switched or len(gpus) == _PAIR):
            return None  # bridges may connect pairs only, and PCIe is then a part of each ring
        gbps = BITS * min(rates)
        links = counted(sum(gpus[rates.index(min(rates))].nvlinks or ()), "NVLink")
        share = NVSWITCH_SHARE if switched else BRIDGE_SHARE
        share *= min((block_bytes or FULL_BLOCK) / FULL_BLOCK, 1.0)
        return Expectation(gbps=gbps, least=share * gbps, links=links)
    slots = [(pcie_gbps(gpu.link), gpu.link) for gpu in gpus]
    known = [(gbps, link) for gbps, link in slots if gbps is not None and link is not None]
    if len(known) != len(gpus):
        return None
    gbps, link = min(known, key=lambda one: one[0])
    links = f"PCIe {link.max_generation} x{_lanes(link)}"
    return Expectation(gbps=gbps, least=PCIE_SHARE * gbps, links=links)


def _has_switches(node: NodeFacts, gpus: list[Gpu]) -> bool:
    manager = node.gpu_driver.fabric_manager
    return (manager is not None and manager.state == "active") or all(
        gpu.fabric and gpu.fabric.state == "Completed" for gpu in gpus
    )


def pcie_gbps(link: PcieLink | None) -> float | None:
    """Return what a GPU's slot carries in one direction; None: unknown."""
    lane = PCIE_GBPS.get(link.max_generation or 0) if link else None
    return lane * _lanes(link) or None if lane and link else None


def _lanes(link: PcieLink) -> int:
    """Return how many lanes work, also while idle; a slot may have fewer than the GPU supports."""
    return min((lanes for lanes in (link.width, link.max_width) if lanes), default=0)


def between_nodes(
    facts: Facts, names: Collection[str], network: Network, cluster: Cluster, *, rails: int
) -> Expectation | None:
    """Return what connects these nodes: the slowest of their networks; None: unknown.

    Args:
        names: of those that took part.
        network: the addresses that they use.
        cluster: the job's own settings.
        rails: GPUs of each node that sent data at the same time; 0: the CPUs did.
    """
    found = [_of_node(facts[name], network, cluster, rails) for name in names]
    known = [one for one in found if one is not None]
    return min(known, key=lambda one: one.least) if known and len(known) == len(found) else None


def _of_node(node: NodeFacts, network: Network, cluster: Cluster, rails: int) -> Expectation | None:
    ways = node.trials.ways if rails else frozenset()
    if ways & NO_NETWORK:
        return None
    ports: tuple[RdmaPort, ...] = ()
    if rails and SOCKET not in ways:
        if node.rdma is None:
            return None
        ports, _ = rdma_choice(node, ranks_settings(node, network, cluster))
    if ports:
        rates = [port.rate_gbps for port in ports]
        if not all(rates):
            return None
        used = min(len(ports), rails)
        port, slot = min(rate for rate in rates if rate), _slowest_slot(node)
        # Each rail goes through its GPU's slot.
        gbps = used * port if slot is None else min(used * port, rails * slot)
        links = counted(used, "RDMA port")
        links += "" if slot is None or gbps == used * port else " behind the GPUs' PCIe"
        return Expectation(gbps=gbps, least=RDMA_SHARE * gbps, links=links)
    place = network.nodes.get(node.node)
    if place is None or not place.speed_mbps:
        return None
    link = place.speed_mbps / MBPS
    least = max(FAST_TCP_SHARE * link, TCP_SHARE * min(link, TCP_GBPS))
    return Expectation(gbps=link, least=least, links="the slowest link")


def _slowest_slot(node: NodeFacts) -> float | None:
    slots = [pcie_gbps(gpu.link) for gpu in node.devices]
    return min((slot for slot in slots if slot is not None), default=None)
