"""What a launch that waits keeps of an attempt for which another one was quicker."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from clusterctl.errors import Interrupted, LaunchRefused
from clusterctl.verbs.events import ignore
from clusterctl.verbs.launch import wait_until_free
from clusterctl.verbs.launch.options import LaunchOptions
from clusterctl.verbs.runs.records import Records
from tests.verbs.launch.test_launch import RECORD, VERDICT
from tests.verbs.run_answers import CLUSTER, PLAN


@pytest.mark.parametrize(("by", "kept"), [("busy", False), ("start", True)])
def test_only_a_run_of_which_something_may_be_left_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, by: str, kept: bool
) -> None:
    records = Records(tmp_path)

    def begin(*_: object, **__: object) -> None:
        records.write(RECORD)
        raise LaunchRefused("not started", by=by)

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(wait_until_free, "ready", lambda *_: None)
    monkeypatch.setattr(wait_until_free, "prepare", lambda *_, **__: (CLUSTER, PLAN, VERDICT))
    monkeypatch.setattr(wait_until_free, "begin", begin)
    monkeypatch.setattr(wait_until_free, "collect_facts", interrupted)
    with pytest.raises(LaunchRefused if kept else Interrupted):
        wait_until_free.launch_when_free(
            CLUSTER, cast("Any", None), records, LaunchOptions(wait=9.0), emit=ignore
        )
    assert bool(records.all(CLUSTER.name)) is kept
