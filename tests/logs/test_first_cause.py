"""The first cause: whichever end brought the others down, never an echo of it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.logs import known_errors
from clusterctl.logs.first_cause import FirstCause, NodeReport, first_cause
from clusterctl.node import printed_cause

RESET = ["RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]"]


def ended(time: float, rank: int, **more: Any) -> dict[str, Any]:
    return {"kind": "rank-ended", "time": time, "rank": rank, "exit_code": 1, **more}


def clock(offset: float, error: float) -> dict[str, Any]:
    return {"kind": "clock", "time": 0.0, "offset_s": offset, "error_s": error}


def found(*reports: NodeReport) -> FirstCause:
    cause = first_cause(reports)
    assert cause is not None
    return cause


def test_a_good_end_has_no_cause() -> None:
    assert first_cause([NodeReport(node="a", events=[ended(1.0, 0, exit_code=0)])]) is None


def test_what_we_ordered_is_no_cause() -> None:
    ordered = ended(1.0, 0, exit_code=None, signal=15, ordered=True)
    assert first_cause([NodeReport(node="a", events=[ordered])]) is None


def test_an_echo_is_never_the_cause_even_when_it_was_seen_earlier() -> None:
    cause = found(
        NodeReport(node="a", events=[ended(9.0, 0)], last_lines={0: RESET}),
        NodeReport(node="b", events=[ended(10.0, 1, exit_code=7)], last_lines={1: ["bad luck"]}),
    )
    assert (cause.node, cause.rank, cause.exit_status) == ("b", 1, 7)
    assert cause.message == "exited with 7; its last line: bad luck"


@pytest.mark.parametrize(
    ("low_at", "line", "more", "full"),
    [
        (7.0, "step 3", {}, True),
        (10.5, "step 3", {}, True),  # the next look, after the end
        (-math.inf, "step 3", {}, False),
        (-50.0, "step 3", {}, False),
        (7.0, "ValueError: bad luck", {}, False),
        (7.0, "step 3", {"exit_code": None, "signal": 9}, False),
    ],
)
def test_a_rank_that_fails_without_a_word_while_its_logs_have_no_room(
    low_at: float, line: str, more: dict[str, Any], *, full: bool
) -> None:
    report = NodeReport(
        node="a", events=[ended(10.0, 0, **more)], last_lines={0: [line]}, room_low_at=low_at
    )
    assert (found(report).remedy == known_errors.NO_ROOM_FOR_LOGS) is full


def test_only_echoes_give_the_earliest_of_them() -> None:
    cause = found(
        NodeReport(node="a", events=[ended(2.0, 0)], last_lines={0: RESET}),
        NodeReport(node="b", events=[ended(1.0, 1)], last_lines={1: RESET}),
    )
    assert cause.node == "b"


def test_the_lines_of_a_rank_that_ended_often_are_searched_once() -> None:
    printed_cause.known_last_error.cache_clear()
    often = [ended(float(n), 0) for n in range(500)]
    found(NodeReport(node="a", events=often, last_lines={0: ["once"]}))
    assert printed_cause.known_last_error.cache_info().misses == 1


def test_times_are_compared_on_the_masters_clock() -> None:
    cause = found(
        NodeReport(node="a", events=[clock(0.0, 0.01), ended(100.0, 0)]),
        NodeReport(node="b", events=[clock(60.0, 0.01), ended(159.0, 1, exit_code=3)]),
    )
    assert (cause.node, cause.time, cause.also) == ("b", 99.0, ())


def test_what_the_clocks_cannot_separate_is_named_beside_it() -> None:
    cause = found(
        NodeReport(node="a", events=[clock(0.0, 0.5), ended(100.0, 0)]),
        NodeReport(node="b", events=[clock(0.0, 0.5), ended(100.3, 1)]),
        NodeReport(node="c", events=[clock(0.0, 0.01), ended(130.0, 2)]),
        NodeReport(node="d", events=[clock(0.0, 0.01), ended(100.4, 3)]),
    )
    assert (cause.node, cause.also) == ("a", ("b:1", "d:3"))


def test_ranks_that_the_launcher_ended_after_another_are_echoes() -> None:
    events = [
        ended(1.0, 1, exit_code=None, signal=9),
        ended(1.1, 0, exit_code=None, signal=15),
        {"kind": "launcher-ended", "time": 1.2, "exit_code": 1},
    ]
    cause = found(NodeReport(node="a", events=events))
    assert (cause.rank, cause.kind, cause.exit_status, cause.also) == (1, "signal", 137, ())
    assert "SIGKILL" in cause.message
    assert "out-of-memory" in cause.remedy


@pytest.mark.parametrize(("at", "rank"), [(1.4, None), (5.0, 0)])
def test_a_rank_terminated_after_one_whose_exit_code_is_lost_is_an_echo(
    at: float, rank: int | None
) -> None:
    events = [
        ended(at, 0, exit_code=143, signal=15),
        ended(1.0, 1, exit_code=None),
        {"kind": "launcher-ended", "time": at + 0.1, "exit_code": 1},
    ]
    cause = found(NodeReport(node="a", events=events))
    assert (cause.kind, cause.rank) == ("launcher" if rank is None else "signal", rank)


def test_a_launcher_that_was_killed_is_named() -> None:
    event = {"kind": "launcher-ended", "time": 1.0, "exit_code": 137, "signal": 9, "oom_kills": 0}
    cause = found(NodeReport(node="a", events=[event, ended(1.1, 0, exit_code=137, ordered=True)]))
    assert (cause.rank, cause.message) == (None, "the launcher was killed by SIGKILL")
    assert cause.remedy.endswith("did not run")


def test_a_launcher_that_failed_before_any_rank_is_the_cause() -> None:
    events = [{"kind": "launcher-ended", "time": 1.0, "exit_code": 1}]
    lines: dict[int | None, list[str]] = {
        None: ["Traceback", "ModuleNotFoundError: No module named 'peft'"]
    }
    cause = found(NodeReport(node="a", events=events, last_lines=lines))
    assert (cause.rank, cause.kind) == (None, "launcher")
    assert cause.remedy.startswith("install it")


def test_a_lost_node_is_the_cause_of_the_echoes() -> None:
    lost = {"kind": "peer-lost", "time": 20.0, "since": 5.0, "peer": "b"}
    cause = found(
        NodeReport(node="a", events=[ended(6.0, 0), lost], last_lines={0: RESET}),
        NodeReport(node="c", events=[lost]),
    )
    assert (cause.node, cause.kind, cause.rank, cause.also) == ("b", "node-lost", None, ())


def lost(peer: str, since: float) -> dict[str, Any]:
    return {"kind": "peer-lost", "time": since + 5.0, "since": since, "peer": peer}


def test_a_node_that_was_cut_off_does_not_lay_that_to_the_others() -> None:
    a, b, c = (NodeReport(node=name) for name in "abc")
    heard = told(10.2, by="lost", lost="b") | {"peer": "a"}
    worker = found(
        replace(a, events=[lost("b", 5.0)]),
        replace(b, events=[lost("a", 4.9)]),
        replace(c, events=[heard]),
    )
    master = found(
        replace(a, events=[lost("b", 4.8), lost("c", 4.9)]),
        replace(b, events=[lost("a", 5.0)]),
        replace(c, events=[lost("a", 5.1)]),
    )
    assert [(cause.node, cause.also) for cause in (worker, master)] == [("b", ()), ("a", ())]


def test_a_killed_supervisor_is_the_cause_of_what_ranks_elsewhere_saw_of_it() -> None:
    died = {"kind": "supervisor-died", "time": 9.9}
    died["message"] = "the supervisor was killed by signal 9"
    cause = found(
        NodeReport(node="a", events=[ended(10.0, 0)], last_lines={0: ["RuntimeError: no peer"]}),
        NodeReport(node="b", events=[died, ended(9.95, 1, ordered=True)]),
    )
    assert (cause.node, cause.rank, cause.kind) == ("b", None, "supervisor")
    assert cause.message == "the supervisor was killed by signal 9"
    assert "out-of-memory" in cause.remedy


def told(time: float, **more: Any) -> dict[str, Any]:
    message = "rank 1 was killed by signal 9"
    return {"kind": "peer-bad-end", "time": time, "peer": "b", "message": message, **more}


OF_RANK_1 = {"by": "rank", "rank": 1, "exit_code": 137, "signal": 9}


def test_what_a_silent_node_told_the_others_is_the_cause() -> None:
    reports = [NodeReport(node=name, events=[told(1.0, **OF_RANK_1)]) for name in ("a", "c")]
    lost = {"kind": "peer-lost", "time": 20.0, "since": 5.0, "peer": "b"}
    reports.append(NodeReport(node="d", events=[lost]))
    cause = found(*reports)
    assert (cause.node, cause.rank, cause.kind, cause.signal) == ("b", 1, "signal", 9)
    assert (cause.exit_status, cause.also) == (137, ())


def test_what_a_node_says_itself_comes_before_what_it_told_the_others() -> None:
    own = ended(5.0, 1, exit_code=137, signal=9)
    cause = found(
        NodeReport(node="a", events=[told(1.0, **OF_RANK_1)]),
        NodeReport(node="b", events=[own], last_lines={1: ["its last words"]}),
    )
    assert (cause.time, cause.lines) == (5.0, ("its last words",))


@pytest.mark.parametrize("by", ["launcher", "supervisor"])
def test_a_silent_nodes_launcher_or_supervisor_is_named(by: str) -> None:
    cause = found(NodeReport(node="a", events=[told(1.0, by=by, exit_code=1)]))
    assert (cause.node, cause.kind) == ("b", by)


def test_a_node_that_a_silent_node_lost_is_named() -> None:
    message = "c has been silent for 15 s (no answer)"
    event = told(20.0, by="lost", lost="c") | {"message": message}
    cause = found(NodeReport(node="a", events=[event]))
    assert (cause.node, cause.kind) == ("c", "node-lost")
    assert cause.message == f"b lost the connection to it: {message}"
    own = {"kind": "peer-lost", "time": 20.0, "since": 5.0, "peer": "c"}
    cause = found(NodeReport(node="a", events=[event]), NodeReport(node="b", events=[own]))
    assert (cause.node, cause.time, cause.also) == ("c", 5.0, ())


def test_a_lost_node_that_answers_again_tells_why() -> None:
    event = {"kind": "peer-lost", "time": 20.0, "since": 5.0, "peer": "b", "message": "silent"}
    lost = NodeReport(node="b", gone="the machine was rebooted")
    cause = found(NodeReport(node="a", events=[event]), lost)
    assert (cause.node, cause.kind) == ("b", "node-lost")
    assert cause.message == "the machine was rebooted; a lost the connection to it: silent"


@pytest.mark.parametrize("more", [{}, {"by": "stop"}, {"by": "lost"}, {"by": "rank", "peer": None}])
def test_what_was_told_without_a_code_is_no_cause(more: dict[str, Any]) -> None:
    assert first_cause([NodeReport(node="a", events=[told(1.0, **more)])]) is None


def test_what_an_event_does_not_know_is_no_trouble() -> None:
    blank = {"kind": "clock", "offset_s": None, "error_s": None}
    unseen = {"kind": "peer-lost", "time": 3.0, "since": None, "peer": "b"}
    untimed = ended(0.0, 0) | {"time": None}
    assert found(NodeReport(node="a", events=[blank, unseen])).time == 3.0
    assert found(NodeReport(node="a", events=[untimed])).time == 0.0


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "smaller batch"),
        ("OSError: [Errno 28] No space left on device", "free space"),
        (
            "_pickle.UnpicklingError: Weights only load failed. This file can still be loaded, to",
            "--env TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1",
        ),
        ("[rank3]: ModuleNotFoundError: No module named 'peft'", "install it"),
        (
            "FileNotFoundError: [Errno 2] No such file or directory: 'data/x y/t.bin'",
            "clusterctl push 'data/x y/t.bin' --to 'data/x y' copies it from this folder",
        ),
        (
            "FileNotFoundError: [Errno 2] No such file or directory: 'x'",
            "clusterctl push x --to . copies it",
        ),
        ("cat: x: No such file or directory", "copy it to every node"),
        (
            "[rank1]: FileNotFoundError: [Errno 2] No such file or directory: '/data/a b.txt'",
            "clusterctl push '/data/a b.txt' copies it from a node that has it; with `job:",
        ),
        ("python3: can't open file '/root/t.py': [Errno 2] No such file or directory", "workdir:"),
    ],
)
def test_known_messages_have_a_remedy(line: str, word: str) -> None:
    report = NodeReport(node="a", events=[ended(1.0, 0)], last_lines={0: ["noise", line, ""]})
    cause = found(report)
    assert line in cause.message
    assert word in cause.remedy


def test_a_command_that_does_not_exist_says_so() -> None:
    cause = found(NodeReport(node="a", events=[ended(1.0, 0, exit_code=127)]))
    assert "does not exist on the node" in cause.message
    assert cause.exit_status == 127


@pytest.mark.parametrize(
    "line", ["./run.sh: line 2: torchrun: command not found", "run.sh: 2: torchrun: not found"]
)
def test_a_program_that_a_script_does_not_find_is_named_in_the_hint(line: str) -> None:
    event = ended(1.0, 0, exit_code=127)
    cause = found(NodeReport(node="a", events=[event], last_lines={0: [line]}))
    assert cause.remedy.startswith("install torchrun on the node")


LISTEN = "RuntimeError: The server socket has failed to listen on any local network address."


@pytest.mark.parametrize(
    ("line", "word"),
    [
        (LISTEN, "--master-port"),
        (f"torch.distributed.DistNetworkError: {LISTEN[14:-1]}. port: 29500", "--master-port"),
        ("OSError: [Errno 98] Address already in use", "--master-port"),
        ("NVRM: Xid (PCI:0000:9b:00): 119, pid=20, name=nvidia-smi, Timeout after 6s", "--exclude"),
        ("torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered", "--exclude"),
        ("/usr/bin/python3: No module named torch", "defaults: {python:"),
        ("ModuleNotFoundError: No module named 'torch'", "defaults: {python:"),
        ("ModuleNotFoundError: No module named 'torch_geometric'", "install it"),
        ("ModuleNotFoundError: No module named 'timm.models.registry'", "another version"),
        ("ModuleNotFoundError: No module named 'torch._six'", "another version"),
        ("ModuleNotFoundError: No module named 'distutils'", "an older interpreter"),
        ("ModuleNotFoundError: No module named 'encodings'", "remove PYTHONHOME"),
        (
            "urllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name r>",
            "download it once",
        ),
        ("ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!", "gloo"),
        (
            "RuntimeError: unable to write to file </torch_1_2>: No space left on device (28)",
            "/dev/shm",
        ),
        ("ERROR: Unexpected bus error encountered in worker", "/dev/shm"),
        ("train.trainer.NonFinite: the loss of step 7 is not finite", "learning rate"),
        ("OSError: [Errno 24] Too many open files: 'x'", "limit"),
        ("PermissionError: [Errno 13] Permission denied: '/data'", "SSH user"),
        ("OSError: [Errno 122] Disk quota exceeded", "quota"),
        ("RuntimeError: Connection timeout", "check --only network"),
        ("ConnectionError: [Errno 113] No route to host", "check --only network"),
        ("NCCL WARN connect to 10.11.7.50<12345> failed: No route to host", "check --only network"),
        ("RuntimeError: Rank mismatch", "job.env"),
        ("RuntimeError: Collective operation timeout", "clusterctl logs"),
        ("terminate called without an active exception", "destroy_process_group"),
        ("NCCL WARN Call to ibv_reg_mr failed", "node.memlock"),
        ("RuntimeError: CUDA error 802: system not yet initialized", "accelerator.fabric"),
        ("pynvml.NVMLError_GpuIsLost: GPU is lost", "--only accelerator"),
        ("RuntimeError: Failed to initialize NVML: Unknown Error", "daemon-reload"),
        ("pynvml.NVMLError_Unknown: Unknown Error", "daemon-reload"),
        ("Failed to initialize NVML: Driver/library version mismatch", "sudo reboot"),
        ("RuntimeError: No CUDA GPUs are available", "restart"),
        ("torch.AcceleratorError: CUDA error: no CUDA-capable device is detected", "restart"),
        ("ImportError: /tmp/x.so: failed to map segment from shared object", "storage.noexec"),
        ("BlockingIOError: [Errno 11] Resource temporarily unavailable", "node.processes"),
        ("RuntimeError: can't start new thread", "node.processes"),
        ("CUDA error: no kernel image is available for execution on the device", "only python"),
        ("AssertionError: Torch not compiled with CUDA enabled", "only python"),
    ],
)
def test_a_remedy_fits_its_message(line: str, word: str) -> None:
    assert word in known_errors.remedy_for([line])


@pytest.mark.parametrize(
    "line",
    [
        "KeyError: 'taxid'",
        "IndexError: maxIdx out of range",
        "KeyError: 'xid'",
        "ValueError: no row has xid 79",
        "modbus error: no answer of the sensor",
        "triton.OutOfResources: out of resource: shared memory, Required: 147456",
        "ValueError: reimporterror: 3",
        "KeyError: 'eaddrinuse_count'",
        "AssertionError: isnonfinite",
        "KeyError: 'too many open files_total'",
        "AttributeError: MyPermissionErrors",
    ],
)
def test_a_word_within_a_word_has_no_remedy(line: str) -> None:
    assert known_errors.remedy_for([line]) == ""


@pytest.mark.parametrize(
    "line",
    [
        "ValueError: the websocket closed_at column is missing",
        "KeyError: 'brokenpipes'",
        "AttributeError: DistNetworkErrors",
        "RuntimeError: [gloo/transport/tcp/device.cc:84] Unable to find address for: eth9",
        LISTEN.replace("RuntimeError", "torch.distributed.DistNetworkError"),
    ],
)
def test_what_only_looks_like_an_echo_may_be_the_cause(line: str) -> None:
    assert not known_errors.is_secondary([line])


@pytest.mark.parametrize(
    ("count", "word"),
    [
        (1, "use less host memory"),
        (0, "a user or program on the node sent SIGKILL"),
        (None, "dmesg"),
    ],
)
def test_a_kill_is_laid_to_the_kernel_if_its_counter_says_so(count: int | None, word: str) -> None:
    killed = ended(1.0, 0, exit_code=137, signal=9, oom_kills=count)
    assert word in found(NodeReport(node="a", events=[killed])).remedy


ECHO, BAD = RESET, ["ValueError: bad luck"]
ENDS = st.builds(
    lambda time, code, number, lines, ordered: (
        ended(time, 0, exit_code=code, signal=number, ordered=ordered),
        lines,
    ),
    st.floats(0, 100),
    st.sampled_from([0, 1, 7, None]),
    st.sampled_from([None, 6, 9, 11]),
    st.sampled_from([ECHO, BAD, []]),
    st.booleans(),
)


@given(st.lists(ENDS, max_size=6), st.randoms(use_true_random=False))
def test_of_any_ends_the_earliest_that_is_neither_ordered_nor_an_echo_is_the_cause(
    ends: list[tuple[dict[str, Any], list[str]]], chance: Any
) -> None:
    reports = [
        NodeReport(node=f"n{number}", events=[event], last_lines={0: lines})
        for number, (event, lines) in enumerate(ends)
    ]
    bad = {
        f"n{number}": (lines is ECHO, event["time"])
        for number, (event, lines) in enumerate(ends)
        if not event["ordered"] and (event["exit_code"] or event["signal"])
    }
    still_exiting = {
        f"n{number}"
        for number, (event, lines) in enumerate(ends)
        if f"n{number}" not in bad and lines is BAD and (event["exit_code"] != 0 or event["signal"])
    }
    shuffled = list(reports)
    chance.shuffle(shuffled)
    cause = first_cause(shuffled)
    if cause is None:
        assert not bad
        return
    if still_exiting and all(echo for echo, _ in bad.values()):
        assert cause.node in still_exiting
        return
    assert bad[cause.node] == min(bad.values())
    same = {f"{node}:0" for node, end in bad.items() if end == bad[cause.node]}
    assert {*cause.also, f"{cause.node}:0"} == same
    assert cause.exit_status != 0


def test_a_node_without_which_the_run_continued_lays_nothing_to_the_others() -> None:
    a, b, c = (NodeReport(node=name) for name in "abc")
    left = {"kind": "peer-left", "time": 55.0, "peer": "b"}
    joined = {"kind": "peer-joined", "time": 60.0, "peer": "b"}
    cut = replace(b, events=[lost("a", 50.0)])
    cause = found(replace(a, events=[left]), cut, replace(c, events=[ended(100.0, 2)]))
    assert (cause.node, cause.rank) == ("c", 2)
    again = found(replace(a, events=[left, joined]), replace(b, events=[lost("a", 150.0)]))
    assert (again.node, again.kind) == ("a", "node-lost")


def test_a_node_is_not_believed_what_it_tells_of_others_than_the_master() -> None:
    a = NodeReport(node="a", events=[ended(9.0, 0)])
    joined = {"kind": "peer-joined", "time": 1.0, "peer": "b"}
    for lie in (told(1.0, **OF_RANK_1), lost("b", 1.0), told(1.0, by="lost", lost="b")):
        reports = [a, NodeReport(node="b"), NodeReport(node="c", events=[joined, lie])]
        cause = first_cause(reports, "a")
        assert cause is not None
        assert (cause.node, cause.rank) == ("a", 0)
    silent = first_cause([NodeReport(node="c", events=[told(1.0, **OF_RANK_1)])], "a")
    assert silent is not None
    assert silent.node == "b", "the master's own events are not known"
