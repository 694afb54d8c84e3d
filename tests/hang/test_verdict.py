"""Verdicts and folded stacks of runs that stood still, as py-spy 0.4.3 showed them with torch 2.13.

Each file of `cases/` is a dump of real ranks that were made to hang on one machine, by gloo; where
something was changed afterwards, `what` tells it.
"""

from __future__ import annotations

import io
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from rich.console import Console

from clusterctl.hang.doing import spot
from clusterctl.hang.verdict import verdict
from clusterctl.model.dump import (
    Collective,
    Frame,
    NodeDump,
    ProcessDump,
    RankDump,
    StuckConnection,
    ThreadStack,
)
from clusterctl.model.from_json import from_json
from clusterctl.model.verdict import HangKind
from clusterctl.report.stacks.dump import fold, show_verdict

CASES = sorted(Path(__file__).with_name("cases").glob("*.json"))
TORCH = "/venv/lib/python3.12/site-packages/torch"
WAITS = (Frame(function="all_reduce", file=f"{TORCH}/distributed/distributed_c10d.py", line=9),)
STEP = Frame(function="step", file="/job/train.py", line=88)


def read(path: Path) -> tuple[dict[str, Any], list[NodeDump]]:
    case = json.loads(path.read_text())
    return case, [from_json(NodeDump, dump, "dump") for dump in case["dumps"]]


def rank(number: int, *frames: Frame, state: str = "S", wait: str = "") -> RankDump:
    thread = ThreadStack(id=1, state=state, wait=wait, frames=frames)
    return RankDump(rank=number, processes=(ProcessDump(pid=1, state=state, threads=(thread,)),))


def node(name: str, *ranks: RankDump) -> NodeDump:
    return NodeDump(run="r", node=name, time=0.0, ranks=ranks)


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_each_case_has_its_verdict_in_any_order_of_nodes(path: Path) -> None:
    case, dumps = read(path)
    for order in (dumps, dumps[::-1]):
        found = verdict(order, case["missing"])
        assert found.kind == case["kind"]
        assert (list(found.ranks), list(found.nodes)) == (case["ranks"], case["nodes"])
        assert (spot(found.where), found.since_s) == (case["where"], case["since_s"])
        assert (found.text, found.remedy) == (case["text"], case["remedy"])
        assert [f"[{one.label}] {one.line.text}" for one in fold(order)] == case["folded"]


def test_every_kind_has_a_case() -> None:
    assert {read(path)[0]["kind"] for path in CASES} == set(get_args(HangKind))


def test_no_dump_at_all_has_no_reason() -> None:
    assert verdict([]).text == "nothing tells which rank the others wait for"
    assert verdict([node("a")]).kind == "unknown"
    assert fold([]) == []


def test_the_kernel_alone_tells_of_a_dead_mount() -> None:
    stuck = rank(1, Frame(function="nfs_wait_bit_killable"), Frame(function="vfs_read"), state="D")
    found = verdict([node("a", rank(0, *WAITS, STEP)), node("b", stuck)])
    assert (found.kind, found.ranks, found.nodes) == ("storage", (1,), ("b",))
    assert found.text == (
        "rank 1 on b waits for a file server; rank 0 waits for it in all_reduce at train.py:88 step"
    )


def test_ranks_that_all_write_are_no_dead_mount() -> None:
    saving = [rank(n, STEP, state="D", wait="folio_wait_bit") for n in (0, 1)]
    assert verdict([node("a", *saving)]).kind == "storage"
    waiting = [rank(n, *WAITS, STEP, state="D", wait="folio_wait_bit") for n in (0, 1)]
    assert verdict([node("a", *waiting)]).kind == "together"


@pytest.mark.parametrize("wait", ["uvm_va_space_down_write", "os_acquire_rwlock_write"])
def test_a_driver_that_keeps_a_rank_is_no_disk(wait: str) -> None:
    found = verdict([node("a", rank(0, *WAITS, STEP), rank(1, STEP, state="D", wait=wait))])
    assert found.kind == "elsewhere"
    assert found.text.startswith("rank 1 on a waits for the driver of a GPU at train.py:88 step;")


def test_memory_that_comes_from_swap_is_no_disk_of_its_own() -> None:
    slow = rank(1, STEP, state="D", wait="folio_wait_bit_common")
    swapped = replace(slow, processes=(replace(slow.processes[0], swap_bytes=1 << 30),))
    assert verdict([node("a", rank(0, *WAITS, STEP), slow)]).kind == "storage"
    assert verdict([node("a", rank(0, *WAITS, STEP), swapped)]).kind == "swap"


