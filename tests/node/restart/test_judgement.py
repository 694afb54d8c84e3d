"""What becomes of a run that failed, by texts that programs really printed."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.node.printed_cause import CAUSES, cause_of
from clusterctl.node.restart.agreement import Agreement, Checkpoint
from clusterctl.node.restart.judgement import (
    NO_PROGRESS,
    WAITS,
    AttemptEnd,
    Decision,
    Failure,
    decide,
    first_cause,
)
from clusterctl.node.restart.own_rules import FoundPatterns
from clusterctl.node.restart.rules import FRUITLESS, RULES

TEXTS: list[str] = [
    str(entry["text"])
    for entry in yaml.safe_load(
        (Path(__file__).parents[2] / "logs/printed_errors.yaml").read_text()
    )
]
"""The project's own collection."""


def limits_of(most: int, on: Any = (), never: Any = ()) -> Any:
    """Return `job.restart` with exit codes, or words."""
    kinds = {"exit_codes": int, "patterns": str}
    on, never = (
        {name: [one for one in rules if isinstance(one, kind)] for name, kind in kinds.items()}
        for rules in (on, never)
    )
    return {"max": most, "on": on, "never": never}


THREE, MANY = limits_of(3), limits_of(1000)
NEVER_SAVED = Agreement()
GOOD: dict[str, dict[str, str | None]] = {"a": {"workdir": "", "xid": None}, "b": {"workdir": ""}}
RESET = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]"


def saved(step: int) -> Checkpoint:
    return Checkpoint(f"/ck/step-{step}", f"step-{step}", step=step, time=float(step))


def text_with(words: str) -> str:
    """Return the first text of the collection that has these words."""
    return next(text for text in TEXTS if words in text)


def failed(text: str = "", node: str = "b", at: float = 1.0, **more: Any) -> Failure:
    told = {"rank": 1, **({} if "signal" in more else {"exit_code": 1}), **more}
    return Failure(node, at, lines=tuple(["step 7", *text.split("\n")] if text else ()), **told)


def end(*failures: Failure, attempt: int = 1, by: str = "rank", **more: Any) -> AttemptEnd:
    return AttemptEnd(attempt, by, failures=failures, **more)


def searched(one: AttemptEnd, limits: Any) -> AttemptEnd:
    """Look for the limits' patterns, all of them harmless ones."""
    lines = [line for each in one.failures for line in each.lines]
    patterns = (*limits["never"]["patterns"], *limits["on"]["patterns"])
    found = (each for each in patterns if any(re.search(each, line) for line in lines))
    return one if one.patterns.unreadable else one._replace(patterns=FoundPatterns(tuple(found)))


def decision(*ends: AttemptEnd, limits: Any = THREE, **more: Any) -> Decision:
    more = {"found": NEVER_SAVED, "checks": GOOD, **more}
    ends = (*ends[:-1], searched(ends[-1], limits))
    return decide(ends, limits, more.pop("found"), more.pop("checks"), **more)


AGAIN = (
    "Connection closed by peer",
    "NCCL communicator was aborted",
    "Watchdog caught collective operation timeout",
    "CUDA out of memory",
    "device-side assert",
    "Address already in use",
    "Stale file handle",
    "We couldn't connect to 'https://huggingface.co' to load this file",
    "ValueError: Target modules",
    "KeyError: 'labels'",
    "DataLoader worker (pid(s) 3216) exited unexpectedly",
)
WITHOUT = (
    "uncorrectable ECC error",
    "No CUDA GPUs are available",
    "system not yet initialized",
    "Input/output error",
    "all CUDA-capable devices are busy",
)
NOT_AGAIN = (
    "No module named 'peft'",
    "ImportError: cannot import name",
    "undefined symbol",
    "cannot open shared object file",
    "model_world_size_2_rank_0.pt",
    "GatedRepoError",
    "api_key not configured",
    "Error while deserializing header: HeaderTooLarge",
    "invalid device ordinal",
    "NVIDIA driver on your system is too old",
)
OWN_TEXTS = {
    "SyntaxError: invalid syntax": "end",
    "IndentationError: unexpected indent": "end",
    "FileNotFoundError: [Errno 2] No such file or directory: '/data/x.json'": "end",
    "train.NonFiniteLoss: the loss is nan at step 12": "end",
    "OSError: [Errno 28] No space left on device": "without",
    "RuntimeError: Failed to initialize NVML: Unknown Error": "without",
    "RuntimeError: CUDA error: GPU is lost": "without",
    "torch.distributed.DistBackendError: NCCL error: ncclInternalError: IB device failed": "again",
}
TABLE = {
    **{text_with(words): "again" for words in AGAIN},
    **{text_with(words): "without" for words in WITHOUT},
    **{text_with(words): "end" for words in NOT_AGAIN},
    **OWN_TEXTS,
}


