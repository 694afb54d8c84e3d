"""What a launch says of the code that it does not sync."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from clusterctl.model.node_run import Resumed
from clusterctl.verbs.events import Event, Notice
from clusterctl.verbs.launch.options import LaunchOptions
from clusterctl.verbs.launch.sync_code import sync_code
from clusterctl.wire import Message
from tests.fake_pool import FakePool
from tests.verbs.run_answers import CLUSTER, RUN


@pytest.mark.parametrize(
    ("equal", "placed", "tree", "warned"),
    [
        (False, True, "t", True),
        (True, True, "t", False),
        (False, False, "t", False),  # its files came otherwise
        (False, True, "", False),
    ],
)
def test_other_code_than_the_resumed_run_had_is_warned_of(
    *, equal: bool, placed: bool, tree: str, warned: bool
) -> None:
    nodes = tuple(replace(node, workdir="/w") for node in CLUSTER.nodes)
    cluster = replace(CLUSTER, nodes=nodes)
    answer = [Message({"equal": equal, "placed": placed})]
    pool = FakePool(cluster, {node.name: {"sync-compare": answer} for node in nodes})
    events: list[Event] = []
    options = LaunchOptions(sync=False, resumed=Resumed(run=RUN, tree=tree))
    assert sync_code(cluster, cast("Any", pool), options, emit=events.append) is None
    told = [one.text for one in events if isinstance(one, Notice)]
    assert told == [f"a,b: workdir has other code than {RUN} had, and nothing is synced"] * int(
        warned
    )
