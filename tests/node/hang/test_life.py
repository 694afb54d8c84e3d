"""What is a sign of life of a rank, and when a run is hung."""

from __future__ import annotations

from typing import Any

import pytest

from clusterctl.node.hang.life import Moved, RankLife, RunLife, look_of, place_of, sample_seconds

AFTER = 300.0
NOTHING = Moved(seconds=5.0, printed=False, bytes=0, stores=False, cpu=0.0)
BUSY = NOTHING._replace(cpu=5.0)
MIN = 60.0


def watched(*did: Moved, place: str | None = None, after: float = AFTER) -> RankLife:
    """Return a rank that did these things, one a sample; `place`: where each look finds it."""
    rank, now = RankLife(0.0, after), 0.0
    for moved in did:
        now += moved.seconds
        rank.see(now, moved)
        if rank.wants_look(now):
            rank.look(now, place)
    return rank


@pytest.mark.parametrize(
    ("moved", "alive"),
    [
        (NOTHING, False),
        (NOTHING._replace(printed=True), True),
        (NOTHING._replace(bytes=50_000_000), True),  # it saves, or reads data
        (NOTHING._replace(bytes=20_000), False),  # keepalives
        (NOTHING._replace(cpu=5.0), True),
        (NOTHING._replace(cpu=0.05), False),  # a watchdog's thread
    ],
)
def test_output_bytes_and_cpu_time_are_signs_of_life(moved: Moved, alive: bool) -> None:  # noqa: FBT001
    rank = watched(NOTHING, NOTHING, moved)
    assert rank.quiet(15.0) == (0.0 if alive else 15.0)


def test_a_rank_that_waits_at_rest_is_quiet_and_nobody_looks_at_its_stacks() -> None:
    rank = RankLife(0.0, AFTER)
    for n in range(1, 100):
        rank.see(5.0 * n, NOTHING)
        assert not rank.wants_look(5.0 * n)
    assert rank.quiet(500.0) == 500.0


def test_a_rank_that_polls_in_a_collective_is_quiet_from_the_moment_it_stood_still() -> None:
    printed = BUSY._replace(printed=True)
    rank = watched(printed, *[BUSY] * 60, place="all_reduce torch/distributed/x.py:1")
    assert rank.quiet(305.0) == 300.0


def test_a_look_that_could_not_be_taken_is_no_sign_of_life() -> None:
    printed = BUSY._replace(printed=True)
    rank = watched(printed, *[BUSY] * 60, place="all_reduce")
    rank.look(305.0, None, told=False)
    assert rank.quiet(305.0) == 300.0
    rank.look(306.0, None)
    assert rank.quiet(306.0) == 0.0


def test_a_rank_that_works_is_looked_at_less_and_less_often() -> None:
    rank, looks = RankLife(0.0, AFTER), list[float]()
    for n in range(1, 121):
        rank.see(5.0 * n, BUSY)
        if rank.wants_look(5.0 * n):
            looks.append(5.0 * n)
            rank.look(5.0 * n, None)
    assert looks == [10.0, 30.0, 70.0, *range(130, 601, 60)][: len(looks)]
    assert len(looks) > 9


def test_a_rank_that_tokenizes_is_alive_however_long_it_prints_nothing() -> None:
    rank = watched(*[BUSY] * 200, place=None)
    assert rank.quiet(1000.0) == 0.0


def test_a_rank_that_goes_from_collective_to_collective_is_alive() -> None:
    rank, now = RankLife(0.0, AFTER), 0.0
    for n in range(100):
        now += 5.0
        rank.see(now, BUSY)
        if rank.wants_look(now):
            rank.look(now, f"all_reduce x.py:{n}")
    assert rank.quiet(now) == 0.0


def test_a_rank_that_leaves_the_collective_is_alive_again() -> None:
    rank = watched(*[BUSY] * 40, place="all_reduce x.py:1")
    assert rank.quiet(200.0) == 200.0
    rank.see(205.0, BUSY)
    rank.look(205.0, None)
    assert rank.quiet(205.0) == 0.0


