"""What a node does about its ranks while they gather: how often it looks, and what ends them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from clusterctl.node.supervisor.ranks.rank_state import Rank
from clusterctl.node.supervisor.worlds import gathering as module
from clusterctl.node.supervisor.worlds import lone_node
from clusterctl.node.supervisor.worlds.gathering import LATE_POLL, MOST_GATHER, POLL, Gathering
from clusterctl.node.supervisor.worlds.rendezvous_sockets import Member
from clusterctl.node.tcp_sockets import ESTABLISHED, SYN_SENT, TcpSocket

PID = 4
JOB = {
    "master": {"address": "10.0.0.1", "port": 29500},
    "node_rank": 1,
    "nnodes": 2,
    "procs": 1,
    "launcher": "direct",
    "launcher_argv": [],
    "container": [],
    "workdir": "/nowhere",
    "address": "10.0.0.2",
    "hostfile": "10.0.0.1 slots=1\n10.0.0.2 slots=1\n",
    "argv": [],
}


class Node:
    """A gathering of one rank with these processes, a clock, and what comes of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, members: list[Member], **job: Any) -> None:
        self.now = 0.0
        self.paths = ""
        self.waits: list[float] = []
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.ended: list[str] = []
        self.rank = Rank(1, 0)
        self.rank.has_started((PID, 1))
        monkeypatch.setattr(module, "time", self)
        monkeypatch.setattr(module, "look", lambda pids: dict.fromkeys(pids, members))
        made = cast("Any", {**JOB, **job})
        me = cast("Any", self)
        self.gathering = Gathering(me, made, me, {0: self.rank}, lambda _, how: self._end(how))

    def _end(self, how: str) -> None:
        self.ended.append(how)

    def monotonic(self) -> float:
        return self.now

    time = monotonic

    def call_later(self, seconds: float, _call: Callable[[], None]) -> None:
        self.waits.append(seconds)

    def event(self, kind: str, **more: Any) -> None:
        self.events.append((kind, more))


def process(pid: int, words: str, *sockets: TcpSocket, **environment: str) -> Member:
    return Member(pid, pid - 1, list(sockets), environment, words.split())


SHELL = process(PID, "bash run.sh")
TORCHRUN = process(PID + 1, "torchrun --standalone prep.py")
ALONE = process(PID + 2, "python prep.py", RANK="0", WORLD_SIZE="8", GROUP_WORLD_SIZE="1")
AWAY = "torchrun --nnodes 2 --node-rank=0 --master_addr 192.0.2.9 train.py"
STORE = TcpSocket(ESTABLISHED, 40000, 29500, "3", 0, "10.0.0.1")
PAIR = TcpSocket(ESTABLISHED, 40001, 45000, "4", 0, "10.0.0.1")
CONNECTING = TcpSocket(SYN_SENT, 40000, 29500, "2", 0, "10.0.0.1")


@pytest.mark.parametrize(("state", "longest"), [("running", LATE_POLL), ("starting", POLL)])
def test_ranks_that_all_run_are_looked_at_rarely_after_a_while(
    monkeypatch: pytest.MonkeyPatch, state: str, longest: float
) -> None:
    node = Node(monkeypatch, [SHELL])
    node.rank.state = state
    for now, most in ((MOST_GATHER - 1, POLL), (MOST_GATHER + 1, longest)):
        node.now = now
        for _ in range(50):
            node.gathering.watch()
        assert node.waits[-1] == most


def test_a_world_elsewhere_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(monkeypatch, [SHELL, TORCHRUN, ALONE], force=False)
    node.gathering.watch()
    (how,) = node.ended
    assert how.startswith("expected the run's at 10.0.0.1:29500, found RANK=0 of WORLD_SIZE=8")
    assert node.events == []


def test_a_world_elsewhere_that_was_forced_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(monkeypatch, [SHELL, TORCHRUN, ALONE], force=True)
    for _ in range(3):
        node.gathering.watch()
    assert node.ended == []
    ((kind, more),) = node.events
    assert kind == "other-world"
    assert "expected the run's at 10.0.0.1:29500, found RANK=0 of WOR" in more["message"]


