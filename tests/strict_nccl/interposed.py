"""NCCL's rules on CPUs: a test backend over gloo that names the calls in which NCCL would hang.

A program under test asks torch for NCCL as on a GPU machine. `interposed.install` gives it a
`StrictGroup` instead: gloo moves the data, and before each call all ranks of the group compare what
they are about to do. Ranks wait for each other when a call is issued, so that the order of calls of
several groups is checked too: NCCL may deadlock if two ranks issue those in different orders.

What it cannot see: which tensors are on a GPU. All are CPU tensors: FSDP and DDP cannot train on a
second device that is written in Python alone. A group stands for NCCL by its backend instead
(`nccl`, or the second half of `cpu:gloo,cuda:nccl`), so "No backend type associated with device
type cpu" does not show here. Neither do streams, memory, kernels and networks.

Facts are from torch 2.13.0, `torch/distributed/distributed_c10d.py` unless another file is named.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed import c10d_logger
from torch.distributed import distributed_c10d as c10d

from tests.strict_nccl.board import Board
from tests.strict_nccl.contract import ContractBroken
from tests.strict_nccl.group import StrictGroup

NAME = "strictnccl"
OBJECTS = (
    "all_gather_object",
    "gather_object",
    "broadcast_object_list",
    "scatter_object_list",
    "send_object_list",
    "recv_object_list",
)


@dataclass(slots=True, kw_only=True)
class Program:
    """What this process asked for."""

    patience: float
    board: Board | None = None
    device_id: torch.device | None = None
    """What `init_process_group` was given."""
    bound: torch.device | None = None
    """The device of the group under construction."""
    mixed: bool = False
    """Whether the group under construction has gloo for CPU tensors."""
    current_device: torch.device | None = None
    """What `torch.cuda.set_device` was given."""


def install(*, patience: float = 60.0, stands_for: str = "nccl") -> Program:
    """Have this process's NCCL groups be strict ones; it has no group yet.

    Args:
        patience: Seconds after which a rank that does not come is missing.
        stands_for: The backend of the default group that is to be NCCL: `gloo`, for programs that
            choose it themselves on a machine without GPUs.
    """
    program = Program(patience=patience)
    create = functools.partial(_create, program)
    dist.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu"])
    # Torch 2.15 would record its calls, and ask for a name that it has not been given yet.
    recording: set[str] = getattr(c10d, "_FR_SELF_RECORDING_BACKENDS", set())
    recording.add(NAME)
    helper, init = c10d._new_process_group_helper, c10d.init_process_group
    _replace("_new_process_group_helper", functools.partial(_new_group, program, helper))
    _replace("init_process_group", functools.partial(_init, program, init, stands_for))
    _replace("_warn_not_in_group", functools.partial(_not_in_group, program))
    _replace("batch_isend_irecv", functools.partial(_batch, c10d.batch_isend_irecv))
    for name in OBJECTS:
        _replace(name, functools.partial(_objects, program, getattr(c10d, name)))
    # It would ask for NCCL's version and for the backend of a group that the rank is not in, and
    # raise that instead of the error that it is to log.
    c10d_logger._get_msg_dict = lambda *_, **__: {}
    torch.cuda.set_device = functools.partial(_set_device, program)
    return program


def _replace(name: str, by: Callable[..., Any]) -> None:
    setattr(c10d, name, by)
    if hasattr(dist, name):
        setattr(dist, name, by)


def _init(
    program: Program, init: Any, stands_for: str, backend: Any = None, *args: Any, **how: Any
) -> None:
    """Keep the device from a torch without CUDA, which would refuse it; `_new_group` has it."""
    program.device_id = how.pop("device_id", None)
    if stands_for != "nccl" and backend == stands_for:
        backend = "nccl"
    init(backend, *args, **how)


def _new_group(program: Program, helper: Any, *args: Any, **how: Any) -> Any:
    """Make a group: a strict one if NCCL is among its backends."""
    size, rank, ranks, backend, store, name, *rest = args
    if not ranks:  # the default group
        program.board = Board(store, rank)
        how["device_id"] = program.device_id
    assert program.board
    mine = f"a group of ranks {ranks} with {backend}"
    if ranks and (theirs := program.board.same(f"group {name}", mine)) != mine:
        why = f"rank {program.board.rank} makes {mine}, another rank {theirs}, as group {name}"
        program.board.break_off(why)
        raise ContractBroken(why)
    if ranks:
        program.board.tell(f"new_group, {mine}")
    if "nccl" not in str(backend):
        return helper(*args, **how)
    program.mixed = "cpu:" in str(backend)
    program.bound = how.get("device_id")
    group, group_store = helper(size, rank, ranks, NAME, store, name, *rest, **how)
    if group is not dist.GroupMember.NON_GROUP_MEMBER:
        # As the program named it: new groups inherit it, and get_backend returns it.
        c10d._world.pg_map[group] = (backend, group_store)
    return group, group_store


def _create(program: Program, options: Any, _: Any) -> StrictGroup:
    assert program.board
    group = StrictGroup(options, program.board, mixed=program.mixed, patience=program.patience)
    if program.bound is not None:
        # torch sets it on the group that this one replaces.
        group.bound_device_id = program.bound
    return group


def _not_in_group(program: Program, op: str) -> NoReturn:
    """Fail where torch only warns: the caller believes that something was exchanged."""
    rank = program.board.rank if program.board else "?"
    raise ContractBroken(f"{op} of rank {rank} on a group that it is not in")


def _objects(program: Program, original: Any, *args: Any, **how: Any) -> Any:
    """Send objects as torch does (`_get_object_coll_device`): by gloo, or through the device."""
    group = how.get("group") or next((a for a in args if isinstance(a, dist.ProcessGroup)), None)
    group = group or c10d._get_default_group()
    if not isinstance(group, StrictGroup):
        return original(*args, **how)
    if group.mixed:
        with group.on_host():
            return original(*args, **how)
    if group.bound_device_id is None and program.current_device is None:
        raise ContractBroken(
            f"{original.__name__} of rank {c10d.get_rank()} on {group!r}: NCCL moves objects "
            "through the current device, which was not set: every rank of a node would take the "
            "first GPU"
        )
    return original(*args, **how)


def _batch(original: Any, operations: list[Any]) -> Any:
    group = operations[0].group or c10d._get_default_group()
    return group.batch(operations) if isinstance(group, StrictGroup) else original(operations)


def _set_device(program: Program, device: Any) -> None:
    program.current_device = torch.device("cuda", device) if isinstance(device, int) else device
