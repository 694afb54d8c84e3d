"""What NCCL, Gloo and TensorPipe will do with a node's interfaces and settings, and why."""

from collections.abc import Callable, Iterable, Iterator

from clusterctl.checks.finding import Finding, warn
from clusterctl.checks.network.addresses import SUBNET
from clusterctl.checks.network.rdma import PORTS
from clusterctl.checks.registry import Check, Facts
from clusterctl.checks.software.settings import settings_of, tcp_by_choice
from clusterctl.facts.network.interfaces import Interface
from clusterctl.facts.network.rdma import RdmaPort
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.facts.software.settings import Setting
from clusterctl.inventory.cluster import Cluster
from clusterctl.network.choice import Network, environment
from clusterctl.network.simulate import Pick, gloo_picks, nccl_hcas, nccl_picks, tensorpipe_picks
from clusterctl.values import dataclass

CLUSTERCTL = "clusterctl"
LIBRARIES: tuple[tuple[str, str, Callable[[str, Iterable[Interface]], Pick]], ...] = (
    ("NCCL", "NCCL_SOCKET_IFNAME", nccl_picks),
    ("Gloo", "GLOO_SOCKET_IFNAME", gloo_picks),
    ("TensorPipe", "TP_SOCKET_IFNAME", tensorpipe_picks),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryChoice:
    """What a library will use on a node."""

    node: str
    library: str
    """`NCCL`, `NCCL RDMA`, `Gloo` or `TensorPipe`."""
    picks: tuple[str, ...]
    """Interfaces, or ports of RDMA devices; empty: none."""
    why: str


def library_choices(facts: Facts, network: Network, cluster: Cluster) -> tuple[LibraryChoice, ...]:
    """Return the choices of each library on each node whose interfaces are known."""
    return tuple(
        choice
        for node in facts.values()
        if node.interfaces is not None
        for choice in _of_node(node, network, cluster)
    )


def _of_node(node: NodeFacts, network: Network, cluster: Cluster) -> Iterator[LibraryChoice]:
    settings = ranks_settings(node, network, cluster)
    for library, name, picks in LIBRARIES:
        setting = settings.get(name)
        if setting is None and library != "NCCL":
            continue  # it takes the address of the host name, which `node.hostname` judges
        found = picks(setting.value if setting else "", node.interfaces or ())
        source = named(setting) if setting else f"{name} is not set"
        why = f"{source}; {found.problem}" if found.problem else source
        yield LibraryChoice(node=node.node, library=library, picks=found.interfaces, why=why)
    ports, why = rdma_choice(node, settings)
    names = tuple(f"{port.device}:{port.port}" for port in ports)
    yield LibraryChoice(node=node.node, library="NCCL RDMA", picks=names, why=why)


def ranks_settings(node: NodeFacts, network: Network, cluster: Cluster) -> dict[str, Setting]:
    """Return the settings of a node's ranks, with those that clusterctl chooses."""
    place = network.nodes.get(node.node)
    chosen = environment(place, node) if place else ()
    found = {
        variable.name: Setting(name=variable.name, value=variable.value, origin=CLUSTERCTL)
        for variable in chosen
    }
    return found | {each.name: each for each in settings_of(node, network, cluster)}


def rdma_choice(node: NodeFacts, settings: dict[str, Setting]) -> tuple[tuple[RdmaPort, ...], str]:
    """Return the RDMA ports that NCCL will use, and why these; none: it uses TCP."""
    if not node.rdma:
        return (), "no RDMA device: TCP"
    if off := tcp_by_choice(settings):
        return (), f"{named(off)}: TCP"
    wanted = settings.get("NCCL_IB_HCA")
    active = [port for port in node.rdma if port.active]
    if not active:
        return (), "no RDMA port is active: TCP"
    ports = nccl_hcas(wanted.value if wanted else "", active)
    source = named(wanted) if wanted else "all active ports"
    return ports, source if ports else f"{source} names no active port: TCP"


def named(setting: Setting) -> str:
    """Return a setting in words: `NCCL_NET=Socket from job.env`."""
    return f"{setting.name}={setting.value} from {setting.origin}"


@Check(
    "network.transport",
    title="NCCL uses RDMA on all nodes or on none",
    why="If some nodes use RDMA and others TCP, their ranks cannot connect to each other.",
    fix="`clusterctl check --explain-network` shows what NCCL chooses on each node, and why.",
    source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html",
    explained_by=(SUBNET, PORTS),
    blocks=False,
    applies=lambda node, _cluster: bool(node.rdma),
    required_facts=("rdma",),
)
def transport(facts: Facts, network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Compare what NCCL chooses on each node."""
    chosen = {
        node.node: rdma_choice(node, ranks_settings(node, network, cluster))
        for node in facts.values()
        if node.rdma is not None
    }
    using = [name for name, (ports, _) in chosen.items() if ports]
    for name, (ports, why) in chosen.items():
        if using and not ports:
            yield warn(
                name,
                "NCCL will use TCP here, and RDMA on other nodes",
                wanted=f"RDMA, as on {len(using)} of {len(chosen)} nodes",
                found=why,
                remedy="clusterctl check --explain-network",
            )
