"""Whether the libraries' variables are spelled right, have valid values and do not conflict."""

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping

from clusterctl.checks.finding import Finding, Status, finding, warn
from clusterctl.checks.registry import Check, Facts
from clusterctl.checks.software.known_variables import meant
from clusterctl.checks.software.settings import JOB_ENV, remove_from, settings_of
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.facts.software.settings import Setting
from clusterctl.inventory.cluster import Cluster
from clusterctl.network.choice import Network
from clusterctl.plan.processes import planned_gpus

NCCL_DOCS = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
RAY_ADDRESS = "RAY_ADDRESS"
RANKS = frozenset(
    {"MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
     "GROUP_RANK", "NODE_RANK"}
)  # fmt: skip


@Check(
    "environment.names",
    title="the variables of NCCL, torch, Gloo, CUDA and OpenMP are spelled right",
    why="A library ignores a variable that it does not know, and prints nothing.",
    fix="Correct the name, or remove the variable.",
    source=NCCL_DOCS,
    blocks=False,
    required_facts=("environment",),
)
def names(facts: Facts, network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Find names that differ slightly from a known one."""
    for node, setting in _all(facts, network, cluster):
        right = meant(setting.name)
        if right:
            yield warn(
                node.node,
                f"no library reads {setting.name!r}",
                wanted=right,
                found=f"{setting.name}={setting.value} from {setting.origin}",
                remedy=f"{remove_from(setting)}; if it is needed, set {right} in job.env",
            )


_PATHS = "LOC|NVL|PIX|PXB|PXN|P2C|PHB|SYS"
_NUMBER = r"\s*[+-]?(0x[0-9a-fA-F]+|\d+)\s*"
_TORCH_NUMBERS = (
    "TORCH_FR_BUFFER_SIZE|TORCH_NCCL_(ASYNC_ERROR_HANDLING|HEARTBEAT_TIMEOUT_SEC|RANKS_PER_ROOT"
    "|TRACE_BUFFER_SIZE|WAIT_TIMEOUT_DUMP_MILSEC|COORD_CHECK_MILSEC)"
)
_TORCH_SWITCHES = (
    "TORCH_NCCL_(BLOCKING_WAIT|HIGH_PRIORITY|DUMP_ON_TIMEOUT|PROPAGATE_ERROR|DESYNC_DEBUG"
    "|ENABLE_TIMING|ENABLE_MONITORING|RETHROW_CUDA_ERRORS|NAN_CHECK|CUDA_EVENT_CACHE)"
)
_NCCL_NUMBERS = (
    r"NCCL_(\w+_DISABLE|\w+_ENABLE|IB_TIMEOUT|IB_RETRY_CNT|IB_SL|IB_TC|IB_GID_INDEX|NTHREADS"
    "|M(AX|IN)_(P2P_)?NCHANNELS|NSOCKS_PERTHREAD|SOCKET_NTHREADS|CROSS_NIC|BUFFSIZE)"
)
_TORCH_ENDS = "torch refuses to create the process group"
_RULES: tuple[tuple[str, str, str, Status, str], ...] = (
    ("TORCH_DISTRIBUTED_DEBUG", "OFF|INFO|DETAIL", "OFF, INFO or DETAIL",
     "fail", "torch.distributed cannot be imported with it"),
    (_TORCH_NUMBERS, r"\d+", "a number", "fail", _TORCH_ENDS),
    (_TORCH_SWITCHES, "y|yes|1|t|true|n|no|0|f|false", "1 or 0", "fail", _TORCH_ENDS),
    ("NCCL_DEBUG", "VERSION|WARN|INFO|ABORT|TRACE|ATTN|NONE", "VERSION, WARN, INFO or TRACE",
     "warn", "NCCL ignores it"),
    ("NCCL_SOCKET_FAMILY", "AF_INET6?", "AF_INET or AF_INET6", "warn", "NCCL ignores it"),
    ("NCCL_(NET_GDR|P2P)_LEVEL", rf"{_PATHS}|\d+", "LOC, NVL, PIX, PXB, PHB or SYS",
     "warn", "NCCL ignores it"),
    # strtoll makes 0 of a word, and reports no error.
    (_NCCL_NUMBERS, _NUMBER, "a number", "warn", "many versions of NCCL read it as 0"),
    ("OMP_NUM_THREADS", r"[1-9]\d*(,[1-9]\d*)*", "a number greater than 0",
     "warn", "OpenMP ignores it"),
    ("CUDA_DEVICE_ORDER", "FASTEST_FIRST|PCI_BUS_ID", "PCI_BUS_ID or FASTEST_FIRST",
     "warn", "CUDA ignores it"),
)  # fmt: skip
"""Names, valid values (in any case of letters), their description, and what happens otherwise.

NCCL: param.cc and debug.cc; torch: `getCvarBool` and `getCvarInt` in c10d/Utils.hpp.
"""


@Check(
    "environment.values",
    title="the variables of NCCL, torch, OpenMP and CUDA have valid values",
    why="torch ends with an error if a value is not valid; NCCL ignores it, or reads a word as 0:"
    " NCCL_IB_DISABLE=true does not disable InfiniBand in many versions.",
    fix="Correct the value, or remove the variable: the defaults are right for most clusters.",
    source=NCCL_DOCS,
    required_facts=("environment",),
)
def values(facts: Facts, network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Match each value with what its library accepts."""
    for node, setting in _all(facts, network, cluster):
        for name, valid, wanted, status, effect in _RULES:
            if re.fullmatch(name, setting.name) and not re.fullmatch(
                valid, setting.value, re.IGNORECASE
            ):
                yield finding(
                    status,
                    node.node,
                    f"the value of {setting.name} is not valid: {effect}",
                    wanted=wanted,
                    found=f"{setting.name}={setting.value!r} from {setting.origin}",
                    remedy=remove_from(setting),
                )


@Check(
    "environment.conflicts",
    title="no variable turns off what the nodes have",
    why="Settings from a debugging session or another cluster make a run slow, or hide its errors.",
    fix="Remove the variable; set it again only for the run that needs it.",
    source=NCCL_DOCS,
    blocks=False,
    required_facts=("environment",),
)
def conflicts(node: NodeFacts, network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Apply each rule to each node's settings together."""
    if not node.answered:
        return
    by_name = {each.name: each for each in settings_of(node, network, cluster)}
    values_by_name = {name: setting.value for name, setting in by_name.items()}
    for name, applies, effect, wanted in _CONFLICTS:
        if name in by_name and applies(values_by_name, node, cluster):
            yield warn(
                node.node,
                f"{name}={shlex.quote(by_name[name].value)}: {effect}",
                wanted=wanted,
                found=f"from {by_name[name].origin}",
                remedy=remove_from(by_name[name]),
            )


Applies = Callable[[Mapping[str, str], NodeFacts, Cluster], bool]


def _is_on(name: str) -> Applies:
    return lambda values, _node, _cluster: _number(values[name]) != 0


def _several_gpus(name: str) -> Applies:
    return lambda values, node, cluster: (
        _number(values[name]) != 0 and planned_gpus(cluster, node) > 1
    )


def _any(name: str) -> Applies:
    return lambda values, _node, _cluster: bool(values[name])


def _has_active_rdma(values: Mapping[str, str], node: NodeFacts, _cluster: Cluster) -> bool:
    return _number(values["NCCL_IB_DISABLE"]) != 0 and any(port.active for port in node.rdma or ())


def _tcp_for_rdma(values: Mapping[str, str], node: NodeFacts, _cluster: Cluster) -> bool:
    tcp = values["NCCL_NET"].strip().lower() == "socket"
    return tcp and any(port.active for port in node.rdma or ())


def _one_file(values: Mapping[str, str], _node: NodeFacts, _cluster: Cluster) -> bool:
    return "%p" not in values["NCCL_DEBUG_FILE"]


def _home(values: Mapping[str, str], _node: NodeFacts, _cluster: Cluster) -> bool:
    return values["NCCL_DEBUG_FILE"].startswith("~")


def _dump_without_buffer(values: Mapping[str, str], _node: NodeFacts, _cluster: Cluster) -> bool:
    sizes = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
    empty = any(values.get(size) == "0" for size in sizes)
    return _number(values["TORCH_NCCL_DUMP_ON_TIMEOUT"]) != 0 and empty


def _blocking(values: Mapping[str, str], _node: NodeFacts, _cluster: Cluster) -> bool:
    return values["TORCH_NCCL_BLOCKING_WAIT"].lower() in {"y", "yes", "1", "t", "true"}


def _old_level(name: str) -> Applies:
    return lambda values, _node, _cluster: values[name].isdigit()


_CONFLICTS: tuple[tuple[str, Applies, str, str], ...] = (
    ("NCCL_IB_DISABLE", _has_active_rdma,
     "NCCL does not use the RDMA ports that are active here", "RDMA, which is much faster"),
    ("NCCL_NET", _tcp_for_rdma,
     "NCCL does not use the RDMA ports that are active here", "RDMA, which is much faster"),
    ("NCCL_P2P_DISABLE", _several_gpus("NCCL_P2P_DISABLE"),
     "GPUs of one node exchange data through host memory", "NVLink or PCIe"),
    ("NCCL_SHM_DISABLE", _several_gpus("NCCL_SHM_DISABLE"),
     "processes of one node exchange data through the network", "shared memory"),
    ("NCCL_NET_GDR_LEVEL", _old_level("NCCL_NET_GDR_LEVEL"),
     "numbers are an old form, whose meaning has changed", "LOC, PIX, PXB, PHB or SYS"),
    ("NCCL_P2P_LEVEL", _old_level("NCCL_P2P_LEVEL"),
     "numbers are an old form, whose meaning has changed", "LOC, NVL, PIX, PXB, PHB or SYS"),
    ("NCCL_DEBUG_FILE", _one_file,
     "the ranks of a node overwrite one file", "a name with %h and %p, such as nccl.%h.%p.log"),
    ("NCCL_DEBUG_FILE", _home, "NCCL does not expand ~", "an absolute path"),
    ("CUDA_LAUNCH_BLOCKING", _is_on("CUDA_LAUNCH_BLOCKING"),
     "every CUDA kernel waits for its end, so training is slow", "not set"),
    ("TORCH_NCCL_BLOCKING_WAIT", _blocking,
     "the watchdog that ends a hung collective is off", "not set"),
    ("TORCH_NCCL_DUMP_ON_TIMEOUT", _dump_without_buffer,
     "nothing is dumped, since the buffer of the flight recorder is 0",
     "TORCH_FR_BUFFER_SIZE=2000"),
    ("NCCL_BLOCKING_WAIT", _any("NCCL_BLOCKING_WAIT"),
     "an old name, which torch will stop reading", "TORCH_NCCL_BLOCKING_WAIT"),
    ("NCCL_ASYNC_ERROR_HANDLING", _any("NCCL_ASYNC_ERROR_HANDLING"),
     "an old name, which torch will stop reading", "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
    ("NCCL_DESYNC_DEBUG", _any("NCCL_DESYNC_DEBUG"),
     "an old name, which torch will stop reading", "TORCH_NCCL_DESYNC_DEBUG"),
    ("NCCL_ENABLE_TIMING", _any("NCCL_ENABLE_TIMING"),
     "an old name, which torch will stop reading", "TORCH_NCCL_ENABLE_TIMING"),
)  # fmt: skip
"""A variable, when it matters, what it does, and what is better."""


@Check(
    "environment.ranks",
    title="job.env leaves the variables of the rendezvous to the launcher",
    why="clusterctl and the launcher set RANK, WORLD_SIZE, MASTER_ADDR and the like for each rank;"
    " one value for all nodes would be wrong.",
    fix="Remove the variable from job.env. `network: {master_port: N}` chooses the port, and the"
    " first node of the inventory is the master.",
    source="https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables",
    blocks=False,
)
def ranks(facts: Facts, cluster: Cluster) -> Iterator[Finding]:
    """Find such variables in job.env."""
    names = RANKS | ({RAY_ADDRESS} if cluster.job.launcher == "ray" else set())
    ours = [(name, value) for name, value in cluster.job.env if name in names]
    answered = tuple(node.node for node in facts.values() if node.answered)
    for name, value in ours if answered else ():
        where = cluster.origin(f"env.{name}", JOB_ENV)
        remedy = f"remove {name} from {f'{where} in hosts.yaml' if where == JOB_ENV else where}"
        if name == RAY_ADDRESS:
            remedy += "; for a Ray that is there: job.ray_address"
        yield warn(
            answered,
            f"{where} sets {name}, which the launcher sets"
            + ("" if name == RAY_ADDRESS else " for each rank"),
            wanted=f"no {name} in {where}",
            found=f"{name}={value}",
            remedy=remedy,
        )


def _all(facts: Facts, network: Network, cluster: Cluster) -> Iterable[tuple[NodeFacts, Setting]]:
    for node in facts.values():
        if node.answered:
            for setting in settings_of(node, network, cluster):
                yield node, setting


def _number(text: str) -> int:
    """Return the number that strtoll reads: 0 for a word."""
    found = re.match(r"\s*[+-]?\d+", text)
    return int(found[0]) if found else 0
