"""What `dump` prints: the verdict, what it could not see, and the stacks of the ranks asked for."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Any

import pytest

from clusterctl.errors import NodeError
from clusterctl.model.dump import NodeDump
from clusterctl.model.from_json import from_json
from clusterctl.report.console import Screen, make_console
from clusterctl.report.stacks.dump import show_dump
from clusterctl.verbs.dump.dump import DumpResult
from tests.verbs.hostile import stood_still
from tests.verbs.run_answers import RUN


def printed(*, folder: Path | None = None, **more: Any) -> str:
    """Return both streams for two nodes with a rank each."""
    dumps = tuple(
        from_json(NodeDump, {**stood_still(node), "time": time.time() - 120}, "") for node in "ab"
    )
    known: dict[str, Any] = {
        "run": RUN, "time": 1000.0, "dumps": dumps, "notes": {}, "silent": (),
        "states": {"a": "running", "b": "running"}, **more,
    }  # fmt: skip
    stream = io.StringIO()
    console = make_console(stream)
    every_thread = not known.get("whole", True)
    show_dump(
        Screen(console, console), DumpResult(**known), every_thread=every_thread, folder=folder
    )
    return stream.getvalue()


def test_of_all_ranks_the_verdict_is_printed_and_once_what_was_not_seen() -> None:
    text = printed()
    assert "[*:0-1] " in text
    assert "train.py:88" in text
    assert text.count("warning: [a:0, b:1] not seen: its native frames: no") == 1
    assert "a: GPU 0: too hot" in text
    assert "as it was" not in text


def test_of_chosen_ranks_every_frame_is_printed_but_no_verdict() -> None:
    text = printed(whole=False)
    assert "[a:0] pid 7, CPU 3 %, printed 2 s ago" in text
    assert "train_step  /w/train.py:88\n      x=1\n    main" in text
    assert "9 bytes to 10.0.0.2:4000 not acknowledged, sent again 2 times" in text
    assert "[*:" not in text


@pytest.mark.parametrize("whole", [True, False])
def test_stacks_that_were_kept_tell_their_age(whole: bool) -> None:  # noqa: FBT001
    text = printed(whole=whole, states={"a": "failed", "b": "stopped"})
    assert "as it was 2 min ago: a, b" in text


def test_what_a_node_did_not_tell_is_said() -> None:
    text = printed(
        dumps=(),
        states={"a": "failed"},
        notes={"a": "its disk is full"},
        silent=(NodeError("timeout", "answer", "no answer in time", node="b"),),
    )
    assert "warning: a: the run is failed here, and kept no stacks" in text
    assert "warning: a: its disk is full" in text
    assert "warning: b: timeout (answer): no answer in time" in text


def test_with_a_folder_the_files_are_named(tmp_path: Path) -> None:
    text = printed(folder=tmp_path)
    assert text.splitlines()[:2] == [str(tmp_path / "a.json"), str(tmp_path / "b.json")]
    assert "[*:" not in text
