"""The text for Prometheus, read by its own parser."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from clusterctl.errors import NodeError
from clusterctl.report.prometheus import FAMILIES, prometheus
from clusterctl.verbs.runs.run_status import RunStatus, view_of
from tests.verbs.run_answers import CLUSTER, RUN, node_run

EVIL = 'x"} 1\nevil_metric 2 \\ \x1b[2J'
LAST = {"rank": 0, "line": "Step 3/50 | Loss: 2.0", "age_s": 4.0}
USAGE: dict[str, Any] = {
    "processes": 2,
    "memory_bytes": 1 << 30,
    "cpu_percent": 150,
    "gpus": [{"index": 0, "percent": 97, "memory_used_bytes": 5, "memory_total_bytes": None}],
}


def view() -> RunStatus:
    runs = {"a": node_run("a", last=LAST, usage=USAGE)}
    silent = {"b": NodeError("timeout", "connect", "no answer")}
    return replace(view_of(RUN, CLUSTER, runs, silent), name=EVIL)


def read(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    return {
        family.name: [(sample.labels, sample.value) for sample in family.samples]
        for family in text_string_to_metric_families(text)
    }


def test_a_live_run_is_exposed() -> None:
    found = read(prometheus([view()]))

    run = {"cluster": "lab", "run": RUN, "name": 'x"} 1 evil_metric 2 \\ '}
    assert {labels["state"]: value for labels, value in found["clusterctl_run_state"]} == {
        **dict.fromkeys(("queued", "starting", "hung", "stopping", "finished"), 0.0),
        **dict.fromkeys(("failed", "stopped", "lost", "unreachable"), 0.0),
        "running": 1.0,
    }
    assert found["clusterctl_run_step"] == [(run, 3.0)]
    assert found["clusterctl_run_total_steps"] == [(run, 50.0)]
    assert found["clusterctl_run_output_age_seconds"] == [(run, 4.0)]
    up = {labels["node"]: value for labels, value in found["clusterctl_node_up"]}
    assert up == {"a": 1.0, "b": 0.0}
    assert found["clusterctl_node_cpu_cores"] == [({**run, "node": "a"}, 1.5)]
    gpu = {**run, "node": "a", "gpu": "0"}
    assert found["clusterctl_gpu_utilization_ratio"] == [(gpu, 0.97)]
    assert "clusterctl_gpu_memory_total_bytes" not in found
    assert found.keys() <= FAMILIES.keys()


def test_several_runs_share_the_head_of_each_metric() -> None:
    text = prometheus([view(), replace(view(), run="other")])
    assert text.count("# TYPE clusterctl_run_state gauge\n") == 1
    assert {labels["run"] for labels, _ in read(text)["clusterctl_run_state"]} == {RUN, "other"}


def test_a_gpu_that_a_node_names_twice_is_one_series() -> None:
    twice = {**USAGE, "gpus": [{**USAGE["gpus"][0], "percent": n} for n in (1, 50)]}
    text = prometheus([view_of(RUN, CLUSTER, {"a": node_run("a", usage=twice)}, {})])
    (one,) = read(text)["clusterctl_gpu_utilization_ratio"]
    assert one[1] == 0.5


def test_no_run_is_no_text() -> None:
    assert read(prometheus([])) == {}
