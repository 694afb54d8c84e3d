"""Whether each GPU reaches those of the other nodes, and by which network; `--deep` tries it.

A rail is the GPUs of one place on all nodes. All rails send data at the same time, so that a GPU
that has to share another one's network card is slow.
"""

from collections.abc import Iterator
from statistics import median

from clusterctl.checks.finding import Finding, fail, passed, skip, unknown, warn
from clusterctl.checks.gpu.gpu_trials import WAITED, not_reached
from clusterctl.checks.network.choices import named, ranks_settings, rdma_choice
from clusterctl.checks.network.collectives import DEEP, RAILS, TRANSPORT
from clusterctl.checks.network.rdma import AMAZON, INSTALL_EFA
from clusterctl.checks.registry import Check, Facts
from clusterctl.checks.software.settings import remove_from, tcp_by_choice
from clusterctl.checks.wording import main_line
from clusterctl.facts.ladder import NO_NETWORK, SOCKET, NcclTransport
from clusterctl.facts.network.rdma import RdmaPort
from clusterctl.inventory.cluster import Cluster
from clusterctl.network.choice import Network

SLOW_RAIL = 0.6
"""Part of a usual rail's bandwidth below which one is slow: two that share a card have half."""
_NCCL = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"


@Check(
    RAILS,
    title="each GPU exchanges data with those of other nodes at the usual speed",
    why="Each GPU uses the network card next to it. Without its own, two GPUs share one, and all"
    " ranks wait for them.",
    fix="Compare `nvidia-smi topo -m`, which shows the network card next to each GPU, with"
    " `ibstat` or `rdma link`. Check the cable and the switch port of that card.",
    source=_NCCL,
    explained_by=(DEEP,),
    blocks=False,
    required_facts=("rdma",),
    applies=lambda node, _cluster: bool(node.trials.rails),
)
def rails(facts: Facts, network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Report the GPUs that failed, then those whose fastest partner is far slower than usual."""
    yield from not_reached(facts, "across")
    broken = [(n, rail) for n in facts.values() for rail in n.trials.rails if rail.state != "ok"]
    # Ranks that wait for one that failed end with an error or at the limit, too.
    own = [(node, rail) for node, rail in broken if not WAITED.search(rail.error)] or broken
    for node, rail in own:
        yield fail(
            node.node,
            "GPU {gpus} cannot exchange data with those of other nodes",
            wanted="an all-reduce over this GPU of each node, then each pair of them",
            found=main_line(rail.error) or "no words",
            remedy="rdma link; nvidia-smi topo -m (on the node); clusterctl launch --debug shows"
            " what NCCL does",
            gpus=(rail.index,),
        )
    for name in {node.node for node, _ in broken} - {node.node for node, _ in own}:
        yield skip(name, "it waited for a GPU that failed")
    for node in facts.values():
        sound = [rail for rail in node.trials.rails if rail.state == "ok"]
        wrong = tuple(rail.index for rail in sound if rail.right is False)
        silent = tuple(rail.index for rail in sound if rail.right is None)
        if wrong:
            yield fail(
                node.node,
                "the sum over a GPU of each node is wrong: silent data corruption",
                wanted="the right sum",
                found="a wrong sum on GPU {gpus}",
                remedy="dcgmi diag -r 3 (on the node); clusterctl check --deep --exclude"
                f" {node.node} shows whether the others are right",
                gpus=wrong,
            )
        if silent:
            yield unknown(
                node.node,
                "GPU {gpus} gave no result",
                wanted="the right sum",
                found="none",
                remedy="clusterctl check --deep",
                gpus=silent,
            )
        if any(rail.right and rail.fastest_gbps is None for rail in sound):
            yield skip(
                node.node,
                "there was time for no pair, so that no speed is known",
                found="the sums are right",
            )
    if not broken:
        yield from _slow_rails(facts, network, cluster)


def _slow_rails(facts: Facts, network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Compare the rails of nodes that have a card for each; those that share one differ anyway.

    A card counts if NCCL uses its port on some node: it may be down only here. `deep.transport`
    judges rails that use TCP.
    """
    used = {
        port.name
        for node in facts.values()
        for port in rdma_choice(node, ranks_settings(node, network, cluster))[0]
    }
    speeds = [
        (node.node, rail, rail.fastest_gbps)
        for node in facts.values()
        if sum(port.name in used for port in node.rdma or ()) >= len(node.trials.rails)
        for rail in node.trials.rails
        if rail.fastest_gbps is not None and not (rail.transport and rail.transport.way == SOCKET)
    ]
    usual = median(gbps for _, _, gbps in speeds) if speeds else 0.0
    slow: dict[str, list[tuple[float, int]]] = {}
    for name, rail, gbps in speeds:
        if gbps < SLOW_RAIL * usual:
            slow.setdefault(name, []).append((gbps, rail.index))
    for name, found in slow.items():
        reached = dict.fromkeys(f"{gbps:.4g}" for gbps in (min(found)[0], max(found)[0]))
        yield warn(
            name,
            "the network of GPU {gpus} is far slower than that of the others",
            wanted=f"about {usual:.4g} Gb/s, as other GPUs at the same time",
            found=f"{' to '.join(reached)} Gb/s with the fastest partner",
            remedy="nvidia-smi topo -m; rdma link (on the node): is the network card next to"
            " GPU {gpus} up?",
            gpus=tuple(index for _, index in found),
        )


@Check(
    TRANSPORT,
    title="NCCL uses InfiniBand or RoCE where it is up",
    why="If NCCL finds no RDMA device it uses TCP, without an error and ten times slower.",
    fix="Give the job access to the devices: libibverbs in its image or environment,"
    " `--device /dev/infiniband` for a container, and unlimited memlock.",
    source=_NCCL,
    explained_by=(DEEP,),
    blocks=False,
    required_facts=("rdma",),
    applies=lambda node, _cluster: bool(node.trials.rails),
)
def transport(facts: Facts, network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Compare the network of NCCL's connections with the ports that are up."""
    yield from not_reached(facts, "across")
    for node in facts.values():
        told = [(rail, rail.transport) for rail in node.trials.rails if rail.transport is not None]
        if not told:
            if node.trials.rails:
                yield skip(node.node, "NCCL printed nothing of its network", found="no line of it")
            continue
        by_tcp = tuple(rail.index for rail, used in told if used.way == SOCKET)
        active = tuple(port for port in node.rdma or () if port.active)
        settings = ranks_settings(node, network, cluster)
        ports, why = rdma_choice(node, settings)
        asked = tcp_by_choice(settings)
        if by_tcp and active and not asked:
            wrong = None if ports else settings.get("NCCL_IB_HCA")
            words = _words(next(used for rail, used in told if rail.index in by_tcp))
            yield fail(
                node.node,
                "NCCL uses TCP although InfiniBand or RoCE is up",
                wanted=f"RDMA through {', '.join(port.name for port in ports or active)}",
                found=why if wrong else words,
                remedy=remove_from(wrong) if wrong else _access(active),
                gpus=by_tcp,
            )
        else:
            words = "; ".join(dict.fromkeys(_words(used) for _, used in told))
            words += f", because of {named(asked)}" if by_tcp and active and asked else ""
            yield passed(node.node, f"NCCL uses {words}", wanted="RDMA where it is up", found=words)


def _access(ports: tuple[RdmaPort, ...]) -> str:
    if any(port.vendor == AMAZON for port in ports):
        return INSTALL_EFA
    return (
        "ls /dev/infiniband; ulimit -l; ldconfig -p | grep ibverbs (on the node, as the job runs:"
        " in its container)"
    )


def _words(used: NcclTransport) -> str:
    """Return how NCCL sends data: `IB (mlx5_0:1/IB) with GPUDirect RDMA`."""
    if used.way in NO_NETWORK:
        link = "NVLink between the nodes" if used.way == "P2P" else "shared memory"
        return f"{link} ({', '.join(used.via)})"
    way = used.network or ", ".join(used.via)
    devices = f" ({', '.join(used.devices)})" if used.devices else ""
    direct = {True: " with GPUDirect RDMA", False: " without GPUDirect RDMA", None: ""}
    return f"{way}{devices}{direct[used.gpu_direct]}"
