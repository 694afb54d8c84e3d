"""A run that chooses its GPUs by variable has them alone, and a rank for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from clusterctl.facts.gpu.accelerators import Gpu, Gpus
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.inventory.cluster import Cluster, Job
from clusterctl.plan.lock import lock_name
from clusterctl.plan.options import Options
from clusterctl.plan.plan import NodePlan, Plan
from tests.plan.conftest import facts, node

Planner = Callable[..., Plan]


def uuid(number: int) -> str:
    return f"GPU-{number:08x}-0000-0000-0000-000000000000"


def known(**changes: object) -> dict[str, NodeFacts]:
    devices = tuple(
        replace(Gpu(index=n, name="H100", uuid=uuid(n)), **changes)  # type: ignore[arg-type]
        for n in range(8)
    )
    made = replace(facts(0, 8), gpus=Gpus(tool="nvidia-smi", devices=devices))
    return {"n0": made}


def planned(plan: Planner, visible: str, *, job: Job | None = None, **changes: object) -> NodePlan:
    options = changes.pop("options", Options(env=(("CUDA_VISIBLE_DEVICES", visible),)))
    job = job or Job(command=("train.py",))
    return plan(nodes=(node(0, **changes),), known=known(), job=job, options=options).nodes[0]


@pytest.mark.parametrize("visible", ["5,4", f"{uuid(5)},{uuid(4)}"])
def test_gpus_that_the_job_chooses_are_locked_and_get_a_rank_each(
    plan: Planner, visible: str
) -> None:
    made = planned(plan, visible)
    assert made.lock == f"clusterctl-run/{uuid(4)},{uuid(5)},port-29500"
    assert (made.procs, made.device) == (2, "cuda")
    values = {variable.name: variable for variable in made.env}
    assert values["CUDA_VISIBLE_DEVICES"].value == visible
    order = values["CUDA_DEVICE_ORDER"]
    assert (order.value, order.layer) == ("PCI_BUS_ID", "asked")


def test_a_job_that_chooses_no_gpus_has_the_whole_machine(plan: Planner) -> None:
    for visible in ("5,9", "", "MIG-1"):
        made = planned(plan, visible)
        assert (made.lock, made.procs) == ("clusterctl-run", 8)
        assert "CUDA_DEVICE_ORDER" not in {variable.name for variable in made.env}
    assert planned(plan, "0", options=Options()).lock == "clusterctl-run"
    assert planned(plan, "0", gpus=0).lock == "clusterctl-run"
    secret = Job(command=("train.py",), env_from=("CUDA_DEVICE_ORDER",))
    assert planned(plan, "0", job=secret).lock == "clusterctl-run"


def test_fewer_ranks_than_chosen_gpus_still_lock_what_they_see(plan: Planner) -> None:
    made = planned(plan, "0,1,2,3", gpus=2)
    assert (made.procs, made.lock.count("GPU-")) == (2, 4)
    made = planned(plan, "0,1", gpus=8)
    assert (made.procs, made.lock.count("GPU-")) == (2, 2)
    script = Job(command=("train.sh",), procs_per_node=1)
    made = planned(plan, "2,3", job=script)
    assert (made.procs, made.lock) == (1, f"clusterctl-run/{uuid(2)},{uuid(3)},port-29500")
    assert {v.name: v.value for v in made.env}["CUDA_VISIBLE_DEVICES"] == "2,3"


def test_a_lock_too_long_for_a_socket_is_the_machines() -> None:
    cluster = Cluster(name="lab", nodes=(), same_machine=True)
    assert lock_name(cluster, node(0), [uuid(0)]) == f"clusterctl-run-n0/{uuid(0)}"
    long = "n" * 60
    assert lock_name(cluster, node(0, name=long), [uuid(0)]) == f"clusterctl-run-{long}"