def test_stages_of_a_pipeline_wait_for_each_other() -> None:
    receives = replace(WAITS[0], function="recv")
    found = verdict([node("a", rank(0, *WAITS, STEP), rank(1, receives, replace(STEP, line=9)))])
    assert found.text == (
        "rank 1 on a waits in recv at train.py:9 step, and rank 0 in all_reduce at train.py:88"
        " step: they wait for each other, or are of different process groups"
    )


def test_what_could_not_be_seen_is_told() -> None:
    blind = ProcessDump(pid=1, state="S", missing="its Python stack: not permitted")
    ranks = [RankDump(rank=n, processes=(blind,)) for n in (0, 1)]
    assert verdict([node("a", *ranks)]).text == (
        "nothing tells which rank the others wait for: rank 0 on a: its Python stack: not permitted"
    )


@pytest.mark.parametrize(("retransmits", "size", "kind"), [(3, 1, "network"), (2, 1, "together")])
def test_data_that_was_sent_again_once_or_twice_is_no_broken_network(
    retransmits: int, size: int, kind: str
) -> None:
    link = StuckConnection(
        peer="10.0.0.9", port=29500, unacknowledged_bytes=size, retransmits=retransmits
    )
    sends = replace(rank(0, *WAITS, STEP), connections=(link,))
    found = verdict([node("a", sends, rank(1, *WAITS, STEP))])
    assert found.kind == kind
    if kind == "network":  # no node has that address
        assert found.nodes == ("a", "10.0.0.9")
        assert found.text.startswith("10.0.0.9 does not acknowledge what rank 0 on a sends to it (")


def test_a_connection_to_a_server_outside_is_no_reason_to_wait_for_a_rank() -> None:
    link = StuckConnection(peer="35.186.228.49", port=443, unacknowledged_bytes=100, retransmits=9)
    waits = replace(rank(0, *WAITS, STEP), connections=(link,))
    asleep = rank(1, STEP, wait="hrtimer_nanosleep")
    found = verdict([node("a", waits, asleep)])
    assert (found.kind, found.ranks) == ("elsewhere", (1,))


@pytest.mark.parametrize("peer", ["gpu7 is broken; type: rm -rf", "x" * 1_000_000, "fe80::1%eth0"])
def test_a_node_names_no_peer_but_by_an_address(peer: str) -> None:
    link = StuckConnection(peer=peer, port=29500, unacknowledged_bytes=1, retransmits=9)
    waits = replace(rank(0, *WAITS, STEP), connections=(link,))
    found = verdict([node("a", waits, rank(1, *WAITS, STEP))])
    assert found.nodes == ("a", "fe80::1" if "fe80" in peer else "another machine")
    assert len(found.text) < 500


def test_a_rank_whose_stack_could_not_be_read_may_wait_as_the_others_do() -> None:
    hidden = rank(1, wait="futex_do_wait")
    blind = replace(hidden.processes[0], missing="its Python stack: py-spy is not on this node")
    waits = node("a", rank(0, *WAITS, STEP))
    found = verdict([waits, node("b", replace(hidden, processes=(blind,)))])
    assert (found.kind, found.ranks) == ("unknown", ())
    asleep = rank(1, wait="hrtimer_nanosleep")
    told = replace(asleep.processes[0], missing=blind.missing)
    assert verdict([waits, node("b", replace(asleep, processes=(told,)))]).ranks == (1,)


def test_a_rank_of_which_no_process_is_seen_has_not_ended() -> None:
    waits = node("a", rank(0, *WAITS, STEP))
    assert verdict([waits, node("b", RankDump(rank=1))]).kind == "unknown"
    assert fold([node("b", RankDump(rank=1))])[0].line.text == "no process is seen"
    assert verdict([waits, node("b", RankDump(rank=1, ended=True))]).kind == "ended"


def test_what_one_node_says_of_anothers_rank_hides_it_not() -> None:
    asleep = node("b", rank(1, STEP, wait="hrtimer_nanosleep"))
    waits = node("a", rank(0, *WAITS, STEP))
    found = verdict([waits, asleep, node("c", rank(1, *WAITS, STEP))])
    assert (found.kind, found.nodes) == ("elsewhere", ("b",))


