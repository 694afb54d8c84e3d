"""Nodes that Slurm chooses: those of the allocation, with the inventory's defaults."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.errors import InventoryError
from clusterctl.inventory import load
from clusterctl.inventory.dump import dump

SLURM = "cluster: lab\ndefaults: {gpus: 4}\njob: {launcher: slurm, slurm: {nodes: 2}}\n"
NODES = "nodes: [gpu01, gpu02]\n"


@pytest.fixture
def allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process be in a Slurm job."""
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "gpu[07-08],big1")


@pytest.fixture
def write(tmp_path: Path) -> Path:
    return tmp_path / "hosts.yaml"


@pytest.mark.usefixtures("allocated")
@pytest.mark.parametrize(
    "text", [SLURM, SLURM + NODES, "cluster: lab\nssh: {via: srun}\ndefaults: {gpus: 4}\n"]
)
def test_in_a_job_its_nodes_are_the_clusters_and_srun_reaches_them(write: Path, text: str) -> None:
    write.write_text(text)
    cluster = load(write)
    assert [node.name for node in cluster.nodes] == ["gpu07", "gpu08", "big1"]
    assert {(one.ssh.via, one.ssh.slurm_job, one.gpus) for one in cluster.nodes} == {
        ("srun", "4711", 4)
    }
    assert cluster.slurm_job == "4711"


@pytest.mark.usefixtures("allocated")
def test_a_launcher_of_the_command_line_decides(write: Path) -> None:
    write.write_text("cluster: lab\n" + NODES)
    assert [node.name for node in load(write, launcher="slurm").nodes] == ["gpu07", "gpu08", "big1"]
    assert [node.name for node in load(write).nodes] == ["gpu01", "gpu02"]
    write.write_text(SLURM + NODES)
    assert load(write, launcher="direct").slurm_job is None


@pytest.mark.usefixtures("allocated")
def test_nodes_that_are_listed_are_those_that_another_launcher_uses(write: Path) -> None:
    write.write_text("cluster: lab\nssh: {via: srun}\nnodes: [gpu08]\n")
    (node,) = load(write).nodes
    assert (node.name, node.ssh.slurm_job, node.local) == ("gpu08", "4711", False)


def test_outside_of_a_job_there_are_no_nodes_yet(write: Path) -> None:
    write.write_text(SLURM)
    cluster = load(write)
    assert (cluster.nodes, cluster.by_slurm) == ((), True)
    write.write_text("cluster: lab\n")
    with pytest.raises(InventoryError, match="nodes: expected a list of hosts, found nothing"):
        load(write)


@pytest.mark.usefixtures("allocated")
def test_a_list_of_nodes_in_no_known_form_is_a_problem(
    write: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", "gpu[9-1]")
    write.write_text(SLURM)
    with pytest.raises(InventoryError, match="SLURM_JOB_NODELIST"):
        load(write)


def test_options_of_sbatch_keep_what_was_typed_and_read_back(write: Path) -> None:
    written = '{gpus_per_node: "8", time: 1:30:00, oversubscribe: ""}'
    write.write_text(f"cluster: lab\nnodes: [a]\njob: {{slurm: {written}}}\n")
    options = (("gpus-per-node", "8"), ("time", "1:30:00"), ("oversubscribe", ""))
    assert load(write).job.slurm == options
    write.write_text(dump(load(write)))
    assert load(write).job.slurm == options


@pytest.mark.parametrize("key", ["--nodes", "output", "open_mode", "wrap", "N", "export", "a b"])
def test_options_that_clusterctl_sets_or_that_are_none_are_problems(write: Path, key: str) -> None:
    write.write_text(f"cluster: lab\nnodes: [a]\njob: {{slurm: {{'{key}': x}}}}\n")
    with pytest.raises(InventoryError, match=r"job\.slurm"):
        load(write)
