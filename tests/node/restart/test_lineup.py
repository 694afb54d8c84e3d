"""Who takes part in the next attempt, and what each node's job is then."""

from __future__ import annotations

from typing import Any

import pytest

from clusterctl.facts.gpu.accelerators import Gpus
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.facts.software.python import Python
from clusterctl.inventory.cluster import Cluster, Job, Node, Restart, Ssh
from clusterctl.model.from_json import from_json
from clusterctl.network.choice import Network, NodeNetwork
from clusterctl.node.restart.lineup import (
    NoLineupError,
    next_lineup,
    replanned,
    replanned_environment,
)
from clusterctl.node.run.files.node_job import NodeJob
from clusterctl.plan.certificate import Identity
from clusterctl.plan.effective import effective
from clusterctl.plan.make import make_plan
from clusterctl.plan.node_job import node_job
from clusterctl.plan.options import Options
from clusterctl.plan.plan import Plan
from clusterctl.wire import plain

PROCS = dict.fromkeys("abcde", 2)


@pytest.mark.parametrize(
    ("nodes", "spares", "without", "least", "then"),
    [
        ("abc", "d", ["b"], 0, ("adc", "")),
        ("abc", "de", ["c"], 0, ("abd", "e")),
        ("abc", "de", ["b", "c"], 0, ("ade", "")),
        ("abc", "de", ["b", "d"], 0, ("aec", "")),
        ("abc", "de", ["e"], 0, ("abc", "d")),
        ("abc", "", ["b"], 2, ("ac", "")),
        ("abc", "d", ["b", "c"], 2, ("ad", "")),
        ("abc", "d", [], 0, ("abc", "d")),
    ],
)
def test_a_spare_takes_the_place_of_a_node_else_the_run_shrinks(
    nodes: str, spares: str, without: list[str], least: int, then: tuple[str, str]
) -> None:
    found = next_lineup(list(nodes), list(spares), PROCS, without=without, least=least)
    assert ("".join(found.nodes), "".join(found.spares)) == then


@pytest.mark.parametrize(
    ("spares", "without", "least", "why"),
    [
        ("d", ["a"], 1, "a is the master, which no spare node replaces"),
        ("", ["b"], 0, "no spare node is left for b"),
        ("d", ["b", "c"], 0, "no spare node is left for c"),
        ("d", ["b", "d"], 0, "no spare node is left for b"),
        ("", ["b", "c"], 2, "no spare node is left for b, c; left: 1, min_nodes: 2"),
    ],
)
def test_a_run_that_lacks_nodes_ends(spares: str, without: list[str], least: int, why: str) -> None:
    with pytest.raises(NoLineupError) as error:
        next_lineup("abc", list(spares), PROCS, without=without, least=least)
    assert why in str(error.value)


def test_a_spare_of_another_number_of_ranks_takes_no_place() -> None:
    procs = {**PROCS, "d": 4}
    with pytest.raises(NoLineupError, match="no spare node is left for b"):
        next_lineup("abc", "d", procs, without=["b"], least=0)
    assert next_lineup("abc", "de", procs, without=["b"], least=0).taken == {"b": "e"}


def planned(launcher: str, names: str, spares: int, least: int = 0) -> tuple[Plan, Cluster]:
    """Return the plan of a launch on these nodes."""
    nodes = tuple(
        Node(
            ssh=Ssh(),
            host=f"127.0.0.{ord(name) - 96}",
            name=name,
            gpus=0,
            procs=2,
            python="/usr/bin/python3",
            workdir="/w",
            state=f"/s/{name}",
        )
        for name in names
    )
    job = Job(
        command=("train.py",),
        checkpoints="out",
        resume_args=("--resume", "{checkpoint}"),
        restart=Restart(max=3, min_nodes=least),
    )
    cluster = Cluster(name="test", nodes=nodes, same_machine=True, job=job)
    wanted = effective(cluster, Options(launcher=launcher, spares=spares))  # type: ignore[arg-type]
    python = Python(asked="", found=True, executable="/usr/bin/python3")
    facts = {name: NodeFacts(node=name, uid=1, gpus=Gpus(), python=python) for name in names}
    network = Network(
        kind="one machine",
        nodes={node.name: on_loopback(node) for node in nodes},
        master_address=nodes[0].host,
        master_port=4711,
        master_port_why="a test",
    )
    return make_plan(wanted, facts, network, run="r1"), wanted


def on_loopback(node: Node) -> NodeNetwork:
    return NodeNetwork(
        address=node.host, interface="lo", subnet="127.0.0.0/8", speed_mbps=None,
        candidates=(), why="a test",
    )  # fmt: skip


def job_of(plan: Plan, cluster: Cluster, name: str) -> NodeJob:
    identity = Identity(certificate="c", key="k", token="t")
    return node_job(plan, plan.node(name), identity, job=cluster.job, state=None)


def compared(job: NodeJob) -> dict[str, Any]:
    """Return what tells a rank of its place in the run."""
    names = (
        "node", "node_rank", "nnodes", "world_size", "first_rank", "procs", "launcher_argv", "argv",
        "hostfile", "address",
    )  # fmt: skip
    env = sorted(one for one in job["env"] if one[2] == "launcher")
    found: Any = job
    return {"env": env, **{name: found[name] for name in names}}


