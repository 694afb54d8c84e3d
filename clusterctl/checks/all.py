"""Every check there is, in the order in which they are judged: a cause before its effects."""

from __future__ import annotations

from clusterctl.checks import (
    accelerators,
    addresses,
    busy_gpus,
    caches,
    choices,
    collectives,
    connections,
    containers,
    data,
    environment,
    foreign_imports,
    gpu_errors,
    gpu_health,
    gpu_links,
    gpu_trials,
    health,
    identity,
    job_check,
    kernel_ports,
    launchers,
    leftovers,
    limits,
    links,
    lost_gpus,
    machines,
    models,
    rails,
    rdma,
    routes,
    software,
    speed_history,
    ssh,
    storage,
    torch_gpus,
    variables,
)
from clusterctl.checks.registry import CHECKS, Check

AREAS = (
    ssh,
    machines,
    identity,
    limits,
    health,
    models,
    storage,
    caches,
    data,
    leftovers,
    addresses,
    routes,
    links,
    rdma,
    variables,
    choices,
    environment,
    connections,
    kernel_ports,
    lost_gpus,
    accelerators,
    busy_gpus,
    gpu_health,
    gpu_errors,
    gpu_links,
    containers,
    software,
    foreign_imports,
    torch_gpus,
    job_check,
    launchers,
    collectives,
    rails,
    gpu_trials,
    speed_history,
)


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
