"""What a node finds out once an attempt has failed."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from clusterctl.node.checkpoints import origin
from clusterctl.node.peer_link.restart_messages import LINES
from clusterctl.node.run.files.run_files import write_json
from clusterctl.node.run.files.run_paths import NodePaths
from clusterctl.node.supervisor import after_attempt


def test_the_line_that_tells_of_a_crash_is_told_with_the_last_ones() -> None:
    def told(*lines: str) -> list[str]:
        record: Any = SimpleNamespace(log_end=lambda *_: "\n".join(lines).encode())
        return after_attempt._last_lines(record, 0)

    stacks = [f"  File x.py, line {n}" for n in range(50)]
    crash = "Fatal Python error: Segmentation fault"
    assert told("step 1", crash, *stacks) == [crash, *stacks[-LINES + 1 :]]
    assert told("step 1", *stacks) == stacks[-LINES:]
    assert told(crash, *stacks[:3]) == [crash, *stacks[:3]]


def test_what_another_run_may_have_written_meanwhile_is_told_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(origin, "is_alive", lambda _saved: True)  # its supervisor asks
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "step-5").mkdir()
    job: Any = {"workdir": str(tmp_path), "checkpoints": "out", "run": "lab-1", "cluster": "lab"}
    job |= {"node": "a", "state": str(tmp_path / "state")}
    paths = NodePaths.of(job)
    Path(paths.folder).mkdir(parents=True)
    Path(paths.job).write_text(json.dumps(job))
    write_json(paths.supervisor, {"began": time.time() - 60})
    record: Any = SimpleNamespace(paths=paths)
    (alone,) = after_attempt._sight(job, record)["checkpoints"]
    assert (alone["run"], alone["beside"]) == ("lab-1", [])
    write_json(paths.others, {"others": [{"run": "lab-2", "began": time.time() - 30}]})
    (shared,) = after_attempt._sight(job, record)["checkpoints"]
    assert (shared["run"], shared["beside"]) == ("", ["lab-1", "lab-2"])


@pytest.mark.parametrize(("lost_after", "waits"), [(2.0, 6.0), (15.0, 16.0), (600.0, 60.0)])
def test_a_node_is_asked_for_as_long_as_it_may_be_silent_while_ranks_run(
    monkeypatch: pytest.MonkeyPatch, lost_after: float, waits: float
) -> None:
    asked: list[Any] = []

    def connect_to(targets: list[dict[str, Any]], _nonce: str, seconds: float) -> list[Any]:
        asked.append(([one["node"] for one in targets], seconds))
        states = {"c": "timeout", "d": "refused"}
        return [{"node": one["node"], "state": states[one["node"]]} for one in targets]

    monkeypatch.setattr(after_attempt, "connect_to", connect_to)
    job = {
        "node": "b",
        "address": "10.0.0.2",
        "workers": ["b", "c", "d", "e"],
        "link": {"lost_after": lost_after},
        "lineup": {"seats": [{"node": name, "address": "10.0.0.9"} for name in "abcde"]},
    }
    assert after_attempt.unreached(cast("Any", job), ["e"]) == ["c"]
    assert asked == [(["c", "d"], waits)]
