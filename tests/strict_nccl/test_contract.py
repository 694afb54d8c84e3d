"""Each rule of NCCL broken once: the message names ranks and calls, and no rank hangs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lazy_torch import dist, torch
from tests.strict_nccl.contract import Call, disagreement, named
from tests.strict_nccl.ranks import Place, Played, on, play
from tests.waiting import wait_until

pytestmark = pytest.mark.torch

MISSING = 3.0
"""The patience where a rank does not come."""
QUICK = 20.0
"""Seconds within which an end counts as no hang: gloo's own limit is 60 here."""


def broken(
    program: Callable[[Place], None], folder: Path, *, ranks: int = 2, patience: float = 60.0
) -> list[Played]:
    """Run a program that breaks a rule: all ranks fail, in time."""
    ended = play(program, on(ranks, folder, patience=patience))
    assert all(one.error for one in ended), ended
    assert max(one.seconds for one in ended) < QUICK
    return ended


def of_contract(ended: list[Played]) -> str:
    """Return the message of the rank that found it."""
    found = [one.error for one in ended if one.error.startswith("ContractBroken")]
    assert found, ended
    return found[0]


def nocolor(place: Place) -> None:
    place.join("cpu:gloo,cuda:nccl", device_id=torch.device("cuda", place.rank))
    host = dist.new_group(backend="gloo")
    dist.new_group([0], backend="gloo")
    dist.all_reduce(torch.ones(1), group=host)


def test_a_gloo_group_of_some_ranks_while_a_device_is_bound_names_who_splits(
    tmp_path: Path,
) -> None:
    said = of_contract(broken(nocolor, tmp_path, ranks=3, patience=MISSING))
    assert "ncclCommSplit(NCCL_SPLIT_NOCOLOR, not in the new group)" in said
    assert "ranks 1-2 entered it, rank 0 did not" in said
    assert "rank 0 was last in new_group, a group of ranks [0] with gloo" in said


def eager(place: Place) -> None:
    place.join(device_id=torch.device("cuda", 0) if place.rank == 0 else None)
    wait_until((place.folder / "rank-0.end").exists, QUICK)
    raise SystemExit("not asked to start")


def test_an_eager_start_without_all_ranks_names_them(tmp_path: Path) -> None:
    said = of_contract(broken(eager, tmp_path, patience=MISSING))
    assert "ncclCommInitRank(device cuda:0)" in said
    assert "rank 0 entered it, rank 1 did not" in said
    assert "rank 1 was last in nothing on any group" in said


def splits(place: Place) -> None:
    place.join(device_id=torch.device("cuda", place.rank))
    group = dist.new_group([0, 1])
    one = torch.ones(1)
    if place.rank < 2:
        dist.all_reduce(one, group=group)
        assert one.item() == 2


def test_an_nccl_group_of_some_ranks_is_split_by_all(tmp_path: Path) -> None:
    ended = play(splits, on(3, tmp_path))
    assert [one.code for one in ended] == [0, 0, 0], ended


def other_op(place: Place) -> None:
    place.join()
    dist.barrier()
    if place.rank == 1:
        dist.broadcast(torch.ones(4), src=0)
    else:
        dist.all_reduce(torch.ones(4))


def test_different_calls_name_both(tmp_path: Path) -> None:
    said = of_contract(broken(other_op, tmp_path, ranks=3))
    assert "call 2 of the default group of ranks 0-2" in said
    assert "ranks 0, 2 in all_reduce(SUM, torch.float32 x 4)" in said
    assert "rank 1 in broadcast(root 0, torch.float32 x 4)" in said


def other_size(place: Place) -> None:
    place.join()
    dist.all_reduce(torch.ones(4 + place.rank))


def other_dtype(place: Place) -> None:
    place.join()
    dist.all_reduce(torch.ones(4, dtype=(torch.float32, torch.bfloat16)[place.rank]))


def other_reduction(place: Place) -> None:
    place.join()
    dist.all_reduce(torch.ones(4), (dist.ReduceOp.SUM, dist.ReduceOp.MAX)[place.rank])


