"""Which other runs may write where a run writes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clusterctl.verbs.checkpoints.other_runs import meets, other_runs, with_other_runs
from clusterctl.verbs.runs.history import unrecorded
from clusterctl.wire import Message
from tests.fake_pool import FakePool
from tests.verbs.run_answers import CLUSTER, RUN, part, read

NODES = tuple(replace(node, workdir="/w/proj") for node in CLUSTER.nodes)
LOCAL = replace(CLUSTER, nodes=NODES, job=replace(CLUSTER.job, checkpoints="ckpt"))
SHARED = replace(LOCAL, shared=("/w",))
OTHER = "lab-20260102t000000-efgh"


@pytest.mark.parametrize(
    ("node", "theirs", "local", "shared"),
    [
        ("a", {"workdir": "/w/proj", "checkpoints": "ckpt"}, "checkpoints", "checkpoints"),
        ("c", {"workdir": "/w/proj", "checkpoints": "ckpt"}, None, "checkpoints"),
        ("c", {"workdir": "/w/other", "checkpoints": "/w/proj/ckpt/"}, None, "checkpoints"),
        ("c", {"workdir": "/w/proj", "checkpoints": "ckpt/sub"}, None, "checkpoints"),
        ("c", {"workdir": "/w/proj", "checkpoints": f"ckpt-{OTHER}"}, None, None),
        ("a", {"workdir": "/w/proj", "checkpoints": ""}, "workdir", "workdir"),
        ("c", {"workdir": "/w/proj"}, None, "workdir"),
        ("a", {"workdir": "/w/other"}, None, None),
        ("a", {}, None, None),
        ("a", {"workdir": "../w/proj", "checkpoints": "ckpt"}, None, None),
    ],
)
def test_two_runs_meet_where_both_may_write(
    node: str, theirs: dict[str, Any], local: str | None, shared: str | None
) -> None:
    for cluster, expected in ((LOCAL, local), (SHARED, shared)):
        found = meets(cluster, ["ckpt"], {node: read({"state": "running", **theirs})})
        assert (found and found[0]) == expected


def test_nodes_that_are_left_out_are_asked_only_if_they_may_share_a_folder() -> None:
    other = part("b", run=OTHER, workdir="/w/proj", checkpoints="ckpt")
    ours = part("a", workdir="/w/proj", checkpoints="ckpt")
    answers = {
        "a": {"runs": [Message({"runs": [ours]})]},
        "b": {"runs": [Message({"runs": [other, {**other, "run": "../etc"}]})]},
    }
    one = {name: cluster.with_nodes(NODES[:1]) for name, cluster in (("l", LOCAL), ("s", SHARED))}
    assert other_runs(FakePool(one["l"], answers), one["l"], ["ckpt"], but=[RUN]) == []
    (found,) = other_runs(FakePool(one["s"], answers), one["s"], ["ckpt"], but=[RUN])
    assert (found.view.run, found.view.state, found.place) == (OTHER, "running", "checkpoints")
    history = with_other_runs(FakePool(one["s"], answers), one["s"], unrecorded(RUN))
    assert history.others == ({"run": OTHER, "began": 1000.0, "ended": None, "live": True},)
    # A node that does not answer costs nothing but its runs.
    silent = FakePool(one["s"], {"a": answers["a"]})
    assert with_other_runs(silent, one["s"], unrecorded(RUN)).others == ()
