"""Files of PyTorch's flight recorder, as torch 2.13 (gloo) and 2.10 (NCCL) wrote them."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from clusterctl.hang.verdict import verdict
from clusterctl.model.dump import Collective, NodeDump, RankDump
from clusterctl.model.from_json import from_json
from clusterctl.node.hang import flight_recorder
from clusterctl.node.hang.flight_recorder import (
    MOST,
    PIPE,
    answers_of,
    collectives_of,
    find_file,
    read_collectives,
    request_all,
)
from tests.node.hang.as_rank import AsRank

RECORDED = Path(__file__).with_name("recorder.pickle")
"""What torch 2.13 wrote of one rank of gloo."""
TORCH = "/opt/venv/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py"


def entry(record: int, name: str = "gloo:all_reduce", **more: Any) -> dict[str, Any]:
    return {
        "frames": [
            {"name": "all_reduce", "filename": TORCH, "line": 3068},
            {"name": "<module>", "filename": "/job/train.py", "line": 44},
        ],
        "record_id": record,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "thread_name": "python3",
        "collective_seq_id": record + 1,
        "p2p_seq_id": 0,
        "op_id": record + 1,
        "profiling_name": name,
        "time_created_ns": 1795843432186749352,
        "input_sizes": [[1048576]],
        "input_dtypes": ["Float"],
        "state": "scheduled",
        "time_discovered_started_ns": None,
        "retired": False,
        "timeout_ms": 8000,
        "is_p2p": False,
        **more,
    }


def written(
    folder: Path, *entries: dict[str, Any], completed: int = 0, group: str = "0", rank: int = 0
) -> str:
    told = {
        "version": "2.10",
        "pg_config": {group: {"name": group, "desc": "", "ranks": "[0, 1, 2]"}},
        "pg_status": {"0": {"last_enqueued_collective": 9, "last_completed_collective": completed}},
        "entries": list(entries),
    }
    path = folder / f"fr_{rank}"
    path.write_bytes(pickle.dumps(told, protocol=2))
    return str(path)


def read(path: str) -> tuple[Collective, ...]:
    return tuple(from_json(Collective, one, "one") for one in read_collectives(path))


def test_the_newest_collective_comes_first_and_has_the_ranks_of_its_group(tmp_path: Path) -> None:
    path = written(tmp_path, entry(0, retired=True), entry(1), entry(2), completed=2, group="")
    third, second, first = read(path)
    assert [one.sequence for one in (first, second, third)] == [1, 2, 3]
    assert [one.state for one in (first, second, third)] == ["completed", "completed", "scheduled"]
    assert (third.group, third.operation, third.dtype) == ("0 (default_pg)", "all_reduce", "Float")
    assert (third.input_sizes, third.ranks, second.ranks) == (((1048576,),), (0, 1, 2), ())
    assert [(frame.function, frame.line) for frame in third.frames] == [
        ("all_reduce", 3068),
        ("<module>", 44),
    ]


def test_a_group_without_a_name_of_its_own_is_told_by_number(tmp_path: Path) -> None:
    path = written(tmp_path, entry(0, process_group=["7", "undefined"], state="started"))
    (one,) = read(path)
    assert (one.group, one.state) == ("7", "started")
    path = written(tmp_path, entry(0, "gloo:\udcff" + "x" * 9999))
    (one,) = read(path)
    assert len(one.operation.encode()) == 512


def test_messages_between_two_ranks_are_left_out_and_the_oldest_are_cut(tmp_path: Path) -> None:
    sent = entry(500, "nccl:send 0->1", is_p2p=True)
    rare = [entry(number, process_group=(f"{number}", "undefined")) for number in range(2)]
    found = read(written(tmp_path, sent, *rare, *(entry(number) for number in range(2, 400))))
    assert len(found) == MOST + 2
    assert [one.sequence for one in (found[0], found[MOST - 1])] == [400, 401 - MOST]
    assert [one.group for one in found[MOST:]] == ["1", "0"]
    many = [entry(number, process_group=(f"{number}", "undefined")) for number in range(400)]
    assert len(read(written(tmp_path, *many))) == 2 * MOST


class _Evil:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


def test_a_pickle_that_names_a_function_is_refused_and_calls_nothing(tmp_path: Path) -> None:
    path = written(tmp_path, entry(0, thread_name=_Evil(tmp_path / "mark")))
    with pytest.raises(ValueError, match=r"names no class: posix\.mkdir"):
        read_collectives(path)
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x02}q\x00.",
        b"{}",
        pickle.dumps([1]),
        pickle.dumps({"entries": [{"record_id": "x"}]}),
        pickle.dumps({"entries": [entry(1 << 60)]}),
        pickle.dumps({"entries": [entry(0, input_sizes=[[-1]])]}),
        b"\x80\x02]r\xff\xff\xff\x7f.",  # asks for a memo of 16 GB
    ],
)
def test_what_is_no_recorders_file_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(ValueError, match="file"):
        read_collectives(str(path))
    path.rename(tmp_path / "file0")
    assert collectives_of({"TORCH_FR_DUMP_TEMP_FILE": str(path)}, 0, 0.0) == []


def test_a_pipe_and_a_link_are_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="no file of this user's"):
        read_collectives(str(tmp_path / "pipe"))
    (tmp_path / "link").symlink_to(written(tmp_path, entry(0)))
    with pytest.raises(OSError, match="link"):
        read_collectives(str(tmp_path / "link"))
    os.mkfifo(tmp_path / "pipe0")
    assert find_file({"TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "pipe")}, 0, 0.0) is None


def test_the_file_of_a_rank_is_found_where_its_environment_says(tmp_path: Path) -> None:
    path = written(tmp_path, entry(0), rank=3)
    began = Path(path).stat().st_mtime
    environ = {"TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "fr_"), "HOME": "/nowhere"}
    assert find_file(environ, 3, began) == path
    assert find_file(environ, 2, began) is None
    assert find_file(environ, 3, began + 1) is None  # of an earlier run
    assert find_file({"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(tmp_path / "fr_")}, 3, 0.0) == path
    assert collectives_of(environ, 3, began) == read_collectives(path)
    assert collectives_of(environ, 2, began) == []
    cache = tmp_path / ".cache" / "torch"
    cache.mkdir(parents=True)
    Path(path).rename(cache / "comm_lib_trace_rank_3")
    found = find_file({"HOME": str(tmp_path)}, 3, began)
    assert found == str(cache / "comm_lib_trace_rank_3")


def test_recorders_of_a_run_that_is_over_name_the_rank_that_lacks(tmp_path: Path) -> None:
    """All processes ended by the watchdog; only their files are left."""
    full = read(written(tmp_path, entry(0), entry(1), completed=1))
    short = read(written(tmp_path, entry(0), completed=1))
    dumps = [
        NodeDump(
            run="r", node=f"n{rank}", time=0.0,
            ranks=(RankDump(rank=rank, ended=True, collectives=found),),
        )
        for rank, found in enumerate((full, short, full))
    ]  # fmt: skip
    found = verdict(dumps)
    assert (found.kind, found.ranks, found.nodes) == ("absent", (1,), ("n1",))
    assert found.text == (
        "rank 1 on n1 did not enter #2 all_reduce; ranks 0,2 wait in it at train.py:44 <module>"
    )


def test_a_rank_that_waits_for_an_earlier_collective_does_not_lack_the_next(tmp_path: Path) -> None:
    """NCCL's run in the background: others may have queued more when all wait for the same."""
    ahead = read(written(tmp_path, entry(0), entry(1), completed=0))
    dump = NodeDump(
        run="r", node="a", time=0.0,
        ranks=(
            RankDump(rank=0, ended=True, collectives=ahead),
            RankDump(rank=1, ended=True, collectives=ahead[1:]),
        ),
    )  # fmt: skip
    assert verdict([dump]).kind == "unknown"


