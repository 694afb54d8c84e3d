"""What NCCL's status service tells, from a stand-in that speaks its protocol.

`RECORDED` is what NCCL 2.28.9 answered on one GPU. The text has the form of NCCL's manual, and so
have ranks that are missing: neither has been seen on a GPU.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from clusterctl.model.dump import Communicator, NcclRank
from clusterctl.model.from_json import from_json
from clusterctl.node.hang import nccl_ras
from clusterctl.node.hang.nccl_ras import NoAnswerError, communicators_of

Say = Callable[[int, str], str]
"""What the stand-in answers to a line; its number counts the connections."""
OWN = os.getpid()
RECORDED = """{
  "nccl_version": "2.28.9",
  "cuda_runtime_version": 13000,
  "cuda_driver_version": 13000,
  "timestamp": "2026-11-28 05:23:43",
  "communicators_count": 1,
  "communicators": [
    {
      "hash": "0xaad9861a13163ed3",
      "secondary_hash": "0x87dd842f962168d2:0x883329a95e984227",
      "size": 1,
      "ranks_count": 1,
      "missing_ranks_count": 0,
      "ranks": [
        {
          "rank": 0,
          "host": "192.0.2.2",
          "pid": 534,
          "cuda_dev": 0,
          "nvml_dev": 0,
          "status": {
            "init_state": 0,
            "async_error": 0,
            "finalize_called": false,
            "destroy_flag": false,
            "abort_flag": false
          },
          "collective_counts": {
            "Broadcast": 0,
            "Reduce": 0,
            "AllGather": 0,
            "ReduceScatter": 0,
            "AllReduce": 0
          }
        }
      ],
      "missing_ranks": [

      ]
    }
  ],
  "ras": {
    "collection_time_sec": 0.000,
    "timeouts_count": 0
  }
}
"""
TEXT = """NCCL version 2.26.2 compiled with CUDA 12.8
CUDA runtime version 12080, driver version 12080

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          8            1         32       32

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4         8        32        32   RUNNING  {0}

Errors
======
{1}
Warnings
========

"""
MISMATCH = """
#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
  30 ranks have launched up to operation 6650
  2 ranks have launched up to operation 6649
  Rank 0 -- GPU 0 managed by process 483072 on node 172.16.64.210
  Rank 2 -- GPU 2 managed by process 483074 on node 172.16.64.210
"""
DEAD = """
DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 3487984 on node 172.16.64.213 managing GPU 5

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  The missing rank: 21 -- GPU 5 managed by process 3487984 on node 172.16.64.213
"""


def report(*counts: dict[str, int], missing: tuple[dict[str, Any], ...] = ()) -> str:
    """Return NCCL's JSON for one communicator; the first rank is this process."""
    told = json.loads(RECORDED)
    (one,) = told["communicators"]
    (rank,) = one["ranks"]
    one["size"] = len(counts) + len(missing)
    one["ranks"] = [
        {**rank, "rank": number, "pid": OWN + number, "collective_counts": count}
        for number, count in enumerate(counts)
    ]
    one["missing_ranks"] = list(missing)
    return json.dumps(told)


class StandIn:
    """NCCL's status service, in this process."""

    def __init__(self) -> None:
        self.say: Say = lambda _number, _line: ""
        self.lines: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        number = 0
        while True:
            link, _ = self._listener.accept()
            number += 1
            with link, link.makefile("r") as lines:
                for line in lines:
                    if line == "END\n":
                        return
                    self.lines.append(line.rstrip())
                    answer = self.say(number, line.rstrip())
                    link.sendall(answer.encode())
                    if line.endswith("STATUS\n") or answer.startswith("ERROR"):
                        break  # it closes then

    def replies(self, *reports: str, as_json: bool = True) -> None:
        """Answer as NCCL does, each connection with the next report."""

        def say(number: int, line: str) -> str:
            if line.startswith("CLIENT"):
                return "SERVER PROTOCOL 2\n"
            if line.startswith("SET") and not as_json:
                return f"ERROR: Unknown command {line}\n"
            return reports[min(number, len(reports)) - 1] if "STATUS" in line else "OK\n"

        self.say = say

    def close(self) -> None:
        with socket.create_connection(("127.0.0.1", self.port)) as link:
            link.sendall(b"END\n")
        self._thread.join()
        self._listener.close()


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    made = StandIn()
    yield made
    made.close()


def told(stand_in: StandIn) -> list[Communicator]:
    found = communicators_of(f"localhost:{stand_in.port}", [OWN])
    return [from_json(Communicator, one, "one") for one in found]


def why(stand_in: StandIn) -> str:
    with pytest.raises(NoAnswerError) as caught:
        told(stand_in)
    return str(caught.value)


def test_an_answer_that_a_gpu_gave_is_read(stand_in: StandIn) -> None:
    stand_in.replies(RECORDED.replace('"pid": 534', f'"pid": {OWN}'))
    (one,) = told(stand_in)
    assert one == Communicator(name="0xaad9861a13163ed3", size=1)
    assert stand_in.lines == [
        "CLIENT PROTOCOL 2", "TIMEOUT 1", "SET FORMAT json", "VERBOSE STATUS",
    ]  # fmt: skip


