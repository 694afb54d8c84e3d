"""Which node a failed attempt blames, by texts that programs really printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clusterctl.node.file_io import read_json
from clusterctl.node.restart.agreement import tell_sight
from clusterctl.node.restart.blame import LOST, blamed
from clusterctl.node.restart.judgement import AttemptEnd, Failure
from clusterctl.node.restart.own_rules import FoundPatterns
from clusterctl.node.run.files.run_paths import NodePaths
from clusterctl.node.run.operations.status import node_status
from clusterctl.node.supervisor.decide_next import decide_next
from clusterctl.node.supervisor.shutdown import Cause
from tests.node.restart.test_judgement import text_with

FIT: dict[str, dict[str, str | None]] = {name: {"workdir": "", "xid": None} for name in "abc"}


def failed(text: str, node: str = "b") -> AttemptEnd:
    lines = tuple(text.split("\n"))
    return AttemptEnd(1, "rank", failures=(Failure(node, 1.0, rank=1, exit_code=1, lines=lines),))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (text_with("uncorrectable ECC error"), "the GPU is faulty"),
        (text_with("system not yet initialized"), "the fabric of the GPUs is not up"),
        (text_with("Input/output error"), "the disk fails"),
        ("RuntimeError: NVML: GPU is lost", "the GPU is lost"),
        ("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.", "the GPU is faulty"),
    ],
)
def test_a_fault_of_the_node_blames_it(text: str, words: str) -> None:
    found = blamed(failed(text), FIT)
    assert list(found) == ["b"]
    assert found["b"].startswith(words)


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: no",
        "NVRM: Xid (PCI:0000:3b:00): 31, pid=7, MMU Fault",  # the program's own
        text_with("CUDA out of memory"),
        text_with("No CUDA GPUs are available"),  # its CUDA_VISIBLE_DEVICES
        text_with("all CUDA-capable devices are busy"),  # another user
        text_with("Read-only file system"),
        "OSError: [Errno 28] No space left on device",
        "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]",
    ],
)
def test_what_a_program_or_a_user_may_have_done_blames_no_node(text: str) -> None:
    assert blamed(failed(text), FIT) == {}


def test_a_lost_node_is_blamed_if_more_than_the_master_remain() -> None:
    end = AttemptEnd(1, "lost", lost=("b",))
    assert blamed(end, {"a": {}, "c": {}}) == {"b": LOST}
    assert blamed(end, {"a": {}}) == {}  # the master may be the one that was cut off
    both = AttemptEnd(1, "lost", lost=("b", "c"))
    assert blamed(both, {"a": {}}) == {}
    assert blamed(both, {"a": {}, "d": {}}) == dict.fromkeys("bc", LOST)


def test_a_check_between_attempts_blames_the_node_unless_others_fail_it_too() -> None:
    for no_room in ("No space left on device", "Disk quota exceeded"):
        check: dict[str, str | None] = {"state": f"/s cannot be written: {no_room}"}
        assert blamed(failed("ValueError: no"), {"a": check, "b": {}}) == {}
    full = "/data has 3 MiB left"
    checks: dict[str, dict[str, str | None]] = {
        "a": {"checkpoints": "/ck cannot be written: stale", "gpus": ""},
        "b": {"checkpoints": "/ck cannot be written: stale", "gpus": "7 GPUs answer, expected 8"},
        "c": {"state": full, "clock": None},
    }
    assert blamed(failed("ValueError: no"), checks) == {"b": "7 GPUs answer, expected 8"}
    checks["c"] = {"state": "state: no answer within 20 s", "xid": "Xid 79 of GPU 0000:3b:00"}
    found = blamed(failed("ValueError: no"), checks)
    assert found["c"] == "state: no answer within 20 s; Xid 79 of GPU 0000:3b:00"


def test_the_master_notes_whom_each_attempt_blames(tmp_path: Path) -> None:
    paths = NodePaths(str(tmp_path))
    ends: dict[str, list[str]] = {"exit_codes": [], "patterns": []}
    nodes = {"node": "a", "master": {"node": "a"}, "workers": ["b", "c"]}
    job: Any = {"run": "lab-1", "restart": {"max": 3, "on": ends, "never": ends}, **nodes}

    def decide(text: str, check: str, *, dead_link: bool = False) -> str:
        failure = {"at": 1.0, "rank": 1, "exit_code": 1, "signal": None, "oom": False}
        after: dict[str, Any] = {
            "failures": [],
            "step": None,
            "sight": tell_sight("/w", []),
            "check": {"xid": ""},
            "unreached": [],
            "stuck": False,
            "blame": "",
        }
        bad = {**after, "failures": [{**failure, "lines": [text]}], "check": {"xid": check}}
        afters = {"a": after, "b": bad, "c": after}
        if dead_link:
            afters = {
                "a": after,
                "b": {**bad, "unreached": ["c"]},
                "c": {**after, "unreached": "b"},
            }
        found = decide_next(job, paths, [Cause("rank", "so", "b")], afters, FoundPatterns())
        return found.decision.why

    decide("RuntimeError: NVML: GPU is lost", "")
    assert "c: it does not reach b" in decide("ValueError: no", "", dead_link=True)
    kept = read_json(paths.attempts)["blamed"]
    assert list(kept) == ["b"]
    assert kept["b"]["why"].startswith("the GPU is lost")
    assert kept["b"]["time"] > 0
    Path(paths.job).write_text(json.dumps(job))
    assert node_status(paths)["blamed"] == kept
    Path(paths.job).write_text(json.dumps({**job, "restart": None}))
    assert node_status(paths)["blamed"] == {}
