"""Faults of the network are felt by other hosts, and gone after heal."""

from __future__ import annotations

import sys

import pytest

from clusterctl.errors import ClusterError
from clusterctl.sandbox.sandbox import Sandbox
from tests.conftest import MakeSandbox

CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=float(sys.argv[3]))
except OSError as error:
    print(type(error).__name__, error.errno)
else:
    print("connected")
"""


@pytest.fixture
def pair(make_sandbox: MakeSandbox) -> Sandbox:
    return make_sandbox(nodes=2)


def connect(box: Sandbox, start: str, end: str, port: int, *, patience: float = 5) -> str:
    argv = [sys.executable, "-c", CONNECT, box.host(end).address, str(port), str(patience)]
    return box.on(start, argv).stdout.strip()


def interfaces(box: Sandbox, node: str) -> str:
    return box.on(node, ["ip", "-br", "address"]).stdout


def test_a_taken_port_answers_until_it_is_healed(pair: Sandbox) -> None:
    assert connect(pair, "node2", "node1", 29500) == "ConnectionRefusedError 111"
    pair.fault("node1", "port-taken")
    assert connect(pair, "node2", "node1", 29500) == "connected"
    pair.heal()
    assert connect(pair, "node2", "node1", 29500) == "ConnectionRefusedError 111"


@pytest.mark.parametrize(
    ("kind", "felt"), [("port-dropped", "TimeoutError None"), ("port-rejected", "OSError 113")]
)
@pytest.mark.parametrize("node", ["node1", "node2"])
def test_a_firewall_is_felt_on_either_side(pair: Sandbox, node: str, kind: str, felt: str) -> None:
    pair.fault("node1", "port-taken", "4000")
    pair.fault(node, kind, "4000")
    assert connect(pair, "node2", "node1", 4000, patience=1) == felt
    assert connect(pair, "node1", "node1", 4000) == "connected"
    pair.heal()
    assert connect(pair, "node2", "node1", 4000) == "ConnectionRefusedError 111"


def test_a_pulled_cable_is_plugged_in_again(pair: Sandbox) -> None:
    pair.fault("node2", "link-down")
    assert connect(pair, "node2", "node1", 22, patience=1) in {"TimeoutError None", "OSError 113"}
    assert "DOWN" in interfaces(pair, "node2")
    pair.heal()
    assert connect(pair, "node2", "node1", 22) == "connected"


def test_second_interfaces_make_a_second_network(pair: Sandbox) -> None:
    pair.fault("node1", "second-interface")
    pair.fault("node2", "second-interface", "eth9=10.78.0.99/24")
    assert "10.78.0.11/24" in interfaces(pair, "node1")
    ping = ["ping", "-c", "1", "-w", "10", "10.78.0.99"]  # one may be lost under load
    assert pair.on("node1", ping).returncode == 0
    pair.heal()
    assert "10.78.0" not in interfaces(pair, "node1") + interfaces(pair, "node2")


def test_a_name_that_no_interface_can_have_is_healed_too(pair: Sandbox) -> None:
    with pytest.raises(ClusterError, match="failed"):
        pair.fault("node2", "interfaces-renamed", "a-name-longer-than-15")
    pair.heal()
    assert connect(pair, "node1", "node2", 22) == "connected"


def test_a_renamed_interface_keeps_its_address(pair: Sandbox) -> None:
    pair.fault("node2", "interfaces-renamed", "ens77")
    shown = interfaces(pair, "node2")
    assert "ens77" in shown
    assert "enp3s0" not in shown
    assert "10.77.0.12/24" in shown
    pair.heal()
    assert "enp3s0" in interfaces(pair, "node2")
    assert connect(pair, "node2", "node1", 22) == "connected"