def test_stacks_are_looked_at_seldom() -> None:
    rank, looks = RankLife(0.0, AFTER), 0
    for n in range(1, 721):  # an hour
        rank.see(5.0 * n, BUSY)
        if rank.wants_look(5.0 * n):
            rank.look(5.0 * n, "all_reduce x.py:1")
            looks += 1
    assert looks < 70


def test_short_limits_are_watched_more_closely() -> None:
    assert (sample_seconds(300.0), sample_seconds(10.0)) == (5.0, 2.0)
    rank = RankLife(0.0, 10.0)
    for n in range(1, 6):
        rank.see(2.0 * n, BUSY)
        if rank.wants_look(2.0 * n):
            rank.look(2.0 * n, "all_reduce x.py:1")
    assert rank.quiet(10.0) == 10.0


def judged(
    run: RunLife, *told: float | None, printed: bool = True, start: float = 0.0
) -> list[int]:
    """Return at which second of these the judgement changed; each is the run's quiet seconds."""
    return [n for n, q in enumerate(told) if run.judge(start + n, {"a": q}, printed=printed)]


def test_a_run_is_hung_once_every_node_is_quiet_for_long_enough() -> None:
    run = RunLife(AFTER)
    run.judge(0.0, {"a": 0.0, "b": 0.0}, printed=True)
    assert not run.judge(1000.0, {"a": 900.0, "b": 299.0}, printed=True)
    assert run.judge(1001.0, {"a": 901.0, "b": 300.0}, printed=True)
    assert (run.hung, run.quiet) == (True, 300.0)
    assert not run.judge(1002.0, {"a": 902.0, "b": 301.0}, printed=True)  # once


def test_a_node_whose_ranks_have_ended_is_not_waited_for() -> None:
    run = RunLife(AFTER)
    run.judge(0.0, {"a": 0.0}, printed=True)
    assert run.judge(400.0, {"a": 400.0}, printed=True)
    assert not RunLife(AFTER).judge(400.0, {}, printed=True)


def test_who_waited_for_a_node_that_has_just_ended_is_not_hung() -> None:
    run = RunLife(AFTER)
    run.judge(0.0, {"a": 0.0, "b": 0.0}, printed=True)
    assert not run.judge(1000.0, {"a": 0.0, "b": 1000.0}, printed=True)
    assert not run.judge(1001.0, {"b": 1001.0}, printed=True)
    assert not run.judge(1300.0, {"b": 1300.0}, printed=True)
    assert run.judge(1301.0, {"b": 1301.0}, printed=True), "it does not end"


def test_nothing_is_judged_while_a_node_cannot_tell() -> None:
    run = RunLife(AFTER)
    run.judge(0.0, {"a": 0.0, "b": None}, printed=True)
    assert not run.judge(1000.0, {"a": 1000.0, "b": None}, printed=True)


def test_time_counts_from_the_first_output() -> None:
    run = RunLife(AFTER)
    assert not run.judge(0.0, {"a": 900.0}, printed=False)  # it loads, compiles, downloads
    assert not run.judge(1.0, {"a": 901.0}, printed=True)
    assert not run.judge(300.0, {"a": 1200.0}, printed=True)
    assert run.judge(301.0, {"a": 1201.0}, printed=True)
    assert run.quiet == 300.0


def test_a_job_that_rests_for_long_between_steps_gets_three_times_its_longest_rest() -> None:
    run = RunLife(AFTER)
    run.judge(0.0, {"a": 0.0}, printed=True)
    run.judge(1000.0, {"a": 200.0}, printed=True)
    run.judge(1005.0, {"a": 0.0}, printed=True)
    assert run.limit == 600.0
    assert not run.judge(2000.0, {"a": 599.0}, printed=True)
    assert run.judge(2001.0, {"a": 600.0}, printed=True)


def test_a_sign_of_life_is_a_false_alarm_and_the_next_one_comes_later() -> None:
    run = RunLife(AFTER)
    run.judge(0.0, {"a": 0.0}, printed=True)
    assert run.judge(1000.0, {"a": 310.0}, printed=True)
    assert not run.judge(1300.0, {"a": 610.0}, printed=True)
    assert run.judge(1301.0, {"a": 1.0}, printed=True)
    assert (run.hung, run.false_alarms) == (False, 1)
    assert run.limit == 3 * 610.0


