"""JSON becomes the dataclasses that its annotations name, or an error names the place."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from clusterctl.inventory.cluster import Cluster, Job, Node, Ssh, Stop
from clusterctl.model.answers import PruneAnswer
from clusterctl.model.checkpoint import OneCheckpointAnswer
from clusterctl.model.from_json import DocumentError, from_json, invalid
from clusterctl.model.node_run import NodeRun, RankState
from clusterctl.wire import plain

CLUSTER = Cluster(
    name="lab",
    nodes=(Node(host="a", name="a", ssh=Ssh(via="openssh", port=22)),),
    job=Job(env=(("A", "x"),), stop=Stop(grace=5.0)),
)


def test_a_cluster_comes_back_as_it_was() -> None:
    assert from_json(Cluster, json.loads(json.dumps(plain(CLUSTER))), "cluster") == CLUSTER


@pytest.mark.parametrize(
    ("key", "value", "where"),
    [
        ("shared", "/a", r"cluster\.shared: expected a list, found '/a'"),
        ("master_port", 1 << 64, r"cluster\.master_port: expected int, found 1844674407370955"),
        ("master_port", True, r"cluster\.master_port: expected int, found True"),
        (
            "job",
            {"launcher": "no-launcher"},
            r"cluster\.job\.launcher: expected .*, found 'no-launcher'",
        ),
        ("job", {"env": [["A"]]}, r"cluster\.job\.env\[0\]: expected 2 values, found 1"),
        (
            "job",
            {"lost_after": float("nan")},
            r"cluster\.job\.lost_after: expected float, found nan",
        ),
    ],
)
def test_a_value_of_another_type_is_refused_with_its_place(
    key: str, value: object, where: str
) -> None:
    with pytest.raises(DocumentError, match=where):
        from_json(Cluster, {**plain(CLUSTER), key: value}, "cluster")


RUN: dict[str, Any] = {"run": "lab-1", "state": "running", "ranks": [{"rank": 3}]}
DEEP: list[Any] = []
for _ in range(20):
    DEEP = [DEEP]


def test_null_of_a_value_that_has_a_default_is_that_default() -> None:
    found = from_json(NodeRun, {**RUN, "name": None, "nodes": None, "began": None}, "node")
    assert (found.name, found.nodes, found.began) == ("", (), None)
    assert found.ranks == (RankState(rank=3),)


def test_a_number_with_bounds_stays_what_it_was() -> None:
    found = from_json(NodeRun, {**RUN, "began": 1000}, "node")
    assert json.dumps(plain(found.began)) == "1000"


@pytest.mark.parametrize(
    ("wanted", "value", "error"),
    [
        (NodeRun, None, "it: expected an object, found None"),
        (NodeRun, {"run": "x", "ranks": []}, "state: expected a value, found none"),
        (NodeRun, {**RUN, "ranks": None}, "ranks: expected a list, found None"),
        (NodeRun, {**RUN, "ranks": [{}]}, "ranks[0].rank: expected a value, found none"),
        (
            NodeRun,
            {**RUN, "ranks": [{"rank": -1}]},
            "ranks[0].rank: expected a whole number from 0 to 1048576, found -1",
        ),
        (
            NodeRun,
            {**RUN, "rank0": True},
            "rank0: expected a whole number from 0 to 1048576, found True",
        ),
        (
            NodeRun,
            {**RUN, "began": float("nan")},
            "began: expected a number from 0 to 100000000000, found nan",
        ),
        (
            NodeRun,
            {**RUN, "end": {"exit_code": 256}},
            "end.exit_code: expected a whole number from -255 to 255, found 256",
        ),
        (int, -(1 << 64), "it: expected int, found -18446744073709551616"),
        (PruneAnswer, {"kept": {"lab-1": 5}}, "kept['lab-1']: expected str, found 5"),
        (OneCheckpointAnswer, {"candidates": []}, "candidates: expected at least 1, found 0"),
        (
            NodeRun,
            {**RUN, "stragglers": [{}] * 2000},
            "stragglers: expected at most 1024, found 2000",
        ),
        (
            Mapping[str, Any],
            {"x": DEEP},
            "it['x']: expected at most 16 levels of values, found more",
        ),
        (
            Mapping[str, Any],
            {"x": [float("inf")]},
            "it['x']: expected finite numbers, found NaN or an infinite one",
        ),
    ],
)
def test_what_a_node_may_not_answer_is_named_with_its_place(
    wanted: Any, value: object, error: str
) -> None:
    assert invalid(wanted, value) == error
    assert invalid(NodeRun, RUN) == ""


def test_an_error_shows_no_more_of_a_value_than_fits_on_a_line() -> None:
    for huge in ("x" * 20_000, ["x" * 20_000] * 9, {"x" * 20_000: 1}, DEEP, 10**400):
        assert len(invalid(NodeRun, {**RUN, "began": huge})) < 400
    assert len(invalid(PruneAnswer, {"kept": {"k" * 20_000: 5}})) < 400
