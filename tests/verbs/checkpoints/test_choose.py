"""A checkpoint to go on from is complete and the same on every node, or it is refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from clusterctl.errors import LaunchRefused, NodeError, UsageError
from clusterctl.inventory.cluster import Cluster, Job
from clusterctl.model.node_run import Resumed
from clusterctl.transport.fanout import MultiStream
from clusterctl.transport.interface import Reply, Request
from clusterctl.verbs.checkpoints import choose as checkpoint
from clusterctl.verbs.checkpoints.query import ChosenCheckpoint
from clusterctl.verbs.events import Event, Notice, Progress, ignore
from clusterctl.verbs.runs.history import Ancestor, History, history_of, unrecorded
from clusterctl.verbs.runs.records import RunRecord
from clusterctl.wire import Message
from tests.fake_pool import FakePool
from tests.verbs.run_answers import CLUSTER, RUN

LOCAL = replace(CLUSTER, job=replace(CLUSTER.job, checkpoints="out"))
TAKES = f"clusterctl resume {RUN} --checkpoint"
SHARED = replace(LOCAL, shared=("/w",))


def choose(
    nodes: FakePool, cluster: Cluster, which: str, history: History | None = None, **more: Any
) -> ChosenCheckpoint:
    history = history or unrecorded(RUN)
    return checkpoint.choose_checkpoint(nodes, cluster, which, history=history, **more, emit=ignore)


def seen(step: int, **more: Any) -> dict[str, Any]:
    return {
        "run": RUN,
        "epoch": None,
        "date": None,
        "real": [f"/w/out/step-{step}"],
        "mixed": "",
        "bytes": 1,
        "path": f"/w/out/step-{step}",
        "name": f"step-{step}",
        "format": "clusterctl",
        "step": step,
        "time": float(step),
        "complete": True,
        "why": "",
        "hash": f"hash of {step}",
        "part": None,
        **more,
    }


def node(
    *quick: dict[str, Any],
    deep: dict[str, str] | None = None,
    knows: bool = True,
    outside: dict[str, Any] | None = None,
) -> Callable[[Request], Any]:
    """Answer as a node that holds these; `deep` says what reading to the last byte finds.

    `outside` is in another folder.
    """

    def answer(request: Request) -> list[Message]:
        which = str(request.args["which"])
        if which == "latest":
            head = {"folder": "/w/out", "candidates": list(quick), "knows": knows}
            return [Message(head)]
        for one in (*quick, *([outside] if outside else [])):
            if which.endswith(one["name"]):
                broken = (deep or {}).get(one["name"], "") if request.args["verify"] else ""
                found = {**one, "complete": False, "why": broken} if broken else one
                return [Message({"folder": "/w/out", "candidates": [found]})]
        return [Message({"error": {"kind": "missing", "message": f"there is no {which}"}})]

    return answer


def pool(cluster: Cluster, **nodes: Any) -> FakePool:
    alone = [Message({"runs": []})]
    answers = {name: {"checkpoints": answer, "runs": alone} for name, answer in nodes.items()}
    return FakePool(cluster, answers)


def test_latest_is_the_newest_that_all_have() -> None:
    nodes = pool(LOCAL, a=node(seen(20), seen(10)), b=node(seen(20), seen(10)))
    chosen = choose(nodes, LOCAL, "latest")
    assert (chosen.path, chosen.step, chosen.skipped) == ("/w/out/step-20", 20, ())
    assert chosen.verified_on == ("a", "b")


def test_latest_falls_back_and_says_so() -> None:
    broken = seen(30, complete=False, why="COMPLETE is missing")
    nodes = pool(
        LOCAL,
        a=node(broken, seen(20), seen(10), deep={"step-20": "x is changed"}),
        b=node(broken, seen(20), seen(10)),
    )
    chosen = choose(nodes, LOCAL, "latest")
    assert chosen.step == 10
    assert chosen.skipped == (
        "step-30: it is not complete: COMPLETE is missing (on a, b)",
        "step-20: it is not complete: x is changed (on a)",
    )


def test_an_optimizer_is_not_taken_for_its_model() -> None:
    """It is written after it; both have the step."""

    def file(name: str, time: float) -> dict[str, Any]:
        return {**seen(20, name=name, path=f"/w/out/{name}"), "time": time}

    model = file("step20.pt", 1.0)
    others = [file(f"step20_{what}.pt", 2.0) for what in ("optim", "scheduler")]
    nodes = pool(SHARED, a=node(*others, model), b=node(*others, model))
    assert choose(nodes, SHARED, "latest").path.endswith("step20.pt")


def test_what_was_written_later_and_has_no_step_is_named() -> None:
    final = {
        **seen(20, name="final.pt", path="/w/out/final.pt", hash="f"),
        "step": None,
        "time": 90.0,
    }
    nodes = pool(SHARED, a=node(seen(20), final), b=node(seen(20), final))
    (told,) = choose(nodes, SHARED, "latest").others
    assert told.startswith("final.pt: it was written later, and has no step; clusterctl resume")
    early = {**final, "time": 3.0}
    nodes = pool(SHARED, a=node(seen(20), early), b=node(seen(20), early))
    assert choose(nodes, SHARED, "latest").others == ()


def of_rank(rank: int, size: int | None = 2) -> dict[str, Any]:
    part = {"ranks": [rank], "metadata": True, "steps": [], "saved": [1.0, 2.0], "whole": True}
    told = {**part, "world_size": size, "supposed": size}
    return seen(20, part=told, hash=f"of rank {rank}")


def test_the_files_of_ranks_on_their_own_nodes_are_one_checkpoint() -> None:
    chosen = choose(pool(LOCAL, a=node(of_rank(0)), b=node(of_rank(1))), LOCAL, "latest")
    assert chosen.step == 20
    own = "each node holds the files of some ranks; whether they are its own is not known"
    assert chosen.doubts == (own,)  # no plan is given here
    one_alone = seen(20, name="step20_rank1.pt")
    with pytest.raises(LaunchRefused, match="missing") as refused:
        choose(pool(LOCAL, a=node(), b=node(one_alone)), LOCAL, "latest")
    assert "push" not in (refused.value.hint or "")  # it would be every rank's


@pytest.mark.parametrize(("size", "ranks"), [(3, (0, 1)), (None, (0, 1)), (2, (0, 0)), (2, (1, 2))])
def test_files_of_some_ranks_alone_are_refused(size: int | None, ranks: tuple[int, int]) -> None:
    """Such as after the loss of a node with a part on its own disk."""
    a, b = ({**of_rank(rank, size), "hash": node} for rank, node in zip(ranks, "ab", strict=True))
    with pytest.raises(LaunchRefused, match="not the same on all nodes") as refused:
        choose(pool(LOCAL, a=node(a), b=node(b)), LOCAL, "latest")
    assert "push" not in (refused.value.hint or "")


def test_a_newer_one_that_can_be_copied_is_not_left_for_an_older_one() -> None:
    broken = seen(30, complete=False, why="COMPLETE is missing")
    nodes = pool(LOCAL, a=node(broken, seen(20), seen(15)), b=node(broken, seen(15)))
    with pytest.raises(LaunchRefused, match=r"\Astep-20: it is missing on b\Z") as refused:
        choose(nodes, LOCAL, "latest")
    assert refused.value.hint == (
        "copy it to all nodes: clusterctl push /w/out/step-20 --from a\n"
        f"to take step-15 instead: clusterctl resume {RUN} --checkpoint out/step-15"
    )


def test_a_newer_one_on_a_node_that_is_left_out_is_named_with_the_command_that_copies_it() -> None:
    out = replace(LOCAL.nodes[0], name="c", host="c")
    cluster = replace(LOCAL, left_out=(out,))
    everywhere = replace(LOCAL, nodes=(*LOCAL.nodes, out))
    half = seen(30, complete=False, why="COMPLETE is missing")
    push = "copy it to all nodes: clusterctl push /w/out/step-20 --from c --exclude c"
    words = r"step-20: it is on c, which this resume leaves out"
    nodes = pool(everywhere, a=node(seen(10)), b=node(seen(10)), c=node(half, seen(20)))
    with pytest.raises(LaunchRefused, match=rf"\A{words}\Z") as refused:
        choose(nodes, cluster, "latest")
    assert (refused.value.hint or "").splitlines()[0] == push
    nodes = pool(everywhere, a=node(), b=node(), c=node(half, seen(20)))
    with pytest.raises(LaunchRefused, match=words) as refused:
        choose(nodes, cluster, "latest")
    assert refused.value.hint == push
    nodes = pool(everywhere, a=node(seen(20)), b=node(seen(20)), c=node(half, seen(20)))
    assert choose(nodes, cluster, "latest").step == 20
    shared = replace(cluster, shared=("/w",), left_out=(replace(out, workdir="/w"),))
    nodes = pool(everywhere, a=node(seen(20)), b=node(seen(20)), c=node(seen(25)))
    assert choose(nodes, shared, "latest").step == 20


OLD = "lab-20251231t000000-wxyz"
RESUMED = History(
    runs=(
        Ancestor(run=RUN, began=5.0, taken="/w/ext/step-55", taken_step=55),
        Ancestor(run=OLD, began=1.0),
    )
)


def test_a_run_without_a_checkpoint_of_its_own_is_where_it_began() -> None:
    """Also if that is in no folder of these runs."""
    outside = seen(55, path="/w/ext/step-55", run="", older=True)
    held = node(seen(45, run=OLD, older=True), outside=outside)
    nodes = pool(SHARED, a=held, b=held)
    assert choose(nodes, SHARED, "latest", history=RESUMED).step == 55
    held = node(seen(60), seen(45, run=OLD, older=True), outside=outside)
    assert choose(pool(SHARED, a=held, b=held), SHARED, "latest", history=RESUMED).step == 60
    held = node(seen(45, run=OLD, older=True))
    chosen = choose(pool(SHARED, a=held, b=held), SHARED, "latest", history=RESUMED)
    assert chosen.step == 45
    assert chosen.skipped == (
        "/w/ext/step-55: it is not complete: there is no /w/ext/step-55 (on a, b)",
    )


def test_a_path_that_another_run_wrote_is_taken_with_a_warning() -> None:
    other = node(seen(20, run=OLD))
    (doubt,) = choose(pool(SHARED, a=other, b=other), SHARED, "step-20").doubts
    assert doubt == f"{OLD} ran when it was written, and {RUN} does not resume that run"
    own = node(seen(20))
    assert choose(pool(SHARED, a=own, b=own), SHARED, "step-20").doubts == ()


def test_with_a_folder_for_each_run_too_a_newer_one_that_can_be_copied_is_named() -> None:
    job = replace(LOCAL.job, checkpoints="out/{run}")
    runs = (
        Ancestor(
            run=RUN, began=5.0, taken="/w/out/old/step-20", taken_step=20, checkpoints="out/{run}"
        ),
        Ancestor(run=OLD, began=1.0, checkpoints="out/{run}"),
    )

    def held(*own: dict[str, Any]) -> Callable[[Request], Any]:
        def answer(request: Request) -> Any:
            there = {RUN: own, OLD: (seen(20, run=OLD),)}
            at = str(request.args["path"]).rpartition("/")[2]
            every = (*own, *there[OLD])
            return node(*(there[at] if request.args["which"] == "latest" else every))(request)

        return answer

    nodes = pool(LOCAL, a=held(seen(30)), b=held())
    with pytest.raises(LaunchRefused, match=r"\Astep-30: it is missing on b\Z"):
        choose(nodes, replace(LOCAL, job=job), "latest", history=History(runs=runs))


def test_an_older_file_of_the_same_name_on_another_disk_hides_no_newer_one() -> None:
    own, old = seen(30), seen(30, run=OLD, older=True, hash="of another")
    nodes = pool(LOCAL, a=node(own, seen(20)), b=node(old, seen(20)))
    with pytest.raises(LaunchRefused, match=r"\Astep-30: it is missing on b\Z") as refused:
        choose(nodes, LOCAL, "latest")
    push = "copy it to all nodes: clusterctl push /w/out/step-30 --from a"
    assert (refused.value.hint or "").splitlines()[0] == push
    # A copy of the same content whose time says that another run wrote it is in doubt.
    nodes = pool(LOCAL, a=node(own, seen(20)), b=node({**old, "hash": own["hash"]}, seen(20)))
    assert choose(nodes, LOCAL, "latest").step == 20


def test_what_differs_between_nodes_is_refused() -> None:
    nodes = pool(LOCAL, a=node(seen(20)), b=node(seen(20, hash="another")))
    with pytest.raises(LaunchRefused, match="not the same on all nodes"):
        choose(nodes, LOCAL, "step-20")


def test_a_copy_that_lacks_files_is_refused_with_the_command_that_completes_it() -> None:
    weights = {"model.safetensors": "1"}
    a = seen(20, hash="all", files={**weights, "config.json": "2"})
    nodes = pool(LOCAL, a=node(a), b=node(seen(20, hash="some", files=weights)))
    with pytest.raises(LaunchRefused, match=r"config\.json is missing on b") as refused:
        choose(nodes, LOCAL, "latest")
    assert refused.value.hint == "copy it to all nodes: clusterctl push /w/out/step-20 --from a"


@pytest.mark.parametrize("which", ["latest", "step-20"])
def test_a_checkpoint_that_only_one_node_has_is_refused_with_the_command_that_copies_it(
    which: str,
) -> None:
    nodes = pool(LOCAL, a=node(seen(20)), b=node())
    with pytest.raises(LaunchRefused, match=r"on b\b") as refused:
        choose(nodes, LOCAL, which)
    assert refused.value.hint == ("copy it to all nodes: clusterctl push /w/out/step-20 --from a")


def test_the_copy_leaves_out_the_nodes_that_the_resume_leaves_out() -> None:
    """One of them may be down, which the push would fail for."""
    nodes = pool(LOCAL, a=node(seen(20)), b=node())
    down = replace(LOCAL.nodes[0], name="c", host="c")
    with pytest.raises(LaunchRefused) as refused:
        choose(nodes, replace(LOCAL, left_out=(down,)), "latest")
    assert refused.value.hint == (
        "copy it to all nodes: clusterctl push /w/out/step-20 --from a --exclude c"
    )


def test_where_a_node_lacks_even_the_folder_the_newest_complete_one_is_copied() -> None:
    words = "cannot list /w/out: No such file or directory"
    lacking = [Message({"error": {"kind": "missing", "message": words}})]
    broken = seen(40, complete=False, why="COMPLETE is missing")
    with pytest.raises(LaunchRefused, match=f"in out: b: {words}\nstep-40: ") as refused:
        choose(pool(LOCAL, a=node(broken, seen(20), seen(10)), b=lacking), LOCAL, "latest")
    assert refused.value.hint == "copy it to all nodes: clusterctl push /w/out/step-20 --from a"
    with pytest.raises(LaunchRefused, match="cannot list") as refused:
        choose(pool(LOCAL, a=lacking, b=lacking), LOCAL, "latest")
    assert refused.value.hint is None


def test_on_shared_storage_one_node_reads_it() -> None:
    nodes = pool(SHARED, a=node(seen(20)), b=node(seen(20)))
    assert choose(nodes, SHARED, "latest").verified_on == ("a",)
    assert [name for name, request in nodes.requests if request.args["verify"]] == ["a"]


@pytest.mark.parametrize("which", ["step-30", "/w/out/step-30"])
def test_a_path_is_never_replaced_but_the_newest_complete_one_is_named(which: str) -> None:
    broken = seen(30, complete=False, why="COMPLETE is missing")
    nodes = pool(SHARED, a=node(broken, seen(20)), b=node(broken, seen(20)))
    with pytest.raises(LaunchRefused, match="COMPLETE is missing") as caught:
        choose(nodes, SHARED, which)
    assert caught.value.hint == "the newest complete one: --checkpoint /w/out/step-20"
    assert caught.value.exit_code == 125


def test_a_flipped_bit_is_refused() -> None:
    nodes = pool(SHARED, a=node(seen(20), deep={"step-20": "x is changed"}), b=node(seen(20)))
    with pytest.raises(LaunchRefused, match="x is changed") as caught:
        choose(nodes, SHARED, "step-20")
    assert caught.value.hint == "no other checkpoint of this run is complete"


def part(
    ranks: list[int],
    *,
    metadata: bool = False,
    step: int = 20,
    said: list[int] | None = None,
    saved: float = 100.0,
) -> dict[str, Any]:
    held = {
        "ranks": ranks,
        "world_size": 4,
        "metadata": metadata,
        "steps": said or [],
        "saved": [saved, saved + 1],
    }
    why = "model_state_rank9.pt is missing"
    return {**seen(20), "complete": False, "why": why, "part": held, "step": step}


def test_parts_of_ranks_on_their_own_nodes_add_up() -> None:
    whole = pool(LOCAL, a=node(part([0, 1], metadata=True)), b=node(part([2, 3])))
    assert choose(whole, LOCAL, "latest").step == 20


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (part([2]), "saved by 4 ranks, and the file of rank 3 is on no node"),
        (part([2, 3], step=40), "of steps 20, 40"),
        (part([2, 3], said=[10]), "of steps 10, 20"),
        (part([2, 3], saved=5000.0), "written 4901 s apart"),
        (seen(20, complete=False, why="model_state_rank2.pt is changed"), "rank2.pt is changed"),
    ],
)
def test_parts_that_do_not_belong_together_are_refused(other: dict[str, Any], why: str) -> None:
    nodes = pool(LOCAL, a=node(part([0, 1], metadata=True)), b=node(other))
    with pytest.raises(LaunchRefused, match=why):
        choose(nodes, LOCAL, "step-20")


def test_whole_copies_of_another_step_are_refused() -> None:
    nodes = pool(LOCAL, a=node(seen(20)), b=node({**seen(20, hash="other"), "step": 40}))
    with pytest.raises(LaunchRefused, match="not the same on all nodes"):
        choose(nodes, LOCAL, "step-20")


def test_what_speaks_against_it_is_passed_on() -> None:
    doubtful = seen(20, doubts=["a copy, or two saves that are mixed"])
    nodes = pool(LOCAL, a=node(doubtful), b=node(doubtful))
    assert choose(nodes, LOCAL, "latest").doubts == ("a copy, or two saves that are mixed",)


def test_a_node_that_does_not_answer_proves_nothing() -> None:
    nodes = pool(LOCAL, a=node(seen(20)), b=Reply.failed("b", NodeError("timeout", "connect")))
    with pytest.raises(LaunchRefused, match=r"b: timeout .* cannot verify") as refused:
        choose(nodes, LOCAL, "latest")
    assert refused.value.hint == "to resume without it: --exclude b"


def test_without_an_answer_of_any_node_there_is_no_way_on() -> None:
    silent = {name: Reply.failed(name, NodeError("timeout", "connect")) for name in ("a", "b")}
    with pytest.raises(LaunchRefused, match=r"(?s)a: timeout .*b: timeout ") as refused:
        choose(pool(LOCAL, **silent), LOCAL, "latest")
    assert refused.value.hint is None


def test_latest_needs_to_know_where() -> None:
    with pytest.raises(LaunchRefused, match="found none in the inventory"):
        choose(pool(CLUSTER), CLUSTER, "latest")


def test_none_at_all() -> None:
    with pytest.raises(
        LaunchRefused, match=f"no complete checkpoint of {RUN} in out: it holds none"
    ):
        choose(pool(LOCAL, a=node(), b=node()), LOCAL, "latest")


def test_latest_is_of_this_run_though_an_earlier_one_came_further() -> None:
    first = seen(60, run="lab-first", older=True)
    nodes = pool(LOCAL, a=node(first, seen(10)), b=node(first, seen(10)))
    chosen = choose(nodes, LOCAL, "latest")
    assert (chosen.path, chosen.skipped) == ("/w/out/step-10", ())
    why = f"it was written before {RUN} began (lab-first ran then)"
    assert chosen.others == (f"step-60: {why}; {TAKES} out/step-60 takes it",)


def test_if_there_are_only_older_ones_they_are_named_with_the_command() -> None:
    first = seen(60, run="", older=True)
    nodes = pool(LOCAL, a=node(first), b=node(first))
    with pytest.raises(
        LaunchRefused, match=f"no checkpoint of {RUN} in out; step-60: it was written before"
    ):
        choose(nodes, LOCAL, "latest")
    with pytest.raises(LaunchRefused) as caught:
        choose(nodes, LOCAL, "latest")
    named = f"to take step-60 for this run: {TAKES} out/step-60"
    assert caught.value.hint == named
    assert choose(nodes, LOCAL, "out/step-60").path == "/w/out/step-60"

    nodes = pool(LOCAL, a=node(seen(60, run="")), b=node(seen(60, run=RUN)))
    with pytest.raises(LaunchRefused, match=f"{RUN} did not write it") as caught:
        choose(nodes, LOCAL, "latest")
    assert caught.value.hint == named  # and not the run that is to be resumed

    writer = f"{LOCAL.name}-20251231t000000-abcd"
    broken, whole = seen(70, run="lab; rm", complete=False, why="cut off"), seen(60, run=writer)
    nodes = pool(LOCAL, a=node(broken, whole), b=node(broken, whole))
    with pytest.raises(LaunchRefused) as caught:
        choose(nodes, LOCAL, "latest")
    resume = f"clusterctl resume {writer} --checkpoint latest"
    assert caught.value.hint == f"to resume the run that wrote it: {resume}\n{named}"


def test_on_shared_storage_a_node_that_had_the_run_says_whose_it_is() -> None:
    """The other one's clock is wrong, or it was not there."""
    theirs, ours = seen(10, run=""), seen(10)
    answers = {"a": node(theirs, knows=False), "b": node(ours, knows=True)}
    assert choose(pool(SHARED, **answers), SHARED, "latest").step == 10
    with pytest.raises(LaunchRefused):
        choose(pool(LOCAL, a=node(theirs, knows=True), b=node(ours, knows=True)), LOCAL, "latest")


