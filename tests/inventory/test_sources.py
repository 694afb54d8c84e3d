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
from clusterctl.inventory import sources
from clusterctl.inventory.other_programs.ansible_variables import read_arguments
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


@pytest.fixture(autouse=True, scope="module")
def without_ansible() -> Iterator[None]:
    """This machine may have it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "LISTER", "no-such-program")
        yield


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
    assert hosts(path, "all") == [("10.0.0.1", None, None), *TRAIN]
    assert hosts(path) == TRAIN  # others are reached through gate
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
        ("[a]\n# {% raw %}\n", ":1: expected hosts, found none"),
        (
            "[a]\n{% for h in hosts %}\n{{ h }}\n{% endfor %}\n",
            ':2: expected an inventory, found a Jinja template: "{% for h in hosts %}"',
        ),
        (
            "[a]\nx ansible_host=10.0.0.[1:8]\n",
            ":2: expected one address in ansible_host (a range belongs into the host's name)",
        ),
        ("a: {hosts: [x]}\n", ":1: a.hosts: expected a mapping, found a list"),
        ("a:\n  hosts:\n    x: {ansible_port: 99999}\n", ":3: nodes[0].port: expected a"),
        (
            "a:\n  hosts:\n    x: !vault y\n",
            ":3: a.hosts.x: expected a mapping, found the tag !vault",
        ),
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
        (
            '-o ProxyCommand="ssh -i key -W %h:%p b"',
            {},
            ["ProxyCommand ssh -i key -W %h:%p b"],
        ),
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
    text = f"[a]\nx\n[a:vars]\nansible_ssh_common_args='{arguments}' # said so\n"
    if "'" not in arguments:
        notes: list[str] = []
        path = written(tmp_path, text)
        (node,) = load_source(path, name="lab", notes=notes).nodes
        assert node.ssh.jump == taken.get("jump")
        places = [f"{path}:4: not taken over: {one} (write it in ~/.ssh/config)" for one in left]
        assert notes == places


def test_variables_beside_the_inventory_are_read(tmp_path: Path) -> None:
    path = written(tmp_path, "[gpu]\ng1\ng2 ansible_user=root\n", "hosts")
    for folder in ("group_vars/gpu", "host_vars"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "group_vars" / "gpu" / "ssh.yml").write_text(
        "ansible_user: &me ubuntu\nansible_port: 2222\nsecret: !vault |\n  1\nother: *me\n"
    )
    (tmp_path / "host_vars" / "g1.yml").write_text("ansible_host: 10.0.0.1\n")
    (tmp_path / "group_vars" / "all.yml").write_text("$ANSIBLE_VAULT;1.1;AES256\n61\n")
    notes: list[str] = []
    found = load_source(path, name="lab", notes=notes).nodes
    assert [(node.host, node.ssh.user, node.ssh.port) for node in found] == [
        ("10.0.0.1", "ubuntu", 2222),
        ("g2", "root", 2222),
    ]
    unread, named = notes
    assert unread == f"{path}:1: group_vars/all.yml is not taken over: it is no plain YAML"
    assert named.startswith(f"{path}:2: nodes are named by their ansible_host, not g1; to keep")
    assert "`Host g1` with `HostName 10.0.0.1`" in named
    (tmp_path / "host_vars" / "g1.yml").write_text("ansible_host: '{{ address }}'\n")
    with pytest.raises(InventoryError, match=r"expected a value.*in host_vars/g1\.yml"):
        hosts(path)
    (tmp_path / "host_vars" / "g1.yml").write_text("ansible_user: !vault |\n  1\n")
    with pytest.raises(InventoryError, match="expected a plain value, found the tag !vault"):
        hosts(path)


def test_groups_and_the_bastion_are_named(tmp_path: Path) -> None:
    text = "[public]\nbastion ansible_host=192.0.2.1\n[private]\ng1\ng2\n[private:vars]\n"
    path = written(tmp_path, text + "ansible_ssh_common_args='-o ProxyJump=u@192.0.2.1:22'\n")
    notes: list[str] = []
    nodes = load_source(path, name="lab", notes=notes).nodes
    assert [node.host for node in nodes] == ["g1", "g2"]
    assert notes == [
        f"{path}:1: hosts of all groups are taken (public 1, private 2); of one: --group NAME",
        f"{path}:2: bastion is left out: others are reached through it (--group takes it)",
    ]


def test_a_head_node_through_which_its_group_is_reached_stays(tmp_path: Path) -> None:
    text = "[gpu]\nhead\ng1 ansible_ssh_common_args='-J head'\n[login]\nhead\n"
    assert [host for host, *_ in hosts(written(tmp_path, text))] == ["head", "g1"]


def test_a_host_as_a_plain_value_is_read(tmp_path: Path) -> None:
    path = written(tmp_path, "all:\n  hosts: 10.0.0.1\n", "inventory.yml")
    assert hosts(path) == [("10.0.0.1", None, None)]


def test_values_that_only_ansible_reads_are_no_trouble(tmp_path: Path) -> None:
    text = (
        "cluster:\n  vars: &common\n    ansible_user: me\n    pass: !vault |\n      1\n"
        "  hosts:\n    g1: {<<: *common, ansible_port: 23}\n"
        "nodes: {hosts: {g2: {ansible_become_password: !vault x, ansible_user: *common}}}\n"
    )
    path = written(tmp_path, text.replace(", ansible_user: *common", ""), "inventory.yml")
    assert hosts(path) == [("g1", "me", 23), ("g2", None, None)]
    bomb = "a: &a {x: 1}\nb: &b {x: *a, y: *a}\nc: {x: *b}\nall: {hosts: {g: }}\n"
    assert hosts(written(tmp_path, bomb, "bomb.yml")) == [("g", None, None)]


def test_what_ansible_lists_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = {
        "_meta": {"hostvars": {"g1": {"ansible_host": "10.0.0.1", "ansible_port": 23}, "g2": {}}},
        "all": {"children": ["ungrouped", "gpu"]},
        "gpu": {"hosts": ["g1", "g2"]},
    }
    listed = written(tmp_path, json.dumps(listing), "all.json")
    expected = [("10.0.0.1", None, 23), ("g2", None, None)]
    assert hosts(listed) == hosts(listed, "gpu") == expected
    plugin = written(tmp_path, "plugin: aws_ec2\nregions: [x]\n", "aws_ec2.yml")
    with pytest.raises(InventoryError, match="expected hosts, found the plugin aws_ec2") as caught:
        hosts(plugin)
    assert "ansible-inventory -i" in str(caught.value.hint)
    lister = written(tmp_path, f"#!/bin/sh\ncat '{listed}'\n", "lister")
    lister.chmod(0o755)
    monkeypatch.setattr(sources, "LISTER", str(lister))
    assert hosts(plugin) == expected
    listed.write_text(json.dumps(listing, indent="\t"))  # JSON may be indented so, and YAML not
    assert hosts(plugin) == expected
    listed.write_text(json.dumps(listing).replace("10.0.0.1", "\\ud800"))
    with pytest.raises(InventoryError, match="expected hosts, found the plugin aws_ec2"):
        hosts(plugin)
    lister.write_text("#!/bin/sh\necho no vault password >&2; exit 1\n")
    notes: list[str] = []
    path = written(tmp_path, "[a]\nx\n")
    assert [n.host for n in load_source(path, name="lab", notes=notes).nodes] == ["x"]
    assert notes == [f"{path}:1: {lister} failed (no vault password): read without it"]


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
            "clusterctl init bastion g1 g2",
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
