"""Every check there is, in the order in which they are judged: a cause before its effects."""

from clusterctl.checks.gpu import (
    accelerators,
    busy_gpus,
    gpu_errors,
    gpu_health,
    gpu_links,
    gpu_trials,
    lost_gpus,
    pcie_paths,
    torch_gpus,
)
from clusterctl.checks.machine import health, identity, leftovers, limits, machines, ssh
from clusterctl.checks.network import (
    addresses,
    choices,
    collectives,
    connections,
    kernel_ports,
    links,
    rails,
    rdma,
    routes,
)
from clusterctl.checks.registry import CHECKS, Check
from clusterctl.checks.software import (
    containers,
    environment,
    job_check,
    launchers,
    packages,
    python,
    variables,
)
from clusterctl.checks.storage import data, disks, models

AREAS = (
    ssh, machines, identity, limits, health, models, disks, data, leftovers, addresses,
    routes, links, rdma, variables, choices, environment, connections, kernel_ports, lost_gpus,
    accelerators, busy_gpus, gpu_health, gpu_errors, gpu_links, pcie_paths, containers, python,
    packages, torch_gpus, job_check, launchers, collectives, rails, gpu_trials,
)  # fmt: skip


def every_check() -> tuple[Check, ...]:
    """Return the checks of all areas; importing these has registered them."""
    ordered: dict[str, Check] = {}

    def add(check: Check) -> None:
        for cause in check.explained_by:
            add(CHECKS[cause])
        ordered.setdefault(check.id, check)

    for area in AREAS:
        for check in CHECKS.values():
            if check.judge.__module__ == area.__name__:
                add(check)
    return tuple(ordered.values())