class Backwards(FakePool):
    """The last node is the first that answers."""

    def following(
        self, requests: Mapping[str, Request], *, tick: float, answer_timeout: float = math.inf
    ) -> MultiStream:
        backwards = dict(reversed(list(requests.items())))
        return super().following(backwards, tick=tick, answer_timeout=answer_timeout)


def test_a_checkpoint_that_rank_0_saved_before_other_nodes_began_is_not_older() -> None:
    """The master's node begins first; on the worker the files are older than its own start."""
    older = seen(10, run="", older=True)
    alone = [Message({"runs": []})]
    answers: dict[str, dict[str, Any]] = {
        name: {"checkpoints": node(one), "runs": alone}
        for name, one in (("a", seen(10)), ("b", older))
    }
    assert choose(Backwards(SHARED, answers), SHARED, "latest").step == 10


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ({"step": 9}, {"step": 10}),
        ({"step": 900, "epoch": 2}, {"step": 17, "epoch": 3}),
        ({"step": None, "epoch": 2}, {"step": None, "epoch": 10}),
        ({"step": 20, "epoch": 21}, {"step": None, "epoch": 25}),
        ({"step": None, "date": 20241231000000}, {"step": None, "date": 20250102000000}),
        ({"step": None, "time": 2.0}, {"step": 5, "time": 1.0}),
        ({"step": None, "time": 1.0}, {"step": None, "time": 2.0}),
    ],
)
def test_the_newest_is_by_step_then_by_epoch_date_and_time(
    older: dict[str, Any], newer: dict[str, Any]
) -> None:
    early = {**seen(1), "time": 2.0, **older}
    late = {**seen(2), "time": 1.0, **newer}
    nodes = pool(LOCAL, a=node(early, late), b=node(late, early))
    assert choose(nodes, LOCAL, "latest").path == "/w/out/step-2"


