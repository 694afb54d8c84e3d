"""The loopback backend: hosts for somebody who is not root, apart from each other where it can."""

from __future__ import annotations

import subprocess

import pytest
import yaml

from clusterctl.errors import UsageError
from clusterctl.sandbox import processes, sandbox
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


def test_down_ends_what_was_left_running(pair: Sandbox) -> None:
    pid = int(pair.run(["ssh", "node1", "setsid sleep 1000 >/dev/null 2>&1 & echo $!"]).stdout)
    assert processes.alive(pid)
    pair.down()
    assert not processes.alive(pid)
    ps = subprocess.run(["ps", "ax"], capture_output=True, text=True, check=True).stdout
    assert str(pair.layout.root) not in ps


def test_other_login_shells_need_the_other_backend() -> None:
    with pytest.raises(UsageError, match="shell of this account"):
        sandbox.up("t-shells", backend="loopback", shells=("zsh",))


@pytest.mark.parametrize(
    ("wanted", "said"),
    [({"users": ("ada",)}, "--users"), ({"ip": "6"}, "--ip"), ({"jumps": 1}, "--jumps")],
)
def test_what_only_namespaces_have_is_refused(wanted: Wanted, said: str) -> None:
    with pytest.raises(UsageError, match=f"{said}: the loopback backend"):
        sandbox.up("t-more", backend="loopback", **wanted)
    assert "t-more" not in sandbox.names()
    assert "t-shells" not in sandbox.names()