def other_root(place: Place) -> None:
    place.join()
    dist.broadcast(torch.ones(4), src=place.rank)


@pytest.mark.parametrize(
    ("program", "calls"),
    [
        (other_size, ("all_reduce(SUM, torch.float32 x 4)", "all_reduce(SUM, torch.float32 x 5)")),
        (
            other_dtype,
            ("all_reduce(SUM, torch.float32 x 4)", "all_reduce(SUM, torch.bfloat16 x 4)"),
        ),
        (
            other_reduction,
            ("all_reduce(SUM, torch.float32 x 4)", "all_reduce(MAX, torch.float32 x 4)"),
        ),
        (
            other_root,
            ("broadcast(root 0, torch.float32 x 4)", "broadcast(root 1, torch.float32 x 4)"),
        ),
    ],
)
def test_different_sizes_dtypes_reductions_and_roots_name_both(
    tmp_path: Path, program: Callable[[Place], None], calls: tuple[str, str]
) -> None:
    said = of_contract(broken(program, tmp_path))
    assert f"rank 0 in {calls[0]}; rank 1 in {calls[1]}" in said


def crossed(place: Place) -> None:
    place.join()
    groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]
    for group in groups if place.rank == 0 else reversed(groups):
        dist.all_reduce(torch.ones(1), group=group)


def test_calls_on_two_groups_in_different_orders_name_who_waits_for_whom(tmp_path: Path) -> None:
    said = of_contract(broken(crossed, tmp_path, patience=MISSING))
    assert "all_reduce(SUM, torch.float32 x 1)" in said
    assert "entered it" in said
    assert "was last in all_reduce(SUM, torch.float32 x 1) on group" in said


def absent(place: Place) -> None:
    place.join()
    host = dist.new_group(backend="gloo")
    if place.rank == 0:
        dist.all_reduce(torch.ones(1))
    dist.barrier(group=host)


def test_a_rank_that_does_not_come_is_named(tmp_path: Path) -> None:
    said = of_contract(broken(absent, tmp_path, patience=MISSING))
    assert "all_reduce(SUM, torch.float32 x 1), call 1 of the default group" in said
    assert "rank 0 entered it, rank 1 did not" in said
    assert "rank 1 was last in new_group, a group of ranks [0, 1] with gloo" in said


def outsider(place: Place) -> None:
    place.join()
    dist.all_reduce(torch.ones(1), group=dist.new_group([0]))
    if place.rank == 0:
        dist.all_reduce(torch.ones(1))


def test_a_collective_on_a_group_that_a_rank_is_not_in_fails(tmp_path: Path) -> None:
    ended = broken(outsider, tmp_path)
    assert ended[1].error == "ContractBroken: all_reduce of rank 1 on a group that it is not in"


def other_groups(place: Place) -> None:
    place.join()
    dist.new_group([0] if place.rank == 0 else [0, 1])
    dist.barrier()


def test_groups_of_different_ranks_name_both(tmp_path: Path) -> None:
    said = of_contract(broken(other_groups, tmp_path, patience=MISSING))
    assert "a group of ranks [0] with nccl" in said
    assert "a group of ranks [0, 1] with nccl" in said


def late_group(place: Place) -> None:
    place.join()
    host = dist.new_group(backend="gloo")
    if place.rank == 0:
        dist.new_group([0, 1])
    dist.all_reduce(torch.ones(1), group=host)


def test_a_group_that_not_all_its_ranks_make_names_what_they_did(tmp_path: Path) -> None:
    said = of_contract(broken(late_group, tmp_path, patience=MISSING))
    assert "making group 2 of ranks 0-1: not all ranks came within 3 s" in said
    assert "rank 1 was last in new_group, a group of ranks [0, 1] with gloo" in said


def batches(place: Place) -> None:
    place.join()
    peer = 1 - place.rank
    mine, theirs = torch.full((3,), float(place.rank)), torch.zeros(3)
    both = [dist.P2POp(dist.isend, mine, peer), dist.P2POp(dist.irecv, theirs, peer)]
    for work in dist.batch_isend_irecv(both):
        work.wait()
    assert theirs.tolist() == [float(peer)] * 3
    dist.batch_isend_irecv([dist.P2POp(dist.isend, mine[: 1 + place.rank], peer)])