def test_a_little_swap_and_a_rank_that_waits_are_no_reason() -> None:
    asleep = rank(1, STEP, wait="hrtimer_nanosleep")
    for size, kind in ((255 << 20, "elsewhere"), (256 << 20, "swap")):
        swapped = replace(asleep, processes=(replace(asleep.processes[0], swap_bytes=size),))
        assert verdict([node("a", rank(0, *WAITS, STEP), swapped)]).kind == kind
    waits = rank(0, *WAITS, STEP)
    swapped = replace(waits, processes=(replace(waits.processes[0], swap_bytes=1 << 33),))
    assert verdict([node("a", swapped, rank(1, *WAITS, STEP))]).kind == "together"


def test_one_thread_that_waits_for_a_lock_is_no_deadlock_of_two() -> None:
    locked = rank(1, STEP, wait="futex_do_wait")
    found = verdict([node("a", rank(0, *WAITS, STEP), locked)])
    assert found.kind == "elsewhere"
    assert "waits for a lock or another thread at train.py:88 step" in found.text


def test_a_stopped_worker_is_named_by_its_own_pid() -> None:
    worker = ProcessDump(pid=77, state="T", threads=(ThreadStack(id=77, state="T"),))
    loads = replace(rank(1, STEP), processes=(*rank(1, STEP).processes, worker))
    found = verdict([node("a b", rank(0, *WAITS, STEP), loads)])
    assert found.text.startswith("worker 77 of rank 1 on a b is stopped by a signal")
    assert found.remedy == "clusterctl exec --nodes 'a b' -- kill -CONT 77"


def test_a_console_script_is_at_its_package_and_not_in_torch() -> None:
    trainer = Frame(function="fit", file="/v/lib/python3.12/site-packages/axolotl/train.py", line=4)
    script = Frame(function="<module>", file="/v/bin/axolotl", line=8)
    read_batch = Frame(function="fetch", file=f"{TORCH}/utils/data/_utils/fetch.py", line=1)
    asleep = rank(1, read_batch, trainer, script, wait="hrtimer_nanosleep")
    found = verdict([node("a", rank(0, *WAITS, trainer), asleep)])
    assert found.where == trainer
    assert found.text.startswith("rank 1 on a sleeps at train.py:4 fit; rank 0 waits for it in")


def test_a_rank_that_spins_in_nccl_waits_and_one_that_computes_a_backward_does_not() -> None:
    spins = Frame(function="synchronize", file=f"{TORCH}/cuda/__init__.py", line=1162)
    backward = Frame(function="_engine_run_backward", file=f"{TORCH}/autograd/graph.py", line=2)
    busy = rank(1, backward, STEP, state="R")
    found = verdict([node("a", rank(0, spins, STEP, state="R"), busy)])
    assert (found.kind, found.ranks) == ("elsewhere", (1,))
    idle = rank(1, backward, STEP, wait="futex_do_wait")
    assert verdict([node("a", rank(0, backward, STEP), idle)]).kind == "together"


def test_ranks_of_many_nodes_are_named_as_sets() -> None:
    waiting = [node(f"n{n}", rank(n, *WAITS, STEP)) for n in range(60)]
    asleep = [node(f"n{n}", rank(n, STEP, wait="hrtimer_nanosleep")) for n in range(60, 64)]
    found = verdict([*waiting, *asleep])
    assert found.text == (
        "ranks 60-63 on n60, n61 and 2 more sleep at train.py:88 step;"
        " ranks 0-59 wait for them in all_reduce at train.py:88 step"
    )


def test_a_loss_for_which_all_wait_names_the_one_that_is_elsewhere() -> None:
    item = replace(STEP, line=90)
    found = verdict([node("a", rank(0, item), rank(1, item), rank(2, STEP))])
    assert (found.kind, found.ranks) == ("elsewhere", (2,))
    assert found.text == "rank 2 on a is at train.py:88 step; ranks 0-1 are at train.py:90 step"


def test_what_a_node_says_stays_one_line() -> None:
    evil = Frame(function="f\x1b[2J\nforged", file="/job/a.py", line=1)
    found = verdict([node("a", rank(0, *WAITS, STEP), rank(1, evil))])
    lines = fold([node("a", rank(1, evil))])
    assert not any("\n" in text for text in (found.text, lines[0].line.text))


