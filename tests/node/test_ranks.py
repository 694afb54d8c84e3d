"""The ranks of a node: started again by a launcher, reported twice, of another run."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from clusterctl.node.joined import tcp_table
from clusterctl.node.paths import NodePaths
from clusterctl.node.ranks import Ranks

TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:7345 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0000000000000000 100 0 0 10 0
   1: 0100007F:8E12 0100007F:7345 01 00000000:00000000 00:00000000 00000000     0        0 4712 1 0000000000000000 20 4 0 10 -1
"""  # noqa: E501


def test_a_rank_that_starts_again_has_not_ended_by_the_end_before() -> None:
    events: list[tuple[str, dict[str, Any]]] = []
    later: list[Callable[[], None]] = []
    record: Any = SimpleNamespace(
        event=lambda kind, **details: events.append((kind, details)),
        processes=lambda _marks: None,
        paths=NodePaths("/nowhere"),
    )
    reactor: Any = SimpleNamespace(
        on_signal=lambda *_: None,
        watch=lambda *_: None,
        after=lambda _seconds, callback: later.append(callback),
    )
    job = {
        "run": "r",
        "first_rank": 0,
        "procs": 1,
        "launcher_argv": ["x"],
        "launcher_decides": True,
    }
    ranks = Ranks(
        reactor,
        job,
        SimpleNamespace(),  # type: ignore[arg-type]
        record,
        on_failure=lambda *_: None,
        on_success=lambda: None,
        on_end=lambda: None,
    )
    ranks._launcher = (os.getpid(), 0)
    request = {"run": "r", "rank": 0, "local_rank": 0, "restarts": 0}
    assert ranks.report({**request, "run": "another"}, os.getpid()) == {"ending": True}
    assert ranks.report(request, os.getpid()) == {"watched": True}
    assert ranks.report(request, os.getpid()) == {"watched": True}  # asked twice, started once
    ranks._rank_ended(ranks._ranks[0], None)
    ranks.report({**request, "restarts": 1}, os.getpid())
    for callback in later:
        callback()
    ranks.settle()
    kinds = ["rank-started", "rank-joined"]
    assert [kind for kind, _ in events] == [*kinds, "rank-ended", *kinds]
    assert events[2][1]["time"] is not None


def test_sockets_are_read_as_the_kernel_prints_them() -> None:
    assert tcp_table(TCP) == [("0A", 29509, 0, "4711"), ("01", 36370, 29509, "4712")]