def test_a_batch_sends_both_ways_and_names_what_nobody_receives(tmp_path: Path) -> None:
    said = of_contract(broken(batches, tmp_path, patience=MISSING))
    assert "isend(torch.float32 x" in said
    assert "was last in isend(torch.float32 x" in said


def lone_batch(place: Place) -> None:
    place.join()
    host = dist.new_group(backend="gloo")
    if place.rank < 2:
        op = (dist.isend, dist.irecv)[place.rank]
        dist.batch_isend_irecv([dist.P2POp(op, torch.ones(1), 1 - place.rank)])
    dist.all_reduce(torch.ones(1), group=host)


def test_a_batch_that_is_the_first_call_of_a_group_needs_all_its_ranks(tmp_path: Path) -> None:
    said = of_contract(broken(lone_batch, tmp_path, ranks=3, patience=MISSING))
    assert "batch_isend_irecv(makes the communicator)" in said
    assert "ranks 0-1 entered it, rank 2 did not" in said


def both_send(place: Place) -> None:
    place.join()
    dist.send(torch.ones(4), 1 - place.rank)
    dist.recv(torch.ones(4), 1 - place.rank)


def other_block(place: Place) -> None:
    place.join()
    if place.rank == 0:
        dist.send(torch.ones(4), 1)
    else:
        dist.recv(torch.ones(8), 0)


@pytest.mark.parametrize(
    ("program", "calls"),
    [
        (both_send, ("send(torch.float32 x 4, to rank 1)", "send(torch.float32 x 4, to rank 0)")),
        (
            other_block,
            ("send(torch.float32 x 4, to rank 1)", "recv(torch.float32 x 8, from rank 0)"),
        ),
    ],
)
def test_pairs_that_do_not_match_name_both(
    tmp_path: Path, program: Callable[[Place], None], calls: tuple[str, str]
) -> None:
    said = of_contract(broken(program, tmp_path))
    assert f"rank 0 in {calls[0]}" in said
    assert f"rank 1 in {calls[1]}" in said


def no_receiver(place: Place) -> None:
    place.join()
    if place.rank == 0:
        dist.send(torch.ones(4), 1)
    else:
        dist.barrier()


def test_a_send_that_nobody_receives_names_the_peer(tmp_path: Path) -> None:
    said = " ".join(one.error for one in broken(no_receiver, tmp_path, patience=MISSING))
    assert "rank 0" in said
    assert "rank 1" in said
    assert "send(torch.float32 x 4, to rank 1)" in said
    assert "barrier()" in said


def objects(place: Place) -> None:
    place.join()
    dist.all_gather_object([None, None], place.rank)


def test_objects_need_the_device(tmp_path: Path) -> None:
    said = of_contract(broken(objects, tmp_path))
    assert "all_gather_object of rank 0 on the default group" in said
    assert "the current device, which was not set" in said


def objects_right(place: Place) -> None:
    torch.cuda.set_device(place.rank)
    place.join(("nccl", "cpu:gloo,cuda:nccl")[place.folder.name == "mixed"])
    found = [None, None]
    dist.all_gather_object(found, place.rank)
    assert found == [0, 1]
    dist.destroy_process_group()