def test_recorders_of_many_ranks_take_no_time() -> None:
    def told(group: str, count: int) -> tuple[Collective, ...]:
        """Return what a rank recorded, the newest first, of which it completed all but that."""
        each = Collective(group=group, sequence=1, operation="all_reduce", frames=(STEP,))
        done = replace(each, state="completed")
        older = (replace(done, sequence=number) for number in range(count - 1, 0, -1))
        return (replace(each, sequence=count), *older)

    ranks = [
        replace(rank(n, *WAITS, STEP), collectives=(*told(f"tp {n // 8}", 40), *told("dp", 24)))
        for n in range(256)
    ]
    late = replace(rank(256, STEP), collectives=told("dp", 24)[1:])
    found = verdict([node("a", *ranks), node("b", late)])
    assert (found.kind, found.ranks) == ("absent", (256,))
    assert found.text == (
        "rank 256 on b is at train.py:88 step and did not enter #24 all_reduce of group dp;"
        " ranks 0-255 wait in it at train.py:88 step"
    )
    forged = tuple(replace(told(f"g{n}", 1)[0], sequence=n) for n in range(20_000))
    assert verdict([node("a", replace(ranks[0], collectives=forged))]).kind == "together"


def at_timeout(*ranks: RankDump) -> list[NodeDump]:
    return [replace(node("b", *ranks), timed_out=True)]


def test_who_lives_as_another_has_waited_in_vain_is_named_not_who_waited() -> None:
    waited = replace(rank(0), processes=(), ended=True)
    asleep = rank(1, STEP, wait="hrtimer_nanosleep")
    found = verdict(at_timeout(waited, asleep))
    assert (found.kind, found.ranks) == ("elsewhere", (1,))
    assert found.text == "rank 1 on b sleeps at train.py:88 step; rank 0 had waited in vain"
    found = verdict(at_timeout(waited, rank(2, *WAITS, STEP), asleep))
    assert found.ranks == (1,)
    assert found.text.endswith("rank 2 waits for it in all_reduce at train.py:88 step")


@pytest.mark.parametrize(
    "ranks",
    [
        [rank(1, *WAITS, STEP)],  # it times out next
        [rank(1, STEP), rank(2, replace(STEP, line=9))],  # one of them may wait for its GPU
        [rank(1)],
        [],
    ],
)
def test_nobody_is_named_who_may_have_waited_too(ranks: list[RankDump]) -> None:
    waited = replace(rank(0), processes=(), ended=True)
    assert verdict(at_timeout(waited, *ranks)).ranks == ()


def test_endless_names_take_neither_time_nor_room() -> None:
    names = Frame(function="f" * 1_000_000, file=f"/{'g' * 1_000_000}.py", line=1)
    kernel = [Frame(function=name) for name in ("folio_wait_bit_common", "rpc_", "nv0") * 30_000]
    evil = rank(1, names, *kernel, state="D", wait="fuse" * 100_000)
    found = verdict([node("a", rank(0, *WAITS, STEP), evil)])
    assert len(found.text) < 1000
    assert len(fold([node("a", evil)])[0].line.text) < 1000


def test_half_of_a_character_in_a_name_is_shown_as_unknown() -> None:
    half = rank(1, replace(STEP, function="\ud800step"))
    assert fold([node("a", half)])[0].line.text == "train.py:88 ?step"
    out = io.StringIO()
    show_verdict(Console(file=out), [node("a", half)])
    assert "?step" in out.getvalue()


def test_a_script_of_the_shell_is_what_it_waits_for() -> None:
    asleep = rank(1, STEP, wait="hrtimer_nanosleep").processes[0]
    waits = ThreadStack(id=7, state="S", wait="do_wait")
    shell = ProcessDump(
        pid=7, command="bash train.sh", state="S", source="kernel", threads=(waits,)
    )
    scripted = RankDump(rank=1, processes=(shell, asleep))
    found = verdict([node("a", rank(0, *WAITS, STEP), scripted)])
    assert (found.kind, found.where) == ("elsewhere", STEP)


def test_without_any_stack_the_kernel_tells_who_is_elsewhere() -> None:
    waiting = [rank(n, wait="futex_do_wait") for n in (0, 1)]
    found = verdict([node("a", *waiting, rank(2, wait="hrtimer_nanosleep"))])
    assert found.text == "rank 2 on a sleeps at hrtimer_nanosleep; ranks 0-1 are at futex_do_wait"


