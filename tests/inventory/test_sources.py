"""Hosts of Ansible inventories, hostfiles and Slurm allocations."""

from __future__ import annotations

import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.errors import InventoryError, UsageError
from clusterctl.inventory.ranges import expand_hosts, fold_hosts
from clusterctl.inventory.sources import load_source, slurm_cluster

INI = """\
# machines of the lab
gate ansible_host=10.0.0.1

[gpus]
gpu[01:02] ansible_user=ubuntu      # two at once
gpu07:2222 ansible_host=10.0.0.7

[more]
node-[a:c].lab
even[2:6:2]

[train:children]
gpus
more

[more:vars]
ansible_port = 2200

[train:vars]
ansible_user=ada
ansible_port=22000
ansible_ssh_private_key_file="~/.ssh/lab key"
ansible_ssh_common_args='-o ProxyJump=me@gate -o ControlMaster=auto'
"""

YAML = """\
all:
  hosts:
    gate: {ansible_host: 10.0.0.1}
  children:
    train:
      vars:
        ansible_user: ada
        ansible_port: 22000
        ansible_ssh_private_key_file: ~/.ssh/lab key
        ansible_ssh_common_args: -o ProxyJump=me@gate -o ControlMaster=auto
      children:
        gpus:
          hosts:
            gpu[01:02]: {ansible_user: ubuntu}
            gpu07: {ansible_host: 10.0.0.7, ansible_port: 2222}
        more:
          hosts:
            node-[a:c].lab:
            even[2:6:2]:
          vars: {ansible_port: 2200}
"""

Found = list[tuple[str, str | None, int | None]]

TRAIN: Found = [
    ("gpu01", "ubuntu", 22000), ("gpu02", "ubuntu", 22000), ("10.0.0.7", "ada", 2222),
    ("node-a.lab", "ada", 2200), ("node-b.lab", "ada", 2200), ("node-c.lab", "ada", 2200),
    ("even2", "ada", 2200), ("even4", "ada", 2200), ("even6", "ada", 2200),
]  # fmt: skip


def hosts(path: Path, group: str | None = None) -> Found:
    nodes = load_source(path, name="lab", group=group).nodes
    return [(node.host, node.ssh.user, node.ssh.port) for node in nodes]


def written(folder: Path, text: str | bytes, name: str = "inventory") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.mark.parametrize(("name", "text"), [("inventory.ini", INI), ("inventory.yml", YAML)])
def test_an_ansible_inventory_is_read(tmp_path: Path, name: str, text: str) -> None:
    path = written(tmp_path, text, name)
    assert hosts(path, "train") == TRAIN
    assert hosts(path, "gpus") == TRAIN[:3]
    assert hosts(path) == hosts(path, "all") == [("10.0.0.1", None, None), *TRAIN]
    ssh = load_source(path, name="lab", group="gpus").nodes[0].ssh
    assert ssh.identity == str(Path("~/.ssh/lab key").expanduser())
    assert ssh.jump == "me@gate"


def test_a_host_of_two_groups_is_one_host(tmp_path: Path) -> None:
    text = "[b]\ngpu01\n[a]\ngpu01\n[a:vars]\nansible_user=a\n[b:vars]\nansible_user=b\n"
    assert hosts(written(tmp_path, text)) == [("gpu01", "b", None)]


def test_a_group_has_the_variables_of_all_its_parents(tmp_path: Path) -> None:
    text = "[a]\nx\n[p:children]\na\n[q:children]\na\n[p:vars]\nansible_user=p\n"
    path = written(tmp_path, text + "[q:vars]\nansible_port=7\n")
    assert hosts(path) == hosts(path, "p") == hosts(path, "q") == [("x", "p", 7)]


def test_a_connection_to_this_machine_needs_no_ssh(tmp_path: Path) -> None:
    path = written(tmp_path, "[x]\nhead ansible_connection=local\n")
    (node,) = load_source(path, name="lab").nodes
    assert (node.host, node.local) == ("localhost", True)


@pytest.mark.parametrize("text", [INI, YAML, "gpu01 slots=8\ngpu02 slots=8 # two\n"])
def test_line_ends_and_marks_of_other_systems_change_nothing(tmp_path: Path, text: str) -> None:
    plain = hosts(written(tmp_path, text))
    foreign = b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode()
    assert hosts(written(tmp_path, foreign)) == plain


def test_a_hostfile_is_read(tmp_path: Path) -> None:
    path = written(tmp_path, "gpu[01-02] slots=8\nroot@gpu03:4\n[fd00::5]:2\n", "hostfile")
    cluster = load_source(path, name="lab")
    assert cluster.name == "lab"
    assert [(node.host, node.ssh.user, node.gpus) for node in cluster.nodes] == [
        ("gpu01", None, 8), ("gpu02", None, 8), ("gpu03", "root", 4), ("fd00::5", None, 2),
    ]  # fmt: skip