@pytest.mark.parametrize(("name", "calls"), [("nccl", "2 calls"), ("mixed", "0 calls")])
def test_objects_pass_the_device_or_gloo(tmp_path: Path, name: str, calls: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    ended = play(objects_right, on(2, folder))
    assert [one.code for one in ended] == [0, 0], ended
    assert f"strict NCCL: {calls} on the default group of ranks 0-1" in ended[0].said


def aborts(place: Place) -> None:
    place.join()
    dist.barrier()
    if place.rank == 1:
        dist.distributed_c10d._abort_process_group()
        raise SystemExit("aborted")
    dist.all_reduce(torch.ones(1))


def dies(place: Place) -> None:
    place.join()
    dist.barrier()
    if place.rank == 1:
        (place.folder / "rank-1.end").write_text("0\nkilled")
        os._exit(9)
    dist.all_reduce(torch.ones(1))


@pytest.mark.parametrize("program", [aborts, dies])
def test_an_abort_and_a_death_end_the_others(
    tmp_path: Path, program: Callable[[Place], None]
) -> None:
    ended = broken(program, tmp_path, ranks=3)
    for rank in (0, 2):
        assert ended[rank].error.startswith("DistBackendError: all_reduce(SUM"), ended
    if program is aborts:
        assert "rank 1 aborted the default group" in ended[0].error


def int16(place: Place) -> None:
    place.join()
    dist.all_reduce(torch.ones(1, dtype=torch.int16))


def strided(place: Place) -> None:
    place.join()
    dist.all_reduce(torch.ones(4, 4).t()[:2])


def bits(place: Place) -> None:
    place.join()
    dist.all_reduce(torch.ones(1, dtype=torch.int32), dist.ReduceOp.BAND)


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (int16, "NCCL has no torch.int16"),
        (strided, "expected contiguous dense tensors"),
        (bits, "BAND on the default group of ranks 0-1: NCCL reduces by SUM"),
    ],
)
def test_what_nccl_does_not_take_is_refused(
    tmp_path: Path, program: Callable[[Place], None], why: str
) -> None:
    assert why in of_contract(broken(program, tmp_path))


def everything(place: Place) -> None:
    place.join()
    rank, world = place.rank, place.world
    mine = torch.full((2,), float(rank + 1))
    total = sum(range(1, world + 1))

    found = mine.clone()
    dist.all_reduce(found)
    assert found.tolist() == [total] * 2
    found = mine.clone()
    dist.all_reduce(found, dist.ReduceOp.AVG)
    assert found.tolist() == [total / world] * 2
    found = mine.clone()
    dist.broadcast(found, src=1)
    assert found.tolist() == [2, 2]
    found = mine.clone()
    dist.reduce(found, dst=0)
    assert rank or found.tolist() == [total] * 2
    row = [torch.zeros(2) for _ in range(world)]
    dist.all_gather(row, mine)
    assert [one[0].item() for one in row] == list(range(1, world + 1))
    whole = torch.zeros(2 * world)
    dist.all_gather_into_tensor(whole, mine)
    assert whole[::2].tolist() == list(range(1, world + 1))
    gathered = [torch.zeros(2) for _ in range(world)] if rank == 0 else None
    dist.gather(mine, gathered, dst=0)
    assert gathered is None or gathered[1].tolist() == [2, 2]
    dist.scatter(found, row if rank == 0 else None, src=0)
    assert found.tolist() == mine.tolist()
    dist.reduce_scatter(found, row)
    assert found.tolist() == [world * (rank + 1)] * 2
    dist.reduce_scatter_tensor(found, whole, dist.ReduceOp.AVG)
    assert found.tolist() == mine.tolist()
    if rank < 2:
        for sender in (0, 1):
            if rank == sender:
                dist.send(mine, 1 - rank)
            else:
                dist.recv(found, 1 - rank)
        assert found.tolist() == [2.0 - rank] * 2
    work = dist.all_reduce(found, async_op=True)
    work.wait()
    dist.barrier()
    dist.destroy_process_group()


def test_a_program_that_keeps_the_rules_gets_right_results(tmp_path: Path) -> None:
    ended = play(everything, on(3, tmp_path))
    assert [one.code for one in ended] == [0, 0, 0], ended


def test_ranks_are_named_in_runs() -> None:
    assert named([3]) == "rank 3"
    assert named([0, 1, 2, 5]) == "ranks 0-2, 5"
    assert named([]) == "rank none"


def test_notes_may_differ_between_ranks() -> None:
    assert not disagreement({0: Call("split", note="in"), 1: Call("split", note="out")})
    assert disagreement({0: Call("a", "x"), 1: Call("a", "y")}) == "rank 0 in a(x); rank 1 in a(y)"
