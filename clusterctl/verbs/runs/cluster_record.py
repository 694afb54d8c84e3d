"""A cluster as a run's record keeps it, so that later verbs need no inventory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from clusterctl.inventory.cluster import Cluster, Job, Node, Ssh, Stop
from clusterctl.wire import plain


def cluster_document(cluster: Cluster) -> dict[str, Any]:
    """Return the cluster as JSON; it holds no secrets, only the names of some."""
    document: dict[str, Any] = plain(cluster)
    return document


def cluster_from_document(document: Mapping[str, Any]) -> Cluster:
    """Return the cluster that `cluster_document` wrote, this version or an earlier one."""
    job = dict(document.get("job", {}))
    job["env"] = tuple((key, value) for key, value in job.get("env", ()))
    job["stop"] = Stop(**_known(Stop, job.get("stop", {})))
    parts = {
        "nodes": tuple(map(_node, document["nodes"])),
        "left_out": tuple(map(_node, document.get("left_out", ()))),
        "job": Job(**_known(Job, job)),
        "origins": tuple((name, origin) for name, origin in document.get("origins", ())),
    }
    return Cluster(**{**_known(Cluster, document), **parts})


def _node(document: Mapping[str, Any]) -> Node:
    ssh = Ssh(**_known(Ssh, document.get("ssh", {})))
    return Node(**{**_known(Node, document), "ssh": ssh})


def _known(
    kind: type[Cluster | Job | Node | Ssh | Stop], document: Mapping[str, Any]
) -> dict[str, Any]:
    """Keep the keys that this version knows; lists become tuples again."""
    names = {field.name for field in fields(kind)}
    return {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in document.items()
        if key in names
    }
