"""What a person sees of the last lines of a failed rank."""

from __future__ import annotations

from clusterctl.logs.excerpt import excerpt, without_noise
from clusterctl.logs.first_cause import NodeReport, first_cause

LIBRARY = "/venv/lib/python3.11/site-packages/torch/nn/modules/module.py"


def frame(path: str, line: int, code: str) -> list[str]:
    return [f'  File "{path}", line {line}, in call', f"    {code}", "    ^^^^^"]


TRACEBACK = [
    "step 7",
    "Traceback (most recent call last):",
    *frame("/data/train.py", 3, "main()"),
    *frame(LIBRARY, 1751, "return self._call_impl()"),
    *frame(LIBRARY, 1762, "return forward_call()"),
    *frame("/data/model.py", 9, "x @ y"),
    *frame(LIBRARY, 80, "raise ValueError(no)"),
    "ValueError: no",
]
NOISE = [
    "[W1122 06:50:00.123456789 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=3)",
    "[rank1]:[W1122 06:50:00.5 ProcessGroupNCCL.cpp:1524] Warning: destroy_process_group() was not",
    "Exception raised from recvBytes at /pytorch/csrc/Utils.hpp:678 (most recent call first):",
    "frame #0: c10::Error::Error(c10::SourceLocation) + 0x98 (0x7f in libc10.so)",
    "W1122 07:07:48.336000 473 torch/distributed/elastic/agent/server/api.py:753] Received 15",
]


def test_frames_of_libraries_are_one_line() -> None:
    assert excerpt(TRACEBACK) == [
        "step 7",
        "Traceback (most recent call last):",
        *frame("/data/train.py", 3, "main()"),
        "  … 2 library frames",
        *frame("/data/model.py", 9, "x @ y"),
        "  … 1 library frame",
        "ValueError: no",
    ]


def test_a_traceback_of_libraries_alone_keeps_its_last_frame() -> None:
    only = [TRACEBACK[1], *frame(LIBRARY, 1, "a()"), *frame(LIBRARY, 2, "b()"), "ImportError: x"]
    assert excerpt(only) == [
        TRACEBACK[1],
        "  … 1 library frame",
        *frame(LIBRARY, 2, "b()"),
        "ImportError: x",
    ]


def test_frames_with_a_ranks_prefix_are_read_too() -> None:
    prefixed = [f"[rank1]: {line}" for line in TRACEBACK[1:]]
    found = excerpt(prefixed)
    assert "  … 2 library frames" in found
    assert found[-1] == "[rank1]: ValueError: no"
    assert not any("site-packages" in line for line in found)


def test_warnings_of_torch_about_peers_are_left_out() -> None:
    assert without_noise([*NOISE, "ValueError: no", *NOISE]) == ("ValueError: no",)
    assert without_noise(NOISE) == tuple(NOISE)
    kept = ["[W of mine] x", "frame 3", "Warning: low disk"]
    assert without_noise(kept) == tuple(kept)


def test_a_warning_of_torch_is_not_the_last_line_of_a_rank() -> None:
    ended = {"kind": "rank-ended", "time": 1.0, "rank": 0, "exit_code": 3}
    lines: dict[int | None, list[str]] = {0: ["no such option: --lrr", *NOISE]}
    cause = first_cause([NodeReport(node="a", events=[ended], last_lines=lines)])
    assert cause is not None
    assert cause.message == "exited with 3; its last line: no such option: --lrr"


def test_the_report_of_a_torchrun_below_a_script_does_not_hide_the_programs_words() -> None:
    api = "torch/distributed/elastic/multiprocessing/api.py"
    report = [
        f"W1129 20:41:29.700000 30 {api}:913] Sending process 36 closing signal SIGTERM",
        f"E1129 20:41:29.723000 30 {api}:1002] failed (exitcode: 1) local_rank: 0 (pid: 35)",
        "Traceback (most recent call last):",
        *frame(LIBRARY, 80, "raise ChildFailedError("),
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "=" * 60,
        "train.py FAILED",
    ]
    assert excerpt([*TRACEBACK, *report]) == excerpt(TRACEBACK)
    assert excerpt(report) == excerpt(report[:2]) + excerpt(report[2:])
