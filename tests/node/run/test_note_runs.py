"""What a node keeps of the other runs that may write a run's checkpoints."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, cast

import pytest

from clusterctl.node.file_io import read_json
from clusterctl.node.run.files.run_paths import NodePaths
from clusterctl.node.run.operations.note_runs import MOST_KEPT, note_runs


def asked(folder: Path, **more: object) -> dict[str, Any]:
    return {"cluster": "lab", "run": "lab-1", "node": "a", "state": str(folder), **more}


def test_runs_are_kept_once_by_the_nodes_own_clock(tmp_path: Path) -> None:
    args = asked(tmp_path, others=[{"run": "lab-2", "began": 100.0}], now=200.0)
    assert note_runs(args, b"", cast("Any", None)).head == {"noted": False}
    paths = NodePaths.of(args)
    Path(paths.folder).mkdir(parents=True)
    Path(paths.job).write_text("{}")
    for others in ([{"run": "lab-2", "began": 100.0}] * 2, [{"run": "lab-3", "began": 150.0}]):
        told = note_runs({**args, "others": others}, b"", cast("Any", None))
        assert told.head == {"noted": True}
    kept = read_json(paths.others)["others"]
    assert [one["run"] for one in kept] == ["lab-2", "lab-3"]
    assert kept[0]["began"] == pytest.approx(time.time() - 100.0, abs=5)
    many = [{"run": f"lab-{n}", "began": 1.0} for n in range(50)]
    note_runs({**args, "others": many}, b"", cast("Any", None))
    assert len(read_json(paths.others)["others"]) == MOST_KEPT
