"""What `export` writes for other programs, read by them or by `init` again."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterctl.errors import UsageError
from clusterctl.inventory.build import cluster_from_hosts
from clusterctl.inventory.cluster import Cluster, Node, Ssh
from clusterctl.inventory.other_programs.export import (
    FORMATS,
    to_ansible,
    to_hostfile,
    to_ssh_config,
)
from clusterctl.inventory.sources import load_source

HOST = st.sampled_from(["gpu01", "gpu02", "n-7.lab", "fd00::5", "203.0.113.9", "No", "1e3.lab"])
SSH = st.builds(
    Ssh,
    user=st.none() | st.sampled_from(["root", "no", "ada"]),
    port=st.none() | st.sampled_from([22, 2222]),
    identity=st.none() | st.sampled_from(["/keys/a", "/keys/a b%h"]),
    jump=st.none() | st.sampled_from(["bastion", "root@b:22,c"]),
)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    hosts = draw(st.lists(HOST, min_size=1, max_size=4, unique_by=str.lower))
    nodes = tuple(
        Node(host=host, name=host.replace(":", "_"), ssh=draw(SSH), gpus=draw(st.integers(0, 8)))
        for host in hosts
    )
    return Cluster(name="lab", nodes=nodes)


def again(text: str, name: str, folder: Path) -> Cluster:
    path = folder / name
    path.write_text(text)
    return load_source(path, name="lab")


def listed(text: str) -> str:
    """Return what `ansible-inventory --list` prints of an inventory with one group."""
    ((group, content),) = yaml.safe_load(text)["all"]["children"].items()
    hosts = content["hosts"]
    variables = {host: own or {} for host, own in hosts.items()}
    return json.dumps({"_meta": {"hostvars": variables}, group: {"hosts": list(hosts)}})


@given(clusters())
def test_init_reads_the_hosts_of_an_ansible_inventory_again(
    tmp_path_factory: pytest.TempPathFactory, cluster: Cluster
) -> None:
    found = again(listed(to_ansible(cluster)), "all.json", tmp_path_factory.getbasetemp())
    assert [(node.host, node.ssh) for node in found.nodes] == [
        (node.host, node.ssh) for node in cluster.nodes
    ]


@given(clusters(), st.sampled_from([FORMATS["deepspeed"], FORMATS["mpi"]]))
def test_init_reads_the_hosts_of_a_hostfile_again(
    tmp_path_factory: pytest.TempPathFactory, cluster: Cluster, write: Callable[[Cluster], str]
) -> None:
    found = again(write(cluster), "hostfile", tmp_path_factory.getbasetemp())
    assert [(node.host, node.gpus) for node in found.nodes] == [
        (node.host, node.gpus or 1) for node in cluster.nodes
    ]


@settings(max_examples=25)  # each starts a process
@given(clusters())
def test_ssh_reads_its_settings(tmp_path_factory: pytest.TempPathFactory, cluster: Cluster) -> None:
    if shutil.which("ssh") is None:
        pytest.skip("no ssh here")
    config = tmp_path_factory.getbasetemp() / "config"
    config.write_text(to_ssh_config(cluster))
    node = cluster.nodes[-1]
    argv = ["ssh", "-G", "-F", str(config), "--", node.host]
    shown = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    shown_as = dict(line.partition(" ")[::2] for line in shown.splitlines())
    assert shown_as["hostname"] == node.host.lower()
    assert shown_as["port"] == str(node.ssh.port or 22)
    if node.ssh.user:
        assert shown_as["user"] == node.ssh.user
    if node.ssh.jump:
        assert shown_as["proxyjump"] == node.ssh.jump
    if node.ssh.identity:
        # `ssh -G` prints the path as the file has it; tokens are expanded later.
        assert shown_as["identityfile"] == node.ssh.identity.replace("%", "%%")


def test_what_was_read_from_yaml_is_written_again(tmp_path: Path) -> None:
    text = to_ansible(cluster_from_hosts("lab", ["10.0.0.9:2201", "10.0.0.9:2202", "gpu01"]))
    assert to_ansible(again(listed(text), "all.json", tmp_path)) == text


def test_several_servers_of_one_host_have_names_of_their_own(tmp_path: Path) -> None:
    cluster = cluster_from_hosts("lab", ["10.0.0.9:2201", "10.0.0.9:2202"])
    found = again(listed(to_ansible(cluster)), "all.json", tmp_path)
    assert [(node.host, node.ssh.port) for node in found.nodes] == [
        ("10.0.0.9", 2201), ("10.0.0.9", 2202),
    ]  # fmt: skip
    assert to_ssh_config(cluster).splitlines()[:3] == [
        "Host 10.0.0.9_2201", "  HostName 10.0.0.9", "  Port 2201",
    ]  # fmt: skip
    with pytest.raises(UsageError, match="expected each host once, since a hostfile has no ports"):
        to_hostfile("mpi", cluster)


def test_this_machine_is_reached_without_ssh(tmp_path: Path) -> None:
    cluster = cluster_from_hosts("lab", ["localhost", "gpu01"])
    found = again(listed(to_ansible(cluster)), "all.json", tmp_path)
    assert [node.local for node in found.nodes] == [True, False]
    assert to_ssh_config(cluster) == "Host gpu01\n"


def gpus(cluster: Cluster, *counts: int | None) -> Cluster:
    nodes = zip(cluster.nodes, counts, strict=True)
    return replace(cluster, nodes=tuple(replace(node, gpus=count) for node, count in nodes))


def test_a_hostfile_needs_to_know_the_gpus() -> None:
    cluster = gpus(cluster_from_hosts("lab", ["gpu[01-02]"]), 8, None)
    with pytest.raises(UsageError) as caught:
        to_hostfile("deepspeed", cluster)
    assert "gpus: expected a number for --to deepspeed, found none for gpu02" in str(caught.value)
    assert caught.value.hint
