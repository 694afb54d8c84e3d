"""The command line over the inventory: one value, laid once, which says where it is from."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.errors import UsageError
from clusterctl.facts.gpu.accelerators import Gpu, Gpus
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.inventory.cluster import Cluster, Ends, Hang, Job, Restart
from clusterctl.model.from_json import from_json
from clusterctl.plan.effective import effective
from clusterctl.plan.options import Options
from clusterctl.verbs.preflight.check import CheckOptions, judge
from clusterctl.wire import plain
from tests.plan.conftest import node

LAB = Cluster(
    name="lab",
    nodes=(node(0, gpus=8), node(1, gpus=2), node(2)),
    master_port=29500,
    job=Job(
        hang=Hang(action="stop"),
        restart=Restart(max=1, never=Ends(exit_codes=(3,))),
        command=("-m", "train"),
        env=(("A", "1"), ("B", "2")),
        launcher_args=("--tee", "3"),
    ),
)


def test_what_is_not_given_is_the_inventorys() -> None:
    assert effective(LAB, Options()) == LAB


def test_a_hang_is_answered_as_the_option_says() -> None:
    given = Options(hang_action="restart")
    assert effective(LAB, given).job.hang == Hang(action="restart")
    with pytest.raises(UsageError, match=r"hang_action: expected restart \(one of"):
        Options(hang_action="restrat")


def test_every_option_is_laid_over_the_inventory() -> None:
    options = Options(
        launcher="torchrun",
        command=("x.py",),
        env=(("B", "3"), ("C", "4")),
        gpus=4,
        workdir="/other",
        master_port=29600,
        max_restarts=2,
        max_time=60.0,
        start_timeout=5.0,
        lost_after=3.0,
        hang_after=90.0,
        restarts=5,
        debug=True,
    )
    wanted = effective(LAB, options)
    job = wanted.job
    assert (job.command, job.env) == (("x.py",), (("A", "1"), ("B", "3"), ("C", "4")))
    assert job.launcher_args == ("--tee", "3", "--max-restarts=2")
    assert (job.start_timeout, job.lost_after, job.debug) == (5.0, 3.0, True)
    assert job.max_time == 60.0
    assert job.hang == Hang(after=90.0, action="stop")
    assert job.restart == Restart(max=5, never=Ends(exit_codes=(3,)))
    assert [one.gpus_wanted for one in wanted.nodes] == [4, 2, None]
    assert {one.workdir for one in wanted.nodes} == {"/other"}
    assert wanted.master_port == 29600
    assert wanted.origin("gpus", "the inventory") == "--gpus"
    assert wanted.origin("env.A", "job.env") == "job.env"
    assert effective(wanted, options) == wanted


def test_arguments_of_a_launcher_are_not_anothers_and_come_back_with_it() -> None:
    direct = effective(LAB, Options(launcher="direct"))
    assert direct.job.args == ()
    kept = from_json(Cluster, plain(direct), "cluster")
    assert effective(kept, Options()).job.args == ()
    again = effective(kept, Options(launcher="torchrun"))
    assert again.job == LAB.job
    given = Options(launcher="torchrun", launcher_args=("--tee", "3"), max_restarts=1)
    replaced = effective(effective(kept, given), given)
    assert replaced.job.args == ("--tee", "3", "--max-restarts=1")
    assert replaced.origin("launcher_args", "") == "--launcher-args"
    assert effective(kept, Options(launcher="torchrun", launcher_args=())).job.args == ()
    limited = effective(kept, Options(launcher="torchrun", max_restarts=1))
    assert limited.job.args == ("--tee", "3", "--max-restarts=1")


def test_no_gpus_can_be_asked_for_and_more_again_later() -> None:
    none = effective(LAB, Options(gpus=0))
    assert [one.gpus_wanted for one in none.nodes] == [0, 0, 0]
    again = effective(none, Options(gpus=6))
    assert [one.gpus_wanted for one in again.nodes] == [6, 2, None]


def test_what_the_command_line_sets_is_not_taken_from_the_shell() -> None:
    lab = replace(LAB, job=replace(LAB.job, env_from=("HF_TOKEN", "PATH")))
    assert effective(lab, Options(env=(("HF_TOKEN", "x"),))).job.env_from == ("PATH",)


@pytest.mark.parametrize(("gpus", "found", "status"), [(0, 0, "skip"), (4, 7, "pass")])
def test_nodes_are_judged_by_the_gpus_asked_for(gpus: int, found: int, status: str) -> None:
    devices = tuple(Gpu(index=n, name="H100") for n in range(found))
    facts = {
        one.name: NodeFacts(node=one.name, gpus=Gpus(tool="nvidia-smi", devices=devices))
        for one in LAB.nodes[:1]
    }
    lab = LAB.with_nodes(LAB.nodes[:1])

    def judged(cluster: Cluster) -> set[str]:
        result = judge(cluster, facts, CheckOptions(only=("accelerator.count",)))
        return {one.status for one in result.findings if one.check == "accelerator.count"}

    assert judged(lab) == {"fail"}
    assert judged(effective(lab, Options(gpus=gpus))) == {status}


def test_a_record_keeps_it_whole() -> None:
    wanted = effective(LAB, Options(gpus=4, env=(("C", "1"),), workdir="/other", debug=True))
    assert from_json(Cluster, plain(wanted), "cluster") == wanted


def test_restarts_are_refused_by_a_launcher_that_cannot() -> None:
    with pytest.raises(UsageError, match="direct does not restart"):
        effective(LAB, Options(launcher="direct", max_restarts=1))


def test_the_command_line_wins_and_where_a_value_is_from_is_kept() -> None:
    lab = replace(LAB, job=replace(LAB.job, procs_per_node=8))
    assert effective(lab, Options(procs_per_node=2)).job.procs_per_node == 2
    assert effective(lab, Options()).job.procs_per_node == 8
    wanted = effective(lab, Options(debug=True, origins={"debug": "run lab-1"}))
    assert wanted.origin("debug", "the inventory") == "run lab-1"


def test_a_launcher_without_restarts_takes_none_of_them() -> None:
    wanted = effective(LAB, Options(launcher="direct", max_restarts=0))
    assert wanted.job.launcher == "direct"
    with pytest.raises(UsageError, match="does not restart ranks"):
        effective(LAB, Options(launcher="direct", max_restarts=1))


def test_a_variable_is_taken_from_the_shell_or_has_a_value() -> None:
    lab = replace(LAB, job=replace(LAB.job, env_from=("TOKEN", "KEY")))
    options = Options(env=(("KEY", "1"),), env_from=("A", "NEW", "TOKEN"))
    job = effective(effective(lab, options), options).job
    assert job.env == (("B", "2"), ("KEY", "1"))
    assert job.env_from == ("TOKEN", "A", "NEW")