@pytest.mark.parametrize(("text", "action"), TABLE.items(), ids=lambda one: str(one)[-50:])
def test_what_a_rank_printed_decides(text: str, action: str) -> None:
    found = decision(end(failed(text)))
    assert found.action == action, found
    assert found.without == (("b",) if action == "without" else ())
    assert (found.wait_s > 0) == (action != "end")


@pytest.mark.parametrize(
    ("failure", "action"),
    [
        (failed(signal=signal.SIGKILL), "again"),
        (failed(signal=signal.SIGTERM), "again"),
        (failed(signal=signal.SIGSEGV), "again"),
        (failed(signal=signal.SIGKILL, oom=True), "again"),
        (failed("usage: train.py [-h]\ntrain.py: error: no such option", exit_code=2), "end"),
        (failed(exit_code=127, rank=None), "end"),
        (failed(exit_code=1), "again"),
    ],
)
def test_how_it_ended_decides_where_nothing_was_printed(failure: Failure, action: str) -> None:
    assert decision(end(failure)).action == action


@pytest.mark.parametrize(
    ("by", "attempt", "action"),
    [
        ("stop", 1, "end"),
        ("hang", 1, "again"),
        ("world", 1, "end"),
        ("supervisor", 1, "end"),
        ("start-timeout", 1, "end"),
        ("start-timeout", 2, "again"),
    ],
)
def test_what_ended_the_run_decides(by: str, attempt: int, action: str) -> None:
    assert decision(end(by=by, attempt=attempt, reason="why")).action == action


def test_a_lost_node_is_left_out() -> None:
    lost = end(failed(RESET, node="a"), by="lost", lost=("b",))
    found = decision(lost, checks={"a": {"workdir": ""}})
    assert (found.action, found.without) == ("without", ("b",))
    # Those that only echo it may be heard first.
    assert decision(lost._replace(by="rank"), checks={"a": {}}).without == ("b",)


def test_the_first_failure_that_is_no_echo_is_the_cause() -> None:
    missing = failed("ModuleNotFoundError: No module named 'x'", node="a", at=3.0)
    launcher = failed(node="a", at=2.0, rank=None)
    ends = end(failed(RESET, at=1.0), launcher, missing, failed(signal=9, at=4.0))
    cause = first_cause(ends)
    assert (cause.kind, cause.nodes) == ("no-module", ("a",))
    assert decision(ends).action == "end"


def test_a_node_that_fails_its_check_is_left_out_and_all_of_them_end_the_run() -> None:
    bad = {"a": {"workdir": "", "xid": "Xid 79 of GPU 18"}, "b": {"workdir": ""}}
    found = decision(end(failed(signal=9)), checks=bad)
    assert (found.action, found.without) == ("without", ("a",))
    assert "; without a: Xid 79 of GPU 18" in found.why
    assert found.why.startswith(first_cause(end(failed(signal=9))).words)
    none = {"a": {"space": "full"}, "b": {"space": "full"}}
    assert decision(end(failed(RESET)), checks=none).action == "end"


def test_a_node_whose_processes_cannot_be_ended_is_left_out() -> None:
    found = decision(end(failed(RESET), stuck=("a",)))
    assert (found.action, found.without) == ("without", ("a",))


def test_the_same_exception_at_the_same_step_ends_the_run() -> None:
    first = end(failed("ValueError: bad sample 17"), step=40)
    same = end(failed("ValueError: bad sample 18"), step=40, attempt=2)
    assert decision(first).action == "again"
    assert decision(first, same).action == "end"
    assert decision(first, same._replace(step=41)).action == "again"
    other = end(failed("KeyError: 'labels'"), step=40, attempt=2)
    assert decision(first, other).action == "again"


