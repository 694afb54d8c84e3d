"""The rendezvous port: a free one, also of what has only just begun."""

from __future__ import annotations

from clusterctl.facts.machine.machine_state import RunLock
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.network.ports import FIRST, choose_port


def test_the_port_of_a_run_that_does_not_listen_yet_is_left() -> None:
    sharing = (RunLock(run="r", holds=("GPU-x", f"port-{FIRST}")),)
    master = NodeFacts(node="a", listeners=(), sharing=sharing)
    assert choose_port(None, master)[0] == FIRST + 1
    assert choose_port(FIRST, master)[0] == FIRST


def test_a_port_that_the_kernel_gives_to_connections_is_taken_only_if_all_are() -> None:
    assert FIRST == 29500
    for ephemeral, port in {
        (29000, 29509): 29510,
        (29501, 60999): FIRST,
        (1024, 65535): FIRST,
    }.items():
        master = NodeFacts(node="a", listeners=(), ephemeral_ports=ephemeral)
        assert choose_port(None, master)[0] == port
    master = NodeFacts(node="a", listeners=(), ephemeral_ports=(29000, 29509))
    assert choose_port(None, master, but=29510) == (29511, "the first free port from 29500")
