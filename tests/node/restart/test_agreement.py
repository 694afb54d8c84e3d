"""Which checkpoint the next attempt starts from, and that no node's words are believed blindly."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.node.restart.agreement import (
    MOST_TOLD,
    Agreement,
    Checkpoint,
    Sight,
    agree,
    read_sight,
    tell_sight,
)

RUN = "lab-1"


def copy(step: int, **more: Any) -> dict[str, Any]:
    """Return a checkpoint as the operation `checkpoints` answers with it."""
    return {
        "name": f"step-{step}",
        "path": f"/data/ck/step-{step}",
        "complete": True,
        "why": "",
        "hash": f"h{step}",
        "time": float(step),
        "step": step,
        "epoch": None,
        "date": None,
        "run": RUN,
        "recorded": False,
        "mixed": "",
        "beside": [],
        "files": {"a": "1"},
        "part": None,
        "real": [],
        "bytes": 5,
        **more,
    }


def sight(*copies: dict[str, Any], workdir: str = "/data") -> Sight:
    """Return what comes over the link."""
    return read_sight(json.loads(json.dumps(tell_sight(workdir, copies))))


def agreed(**nodes: Sight) -> Agreement:
    return agree(nodes, RUN)


def test_the_newest_that_all_nodes_have_is_taken() -> None:
    found = agreed(a=sight(copy(10), copy(20), copy(30)), b=sight(copy(20), copy(10)))
    assert found.newest == Checkpoint("/data/ck/step-20", "step-20", step=20, time=20.0)
    assert found.skipped == ("step-30: it is missing on b",)


@pytest.mark.parametrize(
    "other",
    [
        {"complete": False, "why": "file a is cut off"},
        {"hash": "another"},
        {"run": "lab-0"},
        {"run": "", "beside": ["lab-0", "lab-2"]},
        {"mixed": "it may be of two saves"},
    ],
)
def test_what_is_not_whole_and_equal_on_a_node_is_skipped(other: dict[str, Any]) -> None:
    found = agreed(a=sight(copy(10), copy(20)), b=sight(copy(10), copy(20, **other)))
    assert found.newest is not None
    assert found.newest.step == 10
    assert len(found.skipped) == 1


def test_what_another_run_may_have_written_is_not_taken_and_named() -> None:
    both = {"run": "", "beside": ["lab-0", RUN]}
    told = "step-20: lab-0 ran then, too, and nothing says which run wrote it"
    found = agreed(a=sight(copy(20, **both)), b=sight(copy(20, **both)))
    assert (found.newest, found.why) == (None, told)
    found = agreed(a=sight(copy(10), copy(20, **both)), b=sight(copy(10), copy(20, **both)))
    assert found.newest is not None
    assert (found.newest.step, found.skipped) == (10, (told,))
    others = {"run": "", "beside": ["lab-0", "lab-2"]}
    assert agreed(a=sight(copy(20, **others)), b=sight()) == Agreement()


def test_what_may_be_meant_instead_of_the_one_that_is_taken_is_named() -> None:
    first = copy(50, name="init.pt", time=1.0)
    ema, shard = copy(20, name="ema-20", hash="e"), copy(50, name="init_rank1.pt", hash="x")
    copies = (first, copy(20, time=9.0), copy(10, time=0.5), shard)
    found = agreed(a=sight(*copies))
    assert found.newest is not None
    assert found.newest.name == "init.pt"
    assert found.skipped == ("step-20: it was written later, at step 20",)
    found = agreed(a=sight(copy(20, time=20.5), ema, copy(20, name="last", hash="h20")))
    assert found.skipped == ("ema-20: it is of the same step",)


def test_a_node_that_joined_after_the_save_has_the_same_one() -> None:
    master = sight(copy(10), copy(20))
    found = agreed(a=master, b=sight(copy(10), copy(20, run="")))
    assert found.newest is not None
    assert found.newest.step == 20
    found = agreed(a=master, b=sight(copy(10), copy(20, run="", time=19.0)))
    assert found.newest is not None
    assert found.newest.step == 10, "of another run, perhaps, on a disk of its own"


def test_none_was_written_or_none_fits() -> None:
    assert agreed(a=sight(), b=sight()) == Agreement()
    first_save = copy(10, complete=False, why="it is being written, or its writer died", hash="")
    assert agreed(a=sight(first_save), b=sight()).why == ""
    beside_it = copy(10, name="step-10.tmp", complete=False, why="it is being written", hash="")
    assert agreed(a=sight(first_save, beside_it), b=sight()).why == ""
    broken = [copy(step, complete=False, why="no file of torch.save") for step in (5, 10)]
    found = agreed(a=sight(*broken), b=sight(*broken))
    assert found.newest is None
    assert found.why.startswith("step-10: it is not complete: no file of torch.save (on a, b)")
    of_another_run = copy(10, run="lab-0")
    assert agreed(a=sight(of_another_run), b=sight(of_another_run)) == Agreement()
    only_here = agreed(a=sight(copy(10)), b=sight())
    assert (only_here.newest, only_here.why) == (None, "step-10: it is missing on b")
    unknown = agreed(a=sight(copy(10)), b=Sight("/data", (), problem="no answer within 20 s"))
    assert (unknown.newest, unknown.why) == (None, "b: no answer within 20 s")


def test_ranks_files_of_all_nodes_make_one_checkpoint() -> None:
    def part(*ranks: int, metadata: bool = False) -> dict[str, Any]:
        told = {"steps": [10], "saved": [1.0], "world_size": 2, "supposed": 2, "whole": False}
        of_ranks = {"ranks": ranks, "metadata": metadata, **told}
        return copy(10, complete=False, why="part", hash="", part=of_ranks)

    found = agreed(a=sight(part(0, metadata=True)), b=sight(part(1)))
    assert found.newest is not None
    assert agreed(a=sight(part(0, metadata=True)), b=sight(part(0))).newest is None


def test_the_path_leads_to_it_on_every_node() -> None:
    a, b = copy(10), copy(10, path="/mnt/ck/step-10")
    found = agreed(a=sight(a), b=sight(b, workdir="/mnt"))
    assert found.newest is not None
    assert found.newest.path == "ck/step-10"
    assert agreed(a=sight(a), b=sight(b)).newest is None


def test_a_checkpoint_is_newer_by_its_step_or_else_by_its_time() -> None:
    one, two = Checkpoint("p", "n", step=10, time=9.0), Checkpoint("q", "m", step=20, time=1.0)
    assert two.newer_than(one)
    assert not one.newer_than(two)
    assert not one.newer_than(one)
    assert one.newer_than(None)
    assert Checkpoint("q", "m", time=10.0).newer_than(one)
    late = Checkpoint("r", "o", step=1, epoch=2)
    assert late.newer_than(Checkpoint("s", "u", step=9, epoch=1))


def test_only_the_newest_few_are_told() -> None:
    told = sight(*(copy(step) for step in range(100)))
    assert len(told.checkpoints) == MOST_TOLD
    assert max(one.step or 0 for one in told.checkpoints) == 99


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
KEYS = sorted(copy(1))


@given(
    st.dictionaries(st.sampled_from(KEYS), JSON),
    st.none() | st.dictionaries(st.sampled_from(["ranks", "saved", "steps", "whole"]), JSON),
)
def test_any_words_are_read_or_refused(
    changed: dict[str, Any], part: dict[str, Any] | None
) -> None:
    told = {"workdir": "/data", "checkpoints": [{**copy(10), "part": part, **changed}]}
    try:
        read = read_sight(told)
    except ValueError:
        return
    found = agreed(a=read, b=sight(copy(10)))
    assert found.newest is None or found.newest.path == "/data/ck/step-10"


@pytest.mark.parametrize(
    "told",
    [None, [], {"checkpoints": {"a": 1}}, {"checkpoints": [1]},
     {"checkpoints": [{}] * (MOST_TOLD + 1)},
     {"workdir": 5}, {"workdir": "x" * 5000}, {"checkpoints": [{"time": float("nan")}]}],
)  # fmt: skip
def test_what_is_no_sight_is_refused(told: object) -> None:
    with pytest.raises(ValueError, match="found"):
        read_sight(told)