def test_memory_of_the_gpu_that_is_full_at_the_same_step_ends_the_run() -> None:
    text = text_with("CUDA out of memory")
    first = end(failed(text), step=7)
    assert decision(first, first._replace(attempt=2)).action == "end"
    assert decision(first, first._replace(attempt=2, step=9)).action == "again"


def test_restarts_without_a_newer_checkpoint_end_the_run_with_a_code_of_their_own() -> None:
    ends = [end(failed(RESET), attempt=n, step=n, start=saved(10)) for n in range(1, 5)]
    for count in range(1, FRUITLESS + 1):
        found = decision(*ends[:count], limits=MANY, found=Agreement(saved(10)))
        assert found.action == "again"
    found = decision(*ends, limits=MANY, found=Agreement(saved(10)))
    assert (found.action, found.exit_code) == ("end", NO_PROGRESS)
    assert decision(*ends, limits=MANY, found=Agreement(saved(20))).action == "again"


def test_a_budget_of_a_cause_refills_with_a_newer_checkpoint() -> None:
    hung = [end(by="hang", attempt=n, start=saved(10)) for n in range(1, 4)]
    assert decision(*hung, found=Agreement(saved(10))).exit_code == NO_PROGRESS
    assert decision(*hung, found=Agreement(saved(11))).action == "again"
    # Another cause has another budget.
    mixed = [hung[0], end(failed(RESET), attempt=2, start=saved(10)), hung[2]]
    assert decision(*mixed, found=Agreement(saved(10))).action == "again"


def test_waits_grow_until_a_newer_checkpoint_is_there() -> None:
    ends = [end(failed(RESET), attempt=n, step=n, start=saved(10)) for n in range(1, 4)]
    same = Agreement(saved(10))
    waits = [decision(*ends[:n], limits=MANY, found=same).wait_s for n in (1, 2, 3)]
    for usual, wait in zip((1, 15, 60), waits, strict=True):
        assert 0.8 * usual <= wait <= 1.2 * usual
    assert decision(*ends, limits=MANY, found=Agreement(saved(11))).wait_s <= 1.2
    drawn = [decision(ends[0], found=same, seed=f"lab-{n % 5}").wait_s for n in range(10)]
    assert drawn[:5] == drawn[5:]
    assert len(set(drawn)) > 1


def test_after_one_process_that_was_killed_the_first_restart_comes_at_once() -> None:
    killed, same = failed(signal=9), Agreement(saved(10))
    echo = failed(RESET, node="a", at=2.0)
    first = end(killed, echo, start=saved(9))
    assert decision(first, found=same).wait_s == 0
    again = end(killed, attempt=2, start=saved(10))
    assert decision(first, again, found=same, limits=MANY).wait_s >= 0.8 * WAITS[1]
    several = end(killed, failed(node="a", signal=9), start=saved(9))
    assert decision(several, found=same).wait_s > 0
    aborted = end(failed(signal=6), start=saved(9))
    assert decision(aborted, found=same).wait_s > 0


def test_no_restart_takes_a_checkpoint_that_nodes_do_not_agree_on() -> None:
    half_saved = Agreement(skipped=("step-5: it is being written",))
    found = decision(end(failed(RESET)), found=half_saved)
    assert found.action == "again"
    assert found.why.endswith("; not taken: step-5: it is being written")
    found = decision(end(failed(RESET)), found=Agreement(why="step-5: it is missing on b"))
    assert found.action == "end"
    assert "missing on b" in found.why
    # As if the storage were not mounted: it must not begin again from the start.
    vanished = decision(end(failed(RESET), start=saved(10)))
    assert vanished.action == "end"
    assert "/ck/step-10" in vanished.why


def test_a_hang_is_tried_again_twice_unless_a_node_is_to_blame() -> None:
    hang: dict[str, Any] = {"by": "hang", "reason": "no rank has shown a sign of life for 300 s"}
    ends = [end(attempt=number, **hang) for number in (1, 2, 3)]
    assert [decision(*ends[:n]).action for n in (1, 2, 3)] == ["again", "again", "end"]
    assert decision(*ends).exit_code == NO_PROGRESS
    found = decision(end(**hang, blamed=(("b", "rank 1 (pid 7) is stopped by a signal"),)))
    assert (found.action, found.without) == ("without", ("b",))
    assert found.why.endswith("for 300 s: rank 1 (pid 7) is stopped by a signal on b")


