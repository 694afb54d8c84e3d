"""The launcher's own file is read where the sync takes it from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from clusterctl.facts.machine.system import SshStatus
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.inventory.cluster import Cluster, Job
from clusterctl.plan.make import make_plan
from clusterctl.verbs.preflight.source_folder import with_local_config
from tests.plan.conftest import facts, network, node

CPUS = "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_CPU\nuse_cpu: true\n"


def cluster(*args: str, launcher: str = "accelerate") -> Cluster:
    job = Job(command=("t.py",), launcher=launcher, launcher_args=args)  # type: ignore[arg-type]
    return Cluster(name="lab", nodes=tuple(node(n, gpus=0) for n in range(3)), job=job)


def known() -> dict[str, NodeFacts]:
    """Return facts of nodes whose workdir is still empty."""
    return {f"n{n}": facts(n, 0, launcher_config=()) for n in range(3)}


def test_before_the_first_sync_the_plan_has_the_folders_configuration(tmp_path: Path) -> None:
    (tmp_path / "acc").mkdir()
    (tmp_path / "acc" / "cpu.yaml").write_text(CPUS)
    job = cluster("--config_file", "acc/cpu.yaml")
    read = with_local_config(job, known(), tmp_path)
    assert all(dict(each.launcher_config or ())["use_cpu"] == "true" for each in read.values())
    first = make_plan(job, read, network(), run="lab-1")
    settings = (("compute_environment", "LOCAL_MACHINE"), ("distributed_type", "MULTI_CPU"))
    then = {name: replace(each, launcher_config=settings) for name, each in known().items()}
    second = make_plan(job, then, network(), run="lab-1")
    assert [n.launcher_argv for n in first.nodes] == [n.launcher_argv for n in second.nodes]
    assert all("--multi_gpu" in each.launcher_argv for each in first.nodes)


def test_what_the_folder_does_not_bring_is_the_nodes(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(CPUS)
    before = known()
    for args in (("--config_file", "/etc/a.yaml"), ("--config_file", "b.yaml"), ()):
        assert with_local_config(cluster(*args), before, tmp_path) == before
    given = cluster("--config_file", "a.yaml")
    assert with_local_config(replace(given, job=replace(given.job, launcher="torchrun")),
                             before, tmp_path) == before  # fmt: skip
    before["n1"] = NodeFacts(node="n1", reach=SshStatus(state="unreachable"))
    found = with_local_config(given, before, tmp_path)
    assert found["n1"] == before["n1"]
    assert found["n0"].launcher_config
