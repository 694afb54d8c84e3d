"""The loopback backend: hosts for somebody who is not root, apart from each other where it can."""

from __future__ import annotations

import importlib.util
import json
import subprocess

import pytest
import yaml

from clusterctl.cli.shared.main import main
from clusterctl.errors import UsageError
from clusterctl.sandbox import processes, sandbox
from clusterctl.sandbox.backend import SandboxSpec
from clusterctl.sandbox.sandbox import Sandbox
from tests.conftest import MakeSandbox, Wanted


@pytest.fixture
def pair(make_sandbox: MakeSandbox) -> Sandbox:
    return make_sandbox(nodes=2, backend="loopback")


def test_each_host_answers_on_its_port_with_its_home(pair: Sandbox) -> None:
    homes = [pair.run(["ssh", host.name, "echo $HOME"]).stdout.strip() for host in pair.hosts]
    assert homes == [str(pair.folder(host.name) / "home") for host in pair.hosts]
    assert len({host.port for host in pair.hosts}) == 2


def test_its_inventory_says_that_hosts_are_one_machine(pair: Sandbox) -> None:
    document = yaml.safe_load(pair.inventory.read_text())
    assert document["same_machine"] == "allow"
    assert [node["port"] for node in document["nodes"]] == [host.port for host in pair.hosts]


def test_the_inventory_of_a_single_host_has_its_port_and_key(make_sandbox: MakeSandbox) -> None:
    box = make_sandbox(nodes=1, backend="loopback")
    document = yaml.safe_load(box.inventory.read_text())
    assert document["ssh"]["identity"] == str(box.layout.key)
    assert [node["port"] for node in document["nodes"]] == [box.hosts[0].port]


def test_without_torch_its_inventory_needs_no_torchrun(
    make_sandbox: MakeSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "torch" else found(name)
    )
    box = make_sandbox(nodes=1, backend="loopback")
    assert yaml.safe_load(box.inventory.read_text())["job"] == {"launcher": "direct"}


def test_down_ends_what_was_left_running(pair: Sandbox) -> None:
    pid = int(pair.run(["ssh", "node1", "setsid sleep 1000 >/dev/null 2>&1 & echo $!"]).stdout)
    assert processes.alive(pid)
    pair.down()
    assert not processes.alive(pid)
    ps = subprocess.run(["ps", "ax"], capture_output=True, text=True, check=True).stdout
    assert str(pair.layout.root) not in ps


@pytest.mark.parametrize("lost", ["jumps", "master_port", "hosts", "users", "gpus"])
def test_the_sandbox_of_an_older_version_can_be_taken_down(pair: Sandbox, lost: str) -> None:
    document = json.loads(pair.layout.state.read_text())
    for part in (document, *document["hosts"]):
        part.pop(lost, None)
    pair.layout.state.write_text(json.dumps(document))
    name = pair.layout.name
    with pytest.raises(UsageError, match="is of another version of clusterctl") as caught:
        sandbox.find(name)
    assert f"clusterctl sandbox down --name {name}" in str(caught.value.hint)
    assert main(["sandbox", "down", "--name", name]) == 0
    assert name not in sandbox.names()


def test_other_login_shells_need_the_other_backend() -> None:
    with pytest.raises(UsageError, match="shell of this account"):
        sandbox.up("t-shells", SandboxSpec(shells=("zsh",)), backend="loopback")


@pytest.mark.parametrize(
    ("wanted", "said"),
    [({"users": ("ada",)}, "--users"), ({"ip": "6"}, "--ip"), ({"jumps": 1}, "--jumps")],
)
def test_what_only_namespaces_have_is_refused(wanted: Wanted, said: str) -> None:
    with pytest.raises(UsageError, match=f"{said}: the loopback backend"):
        sandbox.up("t-more", SandboxSpec(**wanted), backend="loopback")
    assert "t-more" not in sandbox.names()
    assert "t-shells" not in sandbox.names()