def test_a_step_before_the_planned_training_goes_on_untold(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    text = "torchrun --standalone prep.py\ntorchrun --nnodes=$NNODES train.py\n"
    (tmp_path / "run.sh").write_text(text)
    node = Node(monkeypatch, [SHELL, TORCHRUN, ALONE], workdir=str(tmp_path))
    node.gathering.watch()
    assert (node.ended, node.events) == ([], [])


@pytest.mark.parametrize(
    ("members", "others_over", "problem"),
    [
        ([SHELL], True, ""),
        ([SHELL, TORCHRUN], False, ""),  # the master's script may be busy yet
        ([SHELL, TORCHRUN], True, "the torchrun of rank 1 waits at 10.0.0.1:29500 for another"),
        (
            [SHELL, TORCHRUN._replace(sockets=[CONNECTING])],
            False,
            "the torchrun of rank 1 does not reach 10.0.0.1:29500",
        ),
        ([SHELL._replace(sockets=[CONNECTING])], False, "rank 1 does not reach 10.0.0.1:29500"),
        (
            [SHELL, process(PID + 1, AWAY)],
            False,
            f"rank 1 waits at 192.0.2.9, which is no address of this node ({AWAY})",
        ),
        ([SHELL, process(PID + 1, AWAY.replace("192.0.2.9", "127.0.0.1"))], False, ""),
        ([SHELL, process(PID + 1, AWAY.replace("192.0.2.9", "gpu1"))], False, ""),
        ([SHELL, process(PID + 1, AWAY.replace("rank=0", "rank=1"))], False, ""),
    ],
)
def test_what_waits_for_a_busy_script_is_no_problem(
    monkeypatch: pytest.MonkeyPatch,
    members: list[Member],
    others_over: bool,  # noqa: FBT001
    problem: str,
) -> None:
    node = Node(monkeypatch, members)
    assert node.gathering.problem(others_over=others_over) == problem


@pytest.mark.parametrize(
    ("argv", "text", "lived", "told"),
    [
        (["bash", "run.sh"], "cd x\ntorchrun a.py\necho done\n", 1.0, True),  # it was not found
        (["bash", "run.sh"], "echo done\n", 1.0, False),
        (["bash", "run.sh"], "echo done\n", 6.0, True),
        (["./run.sh"], "#!/bin/sh\nexec accelerate launch a.py\n", 1.0, True),
        (["bash", "-c", "torchrun a.py; true"], "", 1.0, True),
        (["python", "-c", "print()"], "", 1.0, False),
    ],
)
def test_who_never_joined_is_told_of_a_short_script_that_calls_a_launcher(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, argv: list[str], text: str, lived: float,
    told: bool,  # noqa: FBT001
) -> None:  # fmt: skip
    (tmp_path / "run.sh").write_text(text)
    node = Node(monkeypatch, [], workdir=str(tmp_path), argv=argv)
    node.rank.began, node.rank.ended = 100.0, 100.0 + lived
    node.gathering.over()
    assert [kind for kind, _ in node.events] == ["never-met"] * told


STEPS = [b"loading", b"step 1/9", b"step 2/9"]


@pytest.mark.parametrize(
    ("sockets", "told"),
    [([STORE], ["rank-joined", "trains-alone"]), ([STORE, PAIR], ["node-met", "rank-joined"])],
)
def test_ranks_that_train_without_a_connection_to_another_node_are_told_of_once(
    monkeypatch: pytest.MonkeyPatch, sockets: list[TcpSocket], told: list[str]
) -> None:
    node = Node(monkeypatch, [process(PID, "python train.py", *sockets)])
    printed = ({"step": None}, {"step": 1}, {"step": 2})
    monkeypatch.setattr(lone_node, "time", node)
    monkeypatch.setattr(lone_node, "run_progress", lambda *_: printed[min(2, int(node.now) // 20)])
    for node.now in range(100):
        node.gathering.watch()
        if node.now == 49:  # 30 s after the first step
            assert "trains-alone" not in dict(node.events)
    assert [kind for kind, _ in node.events] == told
    node.rank.began, node.rank.ended = 0.0, 100.0
    node.gathering.over()
    assert [kind for kind, _ in node.events] == told


@pytest.mark.parametrize(
    "job", [{"launcher": "ray"}, {"nnodes": 1}, {"container": ["docker", "run"]}, {"procs": 0}]
)
def test_ranks_that_are_alone_or_cannot_be_seen_are_not_told_of(
    monkeypatch: pytest.MonkeyPatch, job: dict[str, Any]
) -> None:
    node = Node(monkeypatch, [SHELL], **job)
    node.rank.began, node.rank.ended = 100.0, 200.0
    node.gathering.over()
    assert node.events == []


WHERE = "10.0.0.1:29500"
TRIES = SHELL._replace(sockets=[CONNECTING])
NOT_STARTED = {"state": "starting", "began": None}


@pytest.mark.parametrize(
    ("member", "launcher", "rank", "told"),
    [
        (SHELL, None, {}, f"rank 1 has run for 9 s without connecting to {WHERE}; last line: hi"),
        (TRIES, None, {}, f"rank 1 does not reach {WHERE}"),
        (SHELL, None, {"joined": True}, ""),
        (SHELL, None, NOT_STARTED, "rank 1 has not started"),
        (TRIES, False, NOT_STARTED, f"its launcher does not reach {WHERE}"),
        (SHELL, True, NOT_STARTED, ""),
    ],
)
def test_a_late_node_tells_what_it_is_doing(
    monkeypatch: pytest.MonkeyPatch,
    member: Member,
    launcher: bool | None,  # noqa: FBT001
    rank: dict[str, Any],
    told: str,
) -> None:
    monkeypatch.setattr(module, "last_printed_line", lambda _paths: {"line": "hi", "rank": 1})
    node = Node(monkeypatch, [member])
    vars(node.rank).update({"began": 10.0, **rank})
    node.gathering.launcher = None if launcher is None else PID
    node.gathering.launcher_joined = launcher
    node.now = 19.0
    assert node.gathering.lateness() == told


def test_where_nobody_can_look_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(monkeypatch, [SHELL])

    def fails(_pids: object) -> None:
        raise OSError

    monkeypatch.setattr(module, "look", fails)
    assert node.gathering.lateness() == ""


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_launcher_at_the_rendezvous_waits_in_vain_once_the_others_are_over(
    monkeypatch: pytest.MonkeyPatch, nodes: int
) -> None:
    node = Node(monkeypatch, [SHELL, TORCHRUN], node_rank=0, nnodes=nodes)
    node.rank.joined = True
    assert node.gathering.problem(others_over=False) == ""
    assert bool(node.gathering.problem(others_over=True)) is (nodes == 2)
