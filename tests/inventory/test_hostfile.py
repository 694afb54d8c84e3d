"""Hostfiles of MPI, DeepSpeed and Horovod."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.errors import InventoryError
from clusterctl.inventory import load


@pytest.fixture
def hostfile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path("hostfile")


def test_a_hostfile_is_a_cluster_of_its_name(hostfile: Path) -> None:
    hostfile.write_text(
        "# made by hand\n"
        "\n"
        "gpu01 slots=8\n"
        "  ubuntu@gpu02\tslots=4   # the slow one\n"
        "gpu03:2\n"
        "gpu04 slots=8 user=root port=2222\n"
        "gpu[05-06] slots=8\n"
        "fd00::5\n"
        "gpu07\n"
    )
    cluster = load(hostfile)
    assert cluster.name == "hostfile"
    found = [(node.host, node.gpus, node.ssh.user, node.ssh.port) for node in cluster.nodes]
    assert found == [
        ("gpu01", 8, None, None),
        ("gpu02", 4, "ubuntu", None),
        ("gpu03", 2, None, None),
        ("gpu04", 8, "root", 2222),
        ("gpu05", 8, None, None),
        ("gpu06", 8, None, None),
        ("fd00::5", None, None, None),
        ("gpu07", None, None, None),
    ]
    assert cluster.nodes[1].source == "hostfile:4"


def test_every_problem_is_told_with_its_line(hostfile: Path) -> None:
    hostfile.write_text(
        "gpu01 slots=8\n"
        "gpu01 slots=4\n"
        "gpu02 slot=8\n"
        "gpu03 slots=many\n"
        "gpu04 max_slots=8\n"
        "gpu05:4 slots=4\n"
        "gpu[09-07] slots=8\n"
        "gpu10 slots=9999\n"
        "gpu11 8\n"
    )
    with pytest.raises(InventoryError) as caught:
        load(hostfile)
    assert list(caught.value.problems) == [
        (
            'hostfile:2: nodes[1].host: expected each host once, found "gpu01" again'
            " (first at hostfile:1)"
        ),
        'hostfile:3: expected slots=..., found "slot=8"',
        'hostfile:4: expected a number after =, found "slots=many"',
        'hostfile:5: expected slots=..., found "max_slots=8"',
        'hostfile:6: expected slots once (host:N is slots; of a port: port=N), found "slots=4"',
        'hostfile:7: nodes[6].host: expected the smaller number first: 07-09, found "gpu[09-07]"',
        "hostfile:8: nodes[7].gpus: expected auto, or a whole number from 0 to 256, found 9999",
        'hostfile:9: expected "gpu11 slots=8", found "gpu11 8"',
    ]


@pytest.mark.parametrize(
    ("line", "write"),
    [
        ("192.168.1.17: slots=2", "192.168.1.17 slots=2"),
        ("172.20.20.20 worker0 w0.lan", "172.20.20.20"),
        ("fd00::5 worker0", "fd00::5"),
        ("node1 4 all.q@node1 UNDEFINED", "node1 slots=4"),
        ("ssh -p 2222 root@h1", "root@h1 port=2222"),
        ("ssh root@h1", "root@h1"),
        ("rank 0=node1 slot=0", "node1"),
    ],
)
def test_a_line_of_another_form_is_one_problem_with_what_to_write(
    hostfile: Path, line: str, write: str
) -> None:
    hostfile.write_text(f"gpu01 slots=8\n{line}\n")
    with pytest.raises(InventoryError) as caught:
        load(hostfile)
    assert list(caught.value.problems) == [f'hostfile:2: expected "{write}", found "{line}"']
    hostfile.write_text(f"gpu01 slots=8\n{write}\n")
    load(hostfile)


def test_a_line_for_each_slot_is_one_problem_a_host(hostfile: Path) -> None:
    hostfile.write_text("n1\nn1\nn1\nn2\n")
    with pytest.raises(InventoryError) as caught:
        load(hostfile)
    assert list(caught.value.problems) == ['hostfile:1: expected "n1 slots=3" once, found 3 lines']


def test_an_empty_hostfile_is_an_error(hostfile: Path) -> None:
    hostfile.write_text("# nobody\n")
    with pytest.raises(InventoryError, match="hostfile:1: expected an inventory, found an empty"):
        load(hostfile)


@pytest.mark.parametrize(
    "text",
    [
        "cluster: lab\nnodes: [a]\n",
        "# c\n\n---\ncluster: lab\nnodes: [a]\n",
        '{"cluster": "lab", "nodes": ["a"]}',
        '"cluster": lab\nnodes:\n- a\n',
    ],
)
def test_yaml_is_yaml_under_any_name(hostfile: Path, text: str) -> None:
    hostfile.write_text(text)
    assert load(hostfile).name == "lab"


def test_a_hostfile_named_as_yaml_is_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "hosts.yaml"
    path.write_text("gpu01 slots=8\ngpu02 slots=8\n")
    with pytest.raises(InventoryError) as caught:
        load(path)
    assert caught.value.hint == "an MPI hostfile is read under a name without .yaml"


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("My Hosts.txt", "my-hosts"),
        ("_", "hostfile"),
        ("x" * 30, "x" * 24),
        ("é", "hostfile"),
        ("63", "hostfile"),
    ],
)
def test_the_files_name_is_made_fit(tmp_path: Path, file: str, name: str) -> None:
    path = tmp_path / file
    path.write_text("gpu01\n")
    assert load(path).name == name
