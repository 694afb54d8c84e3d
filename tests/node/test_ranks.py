"""How ranks ended, from torchrun's own words; and how often a log is worth looking at."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from clusterctl.node.joined import tcp_table
from clusterctl.node.paths import NodePaths
from clusterctl.node.ranks import Rank, Ranks, failures_in

# torch 2.13, static rendezvous, two ranks a node.
LOG = """\
W1120 19:34:33.581000 21096 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 21226 closing signal SIGTERM
E1120 19:34:33.601000 21096 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 7) local_rank: 1 (pid: 21228) of binary: /usr/bin/python3
E1120 19:33:36.757000 18860 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -15) local_rank: 0 (pid: 18925) of binary: /usr/bin/python3
"""  # noqa: E501

TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:7345 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0000000000000000 100 0 0 10 0
   1: 0100007F:8E12 0100007F:7345 01 00000000:00000000 00:00000000 00000000     0        0 4712 1 0000000000000000 20 4 0 10 -1
"""  # noqa: E501


def test_torchrun_names_the_ends_that_it_saw() -> None:
    assert failures_in(LOG) == {21228: (7, None), 18925: (143, 15)}
    assert failures_in("") == {}


def test_an_end_is_said_in_words() -> None:
    rank = Rank(3, 1)
    rank.has_ended(7 << 8)
    assert rank.words() == "rank 3 ended with exit code 7"
    rank.has_started((100, 5))
    assert (rank.exit_code, rank.running) == (None, True)
    rank.has_ended(9)
    assert rank.words() == "rank 3 was killed by signal 9"
    assert rank.exit_code == 137


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
    ranks = Ranks(
        reactor,
        {"first_rank": 0, "procs": 1, "launcher_argv": ["torchrun"], "launcher_decides": True},
        SimpleNamespace(),  # type: ignore[arg-type]
        record,
        on_failure=lambda *_: None,
        on_success=lambda: None,
        on_end=lambda: None,
    )
    ranks._launcher = (os.getpid(), 0)
    request = {"rank": 0, "local_rank": 0, "restarts": 0}
    ranks.report(request, os.getpid())
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