def test_what_is_not_whole_does_not_change_the_order() -> None:
    early, late = {**seen(9), "time": 2.0}, {**seen(10), "time": 1.0}
    broken = {**seen(1), "name": "x.tmp", "step": None, "complete": False, "why": "unfinished"}
    nodes = pool(LOCAL, a=node(early, late, broken), b=node(early, late, broken))
    assert choose(nodes, LOCAL, "latest").step == 10


@pytest.mark.parametrize("which", ["", "  "])
def test_an_empty_word_is_refused(which: str) -> None:
    with pytest.raises(UsageError, match="found an empty word"):
        choose(pool(LOCAL), LOCAL, which)


def test_what_may_be_two_saves_is_taken_only_by_its_path() -> None:
    mixed = seen(30, mixed="x is newer than .metadata")
    nodes = pool(LOCAL, a=node(mixed, seen(20)), b=node(mixed, seen(20)))
    chosen = choose(nodes, LOCAL, "latest")
    assert chosen.step == 20
    assert "--checkpoint out/step-30 takes it" in chosen.skipped[0]
    assert choose(nodes, LOCAL, "step-30").doubts == ("x is newer than .metadata",)


def test_a_link_from_shared_storage_to_a_local_disk_is_read_by_every_node() -> None:
    linked = seen(20, real=["/scratch/step-20"])
    nodes = pool(SHARED, a=node(linked), b=node(linked))
    assert choose(nodes, SHARED, "latest").verified_on == ("a", "b")


