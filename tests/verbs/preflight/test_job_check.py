"""When the job's own check is run: where its folder is, or has been made since."""

from __future__ import annotations

import pytest

from clusterctl.errors import NodeError
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.facts.software.python import Python
from clusterctl.facts.storage.storage import PathFacts
from clusterctl.inventory.cluster import Cluster, Job, Node, Ssh
from clusterctl.transport.interface import Reply
from clusterctl.verbs.events import ignore
from clusterctl.verbs.preflight.check import CheckOptions, check_code, judge
from clusterctl.verbs.preflight.job_check import run_job_check
from tests.fake_pool import FakePool

CLUSTER = Cluster(
    name="lab",
    nodes=(Node(host="a", name="a", ssh=Ssh(), gpus=0, workdir="/code"),),
    job=Job(check=("-m", "train", "--check")),
)
LOST = Reply.failed("a", NodeError("lost", "answer", "it broke"))


def facts(*, folder: bool) -> dict[str, NodeFacts]:
    python = Python(asked="python3", found=True, executable="/usr/bin/python3")
    workdir = PathFacts(path="/code", exists=folder, folder=folder)
    return {"a": NodeFacts(node="a", python=python, paths=(workdir,))}


@pytest.mark.parametrize("folder", [True, False])
def test_before_a_sync_it_is_run_where_its_folder_is(folder: bool) -> None:  # noqa: FBT001
    pool = FakePool(CLUSTER, {"a": {"read": LOST}})
    known = run_job_check(CLUSTER, pool, facts(folder=folder), emit=ignore)
    assert [request.op for _, request in pool.requests] == ["read"] * folder
    assert (known["a"].job_check is not None) == folder


def test_after_the_first_sync_it_is_run_in_the_folder_that_was_made() -> None:
    before = judge(CLUSTER, facts(folder=False), CheckOptions(code=False))
    pool = FakePool(CLUSTER, {"a": {"read": LOST}})
    result = check_code(CLUSTER, pool, before, emit=ignore).facts["a"].job_check
    assert result is not None
    assert result.words == "lost: it broke"