def test_the_ranks_that_launched_fewer_are_told_if_a_second_answer_says_the_same(
    stand_in: StandIn,
) -> None:
    stand_in.replies(report({"AllReduce": 7, "Reduce": 0}, {"AllReduce": 6, "Reduce": 0}))
    (one,) = told(stand_in)
    assert (one.size, one.moves) == (2, False)
    (launches,) = one.launches
    assert (launches.operation, launches.least, launches.most) == ("AllReduce", 6, 7)
    assert launches.behind == (NcclRank(rank=1, host="192.0.2.2", pid=OWN + 1),)


def test_counts_that_change_meanwhile_are_of_a_run_that_continues(stand_in: StandIn) -> None:
    stand_in.replies(*(report({"AllReduce": 7 + n}, {"AllReduce": 6 + n}) for n in range(2)))
    (one,) = told(stand_in)
    assert one.moves


@pytest.mark.parametrize("more", [{"considered_dead": True}, {"status": {"considered_dead": True}}])
def test_a_rank_that_is_missing_may_be_dead(stand_in: StandIn, more: dict[str, Any]) -> None:
    lost = {"rank": 1, "host": "192.0.2.3", "pid": 9, "cuda_dev": 0, **more}
    slow = {"rank": 2, "host": "192.0.2.3", "pid": 10, "cuda_dev": 1}
    stand_in.replies(report({"AllReduce": 7}, missing=(lost, slow)))
    (one,) = told(stand_in)
    assert one.size == 3
    assert [(each.rank, each.pid, each.dead) for each in one.unreached] == [
        (1, 9, True), (2, 10, False),
    ]  # fmt: skip


def test_the_text_of_earlier_versions_tells_who_is_behind(stand_in: StandIn) -> None:
    stand_in.replies(TEXT.format("MISMATCH", MISMATCH), as_json=False)
    (one,) = told(stand_in)
    assert (one.name, one.size, one.unreached) == ("27a079b828ff1a75", 32, ())
    (launches,) = one.launches
    assert (launches.operation, launches.least, launches.most) == ("", 6649, 6650)
    assert [(each.rank, each.pid) for each in launches.behind] == [(0, 483072), (2, 483074)]


def test_the_text_of_earlier_versions_tells_who_is_dead(stand_in: StandIn) -> None:
    stand_in.replies(TEXT.format("INCOMPLETE", DEAD), as_json=False)
    (one,) = told(stand_in)
    lost = NcclRank(rank=21, host="172.16.64.213", pid=3487984, dead=True)
    assert (one.unreached, one.launches) == ((lost,), ())
    stand_in.replies(TEXT.format("OK", ""), as_json=False)
    assert told(stand_in) == []


def test_a_large_communicator_is_told_by_a_few_ranks(stand_in: StandIn) -> None:
    counts = ({"AllReduce": 7}, *({"AllReduce": 6} for _ in range(1000)))
    stand_in.replies(report(*counts))
    (one,) = told(stand_in)
    assert (one.size, len(one.launches[0].behind)) == (1001, nccl_ras.MOST_RANKS)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (report({}).replace(f'"pid": {OWN}', '"pid": 1'), "for the ranks of another run"),
        ("{}", "cannot be read: KeyError"),
        ('{"communicators": [{"ranks": 3}]}', "cannot be read: TypeError"),
        ("{" * 99999, "cannot be read: "),
        (report({"AllReduce": -1}), "no count: -1"),
        (report({"AllReduce": 1 << 60}), "no count: "),
        (TEXT.format("?", "\nGREMLINS\n  3 of them\n"), "GREMLINS"),
        ("NCCL version 9\n", "no errors' section"),
        ("HELLO\n", "does not answer: it said 'SERVER PROTOCOL 2"),
        ("{" + " " * nccl_ras.BYTES_LIMIT, "more than 8388608 bytes"),
    ],
    ids=map(str, range(10)),
)
def test_an_answer_that_cannot_be_read_is_told(stand_in: StandIn, text: str, words: str) -> None:
    stand_in.replies(text)
    assert words in why(stand_in)


def test_a_service_that_never_answers_takes_its_time_at_most(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nccl_ras, "SECONDS", 0.2)
    start = time.monotonic()
    over = threading.Event()

    def wait(_number: int, _line: str) -> str:
        over.wait()
        return ""

    stand_in.say = wait
    try:
        assert "does not answer: nothing within 0.2 s" in why(stand_in)
    finally:
        over.set()
    assert time.monotonic() - start < 20


def test_only_a_rank_of_the_run_is_asked(stand_in: StandIn) -> None:
    for address, pids in ((f"127.0.0.1:{stand_in.port}", [1 << 30]), ("localhost:x", [OWN])):
        with pytest.raises(NoAnswerError, match="no rank listens at"):
            communicators_of(address, pids)
    assert stand_in.lines == []
