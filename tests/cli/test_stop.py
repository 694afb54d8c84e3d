"""`stop`: each run is asked as its own job says, and none is that was not meant."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.cli.shared.main import main
from clusterctl.errors import NodeError
from clusterctl.inventory.cluster import Cluster, Job, Stop
from clusterctl.transport import pool as transport
from clusterctl.transport.interface import Reply, Request
from clusterctl.verbs.runs.records import Records, RunRecord
from clusterctl.wire import Message
from tests.fake_pool import FakePool
from tests.verbs.run_answers import CLUSTER, RUN, part

GONE = [Message({"gone": True, "left": [], "port_free": True})]
THEIRS = "lab-20260101t000000-zzzz"
ASKED_BY_FILE = Stop(file="STOP", grace=9.0)


def test_all_runs_are_asked_as_they_were_launched_and_silent_nodes_say_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "hosts.yaml").write_text("cluster: lab\nnodes: [a, b]\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLUSTERCTL_STATE", str(tmp_path / "state"))
    launched = replace(CLUSTER, job=Job(command=("x.py",), stop=ASKED_BY_FILE))
    plan = {"master_port": 29500, "nodes": [{"node": "a", "node_rank": 0, "device": "cpu"}]}
    Records().write(RunRecord(run=RUN, began=1.0, cluster=launched, plan=plan))
    pools: list[FakePool] = []

    def pool(cluster: Cluster, **_: object) -> FakePool:
        a = {"runs": [Message({"runs": [part("a")]})], "stop": GONE}
        refused = Reply.failed("b", NodeError("auth", "auth", "Permission denied"))
        pools.append(FakePool(cluster, {"a": a, "b": {"runs": refused}}))
        return pools[-1]

    monkeypatch.setattr(transport, "Pool", pool)
    assert main(["stop", "--all"]) == 3
    out, err = capsys.readouterr()
    assert f"{RUN}: stopped and verified on a" in out
    assert "b: auth: Permission denied: whether a run lives there is not known" in err
    (asked,) = [request for _, request in pools[0].requests if request.op == "stop"]
    assert asked.args["grace"] == 9.0
    planned = {"node_rank": 0, "device": "cpu", "master": {"port": 29500}}
    assert asked.args["planned"] == planned


def test_a_node_whose_part_has_not_begun_is_asked_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hosts.yaml").write_text("cluster: lab\nnodes: [a, b, c]\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLUSTERCTL_STATE", str(tmp_path / "state"))
    Records().write(RunRecord(run=RUN, began=1.0, cluster=CLUSTER, plan={}))
    pools: list[FakePool] = []

    def pool(cluster: Cluster, **_: object) -> FakePool:
        parts = {"a": [part("a")], "b": [], "c": []}
        answers = {n: {"runs": [Message({"runs": p})], "stop": GONE} for n, p in parts.items()}
        pools.append(FakePool(cluster, answers))
        return pools[-1]

    monkeypatch.setattr(transport, "Pool", pool)
    assert main(["stop", "--all"]) == 0
    assert {node for node, request in pools[0].requests if request.op == "stop"} == {"a", "b"}


@pytest.fixture
def colleague(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[FakePool]:
    """Record exp10 here, and let the nodes have a colleague's exp1 too; return who is asked."""
    (tmp_path / "hosts.yaml").write_text("cluster: lab\nnodes: [a, b]\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLUSTERCTL_STATE", str(tmp_path / "state"))
    Records().write(RunRecord(run=RUN, began=1.0, cluster=CLUSTER, options={"name": "exp10"}))
    pools: list[FakePool] = []

    def pool(cluster: Cluster, **_: object) -> FakePool:
        parts = [part("a", name="exp10"), part("a", run=THEIRS, name="exp1")]
        answers = {n: {"runs": [Message({"runs": parts})], "stop": GONE} for n in ("a", "b")}
        pools.append(FakePool(cluster, answers))
        return pools[-1]

    monkeypatch.setattr(transport, "Pool", pool)
    return pools


@pytest.mark.parametrize("word", ["exp1", THEIRS, "zzzz"])
def test_a_run_that_the_nodes_know_wholly_comes_before_a_part_of_ones_own(
    colleague: list[FakePool], word: str
) -> None:
    assert main(["stop", word]) == 0
    asked = [request for pool in colleague for _, request in pool.requests if request.op == "stop"]
    assert {request.args["run"] for request in asked} == {THEIRS}


@pytest.mark.parametrize(
    "words",
    [
        ["stop", "exp", "--json"],
        ["join", "exp", "--nodes", "a"],
        ["resume", "exp", "--checkpoint", "latest"],
        ["stop", RUN[:-1]],
    ],
)
def test_what_changes_a_run_names_those_with_a_part_as_commands(
    colleague: list[FakePool], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    err = capsys.readouterr().err
    assert f"error: {words[1]}: expected a whole id or name, or the end of an id" in err
    typed = shlex.join([*words[:1], RUN, *words[2:]])
    assert f"hint: clusterctl {typed}\n" in err
    assert not [1 for pool in colleague for _, one in pool.requests if one.op != "runs"]


def test_without_an_inventory_a_part_of_a_recorded_run_is_refused_too(
    colleague: list[FakePool], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("hosts.yaml").unlink()
    assert main(["stop", "exp"]) == 2
    assert capsys.readouterr().err.endswith(f"hint: clusterctl stop {RUN}\n")
    assert not colleague


@pytest.mark.parametrize("theirs", ["running", "finished"])
def test_a_name_that_two_live_runs_have_is_refused(
    theirs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two projects may share the cluster's name: the newest need not be the one that is meant."""
    (tmp_path / "hosts.yaml").write_text("cluster: lab\nnodes: [a, b]\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLUSTERCTL_STATE", str(tmp_path / "state"))
    states = {RUN: "running", THEIRS: theirs}
    for began, run in enumerate(states):
        one = CLUSTER.with_nodes(CLUSTER.nodes[:1])
        Records().write(
            RunRecord(run=run, began=float(began), cluster=one, options={"name": "base"})
        )

    def answer(request: Request) -> list[Message]:
        run = str(request.args["run"])
        return [Message({"node": {**part("a", states[run]), "run": run}})]

    monkeypatch.setattr(
        transport, "Pool", lambda c, **_: FakePool(c, {"a": {"status": answer, "stop": GONE}})
    )
    both = theirs == "running"
    assert main(["stop", "base"]) == (2 if both else 0)
    out, err = capsys.readouterr()
    if both:
        assert f"several runs are live: {THEIRS}, {RUN}" in " ".join(err.split())
        assert [line for line in err.splitlines() if line.startswith("hint:")] == [
            f"hint: clusterctl stop {run}" for run in reversed(states)
        ]
    else:  # the newest has ended
        assert RUN in out
        assert THEIRS not in out
