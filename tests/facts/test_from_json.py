"""JSON becomes the dataclasses that its annotations name, or an error names the place."""

from __future__ import annotations

import json

import pytest

from clusterctl.facts.from_json import DocumentError, from_json
from clusterctl.inventory.cluster import Cluster, Job, Node, Ssh, Stop
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
