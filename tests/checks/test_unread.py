"""A fault that nobody could look for is no pass: the rules over their fixtures, less one fact."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Iterator
from typing import Any, cast, get_args

import pytest

from clusterctl.checks.all import every_check
from clusterctl.checks.finding import Finding
from clusterctl.checks.registry import CHECKS, Facts, judge_all
from clusterctl.facts.nodefacts import from_document
from clusterctl.inventory.cluster import Cluster
from clusterctl.model.from_json import type_hints
from clusterctl.network.choice import Network, choose_network
from tests.checks.fixture_facts import cases_of

NO_COUNTER_OF_ALL = "GPUs count different faults of their memory; one counter is enough to judge"
UNDER_LOAD = "the generation counts only while the GPU works, the lanes always"
SECOND_TRIP = "it is made whenever this check is reported"
OTHER_CHECK = "another check reports it as unknown"
SOME_LACK_IT = "it is compared where it is known: virtual links, RoCE and some filesystems lack it"
KERNEL_WRITES = "the kernel writes it for every interface"

ENOUGH = {
    ("accelerator.fabric", "Gpus.kernel"): "the GPUs report themselves that they joined",
    ("accelerator.fabric", "GpuDriver.fabric_manager"): "as above: a container does not see it",
    ("accelerator.lost", "NodeFacts.kernel_log"): "accelerator.xid then reports that it is unread",
    ("accelerator.memory", "Gpu.memory"): NO_COUNTER_OF_ALL,
    ("accelerator.memory", "Gpu.ecc_uncorrected"): NO_COUNTER_OF_ALL,
    ("accelerator.memory", "Gpu.remap_pending"): NO_COUNTER_OF_ALL,
    ("accelerator.memory", "GpuMemory.remap_failure"): NO_COUNTER_OF_ALL,
    ("accelerator.memory", "GpuMemory.repair_pending"): NO_COUNTER_OF_ALL,
    ("accelerator.memory", "GpuMemory.sram_threshold"): NO_COUNTER_OF_ALL,
    ("accelerator.memory-history", "GpuMemory.retired_pages"): NO_COUNTER_OF_ALL,
    ("accelerator.pcie", "PcieLink.max_width"): "what a slot could carry is not told everywhere",
    ("accelerator.pcie", "PcieLink.generation"): UNDER_LOAD,
    ("accelerator.pcie", "PcieLink.max_generation"): UNDER_LOAD,
    ("accelerator.pcie", "Gpu.throttle"): UNDER_LOAD,
    ("accelerator.pcie", "Gpu.utilization"): UNDER_LOAD,
    ("accelerator.busy", "Gpu.utilization"): "the memory in use is enough to judge",
    ("accelerator.busy", "Gpu.processes"): "as above",
    ("accelerator.busy", "Gpu.persistence"): "as above",
    ("accelerator.pcie-errors", "PcieLink.correctable"): "older kernels count only fatal errors",
    ("accelerator.temperature", "Gpu.utilization"): "it is judged by its own limit",
    ("network.transport", "NodeFacts.environment"): OTHER_CHECK,
    ("environment.conflicts", "NodeFacts.gpus"): OTHER_CHECK,
    ("environment.conflicts", "NodeFacts.rdma"): OTHER_CHECK,
    ("job.launcher-config", "NodeFacts.gpus"): OTHER_CHECK,
    ("network.master-reach", "NodeFacts.firewall_chains"): "the finding then names the other end",
    ("environment.values", "NodeFacts.job_environment"): "a job without env_init has none",
    ("network.link", "Interface.mtu"): KERNEL_WRITES,
    ("network.link", "Interface.speed_mbps"): SOME_LACK_IT,
    ("network.rdma-fabric", "RdmaPort.pkey"): SOME_LACK_IT,
    ("network.rdma-fabric", "RdmaPort.lid"): SOME_LACK_IT,
    ("network.rdma-gids", "NodeFacts.environment"): OTHER_CHECK,
    ("network.rdma-links", "RdmaPort.mtu"): "ibv_devinfo tells it where it is installed",
    ("network.rdma-links", "RdmaPort.rate_gbps"): SOME_LACK_IT,
    ("network.route", "NodeFacts.between"): SECOND_TRIP,
    ("network.route", "Interface.rp_filter"): KERNEL_WRITES,
    ("network.subnet", "Interface.running"): KERNEL_WRITES,
    ("node.cpus", "CgroupLimits.memory_bytes"): "one read gives all limits",
    ("node.hostname", "NodeFacts.hostname_addresses"): "a name without an address does no harm",
    ("node.memlock", "MemoryUse.cma_bytes"): "a kernel without such a reserve does not print it",
    ("node.memlock", "MachineState.memory"): OTHER_CHECK,
    ("node.memlock", "NodeFacts.machine"): OTHER_CHECK,
    ("node.processes", "Limits.address_space_hard"): "one read gives all limits",
    ("node.processes", "Limits.cpu_hard"): "as above",
    ("node.memory", "MemoryUse.swap_bytes"): "one read gives all of /proc/meminfo",
    ("ssh.login", "SshStatus.connect_s"): "a connection that was there before took no login",
    ("storage.room", "PathFacts.free_files"): SOME_LACK_IT,
    ("storage.room", "PathFacts.total_files"): SOME_LACK_IT,
    ("storage.room", "PathFacts.free_bytes"): "one call gives it with the total",
    ("storage.speed", "PathFacts.file_s"): "it is measured with the rate of writes",
    ("storage.shared", "NodeFacts.between"): SECOND_TRIP,
    ("storage.shared", "TokenSeen.delay_s"): SECOND_TRIP,
}
"""By check and fact: why a node still passes of which that alone is unknown."""


@functools.cache
def optional(kind: type) -> dict[str, bool]:
    """Return the fields of a dataclass, and which may be unknown; of another type none."""
    if not dataclasses.is_dataclass(kind):
        return {}
    hints = type_hints(kind)
    return {f.name: type(None) in get_args(hints[f.name]) for f in dataclasses.fields(kind)}


def known(value: Any) -> Iterator[tuple[type, str]]:
    """Yield the facts within a value that are known and might not have been."""
    if isinstance(value, tuple):
        for one in value:
            yield from known(one)
    kind: type = type(value)
    for name, may_be_unknown in optional(kind).items():
        own = getattr(value, name)
        if own is not None and may_be_unknown:
            yield kind, name
        yield from known(own)


def without(value: Any, kind: type, name: str) -> Any:
    """Return the value with this fact unknown, wherever in it that is; itself if it has none."""
    if isinstance(value, tuple):
        items = tuple(without(one, kind, name) for one in value)
        return value if all(map(operator.is_, items, value)) else items
    less, own_kind = {}, cast("type", type(value))
    for field in optional(own_kind):
        own = getattr(value, field)
        found = None if isinstance(value, kind) and field == name else without(own, kind, name)
        if found is not own:
            less[field] = found
    return dataclasses.replace(value, **less) if less else value


@dataclasses.dataclass(frozen=True, slots=True)
class World:
    """The facts of all nodes, and what checks say of them."""

    facts: Facts
    cluster: Cluster
    network: Network
    said: dict[str, tuple[Finding, ...]] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, facts: Facts, cluster: Cluster) -> World:
        return cls(facts, cluster, choose_network(cluster, facts))

    def statuses(self, identity: str, node: str) -> set[str]:
        """Return what a check says of a node; it judges once."""
        if identity not in self.said:
            judged = judge_all([CHECKS[identity]], self.facts, self.network, self.cluster)
            self.said[identity] = judged
        return {finding.status for finding in self.said[identity] if node in finding.nodes}


def causes(identity: str) -> set[str]:
    """Return the checks whose failure explains one of this check, however far away."""
    direct = set(CHECKS[identity].explained_by)
    return direct.union(*map(causes, direct))


def passes_now(identity: str, before: World, after: World, node: str) -> bool:
    """Tell whether a node passes a check that it failed, and nothing explains that."""
    if after.statuses(identity, node) != {"pass"}:
        return False
    return not any(
        (after.statuses(cause, node) - before.statuses(cause, node)) & {"fail", "unknown", "skip"}
        for cause in causes(identity)
    )


@pytest.mark.parametrize("identity", [check.id for check in every_check()])
def test_a_fault_that_could_not_be_looked_for_is_no_pass(identity: str) -> None:
    unseen: dict[tuple[str, str], list[str]] = {}
    for case in cases_of(identity):
        before = World.of(from_document({"nodes": case.facts}), case.cluster)
        for name, node in before.facts.items():
            if not before.statuses(identity, name) & {"fail", "warn"}:
                continue
            for kind, field in sorted(set(known(node)), key=str):
                less = {**before.facts, name: without(node, kind, field)}
                if passes_now(identity, before, World.of(less, case.cluster), name):
                    key = identity, f"{kind.__name__}.{field}"
                    unseen.setdefault(key, []).append(case.name)

    assert unseen.keys() == {key for key in ENOUGH if key[0] == identity}, unseen
