"""A launch names the run whose files it would share, and what to type."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from clusterctl.inventory.cluster import Job
from clusterctl.plan.run_names import fill_job
from clusterctl.verbs.events import Event, Notice, ignore
from clusterctl.verbs.launch.notice_sharing import notice_sharing, own_folder_hint
from clusterctl.verbs.launch.tell_sharing import tell_sharing
from clusterctl.wire import Message
from tests.fake_pool import FakePool
from tests.verbs.run_answers import CLUSTER, PLAN, RUN, part

OTHER = "lab-20260102t000000-efgh"
NODES = tuple(replace(node, workdir="/w/proj") for node in CLUSTER.nodes)
JOB = Job(command=("train.py", "--out", "ckpt"), checkpoints="ckpt")


def notices(
    job: Job,
    other: dict[str, Any],
    *there: dict[str, Any],
    resumes: bool = False,
    noted: Sequence[dict[str, str]] = (),
) -> list[tuple[str, str]]:
    cluster = replace(CLUSTER, nodes=NODES, job=fill_job(job, RUN, ""))
    answers: dict[str, dict[str, Sequence[Message]]] = {
        "a": {
            "runs": [Message({"runs": [other]})],
            "checkpoints": [Message({"candidates": list(there)})],
            "checkpoint-writers": [Message({"writers": list(noted)})],
        },
        "b": {"runs": [Message({"runs": []})]},
    }
    found: list[Event] = []
    pool = FakePool(cluster, answers)
    notice_sharing(pool, cluster, job, RUN, resumes=resumes, emit=found.append)
    return [(event.text, event.hint) for event in found if isinstance(event, Notice)]


def live(**more: Any) -> dict[str, Any]:
    return part("a", run=OTHER, name="base", workdir="/w/proj", **more)


def test_a_live_run_in_the_same_folder_is_named_with_what_to_type() -> None:
    ((text, hint),) = notices(JOB, live(checkpoints="ckpt"))
    assert text == f"{OTHER} (base) is running, and writes its checkpoints to ckpt, too"
    own = "clusterctl launch -- train.py --out 'ckpt/{run}'"
    assert hint == f"set `checkpoints: ckpt/{{run}}` in the inventory, then: {own}"
    ((text, _),) = notices(replace(JOB, checkpoints=None), live())
    assert text == f"{OTHER} (base) is running, and works in /w/proj, too"
    own_folder = replace(JOB, checkpoints="ckpt/{run}")
    assert notices(own_folder, live(checkpoints=f"ckpt/{OTHER}")) == []


def test_a_live_run_of_another_inventory_is_named() -> None:
    run = "ours-20260102t000000-mnpq"
    note = {"run": run, "name": "his", "cluster": "ours", "user": "bob", "host": "gpu7"}
    over = {**live(checkpoints="ckpt"), "state": "finished", "end": {"state": "finished"}}
    for resumes in (False, True):
        ((text, hint),) = notices(JOB, over, resumes=resumes, noted=[note])
        whose = f"{run} (his), launched from another inventory, writes its checkpoints to ckpt, too"
        assert text == f"{whose} (user bob on gpu7)"
        assert "clusterctl launch -- train.py --out 'ckpt/{run}'" in hint
    assert notices(JOB, over, noted=[{**note, "run": OTHER}]) == []  # its nodes are asked


def test_the_runs_that_share_the_folder_are_told_of_each_other() -> None:
    elsewhere = replace(CLUSTER.nodes[0], name="c", host="c", workdir="/w/proj")
    cluster = replace(CLUSTER, nodes=NODES, left_out=(elsewhere,), shared=("/w",))
    cluster = replace(cluster, job=fill_job(JOB, RUN, ""))
    there = {**live(checkpoints="ckpt"), "began": 5.0}
    answers: dict[str, Any] = {
        name: {
            "runs": [Message({"runs": [there] if name == "c" else []})],
            "note-runs": [Message({"noted": True})],
            "checkpoint-writers": [Message({"writers": []})],
        }
        for name in "abc"
    }
    everywhere = replace(cluster, nodes=(*NODES, elsewhere))
    pool = FakePool(everywhere, answers)
    (sharing,) = notice_sharing(pool, cluster, JOB, RUN, resumes=False, emit=ignore)
    assert (sharing.run, sharing.nodes) == (OTHER, ("c",))
    told: list[Event] = []
    plan = replace(PLAN, run=RUN, sharing=(sharing,))
    tell_sharing(pool, cluster, plan, emit=told.append)
    seen = {
        name: (request.args["run"], cast("Any", request.args["others"])[0]["run"])
        for name, request in pool.requests
        if request.op == "note-runs"
    }
    assert seen == {"a": (RUN, OTHER), "b": (RUN, OTHER), "c": (OTHER, RUN)}
    assert told == []
    del answers["c"]
    tell_sharing(FakePool(everywhere, answers), cluster, plan, emit=told.append)
    (notice,) = told
    assert isinstance(notice, Notice)
    assert notice.text == f"c: a restart of {OTHER} may take checkpoints of {RUN} for its own"


def test_an_ended_run_counts_if_its_checkpoints_are_there() -> None:
    over = {**live(checkpoints="ckpt"), "state": "finished", "end": {"state": "finished"}}
    old = {"name": "step-5", "path": "/w/proj/ckpt/step-5", "step": 5, "time": 1.0, "run": OTHER}
    old |= {"complete": True, "why": "", "hash": "", "format": ""}
    assert notices(JOB, over) == []
    ((text, _),) = notices(JOB, over, old)
    assert text.startswith(f"ckpt has step-5 of an earlier run ({OTHER} ran then): this run may")
    ((text, _),) = notices(JOB, over, {**old, "run": ""})
    assert text.startswith("ckpt has step-5 of an earlier run: this run may")
    assert notices(JOB, over, old, resumes=True) == []
    ((text, _),) = notices(JOB, over, {**old, "run": "", "time": time.time() - 20})
    assert re.match(r"ckpt has step-5, written 2\d s ago by no run of lab: another program", text)


@pytest.mark.parametrize(
    ("job", "hint"),
    [
        (
            replace(JOB, checkpoints="ckpt/{name}"),
            "give the run a name that no other run has: --name NAME",
        ),
        (replace(JOB, checkpoints="/data/x"), "set `checkpoints: /data/x/{run}` in the inventory,"),
    ],
)
def test_the_hint_fits_the_job(job: Job, hint: str) -> None:
    assert own_folder_hint(job, "checkpoints").startswith(hint)


@pytest.mark.parametrize(
    ("word", "own"),
    [
        ("5", "5/{run}"),
        ("--timeout=5", "--timeout=5/{run}"),
        ("--out=5/logs", "--out=5/{run}/logs"),
        ("--steps=50", None),
        ("--resume=5/step-1.pt", None),
        ("a5", None),
        ("5x", None),
        ("--port5=1", None),
    ],
)
def test_only_the_folder_itself_is_replaced(word: str, own: str | None) -> None:
    job = replace(JOB, command=("train.py", word), checkpoints="5/")
    typed = own_folder_hint(job, "checkpoints").partition("clusterctl launch -- ")[2]
    assert typed == (shlex.join(("train.py", own)) if own else "")