def test_the_job_is_given_a_path_that_leads_there() -> None:
    nodes = pool(LOCAL, a=node(seen(20)), b=node(seen(20)))
    assert choose(nodes, LOCAL, "step-20").path == "/w/out/step-20"
    homes = {
        name: replace(one, workdir=f"/home/{name}")
        for name, one in zip("ab", LOCAL.nodes, strict=True)
    }
    apart = replace(LOCAL, nodes=tuple(homes.values()))
    inside = {n: node(seen(20, path=f"/home/{n}/out/step-20")) for n in "ab"}
    assert choose(pool(apart, **inside), apart, "latest").path == "out/step-20"
    outside = {n: node(seen(20, path=f"/root/{n}/step-20")) for n in "ab"}
    with pytest.raises(LaunchRefused, match="it has no path that is the same on all nodes"):
        choose(pool(apart, **outside), apart, "~/step-20")


def test_the_file_that_differs_is_named() -> None:
    nodes = pool(
        LOCAL,
        a=node(seen(20, hash="1", files={"same": "x", "optimizer.pt": "abc"})),
        b=node(seen(20, hash="2", files={"same": "x", "optimizer.pt": "def"})),
    )
    with pytest.raises(LaunchRefused, match=r"optimizer\.pt differs: a: abc, b: def"):
        choose(nodes, LOCAL, "step-20")