def thread(*frames: tuple[str, str, int], cpu: int = 0) -> dict[str, Any]:
    told = [{"function": name, "file": file, "line": line} for name, file, line in frames]
    return {"id": 1, "frames": told, "cpu_percent": cpu}


def rank_of(*processes: list[dict[str, Any]]) -> dict[str, Any]:
    return {"processes": [{"pid": n, "threads": own} for n, own in enumerate(processes, 1)]}


LIB = "/venv/lib/python3.12/site-packages"
IN_COLLECTIVE = thread(
    ("all_reduce", f"{LIB}/torch/distributed/distributed_c10d.py", 3007),
    ("wrapper", f"{LIB}/torch/distributed/c10d_logger.py", 83),
    ("train_step", "/home/ada/train.py", 88),
    cpu=100,
)
SYNCHRONIZES = thread(
    ("synchronize", f"{LIB}/torch/cuda/__init__.py", 1040),
    ("main", "/home/ada/train.py", 9),
    cpu=100,
)
TOKENIZES = thread(
    ("encode_batch", f"{LIB}/tokenizers/__init__.py", 5), ("main", "train.py", 3), cpu=100
)
LOADS = thread(("fetch", f"{LIB}/torch/utils/data/_utils/fetch.py", 54), cpu=90)
KERNEL = thread(("futex_do_wait", "", 0), cpu=100)


@pytest.mark.parametrize(
    ("rank", "waits"),
    [
        (rank_of([IN_COLLECTIVE]), True),
        (rank_of([SYNCHRONIZES]), True),
        (rank_of([IN_COLLECTIVE, thread(cpu=100)]), True),  # NCCL's own thread
        (rank_of([TOKENIZES]), False),
        (rank_of([IN_COLLECTIVE], [LOADS]), False),  # a worker of its loader works
        (rank_of([IN_COLLECTIVE], [thread(("get", "queues.py", 1))]), True),  # it rests
        (rank_of([KERNEL]), False),  # nobody could tell its Python stack
        (rank_of(), False),
    ],
)
def test_only_who_waits_in_a_collective_and_has_nobody_who_works_waits(
    rank: dict[str, Any],
    waits: bool,  # noqa: FBT001
) -> None:
    assert (place_of(rank) is not None) is waits


@pytest.mark.parametrize(
    ("rank", "look"),
    [
        (rank_of([IN_COLLECTIVE]), {"waits": True, "where": "train.py:88 train_step"}),
        (rank_of([TOKENIZES]), {"waits": False, "where": "train.py:3 main"}),
        # Whatever else it has started works: the rank itself waits.
        (rank_of([IN_COLLECTIVE], [LOADS]), {"waits": True, "where": "train.py:88 train_step"}),
        (rank_of([KERNEL], [SYNCHRONIZES]), {"waits": True, "where": "train.py:9 main"}),
        (rank_of([LOADS]), {"waits": False, "where": ""}),
        (rank_of([KERNEL], []), None),  # nobody could tell its Python stack
        (rank_of(), None),
    ],
)
def test_a_look_tells_whether_a_rank_itself_waits_for_others(
    rank: dict[str, Any], look: dict[str, Any] | None
) -> None:
    assert look_of(rank) == look


def test_a_place_is_the_line_of_every_frame() -> None:
    later = thread(*[(f["function"], f["file"], f["line"] + 1) for f in IN_COLLECTIVE["frames"]])
    assert place_of(rank_of([IN_COLLECTIVE])) == place_of(rank_of([IN_COLLECTIVE]))
    assert place_of(rank_of([IN_COLLECTIVE])) != place_of(rank_of([later]))


def test_a_rank_waits_for_a_gpu_on_which_nothing_moves_at_any_line() -> None:
    item = rank_of([thread(("main", "/home/ada/train.py", 9), cpu=100)])
    assert place_of(item) is None
    assert place_of(item, on_gpu=True)