def test_a_hosts_yaml_is_read_as_it_is(tmp_path: Path) -> None:
    path = written(tmp_path, "cluster: mine\nnodes: [{host: gpu01, gpus: 4}]\n", "hosts.yaml")
    cluster = load_source(path, name="lab")
    assert (cluster.name, cluster.nodes[0].gpus) == ("mine", 4)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[a]\nx ansible_user\n", ':2: expected NAME=VALUE, found "ansible_user"'),
        ("[a]\nx 'ansible_user=y\n", ":2: expected quotes in pairs, found"),
        ("[a:hosts:b]\nx\n", ":1: expected [GROUP], [GROUP:vars] or [GROUP:children], found"),
        ("[a:children]\nb\n", ':2: expected a group, found "b"'),
        (
            "[a:children]\nb\n[b:children]\na\n[b]\nx\n",
            ':4: expected children in no circle, found "a"',
        ),
        ("[a]\nx[5:1]\n", ":2: expected a range such as [01:16] or [a:f], of at most 4096 hosts"),
        ("[a]\nx[1:999999999]\n", ":2: expected a range such as [01:16] or [a:f]"),
        ("[a]\nx[0:99][0:99]\n", ":2: expected a range such as [01:16] or [a:f]"),
        ("[a]\nx ansible_port=ssh\n", ":2: nodes[0].port: expected a"),
        ("[a]\nx\n[a:vars]\nansible_user={{ me }}\n", ':4: expected a value, found "{{ me }}"'),
        ("[a]\n\n\nbad!name\n", ":4: nodes[0].host: expected a host"),
        ("[a]\nx\ny ansible_host=x\n", ':3: nodes[1].host: expected each host once, found "x"'),
        ("[a]\n# nobody\n", ":1: expected hosts, found none"),
        ("a: {hosts: [x]}\n", ":1: a.hosts: expected a mapping, found a list"),
        ("a:\n  hosts:\n    x: {ansible_port: 99999}\n", ":3: nodes[0].port: expected a"),
        ("a:\n  hosts:\n    x: !vault y\n", ":3: expected a plain value, found the tag !vault"),
    ],
)
def test_what_is_wrong_is_told_with_file_and_line(tmp_path: Path, text: str, problem: str) -> None:
    name = "inventory.yml" if text.startswith("a:") else "inventory"
    with pytest.raises(InventoryError) as caught:
        hosts(written(tmp_path, text, name))
    assert f"{tmp_path / name}{problem}" in "\n".join(caught.value.problems)
    assert caught.value.hint


def test_a_group_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(
        InventoryError, match='expected a group of all, gpus, found "nope"'.replace('"', ".")
    ):
        hosts(written(tmp_path, "[gpus]\nx\n"), "nope")
    with pytest.raises(UsageError, match="--group gpus: expected an Ansible inventory, found"):
        hosts(written(tmp_path, "gpu01 slots=8\n"), "gpus")


WORDS = """\
[a] [b:children] [a:vars] [c:nope] a b x y[1:3] y[01:10:3] z[a:c] [::1] fd00::5 # ;x '
ansible_user=me ansible_port=1 ansible_host={{x}} slots=8 = x:22 [9:1] []
"""
LINES = st.lists(
    st.sampled_from(WORDS.split()) | st.text(string.printable, max_size=6),
    max_size=4,
).map(" ".join)


@given(st.lists(LINES, max_size=8).map("\n".join) | st.binary(max_size=60))
def test_no_text_gives_another_error(
    tmp_path_factory: pytest.TempPathFactory, text: str | bytes
) -> None:
    folder = tmp_path_factory.getbasetemp()
    for name in ("any", "any.yml"):
        path = written(folder, text, name)
        try:
            assert load_source(path, name="lab").nodes
        except InventoryError as error:
            unplaced = [one for one in error.problems if str(path) not in one]
        else:
            unplaced = []
        assert unplaced == []


@given(
    st.recursive(
        st.none() | st.sampled_from(["x", "a", "{{x}}", "22"]),
        lambda inner: (
            st.lists(inner, max_size=2)
            | st.dictionaries(
                st.sampled_from(
                    ["all", "hosts", "children", "vars", "a", "x[1:3]", "ansible_port"]
                ),
                inner,
                max_size=3,
            )
        ),
        max_leaves=12,
    )
)
def test_no_yaml_gives_another_error(
    tmp_path_factory: pytest.TempPathFactory, value: object
) -> None:
    import yaml  # noqa: PLC0415

    path = written(tmp_path_factory.getbasetemp(), yaml.safe_dump(value), "any.yml")
    try:
        assert load_source(path, name="lab").nodes
    except InventoryError as error:
        unplaced = [one for one in error.problems if str(path) not in one]
    else:
        unplaced = []
    assert unplaced == []


NAMES = st.lists(
    st.builds("{}{}".format, st.sampled_from(["gpu", "n-", "rack1-n"]), st.integers(0, 1200)),
    min_size=1,
    max_size=30,
    unique=True,
)


@given(NAMES)
def test_the_nodes_of_an_allocation_are_found(names: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_JOB_NODELIST", fold_hosts(names))
        assert [node.host for node in slurm_cluster("lab").nodes] == names


def test_slurms_own_lists_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    # As `squeue -o %N` prints them.
    listed = "dgx-[001-002,010],login1,rack[1-2]n[08-09]"
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    monkeypatch.setenv("SLURM_NODELIST", listed)
    found = [node.host for node in slurm_cluster("lab").nodes]
    assert found == list(expand_hosts(listed))
    assert found == [
        "dgx-001", "dgx-002", "dgx-010", "login1",
        "rack1n08", "rack1n09", "rack2n08", "rack2n09",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("listed", "told"),
    [
        (None, "expected SLURM_JOB_NODELIST, which an allocation sets, found none"),
        ("gpu[1-", "SLURM_JOB_NODELIST: expected a closing ]"),
        ("gpu01,gpu01", "SLURM_JOB_NODELIST: HOST 2: expected each host once"),
    ],
)
def test_without_an_allocation_there_is_a_hint(
    monkeypatch: pytest.MonkeyPatch, listed: str | None, told: str
) -> None:
    monkeypatch.delenv("SLURM_NODELIST", raising=False)
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    if listed is not None:
        monkeypatch.setenv("SLURM_JOB_NODELIST", listed)
    with pytest.raises(UsageError) as caught:
        slurm_cluster("lab")
    assert told in str(caught.value)
    assert caught.value.hint
