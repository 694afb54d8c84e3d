"""Hosts of Ansible inventories, hostfiles and Slurm allocations."""

from __future__ import annotations

import json
import string
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.errors import InventoryError, UsageError
from clusterctl.inventory.other_programs import ansible
from clusterctl.inventory.other_programs.ansible_variables import read_arguments
from clusterctl.inventory.ranges import expand_hosts, fold_hosts
from clusterctl.inventory.sources import load_source, slurm_cluster

LAB = {"ansible_ssh_private_key_file": "~/.ssh/lab key"} | {
    "ansible_ssh_common_args": "-o ProxyJump=me@gate -o ControlMaster=auto"
}
LISTED = {
    "_meta": {
        "hostvars": {
            "gate": {"ansible_host": "10.0.0.1"},
            "gpu01": {"ansible_user": "ubuntu", "ansible_port": 22000, **LAB},
            "gpu07": {
                "ansible_user": "ada", "ansible_port": 2222, "ansible_host": "10.0.0.7", **LAB
            },
            "even2": {"ansible_user": "ada", "ansible_port": 2200, **LAB},
        },
        "profile": "inventory_legacy",
    },
    "all": {"children": ["ungrouped", "train"]},
    "gpus": {"hosts": ["gpu01", "gpu07"]},
    "more": {"hosts": ["even2", "gpu07"]},
    "train": {"children": ["gpus", "more"]},
    "ungrouped": {"hosts": ["gate"]},
}  # fmt: skip
"""What `ansible-inventory --list` of ansible-core 2.19 prints of such an inventory."""