def test_many_ranks_take_no_time() -> None:
    """Each of 1000 ranks is looked at once, whatever the others do."""
    spread = [
        node(f"n{n}", *(rank(8 * n + i, replace(STEP, line=8 * n + i + 1)) for i in range(8)))
        for n in range(125)
    ]
    began = time.process_time()
    assert verdict(spread).kind == "unknown"
    assert len(fold(spread)) == 1000
    waiting = [node("m", *(rank(1000 + n, *WAITS, STEP) for n in range(40)))]
    assert len(verdict([*spread, *waiting]).ranks) == 1
    assert time.process_time() - began < 20


def test_the_verdict_is_printed_below_the_stacks() -> None:
    out = io.StringIO()
    evil = replace(STEP, function="\x1b]0;owned\x07step")
    asleep = rank(1, evil, wait="hrtimer_nanosleep")
    show_verdict(Console(file=out, width=40), [node("a", rank(0, *WAITS, STEP), asleep)], ["b"])
    assert out.getvalue() == (
        "[a:0] all_reduce (torch) ← train.py:88 step\n"
        "[a:1] train.py:88 step (sleeps)\n"
        "b told no stacks: what its ranks do is unknown; rank 0 waits in all_reduce at train.py:88"
        " step\n"
        "hint: clusterctl check --nodes b\n"
    )


def process(pid: int, *frames: Frame, wait: str = "hrtimer_nanosleep") -> ProcessDump:
    thread = ThreadStack(id=pid, state="S", wait=wait, frames=frames)
    return ProcessDump(pid=pid, state="S", threads=(thread,))


SHELL = process(1, Frame(function="do_wait"), wait="do_wait")
AGENT = process(
    2,
    Frame(
        function="_invoke_run", file=f"{TORCH}/distributed/elastic/agent/server/api.py", line=906
    ),
    Frame(function="main", file=f"{TORCH}/distributed/run.py", line=1004),
    Frame(function="<module>", file="/venv/bin/torchrun", line=8),
)
CALLS = process(
    3,
    Frame(function="_try_wait", file="/usr/lib/python3.12/subprocess.py", line=2011),
    Frame(function="main", file="/venv/lib/python3.12/site-packages/llamafactory/cli.py", line=24),
)
SPAWNS = process(
    4,
    Frame(function="wait", file="/usr/lib/python3.12/multiprocessing/connection.py", line=1136),
    Frame(function="join", file=f"{TORCH}/multiprocessing/spawn.py", line=140),
    Frame(function="<module>", file="/job/train.py", line=9),
)
SPAWNED = (
    Frame(function="_wrap", file=f"{TORCH}/multiprocessing/spawn.py", line=90),
    Frame(function="_bootstrap", file="/usr/lib/python3.12/multiprocessing/process.py", line=314),
)


@pytest.mark.parametrize(
    ("above", "below"),
    [((SHELL, AGENT), ()), ((AGENT,), ()), ((CALLS, AGENT), ()), ((SPAWNS,), SPAWNED)],
    ids=["script", "torchrun", "calls", "spawns"],
)
def test_what_a_launcher_started_are_the_programs(
    above: tuple[ProcessDump, ...], below: tuple[Frame, ...]
) -> None:
    waits = process(7, *WAITS, STEP, *below, wait="futex_do_wait")
    asleep = process(8, replace(STEP, line=90), *below)
    loads = process(9, Frame(function="_worker_loop", file="/job/data.py", line=1), *SPAWNED)
    dumps = [
        node("a", RankDump(rank=0, processes=(*above, waits, waits))),
        node("b", RankDump(rank=1, processes=(*above, waits, asleep, loads))),
    ]
    found = verdict(dumps)
    assert (found.kind, found.ranks, found.nodes) == ("elsewhere", (1,), ("b",))
    assert found.text == (
        "rank 1 (pid 8) on b sleeps at train.py:90 step;"
        " ranks 0-1 wait for it in all_reduce at train.py:88 step"
    )


def test_a_program_that_waits_for_another_one_is_no_launcher() -> None:
    calls = process(3, *CALLS.threads[0].frames[:1], STEP)
    helps = process(4, Frame(function="convert", file="/job/convert.py", line=3))
    waits = node("a", rank(0, *WAITS, STEP))
    found = verdict([waits, node("b", RankDump(rank=1, processes=(calls, helps)))])
    assert found.where == STEP
