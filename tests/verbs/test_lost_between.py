"""A connection that dies after it was opened and before it is used fails that node only."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from clusterctl.transport.connection import Connection
from clusterctl.transport.interface import Reply
from clusterctl.transport.pool import Pool
from clusterctl.verbs.events import ignore
from clusterctl.verbs.exec import SILENT, exec_command
from clusterctl.verbs.preflight.check import CheckOptions, check
from tests.sshd_servers import Sshd, cluster_of
from tests.waiting import wait_until


class LosingPool(Pool):
    """Loses a node's connection when it has been opened; its server is gone too."""

    dies: Callable[[], object] = staticmethod(lambda: None)

    def _open(self, name: str) -> Connection | Reply:
        opened = super()._open(name)
        if name == "lost" and isinstance(opened, Connection):
            self.dies()
            wait_until(lambda: not opened.alive)
        return opened


@pytest.fixture
def losing_pool(make_sshd: Callable[..., Sshd]) -> Iterator[Pool]:
    alive, lost = make_sshd(), make_sshd()
    pool = LosingPool(cluster_of(lost.node("lost"), alive.node("alive")))
    pool.dies = lost.stop
    with pool:
        yield pool


def test_a_connection_that_dies_before_its_command_ends_exec_on_that_node_only(
    losing_pool: Pool,
) -> None:
    result = exec_command(losing_pool, ["echo", "ran"], emit=ignore)
    lost, alive = result.nodes
    assert (alive.exit_code, alive.text()) == (0, "ran\n")
    assert lost.error is not None
    assert (lost.error.state, lost.silent) == ("refused", True)
    assert result.exit_code == SILENT


def test_a_connection_that_dies_before_its_facts_ends_the_check_of_that_node_only(
    losing_pool: Pool,
) -> None:
    result = check(losing_pool.cluster, losing_pool, CheckOptions(), emit=ignore)
    assert result.facts["alive"].answered
    assert result.facts["lost"].reach.state == "lost"
    found = [f for f in result.findings if f.check == "ssh.connect" and f.status == "fail"]
    assert [f.nodes for f in found] == [("lost",)]