@pytest.mark.parametrize("launcher", ["torchrun", "accelerate", "direct"])
@pytest.mark.parametrize(
    ("names", "spares", "without", "then"),
    [
        ("abcd", 1, ["b"], "adc"),
        ("abcd", 1, ["c"], "abd"),
        ("abc", 0, ["b"], "ac"),
        ("ab", 0, ["b"], "a"),
    ],
)
def test_a_node_plans_what_the_controller_would_have_planned(
    launcher: str, names: str, spares: int, without: list[str], then: str
) -> None:
    plan, cluster = planned(launcher, names, spares, least=1)
    new_plan, new_cluster = planned(launcher, then, 0, least=1)
    for name in then:
        before = job_of(plan, cluster, name)
        after = replanned(before, without, "it was lost")
        wanted = compared(job_of(new_plan, new_cluster, name))
        assert compared(after) == wanted
        assert [one["node"] for one in after["left_out"]] == without
        assert not after["standby"]


def test_the_spare_gets_the_ranks_and_the_others_keep_theirs() -> None:
    plan, cluster = planned("direct", "abcd", 1)
    spare = job_of(plan, cluster, "d")
    assert (spare["standby"], spare["procs"], spare["spares"]) == (True, 0, ["d"])
    assert [node.node for node in plan.nodes] == ["a", "b", "c"]
    assert plan.world_size == 6
    after = replanned(spare, ["b"], "why")
    assert (after["node_rank"], after["first_rank"], after["procs"]) == (1, 2, 2)
    assert (after["spares"], after["workers"]) == ([], ["d", "c"])
    last = replanned(job_of(plan, cluster, "c"), ["b"], "why")
    assert (last["node_rank"], last["first_rank"]) == (2, 4)
    assert last["left_out"] == [{"node": "b", "attempt": 1, "why": "why", "spare": "d"}]


def test_a_node_that_is_left_out_gets_no_job() -> None:
    plan, cluster = planned("direct", "abcd", 1)
    with pytest.raises(NoLineupError, match="b is left out"):
        replanned(job_of(plan, cluster, "b"), ["b"], "why")


def test_a_run_whose_nodes_are_fixed_keeps_them() -> None:
    plan, cluster = planned("direct", "abc", 0)
    job: NodeJob = {**job_of(plan, cluster, "a"), "lineup": None}
    assert replanned(job, [], "why") == job
    with pytest.raises(NoLineupError, match="no other node can take a place"):
        replanned(job, ["b"], "why")


@pytest.mark.parametrize(
    ("nodes", "spares", "without", "joined", "empty", "then"),
    [
        ("abc", "", "b", "b", (), ("abc", "")),  # it was rebooted
        ("abc", "", "", "b", (), ("abc", "")),
        ("abc", "", "b", "d", (), ("adc", "")),
        ("abc", "d", "", "e", (), ("abc", "de")),
        ("abc", "d", "b", "b", (), ("adc", "b")),
        ("abc", "d", "d", "d", (), ("abc", "d")),
        ("ac", "", "", "d", (2,), ("acd", "")),  # it had shrunk
        ("ac", "", "", "d", (4,), ("ac", "d")),
    ],
)
def test_a_node_that_joins_stands_by_or_takes_a_place_that_is_free(
    nodes: str, spares: str, without: str, joined: str, empty: tuple[int, ...], then: Any
) -> None:
    found = next_lineup(nodes, spares, PROCS, without=without, least=0, joined=joined, empty=empty)
    assert ("".join(found.nodes), "".join(found.spares)) == then


def test_a_node_that_joins_a_run_that_has_shrunk_lets_it_grow_again() -> None:
    plan, cluster = planned("direct", "abc", 0, least=2)
    wanted, new_cluster = planned("direct", "acd", 0, least=2)
    seat: Any = {"node": "d", "address": "127.0.0.4", "procs": 2}
    for name in "ac":
        shrunk = replanned(job_of(plan, cluster, name), ["b"], "lost")
        assert (shrunk["empty"], shrunk["nnodes"]) == ([2], 2)
        grown = replanned(shrunk, [], "why", [seat])
        assert compared(grown) == compared(job_of(wanted, new_cluster, name))
        assert (grown["empty"], [one["node"] for one in grown["left_out"]]) == ([], ["b"])
        back: Any = {"node": "b", "address": "127.0.0.2", "procs": 2}
        assert replanned(shrunk, [], "why", [back])["left_out"] == []
        false: Any = {**seat, "node": name, "procs": 4096}
        assert name == "a" or replanned(shrunk, [], "why", [false])["procs"] == 2


def test_only_the_launchers_variables_change_in_the_environment() -> None:
    plan, cluster = planned("direct", "abc", 0, least=1)
    before = job_of(plan, cluster, "a")
    after = replanned(before, ["b"], "why")
    env = {"PATH": "/bin", "TOKEN": "x", "WORLD_SIZE": "6", "NNODES": "3"}
    found = replanned_environment(env, before, after)
    assert (found["PATH"], found["TOKEN"]) == ("/bin", "x")
    assert (found["WORLD_SIZE"], found["NNODES"]) == ("4", "2")


def test_a_recorded_plan_with_spares_is_read_again() -> None:
    plan, _ = planned("torchrun", "abcd", 1)
    read = from_json(Plan, plain(plan), "plan")
    assert [one.node for one in read.spares] == ["d"]
