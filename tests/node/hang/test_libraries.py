"""A dump asks what NCCL and PyTorch know, of a rank that answers as they do."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusterctl.model.answers import DumpAnswer
from clusterctl.model.dump import NodeDump
from clusterctl.model.from_json import from_json
from clusterctl.node.hang import libraries
from tests.node.conftest import Run
from tests.node.hang.as_rank import AsRank

MakeRun = Callable[..., Run]
ANSWERS = """
import json, os, select, shutil, socket, sys
folder = os.getcwd() + "/fr_"
if "LISTENER" not in os.environ:  # what a rank sets itself is not seen: it starts again with it
    listener = socket.create_server(("127.0.0.1", 0))
    listener.set_inheritable(True)
    os.environ.update({
        "LISTENER": str(listener.fileno()),
        "NCCL_RAS_ADDR": "127.0.0.1:%d" % listener.getsockname()[1],
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": folder,
        "TORCH_FR_DUMP_TEMP_FILE": folder,
    })
    os.execv(sys.executable, sys.orig_argv)
listener = socket.socket(fileno=int(os.environ["LISTENER"]))
os.mkfifo(folder + "0.pipe")
pipe = os.open(folder + "0.pipe", os.O_RDWR)
told = {"rank": 0, "host": "127.0.0.1", "pid": os.getpid(), "collective_counts": {"AllReduce": 6}}
ahead = {**told, "rank": 1, "pid": 1, "collective_counts": {"AllReduce": 7}}
one = {"hash": "0x1", "size": 2, "ranks": [told, ahead], "missing_ranks": []}
print("ready", flush=True)
while True:
    for ready in select.select([listener, pipe], [], [])[0]:
        if ready == pipe:
            os.read(pipe, 128)
            shutil.copy("trace", folder + "0")
            continue
        link, _ = listener.accept()
        for line in link.makefile():
            link.sendall(b"SERVER PROTOCOL 2\\n" if "PROTOCOL" in line else b"OK\\n")
            if "STATUS" in line:
                link.sendall(json.dumps({"communicators": [one]}).encode())
                break
        link.close()
"""


def dumped(run: Run, **args: object) -> NodeDump:
    answer: DumpAnswer = from_json(
        DumpAnswer, run.call(0, "dump", {**run.where(), **args})[-1].head, ""
    )
    assert answer.dump is not None
    return answer.dump


def test_a_dump_has_what_nccl_and_the_flight_recorder_know(make_run: MakeRun) -> None:
    run = make_run(ANSWERS)
    shutil.copy(Path(__file__).with_name("recorder.pickle"), run.workdir / "trace")
    run.start()
    run.wait_for_log(0, b"ready")
    dump = dumped(run)
    assert dump.unheard == ()
    ((launches,),) = (one.launches for one in dump.communicators)
    (behind,) = launches.behind
    assert (behind.rank, behind.pid) == (0, dump.ranks[0].processes[0].pid)
    assert [one.operation for one in dump.ranks[0].collectives] == ["broadcast", "all_reduce"]
    assert dumped(run, only=[0]).communicators == (), "no verdict is made of some ranks"


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({}, "no rank listens at 127.0.0.1:1: no communicator yet, or NCCL before 2.24"),
        ({"NCCL_RAS_ENABLE": "0"}, "NCCL_RAS_ENABLE=0 turns its RAS off"),
    ],
)
def test_what_could_not_be_asked_is_told(more: dict[str, str], why: str) -> None:
    environ = {"NCCL_RAS_ADDR": "127.0.0.1:1", **more}
    told = libraries._communicators({0: {}, 1: environ}, [os.getpid()])
    assert told == ([], [f"what NCCL knows: {why}"])
    assert libraries._communicators({0: {}}, [os.getpid()]) == ([], []), "a run without GPUs"


def test_the_recorder_of_a_rank_that_has_ended_is_found_by_what_was_planned(tmp_path: Path) -> None:
    shutil.copy(Path(__file__).with_name("recorder.pickle"), tmp_path / "recorder_3")
    job = {"env": [["TORCH_FR_DUMP_TEMP_FILE", f"{tmp_path}/recorder_", "built-in"]]}
    ended = {"rank": 3, "pid": os.getpid(), "state": "ended", "began": 0.0}
    told = libraries.answer_of(libraries.ask_libraries(job, [ended], {}, nccl=True))
    assert [one["operation"] for one in told["collectives"]["3"]] == ["broadcast", "all_reduce"]
    assert (told["communicators"], told["unheard"]) == ([], [])


def test_a_rank_that_writes_nothing_when_asked_tells_nothing_of_the_past(tmp_path: Path) -> None:
    prefix = f"{tmp_path}/recorder_"
    names = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE")
    job = {"env": [[name, prefix, "built-in"] for name in names]}
    rank = {"rank": 3, "pid": os.getpid(), "state": "ended", "began": 0.0}
    trace = Path(__file__).with_name("recorder.pickle")
    shutil.copy(trace, tmp_path / "recorder_3")
    with AsRank(f"{prefix}3.pipe", tmp_path / "elsewhere", trace.read_bytes()):
        told = libraries.answer_of(libraries.ask_libraries(job, [rank], {}, nccl=True))
    assert told["collectives"] == {}
    assert told["unheard"] == [
        "the flight recorder of rank 3: asked, it wrote no file within 2.5 s"
    ]


def test_a_node_where_asking_hangs_tells_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(_: Any) -> dict[str, str]:
        time.sleep(600)
        return {}

    monkeypatch.setattr(libraries, "SECONDS", 0.1)
    monkeypatch.setattr(libraries, "READ_SECONDS", 0.0)
    monkeypatch.setattr(libraries, "_environ", hang)
    asked = libraries.ask_libraries({}, [{"rank": 0, "pid": 1, "state": "running"}], {}, nccl=True)
    assert libraries.answer_of(asked) == {
        "collectives": {}, "communicators": [],
        "unheard": ["what NCCL and PyTorch's flight recorder know: no answer within 0.1 s"],
    }  # fmt: skip
