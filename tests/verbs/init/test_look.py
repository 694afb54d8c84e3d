"""What `init` writes of the hosts that it looked at."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from clusterctl.inventory.cluster import Node, Ssh
from clusterctl.verbs.init.look import _with_gpus


@pytest.mark.parametrize(
    ("listed", "found", "gpus"),
    [
        (8, 0, 0),  # slots that are CPUs
        (12, 8, 8),
        (4, 8, 4),  # a wish
        (0, 8, 0),
        (None, 8, 8),
        (8, None, 8),  # unknown
    ],
)
def test_more_gpus_than_there_are_are_not_written(
    listed: int | None, found: int | None, gpus: int
) -> None:
    node = Node(host="n", name="n", ssh=Ssh(), gpus=listed)
    seen = None if found is None else SimpleNamespace(devices=(None,) * found)
    written = _with_gpus(cast("Any", {"n": SimpleNamespace(gpus=seen)}), node)
    assert (written.gpus, written.procs) == (gpus, None)  # `defaults: {procs: N}` counts