def test_ranks_files_on_the_wrong_nodes_are_refused() -> None:
    swapped = pool(LOCAL, a=node(part([2, 3])), b=node(part([0, 1], metadata=True)))
    ranks = {"a": range(2), "b": range(2, 4)}
    with pytest.raises(LaunchRefused, match="file of rank 0 is on b, and a will run rank 0"):
        choose(swapped, LOCAL, "step-20", ranks=ranks)
    right = pool(LOCAL, a=node(part([0, 1], metadata=True)), b=node(part([2, 3])))
    assert choose(right, LOCAL, "step-20", ranks=ranks).step == 20
    assert "whether they are its own" in " ".join(choose(right, LOCAL, "step-20").doubts)


def test_one_node_may_hold_all_ranks_files_and_others_their_own() -> None:
    all_of_them = {**part([0, 1, 2, 3], metadata=True), "complete": True, "why": ""}
    all_of_them["part"] = {**all_of_them["part"], "whole": True}
    nodes = pool(LOCAL, a=node(all_of_them), b=node(part([2, 3])))
    ranks = {"a": range(2), "b": range(2, 4)}
    assert choose(nodes, LOCAL, "step-20", ranks=ranks).step == 20


def test_ranks_files_that_were_copied_late_are_of_one_save_if_they_say_the_same_step() -> None:
    one = part([0, 1], metadata=True, said=[20])
    other = part([2, 3], said=[20], saved=5000.0)
    assert choose(pool(LOCAL, a=node(one), b=node(other)), LOCAL, "step-20").step == 20


