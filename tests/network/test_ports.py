"""The rendezvous port: a free one, also of what has only just begun."""

from __future__ import annotations

from clusterctl.facts.machine.run_lock import RunLock
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.network.ports import FIRST, choose_port


def test_the_port_of_a_run_that_does_not_listen_yet_is_left() -> None:
    sharing = (RunLock(run="r", holds=("GPU-x", f"port-{FIRST}")),)
    master = NodeFacts(node="a", listeners=(), sharing=sharing)
    assert choose_port(None, master)[0] == FIRST + 1
    assert choose_port(FIRST, master)[0] == FIRST
