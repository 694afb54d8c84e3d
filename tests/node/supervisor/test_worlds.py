"""Which world a rank is in, by its processes: planned, elsewhere, or not yet known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clusterctl.node.supervisor.worlds.judge_world import (
    Meeting,
    connecting,
    has_joined,
    has_met,
    more_to_come,
    other_world,
    script_line,
    waiting_launcher,
)
from clusterctl.node.supervisor.worlds.rendezvous_sockets import Member
from clusterctl.node.tcp_sockets import ESTABLISHED, LISTEN, SYN_SENT, TcpSocket

JOB = {
    "master": {"address": "10.0.0.1", "port": 29500},
    "node_rank": 1,
    "nnodes": 2,
    "min_nodes": 0,
    "elastic": None,
    "address": "10.0.0.2",
    "hostfile": "10.0.0.1 slots=1\n10.0.0.2 slots=1\n",
}


def planned(**changes: object) -> Meeting:
    job: Any = {**JOB, **changes}
    return Meeting.of(job)


WORKER = planned()
MASTER = planned(node_rank=0)
ALONE = planned(nnodes=1)
ELASTIC = planned(min_nodes=1, elastic={"max_nodes": 2})
TORCHRUN = "/venv/bin/python /venv/bin/torchrun --standalone train.py"
INNER = {"RANK": "0", "WORLD_SIZE": "8", "MASTER_ADDR": "localhost", "MASTER_PORT": "6000"}


def listens(port: int) -> TcpSocket:
    return TcpSocket(LISTEN, port, 0, "1", 0, "0.0.0.0")


def meets(address: str, port: int, state: str = ESTABLISHED) -> TcpSocket:
    return TcpSocket(state, 40000, port, "2", 0, address)


def rank(*members: tuple[str, list[TcpSocket], dict[str, str]]) -> list[Member]:
    """Return a rank whose processes each started the next."""
    return [
        Member(n, n - 1, sockets, environment, words.split())
        for n, (words, sockets, environment) in enumerate(members, 1)
    ]


def python(*sockets: TcpSocket, **environment: str) -> list[Member]:
    return rank(("python train.py", list(sockets), environment))


def script(*sockets: TcpSocket, shell: str = "bash run.sh", **inner: str) -> list[Member]:
    """Return a rank that is a script with torchrun in it, which has the sockets."""
    members: list[Any] = [(shell, [], {"RANK": "1", "GROUP_WORLD_SIZE": "2"})]
    members.append((TORCHRUN, list(sockets), {}))
    return rank(*members, *([("python train.py", [], {**INNER, **inner})] if inner else []))


@pytest.mark.parametrize(
    ("members", "meeting", "joined"),
    [
        (python(meets("10.0.0.1", 29500)), WORKER, True),
        (rank(("bash x", [], {}), ("python x", [meets("10.0.0.1", 29500)], {})), WORKER, True),
        (python(meets("10.0.0.1", 29501)), WORKER, False),
        (python(meets("10.0.0.1", 29500, SYN_SENT)), WORKER, False),
        (python(meets("127.0.0.1", 29500), listens(29500)), WORKER, False),
        (python(meets("::1", 29500)), WORKER, False),
        (python(meets("192.168.7.1", 29500)), WORKER, True),  # another network of the master's
        (python(listens(29500)), WORKER, False),
        (python(listens(29500)), MASTER, True),
        (python(meets("127.0.0.1", 29500)), MASTER, True),
        # The port that c10d chose for the ranks, on whichever node.
        (python(meets("10.0.0.2", 777), MASTER_PORT="777", GROUP_WORLD_SIZE="2"), MASTER, True),
        (python(meets("10.0.0.2", 777), MASTER_PORT="777", GROUP_WORLD_SIZE="1"), MASTER, False),
        (python(meets("10.0.0.2", 777), MASTER_PORT="777", GROUP_WORLD_SIZE="1"), ELASTIC, True),
        (python(meets("10.0.0.2", 777), MASTER_PORT="778", GROUP_WORLD_SIZE="2"), MASTER, False),
        # A script set the first two, and left the third as it was.
        (
            python(meets("::1", 777), MASTER_PORT="777", WORLD_SIZE="1", CROSS_SIZE="2"),
            MASTER,
            False,
        ),
    ],
)
def test_who_has_joined(members: list[Member], meeting: Meeting, joined: bool) -> None:  # noqa: FBT001
    assert has_joined(members, meeting) is joined


def within(port: int) -> TcpSocket:
    return TcpSocket(ESTABLISHED, 40000, port, "5", 0, "10.0.0.2", local="10.0.0.2")


STORE = [Member(1, 0, [listens(29500), meets("10.0.0.1", 40777)], {}, [], ("pt_tcpstore_uv",))]
SAME = planned(
    hostfile="10.0.0.2 slots=1\n10.0.0.2 slots=1\n", master={"address": "10.0.0.2", "port": 1}
)


@pytest.mark.parametrize(
    ("members", "meeting", "met"),
    [
        (python(meets("10.0.0.1", 29500)), WORKER, False),  # the store's alone
        (python(meets("10.0.0.1", 29500), meets("10.0.0.1", 41000)), WORKER, True),
        (python(meets("10.0.0.1", 600)), WORKER, True),
        (python(meets("10.0.0.1", 41000), MASTER_PORT="41000"), WORKER, False),
        (python(meets("192.168.7.1", 41000)), WORKER, True),  # by another interface
        (python(meets("192.168.7.1", 443)), WORKER, False),
        (python(meets("10.0.0.1", 41000, SYN_SENT)), WORKER, False),
        (python(meets("127.0.0.1", 41000), within(41000), listens(41000)), WORKER, False),
        (STORE, MASTER, True),
        ([STORE[0]._replace(sockets=[listens(40000), meets("10.0.0.1", 777)])], MASTER, False),
        (script(meets("10.0.0.1", 41000)), WORKER, False),  # the launcher itself
        (python(within(1)), SAME, True),  # only the store can tell
    ],
)
def test_who_is_connected_to_another_node(
    members: list[Member],
    meeting: Meeting,
    met: bool,  # noqa: FBT001
) -> None:
    assert has_met(members, meeting) is met


LOCAL = (listens(29400), meets("127.0.0.1", 29400))


@pytest.mark.parametrize(
    ("members", "meeting", "found"),
    [
        (python(listens(29500)), WORKER, "a rendezvous of its own at port 29500"),
        (script(*LOCAL), WORKER, "a rendezvous of its own at localhost:29400"),
        (script(*LOCAL, shell="timeout 9 sh x"), MASTER, "a rendezvous of its own at localhost"),
        (script(GROUP_WORLD_SIZE="1"), MASTER, "RANK=0 of WORLD_SIZE=8 on 1 node, at localhost:"),
        (script(GROUP_WORLD_SIZE="2", CROSS_SIZE="1"), WORKER, "RANK=0 of WORLD_SIZE=8 on 1 node"),
    ],
)
def test_what_is_certain_to_be_another_world(
    members: list[Member], meeting: Meeting, found: str
) -> None:
    other = other_world(members, meeting)
    assert other is not None
    assert other.found.startswith(found)


def test_a_launcher_of_a_program_that_waits_alone_for_several_nodes_is_another_world() -> None:
    given = {"PET_NNODES": "2"}
    here = rank(("python serve.py", [], given), (TORCHRUN, list(LOCAL), given))
    for meeting in (MASTER, WORKER):
        assert other_world(here, meeting) is not None


@pytest.mark.parametrize(
    ("members", "meeting"),
    [
        (python(listens(29500)), MASTER),
        (python(listens(29500)), ELASTIC),
        (python(listens(29400), meets("127.0.0.1", 29400)), WORKER),  # a store besides the planned
        (script(*LOCAL), ALONE),
        (script(GROUP_WORLD_SIZE="1"), ALONE),
        (script(GROUP_WORLD_SIZE="2"), WORKER),
        # What a Python program starts, such as a server: it may join later.
        (script(*LOCAL, shell="python serve.py"), WORKER),
        (script(GROUP_WORLD_SIZE="1", shell="python serve.py"), WORKER),
        (script(meets("10.0.0.1", 29411)), WORKER),  # the launcher's own port on the master
        (python(), WORKER),
    ],
)
def test_what_may_well_join_the_planned_world(members: list[Member], meeting: Meeting) -> None:
    assert other_world(members, meeting) is None


def launches(
    *come: TcpSocket, meets_at: str = "10.0.0.2", name: str = "python own.py", store: bool = True
) -> list[Member]:
    """Return a program that starts ranks of its own, by elastic_launch: one has met its store."""
    own = TcpSocket(ESTABLISHED, 700, 40000, "3", 0, meets_at, local=meets_at)
    here = rank(
        (name, [listens(700), listens(701), own, *come], {}),
        ("python -c spawn_main", [meets(meets_at, 700)], {}),
    )
    return [here[0]._replace(threads=("pt_tcpstore_uv",) if store else ()), here[1]]


def test_a_program_whose_own_processes_meet_at_its_store_is_another_world(tmp_path: Path) -> None:
    found = "a rendezvous of the program's own processes at port 700"
    for meeting in (MASTER, WORKER):
        for address in ("10.0.0.2", "127.0.0.1"):
            members = launches(meets_at=address)
            assert other_world(members, meeting) == (1, found)
            assert other_world(members, meeting, {1}) is None
    other = TcpSocket(ESTABLISHED, 700, 5, "4", 0, "10.0.0.3", local="10.0.0.2")
    joined = meets("10.0.0.1", 29500)
    for members in (launches(other), launches(joined), launches(store=False)):
        assert other_world(members, WORKER) is None
    assert other_world(launches(), ALONE) is None
    waits = rank(("python own.py --standalone", list(LOCAL), {"PET_NNODES": "2"}))
    assert other_world(waits, WORKER) is None
    agent = [waits[0]._replace(threads=("pt_elastic", "pt_tcpstore_uv"))]
    assert other_world(agent, WORKER) == (1, "a rendezvous of its own at localhost:29400")
    text = "from x import elastic_launch\n\nelastic_launch(config, train)()\n"
    (tmp_path / "own.py").write_text(text)
    members = launches()
    assert script_line(members, 1, str(tmp_path)) == "own.py:3: python own.py"
    (tmp_path / "run.sh").write_text("python own.py\ntorchrun x.py\n")
    shell = rank(("bash run.sh", [], {}))[0]._replace(pid=9)
    below = [shell, members[0]._replace(parent=9), members[1]]
    assert more_to_come(below, 1, str(tmp_path))
    assert not more_to_come(members, 1, str(tmp_path))


def test_a_store_of_c10d_on_the_master_is_where_the_others_come_to() -> None:
    here = rank(("sh x", [], {}), ("torchrun --nnodes 2 x.py", list(LOCAL), {}))
    assert other_world(here, MASTER) is None
    assert other_world(here, WORKER) is not None


def test_what_a_launcher_waits_for_is_told_only_before_its_ranks_started() -> None:
    assert waiting_launcher(script()) == "torchrun"
    assert waiting_launcher(script(GROUP_WORLD_SIZE="2")) == ""
    assert waiting_launcher(python()) == ""
    assert connecting(python(meets("10.0.0.1", 29500, SYN_SENT)), WORKER)
    assert not connecting(python(meets("10.0.0.1", 29500)), WORKER)


def test_the_scripts_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("# torchrun\necho\ntorchrun --standalone train.py\n")
    members = script(GROUP_WORLD_SIZE="1")
    assert script_line(members, 3, str(tmp_path)) == f"run.sh:3: {TORCHRUN}"
    (tmp_path / "run.sh").write_text("exec ./hidden\n")
    assert script_line(members, 2, str(tmp_path)) == TORCHRUN
    assert script_line(python(), 1, str(tmp_path)) == ""


TRAINS = 'torchrun --nnodes="$NNODES" --node-rank=$NODE_RANK train.py'
PREPARES = "torchrun --standalone prep.py"


@pytest.mark.parametrize(
    ("text", "shell", "more"),
    [
        (f"{PREPARES}\n{TRAINS}\n", "bash run.sh", True),
        (f"{PREPARES} && \\\n  {TRAINS}", "timeout 9 bash -e run.sh", True),
        ("torchrun --nnodes 1 reward.py &\nexec python3 -m torch.distributed.run x", "sh x", True),
        (f"{PREPARES}\n", "bash run.sh", False),
        (f"{TRAINS}\n{PREPARES}\n", "bash run.sh", False),
        (f"{PREPARES}\n# {TRAINS}\npip install deepspeed\n", "bash run.sh", False),
        (f"{PREPARES}\n" + "\n" * 60_000 + TRAINS, "bash run.sh", True),
        (f"{PREPARES}\ntorchrun --nnodes=1 train.py\n", "bash run.sh", False),
        ("exec ./hidden\n", "bash run.sh", False),
        ("", "bash gone.sh", False),
    ],
)
def test_a_launcher_of_one_node_may_prepare_what_its_script_starts_later(
    tmp_path: Path,
    text: str,
    shell: str,
    more: bool,  # noqa: FBT001
) -> None:
    (tmp_path / shell.rsplit(maxsplit=1)[-1].replace("gone", "other")).write_text(text)
    assert more_to_come(script(*LOCAL, shell=shell), 2, str(tmp_path)) is more


def test_a_script_that_another_calls_and_a_text_are_read_too(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(f"bash prep.sh\n{TRAINS}\n")
    (tmp_path / "prep.sh").write_text(f"{PREPARES}\n")
    calls: list[Any] = [
        ("bash run.sh", [], {}),
        ("bash prep.sh", [], {}),
        (TORCHRUN, list(LOCAL), {}),
    ]
    assert more_to_come(rank(*calls), 3, str(tmp_path))
    shell, launcher = script()
    told = shell._replace(words=["bash", "-ec", f"{PREPARES}; {TRAINS}"])
    assert more_to_come([told, launcher], 2, str(tmp_path))


def test_a_launcher_that_waits_for_several_nodes_is_the_training(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(f"torchrun --nnodes 2 x.py\n{TRAINS}\n")
    here = rank(("bash run.sh", [], {}), ("torchrun --nnodes 2 x.py", list(LOCAL), {}))
    assert not more_to_come(here, 2, str(tmp_path))


@pytest.mark.parametrize(("words", "more"), [("--nnodes=1", True), ("--standalone", False)])
def test_what_the_environment_gives_counts_unless_a_flag_says_one_node(
    tmp_path: Path,
    words: str,
    more: bool,  # noqa: FBT001
) -> None:
    (tmp_path / "run.sh").write_text(f"torchrun {words} x.py\n{TRAINS}\n")
    given = {"PET_NNODES": "2"}
    here = rank(("bash run.sh", [], given), (f"torchrun {words} x.py", list(LOCAL), given))
    assert more_to_come(here, 2, str(tmp_path)) is more


def test_of_two_launchers_the_second_is_judged_after_the_first_has_passed() -> None:
    first, second = script(GROUP_WORLD_SIZE="1"), rank((TORCHRUN, list(LOCAL), {}))
    members = [*first, *(each._replace(pid=9, parent=1) for each in second)]
    assert [getattr(other_world(members, MASTER, p), "pid", 0) for p in ((), {2}, {2, 9})] == [
        2,
        9,
        0,
    ]