def test_while_a_node_reads_it_is_told_how_far_it_is() -> None:
    def reads(request: Request) -> list[Message]:
        told = [Message({"read": 1 << 30})] if request.args["verify"] else []
        big = seen(20, bytes=2 << 30)
        return [*told, Message({"folder": "/w/out", "candidates": [big]})]

    events: list[Event] = []
    checkpoint.choose_checkpoint(
        pool(SHARED, a=reads, b=reads),
        SHARED,
        "latest",
        history=unrecorded(RUN),
        emit=events.append,
    )
    assert Notice(text="reading /w/out/step-20 (2.0 GiB) on a") in events
    progress = [event for event in events if isinstance(event, Progress)]
    assert [(event.done, event.total) for event in progress] == [(1024, 2048)]


def test_a_damaged_file_that_was_changed_after_the_run_is_named() -> None:
    cut = seen(30, run="", complete=False, why="it is cut")
    theirs = seen(40, run="other", complete=False, why="it is cut, too")
    older = seen(10, run="", complete=False, why="it was always so")
    nodes = pool(SHARED, a=node(seen(20), cut, theirs, older), b=node(seen(20), cut, theirs, older))
    chosen = choose(nodes, SHARED, "latest")
    assert chosen.step == 20
    assert chosen.skipped == (f"step-30: {RUN} did not write it; it is cut",)