def test_the_jobs_own_rules_come_first() -> None:
    broken = end(failed("ModuleNotFoundError: No module named 'x'"))
    rules = limits_of(3, ["No module named"])
    assert decision(broken, limits=rules).action == "again"
    assert decision(end(failed(exit_code=2)), limits=limits_of(3, [2])).action == "again"
    killed = end(failed(signal=9))
    never = limits_of(3, [137], [137])
    assert decision(killed, limits=never).action == "end"
    assert decision(killed, limits=limits_of(3, [137])).action == "again"
    worded = limits_of(3, never=[r"by peer \["])
    assert decision(end(failed(RESET)), limits=worded).action == "end"


def test_a_pattern_that_only_a_newer_python_reads_ends_the_run() -> None:
    limits = limits_of(3, ["("])
    unreadable = FoundPatterns(unreadable=("'(': missing )",))
    found = decision(end(failed(RESET), patterns=unreadable), limits=limits)
    assert found.action == "end"
    assert "cannot read '('" in found.why


def test_each_kind_that_is_printed_has_a_rule() -> None:
    assert {kind for kind, _ in CAUSES} <= RULES.keys()


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: str(text)[-50:])
def test_every_text_of_the_collection_is_decided_and_shown(text: str) -> None:
    found = decision(end(failed(text)))
    assert found.action in ("again", "without", "end")
    assert found.why
    assert len(found.why) < 2000


LINES = st.sampled_from([*TABLE, "", RESET])
FAILURES = st.builds(
    failed,
    LINES,
    node=st.sampled_from("ab"),
    at=st.floats(0, 10),
    exit_code=st.sampled_from([None, 1, 2, 75, 127]),
    signal=st.sampled_from([None, 9, 15, 11]),
    oom=st.booleans(),
)
ENDS = st.builds(
    AttemptEnd,
    attempt=st.just(1),
    by=st.sampled_from(["rank", "launcher", "hang", "lost", "start-timeout", "world"]),
    failures=st.lists(FAILURES, max_size=3).map(tuple),
    lost=st.sampled_from([(), ("b",)]),
    step=st.none() | st.integers(0, 3),
)
STEPS = st.lists(st.integers(0, 2), min_size=12, max_size=12)


@given(st.lists(ENDS, min_size=12, max_size=12), STEPS, st.integers(0, 10))
def test_there_are_never_more_attempts_than_the_budget(
    drawn: list[AttemptEnd], gains: list[int], most: int
) -> None:
    """Play a run whose every attempt fails; each brings no, or some, progress."""
    ends: list[AttemptEnd] = []
    start, step, fruitless = None, 0, 0
    for number, (one, gain) in enumerate(zip(drawn, gains, strict=True), 1):
        ends.append(one._replace(attempt=number, start=start))
        step += gain
        newest = saved(step) if step else None
        fruitless = 0 if gain else fruitless + (number > 1)
        found = decide(ends, limits_of(most), Agreement(newest), GOOD, seed="x")
        assert 0 <= found.wait_s <= 1.2 * WAITS[-1]
        if found.action == "end":
            break
        assert number <= most
        assert fruitless < FRUITLESS
        start = newest
    else:
        pytest.fail("twelve attempts, and ten restarts at most")


@given(
    one=ENDS,
    code=st.sampled_from([1, 2, 75, 127, 137]),
    words=st.sampled_from(["", "No module named", "CUDA", "closed by peer"]),
    both=st.booleans(),
)
def test_never_is_never_followed_by_another_attempt(
    one: AttemptEnd, code: int, words: str, *, both: bool
) -> None:
    patterns = (words,) if words else ()
    never = (code, *patterns)
    limits = limits_of(9, never if both else (), never)
    codes = {128 + each.signal if each.signal else each.exit_code for each in one.failures}
    lines = [line for each in one.failures for line in each.lines]
    if code in codes or (words and any(words in line for line in lines)):
        assert decision(one, limits=limits).action == "end"


def test_a_cause_is_read_as_logs_reads_it() -> None:
    found = cause_of(["step 7", RESET])
    assert (found.echo, found.error, found.line) == (True, True, RESET)
    assert cause_of([]) == ("", "", False, False)