def test_a_rank_is_asked_by_its_pipe_and_its_new_file_awaited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_recorder, "WRITE_SECONDS", 60.0)
    environ = {"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/fr_", PIPE: f"{tmp_path}/pipe_"}
    old = Path(written(tmp_path, entry(0), rank=1))
    os.utime(old, (1, 1))
    with AsRank(f"{tmp_path}/pipe_1.pipe", tmp_path / "fr_1", RECORDED.read_bytes()):
        asked = request_all({0: environ, 1: environ}, {0: 0.0, 1: 0.0})
        assert [one.rank for one in asked] == [1], "the other has no pipe"
        ((rank, found),) = answers_of(asked).items()
    assert rank == 1
    last, first = (from_json(Collective, one, "") for one in found)
    assert (first.operation, first.input_sizes, first.state) == ("all_reduce", ((4,),), "completed")
    assert (last.operation, last.group, last.ranks) == ("broadcast", "0 (default_pg)", (0,))
    assert last.frames[-1].function == "<module>"
    between = 1795906577.12025  # what a rank enters after others have written is not compared
    assert [one["sequence"] for one in read_collectives(str(RECORDED), between)] == [1]


def test_a_rank_that_does_not_write_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_recorder, "WRITE_SECONDS", 0.1)
    environ = {"TORCH_FR_DUMP_TEMP_FILE": written(tmp_path, entry(0))[:-1]}
    environ[PIPE] = f"{tmp_path}/pipe_"
    pipe = tmp_path / "pipe_0.pipe"
    os.mkfifo(pipe)
    assert request_all({0: environ}, {0: 0.0}) == [], "no process reads its pipe"
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert answers_of(request_all({0: environ}, {0: 0.0})) == {}
        assert os.read(reader, 9) == b"1"
    finally:
        os.close(reader)


def test_only_a_pipe_of_this_users_is_written_to(tmp_path: Path) -> None:
    (tmp_path / "p_0.pipe").write_text("")
    os.mkfifo(tmp_path / "real")
    (tmp_path / "p_1.pipe").symlink_to(tmp_path / "real")
    reader = os.open(tmp_path / "real", os.O_RDONLY | os.O_NONBLOCK)
    try:
        environ = {PIPE: f"{tmp_path}/p_"}
        assert request_all(dict.fromkeys(range(3), environ), dict.fromkeys(range(3), 0.0)) == []
    finally:
        os.close(reader)
    assert (tmp_path / "p_0.pipe").read_bytes() == b""
    relative = {PIPE: os.path.relpath(tmp_path / "p_")}
    assert request_all({0: relative}, {0: 0.0}) == []


@pytest.mark.skipif(os.getuid() != 0, reason="makes a pipe of another user's")
def test_another_users_pipe_is_not_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe_0.pipe"
    os.mkfifo(pipe)
    os.chown(pipe, 65534, 65534)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert request_all({0: {PIPE: f"{tmp_path}/pipe_"}}, {0: 0.0}) == []
        assert os.read(reader, 9) == b""
    finally:
        os.close(reader)