def test_a_folder_that_does_not_answer_is_no_folder_without_checkpoints() -> None:
    stuck = [Message({"error": {"kind": "stuck", "message": "/w/out does not answer"}})]
    with pytest.raises(LaunchRefused, match=r"a: /w/out does not answer: cannot verify"):
        choose(pool(LOCAL, a=stuck, b=stuck), LOCAL, "latest")


def in_own_folders(folders: dict[str, list[dict[str, Any]]]) -> FakePool:
    """Return nodes that share the folders of several runs, by path."""

    def answer(request: Request) -> list[Message]:
        which, path = str(request.args["which"]), str(request.args["path"])
        found = folders.get(path, [])
        if which != "latest":
            found = [one for some in folders.values() for one in some if one["path"] == which]
        elif path not in folders:
            return [Message({"error": {"kind": "missing", "message": f"cannot list {path}"}})]
        return [Message({"candidates": found, "knows": True})]

    return pool(SHARED, a=answer, b=answer)


def test_a_run_with_its_own_folder_goes_on_from_the_folder_of_the_run_before() -> None:
    cluster = replace(SHARED, job=replace(SHARED.job, checkpoints="ckpt/{run}"))
    first = RunRecord(run="lab-first", began=1.0, cluster=cluster, options={"name": "base"})
    resumed = Resumed(run="lab-first", checkpoint="/w/ckpt/lab-first/step-10", step=10)
    second = RunRecord(run=RUN, began=2.0, cluster=cluster, resumed=resumed)
    history = history_of(second, {"lab-first": first}.get)
    job = Job(command=(), checkpoints="ckpt/{run}")
    assert history.folders(job) == (f"ckpt/{RUN}", "ckpt/lab-first")
    named = replace(job, checkpoints="ckpt/{name}")
    assert history_of(first, {"none": first}.get).folders(named) == ("ckpt/base",)
    named = Job(command=("t.py", "--out", "out/b"), checkpoints="out")
    wrote = replace(
        first, cluster=replace(SHARED, job=replace(named, command=("t.py", "--out=out/a")))
    )
    # It may be resumed with another folder; without one, the record's is all of `out`.
    assert history_of(wrote, lambda _: None).folders(named) == ("out/a",)
    wrote = replace(first, cluster=replace(SHARED, job=replace(named, command=("t.py",))))
    assert history_of(wrote, lambda _: None).folders(named) == ("out",)
    assert unrecorded(RUN).folders(named) == ("out/b",)

    before = "/w/ckpt/lab-first/step-"
    old = [seen(step, run="lab-first", path=f"{before}{step}", real=[]) for step in (10, 20)]
    folders = {"ckpt/lab-first": old}
    # Step 20 is of the first run alone: the second continued from step 10.
    assert choose(in_own_folders(folders), cluster, "latest", history).path == f"{before}10"
    folders[f"ckpt/{RUN}"] = [seen(12, path=f"/w/ckpt/{RUN}/step-12", real=[])]
    assert choose(in_own_folders(folders), cluster, "latest", history).step == 12
    folders[f"ckpt/{RUN}"][0].update(complete=False, why="it is cut")
    chosen = choose(in_own_folders(folders), cluster, "latest", history)
    assert chosen.path == f"{before}10"
    assert "step-12: it is not complete: it is cut" in chosen.skipped[0]
    del folders["ckpt/lab-first"]
    with pytest.raises(LaunchRefused, match=f"no complete checkpoint of {RUN} in ckpt/{RUN}"):
        choose(in_own_folders(folders), cluster, "latest", history)
    listed = checkpoint.list_checkpoints(
        in_own_folders({f"ckpt/{RUN}": old, "ckpt/lab-first": []}), cluster, history, emit=ignore
    )
    assert [one.step for one in listed] == [10]


def test_of_endless_checkpoints_that_are_unfit_some_are_named() -> None:
    nodes = pool(LOCAL, a=node(), b=node(*map(seen, range(100))))
    with pytest.raises(LaunchRefused, match=r"step-80: .*\nand 80 more$"):
        choose(nodes, LOCAL, "latest")