@pytest.fixture(autouse=True, scope="module")
def without_ansible() -> Iterator[None]:
    """This machine may have it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ansible, "LISTER", "no-such-program")
        yield


Found = list[tuple[str, str | None, int | None]]

TRAIN: Found = [("gpu01", "ubuntu", 22000), ("10.0.0.7", "ada", 2222), ("even2", "ada", 2200)]


def hosts(path: Path, group: str | None = None) -> Found:
    nodes = load_source(path, name="lab", group=group).nodes
    return [(node.host, node.ssh.user, node.ssh.port) for node in nodes]


def written(folder: Path, text: str | bytes, name: str = "inventory") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def listing(folder: Path, variables: dict[str, object], **groups: list[str]) -> Path:
    members = {name: {"hosts": hosts} for name, hosts in groups.items()}
    top = {"all": {"children": ["ungrouped", *groups]}}
    return written(folder, json.dumps({"_meta": {"hostvars": variables}, **top, **members}))


def test_what_ansible_lists_is_read(tmp_path: Path) -> None:
    path = written(tmp_path, json.dumps(LISTED, indent="\t"), "all.json")
    assert hosts(path, "train") == TRAIN
    assert hosts(path, "gpus") == TRAIN[:2]
    assert hosts(path, "all") == [("10.0.0.1", None, None), *TRAIN]
    assert hosts(path) == TRAIN  # others are reached through gate
    ssh = load_source(path, name="lab", group="gpus").nodes[0].ssh
    assert ssh.identity == str(Path("~/.ssh/lab key").expanduser())
    assert ssh.jump == "me@gate"


def test_a_connection_to_this_machine_needs_no_ssh(tmp_path: Path) -> None:
    path = listing(tmp_path, {"head": {"ansible_connection": "local"}}, x=["head"])
    (node,) = load_source(path, name="lab").nodes
    assert (node.host, node.local) == ("localhost", True)


def test_line_ends_and_marks_of_other_systems_change_nothing(tmp_path: Path) -> None:
    text = "gpu01 slots=8\ngpu02 slots=8 # two\n"
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
    ("variables", "problem"),
    [
        ({"ansible_port": "ssh"}, "nodes[0].port: expected a"),
        ({"ansible_port": 99999}, "nodes[0].port: expected a"),
        ({"ansible_user": "{{ me }}"}, 'expected a plain value, found x: "{{ me }}" for user'),
        (
            {"ansible_user": {"__ansible_vault": "1"}},
            "expected a plain value, found x: what Ansible computes for user",
        ),
        (
            {"ansible_host": "10.0.0.[1:8]"},
            "expected one address in ansible_host (a range belongs into the host's name)",
        ),
        ({"ansible_connection": "winrm"}, 'expected a host that is reached by SSH, found "winrm"'),
        ({"ansible_host": "bad!name"}, "nodes[0].host: expected a host"),
        ({"ansible_host": "y"}, 'nodes[1].host: expected each host once, found "y"'),
    ],
)
def test_what_is_wrong_is_told(tmp_path: Path, variables: dict[str, object], problem: str) -> None:
    path = listing(tmp_path, {"x": variables}, a=["x", "y"])
    with pytest.raises(InventoryError) as caught:
        hosts(path)
    assert f"{path}:1: {problem}" in "\n".join(caught.value.problems)
    assert caught.value.hint


def test_a_group_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(InventoryError, match=r"expected a group of all, gpus, found .nope."):
        hosts(listing(tmp_path, {}, gpus=["x"]), "nope")
    with pytest.raises(UsageError, match="--group gpus: expected an Ansible inventory, found"):
        hosts(written(tmp_path, "gpu01 slots=8\n"), "gpus")


WORDS = """\
[a] [b:children] [a:vars] [c:nope] a b x y[1:3] y[01:10:3] z[a:c] [::1] fd00::5 # ;x '
ansible_user=me ansible_port=1 ansible_host={{x}} slots=8 = x:22 [9:1] []
"""
LINES = st.lists(
    st.sampled_from(WORDS.split()) | st.text(string.printable, max_size=6), max_size=4
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


@pytest.mark.parametrize(
    ("arguments", "taken", "left"),
    [
        ("-o ProxyJump=a@b:22,c", {"jump": "a@b:22,c"}, []),
        ('-o ProxyJump="root@192.0.2.9"', {"jump": "root@192.0.2.9"}, []),
        ("-o proxyjump=a@b", {"jump": "a@b"}, []),
        ('-o "ProxyJump a@b"', {"jump": "a@b"}, []),
        ("-oProxyJump=a@b -Ja@c", {"jump": "a@b"}, []),
        ('-o ProxyCommand="ssh -W %h:%p -q me@10.0.0.1"', {"jump": "me@10.0.0.1"}, []),
        ('-o ProxyCommand="ssh -p 2222 -l me b nc %h 22"', {"jump": "me@b:2222"}, []),
        ('-o ProxyCommand="ssh -i key -W %h:%p b"', {}, ["ProxyCommand ssh -i key -W %h:%p b"]),
        ('-o ProxyCommand="aws ssm %h"', {}, ["ProxyCommand aws ssm %h"]),
        ("-F ./ssh.cfg -C -p 2222 -o User=me", {"port": "2222", "user": "me"}, ["-F ./ssh.cfg"]),
        ("-o ControlMaster=auto -o StrictHostKeyChecking=no", {}, ["StrictHostKeyChecking no"]),
        ("-o 'x", {}, ["-o 'x"]),
    ],
)
def test_arguments_of_ssh_are_taken_over_or_named(
    tmp_path: Path, arguments: str, taken: dict[str, str], left: list[str]
) -> None:
    assert read_arguments(arguments) == (taken, left)
    notes: list[str] = []
    path = listing(tmp_path, {"x": {"ansible_ssh_common_args": arguments}}, a=["x"])
    (node,) = load_source(path, name="lab", notes=notes).nodes
    assert node.ssh.jump == taken.get("jump")
    assert notes == [f"{path}:1: not taken over: {one} (write it in ~/.ssh/config)" for one in left]


def test_groups_and_the_bastion_are_named(tmp_path: Path) -> None:
    through = {"ansible_ssh_common_args": "-o ProxyJump=u@192.0.2.1:22"}
    variables: dict[str, object] = {
        "bastion": {"ansible_host": "192.0.2.1"},
        "g1": through,
        "g2": {**through, "ansible_host": "10.0.0.2", "ansible_password": "x"},
    }
    path = listing(tmp_path, variables, public=["bastion"], private=["g1", "g2"])
    notes: list[str] = []
    nodes = load_source(path, name="lab", notes=notes).nodes
    assert [(node.host, node.name) for node in nodes] == [("g1", "g1"), ("10.0.0.2", "g2")]
    password, groups, bastion = notes
    assert password == f"{path}:1: not taken over: ansible_password; use a key"
    assert groups == (
        f"{path}:1: hosts of all groups are taken (public 1, private 2); of one: --group NAME"
    )
    assert bastion == (
        f"{path}:1: bastion is left out: others are reached through it (--group takes it)"
    )


def test_a_head_node_through_which_its_group_is_reached_stays(tmp_path: Path) -> None:
    variables: dict[str, object] = {"g1": {"ansible_ssh_common_args": "-J head"}}
    path = listing(tmp_path, variables, gpu=["head", "g1"], login=["head"])
    assert [host for host, *_ in hosts(path)] == ["head", "g1"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("inventory", "[gpus]\ngpu[01:02]\n"),
        ("inventory", "gpu01 ansible_user=me\n"),
        ("inventory.yml", "all:\n  hosts:\n    g1: {ansible_user: !vault x}\n"),
        ("inventory.yml", "nodes: {hosts: {g2: }}\n"),
        ("aws_ec2.yml", "plugin: aws_ec2\nregions: [x]\n"),
    ],
)
def test_an_inventory_is_listed_by_ansible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    path = written(tmp_path, text, name)
    with pytest.raises(InventoryError, match="and no Ansible to read it") as caught:
        hosts(path)
    assert f"{ansible.LISTER} -i {path} --list > all.json" in str(caught.value.hint)
    lister = written(tmp_path, f"#!/bin/sh\necho '{json.dumps(LISTED)}'\n", "lister")
    lister.chmod(0o755)
    monkeypatch.setattr(ansible, "LISTER", str(lister))
    assert hosts(path) == TRAIN
    lister.write_text("#!/bin/sh\necho '[ERROR]: no vault password' >&2; exit 1\n")
    with pytest.raises(InventoryError, match=r"found a failure of .*: no vault password"):
        hosts(path)


@pytest.mark.parametrize(
    ("text", "told", "hint"),
    [
        (
            "#!/bin/bash\n#SBATCH --nodes=2\nsrun torchrun t.py\n",
            "found a script for sbatch",
            "clusterctl launch --launcher slurm",
        ),
        (
            "Host bastion\n  HostName 1.2.3.4\nHost g1 g2\n  ProxyJump bastion\nHost *\n",
            "found an ssh_config",
            ": clusterctl init g1 g2",
        ),
        (
            "Host j\n User me\nHost a a2\n HostName 10.0.0.2\n ProxyJump me@j:22\nHost a\n",
            "found an ssh_config",
            ": clusterctl init a",
        ),
        (
            "index,ip\ntrainer-28,10.0.0.1\n",
            'expected one host a line, with spaces behind it, found commas: "index,ip"',
            "--from reads",
        ),
    ],
)
def test_files_that_list_no_hosts_are_refused(
    tmp_path: Path, text: str, told: str, hint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        hosts(written(tmp_path, text))
    assert told in str(caught.value)
    assert hint in str(caught.value.hint)
