"""Stories of runs, as tests of comparisons and reports need them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from clusterctl.facts.machine.system import SshStatus
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.facts.software.python import Python
from clusterctl.inventory.cluster import Cluster, Job, Node, Ssh
from clusterctl.logs.metrics import read_metrics
from clusterctl.verbs.compare.story import Story
from clusterctl.verbs.compare.timeline import timeline
from clusterctl.verbs.runs.list_runs import recorded_line
from clusterctl.verbs.runs.one_run import OneRun
from clusterctl.verbs.runs.records import RunRecord
from clusterctl.verbs.runs.run_status import view_of
from tests.verbs.run_answers import read

COMMAND = ("train.py", "--lr", "1e-4", "--config", "a.yaml")


def node(name: str) -> Node:
    return Node(host=name, name=name, ssh=Ssh(), gpus=0)


def facts(name: str, **more: Any) -> NodeFacts:
    python = Python(asked="python3", version="3.11", everything="iniconfig==2.0.0 torch==2.8")
    base = NodeFacts(node=name, kernel="6.1", python=python, reach=SshStatus(state="ok"))
    return replace(base, **more)


def story(
    end: str = "aaaa",
    *,
    nodes: Iterable[str] = ("a", "b"),
    job: Job | None = None,
    state: str = "finished",
    steps: int = 20,
    step_s: float = 1.0,
    rate: float = 0.1,
    known: Mapping[str, NodeFacts] | None = None,
    events: Mapping[str, list[dict[str, Any]]] | None = None,
    diff: str = "",
    **more: Any,
) -> Story:
    """Return the story of a run with a rank on each node."""
    names, run = tuple(nodes), f"lab-20260101t000000-{end}"
    cluster = Cluster(name="lab", nodes=tuple(map(node, names)), job=job or Job(command=COMMAND))
    plan = {
        "world_size": len(names),
        "controller": "desk",
        "nodes": [{"node": name, "interface": "eth0", "procs": 1} for name in names],
    }
    record = RunRecord(run=run, began=1000.0, cluster=cluster, plan=plan, **more)
    parts = {
        name: read({"run": run, "state": state, "ranks": [{"rank": number, "state": "ended"}],
                    "end": {"state": state, "by": "launcher", "time": 2000.0}})
        for number, name in enumerate(names)
    }  # fmt: skip
    view = view_of(run, cluster, parts, {})
    line = replace(recorded_line(record, view, None), short=end)
    lines = "".join(
        json.dumps({
            "step": n, "time": 1000.0 + n, "loss": 3 - rate * n, "step_s": step_s,
            "tok_s": 1000 * len(names) / step_s,
        }) + "\n"
        for n in range(1, steps + 1)
    )  # fmt: skip
    return Story(
        one=OneRun(line=line, chain=(run,), status=view, record=record, folder=None),
        facts={name: facts(name) for name in names} if known is None else known or None,
        diff=diff,
        moments=timeline(record, events or {}),
        metrics=read_metrics(lines.encode(), file="/w/out/metrics.jsonl", node=names[0]),
    )
