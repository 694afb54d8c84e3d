"""Samples become fewer: means, weighted by their time, in columns."""

from __future__ import annotations

from clusterctl.node.run.samples.row import at_most, merged, series, thinned
from tests.node.run.samples.rows import BEGAN, row


def test_samples_become_one_of_their_means() -> None:
    one = merged([row(0, percent=[100, None]), row(1, percent=[40, None])._replace(seconds=15.0)])
    assert (one.time, one.seconds) == (BEGAN + 10, 20.0)
    assert [gpu.percent for gpu in one.gpus] == [55.0, None]
    assert one.machine.cpu_percent == 800.8
    assert one.machine.rdma_receive_bytes_s is None


def test_the_older_the_coarser() -> None:
    rows = [row(n) for n in range(1000)]
    now = rows[-1].time
    found = thinned(rows, now, 1 / 100)
    assert sum(one.seconds for one in found) == 5000
    assert all(one.seconds <= max(5, (now - one.time + one.seconds) / 100) for one in found)
    assert found[0].seconds == 45
    assert found[-50:] == rows[-50:]
    assert thinned(rows, BEGAN - 1e6, 1 / 100) == rows, "a clock that was set back loses nothing"


def test_at_most_so_many_are_of_equal_length() -> None:
    rows = [row(n) for n in range(1000)]
    found = at_most(rows, 60)
    assert len(found) == 60
    assert {one.seconds for one in found} <= {80.0, 85.0}
    assert at_most(rows, 1000) == rows


def test_columns_have_a_place_for_what_was_not_there() -> None:
    told = series([row(0, cpu=[10]), row(1, percent=[7], cpu=[10, 20])])
    assert told["cpu_percent"] == [800, 801]
    assert told["gpus"][0]["percent"] == [None, 7]
    assert told["gpus"][0]["rank"] == 0
    assert [one["cpu_percent"] for one in told["ranks"]] == [[10, 10], [None, 20]]
