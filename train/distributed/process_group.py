"""All processes of a run and how they communicate: groups, mesh, time limits."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous as meet

from train.distributed import devices
from train.distributed.env import RankEnv, node_name
from train.distributed.first_failure import FirstFailure
from train.errors import NodesDiffer

T = TypeVar("T")

SHA256_DIGITS = 64
STORAGE_TIMEOUT = timedelta(hours=2)
"""Checkpoints are written and exchanged in the background: no computation waits for them."""


class Ranks:
    """All ranks of this run, joined; sums, gathers and broadcasts between them."""

    def __init__(self, env: RankEnv, device: torch.device, limit: timedelta, store: Store) -> None:
        self.env = env
        self.device = device
        self.first_failure = FirstFailure(store, env.rank, env.world_size)
        """What failed first, if not every rank has the same error."""
        self.control = dist.new_group(backend="gloo", timeout=limit)
        """Small values between steps; never the training's own groups, whose order is FSDP's."""
        self.storage = dist.new_group(backend="gloo", timeout=STORAGE_TIMEOUT)
        """For the thread that writes checkpoints only: a shared group deadlocks."""
        names = self.gather((node_name(), env.node_rank))
        self.hosts = tuple(host for host, _ in names)
        self.nodes = tuple(node for _, node in names)
        """Rank → its node's number."""
        self.between_nodes = dist.new_group(
            list(self.leaders), backend="gloo", timeout=STORAGE_TIMEOUT
        )
        """The first ranks of all nodes, for files that each node must have."""
        self._context: list[dist.ProcessGroup] = []

    @classmethod
    def join(
        cls,
        env: RankEnv,
        *,
        timeout: float,
        traces: Path | None = None,
        rendezvous: str | None = None,
        store: Store | None = None,
    ) -> Ranks:
        """Meet the other ranks.

        Args:
            env: This process among the ranks.
            timeout: Seconds that a collective may take until `shorten_timeouts`.
            traces: Folder for NCCL's flight recorder, written when a collective hangs.
            rendezvous: Where to meet, as a torch init method; `env` says it if None.
            store: Where they have met already, from `open_store`.
        """
        device = devices.choose(env)
        if traces is not None and device.type == "cuda":
            _set_flight_recorder(traces)
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        limit = timedelta(seconds=timeout)
        store = store or open_store(env, timeout=timeout, rendezvous=rendezvous)
        # Before any group: a rank without its GPU would let NCCL wait for it until the limit.
        devices.agree(store, env, devices.describe(device))
        # Without device_id: every rank that is not in a new group, even one of gloo, would enter
        # ncclCommSplit, and the group's own ranks would not (`_new_process_group_helper`).
        dist.init_process_group(
            backend,
            store=PrefixStore("groups", store),
            rank=env.rank,
            world_size=env.world_size,
            timeout=limit,
        )
        return cls(env, device, limit, store)

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, the one that prints and writes what exists once."""
        return self.env.rank == 0

    @property
    def is_leader(self) -> bool:
        """Whether this is the first rank of its node, the one that writes what exists per node."""
        return self.env.rank == self.leader_of(self.env.rank)

    @property
    def leaders(self) -> tuple[int, ...]:
        """The first rank of each node."""
        return tuple(self.nodes.index(node) for node in dict.fromkeys(self.nodes))

    def leader_of(self, rank: int) -> int:
        """Return the first rank of a rank's node."""
        return self.nodes.index(self.nodes[rank])

    def on_nodes(self) -> dict[str, int]:
        """Return how many ranks each node has, by a name that tells nodes of one host apart."""
        counts = Counter(self.nodes)
        several = len(set(self.hosts)) < len(counts)
        return {
            f"{self.hosts[self.nodes.index(node)]}" + (f"#{node}" if several else ""): count
            for node, count in counts.items()
        }

    def sum(self, values: Sequence[float]) -> list[float]:
        """Add up values over all ranks, in double precision."""
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total, group=self.control)
        return cast("list[float]", total.tolist())

    def gather(self, value: T, group: dist.ProcessGroup | None = None) -> list[T]:
        """Return every rank's value, by rank, on every rank."""
        found: list[T | None] = [None] * self.env.world_size
        dist.all_gather_object(found, value, group=group or self.control)
        return cast("list[T]", found)

    def broadcast(self, value: T, source: int = 0) -> T:
        """Return one rank's value on every rank."""
        box = [value]
        dist.broadcast_object_list(box, src=source, group=self.control)
        return box[0]

    def name(self, rank: int) -> str:
        """Return what messages call a rank."""
        return f"rank {rank} on {self.hosts[rank]}"

    def problems(self, problem: str) -> str:
        """Return what went wrong on any rank while checkpoints are handled, on every rank."""
        rows = enumerate(self.gather(problem, self.storage))
        return "; ".join(f"{self.name(rank)}: {text}" for rank, text in rows if text)

    def barrier(self, group: dist.ProcessGroup | None = None) -> None:
        """Wait for all ranks."""
        dist.barrier(group=group or self.control)

    def same_everywhere(self, values: Mapping[str, str]) -> None:
        """Verify that all ranks have the same values."""
        rows = self.gather(dict(values))
        problems = []
        for what in rows[0]:
            digests = [row.get(what, "nothing") for row in rows]
            ((common, count), *_) = Counter(digests).most_common(1)
            if count < len(rows):
                others = ", ".join(
                    f"{self.name(rank)} has {_short(digest)}"
                    for rank, digest in enumerate(digests)
                    if digest != common
                )
                wanted = f"expected the same on every node ({_short(common)})"
                problems.append(f"{what}: {wanted}, found {others}")
        if problems:
            hint = (
                "hint: clusterctl sync: it gives all nodes the same code and configuration; "
                "packages must be the same on all of them; remove a model or token cache that "
                "differs on that node, and the next start rebuilds it"
            )
            raise NodesDiffer("\n".join((*problems, hint)))

    def mesh(self, layout: str) -> DeviceMesh:
        """Return the mesh that a layout shards over: `hsdp` by node, else one line of ranks."""
        if layout != "hsdp":
            shape, names = (self.env.world_size,), ("ranks",)
            return init_device_mesh(self.device.type, shape, mesh_dim_names=names)
        local, *others = set(Counter(self.nodes).values())
        if others:
            found = ", ".join(f"{node}: {count}" for node, count in self.on_nodes().items())
            raise NodesDiffer(
                "parallel: expected hsdp, found nodes with different numbers of ranks "
                f"({found})\nhint: set parallel: fsdp"
            )
        grid = (self.env.world_size // local, local)
        return init_device_mesh(self.device.type, grid, mesh_dim_names=("nodes", "local"))

    def context(self, size: int) -> dist.ProcessGroup:
        """Return this rank's group among those of `size` ranks each; all ranks call this once."""
        every = range(self.env.world_size)
        groups = [dist.new_group(list(every[at : at + size])) for at in every[::size]]
        self._context.append(groups[self.env.rank // size])
        return self._context[0]

    def shorten_timeouts(self, seconds: float, mesh: DeviceMesh) -> None:
        """Give training's collectives their everyday limit, once the slow first step is over."""
        self.barrier()
        limit = timedelta(seconds=seconds)
        for group in (dist.group.WORLD, self.control, *mesh.get_all_groups(), *self._context):
            _set_timeout(limit, group)

    def leave(self) -> None:
        """End the groups; only after success, since a broken group may hang here."""
        dist.destroy_process_group()
        # Threads of gloo drop the tensors of the last collective and need the GIL for it. If the
        # interpreter ends first, they abort the process: pytorch issue 190489, seen with 2.13.
        time.sleep(0.1)


def _set_timeout(limit: timedelta, group: Any) -> None:
    """Set the limit of a group's collectives; torch has no public function for this.

    torch's own `_set_pg_timeout` does nothing with TORCH_DISTRIBUTED_DEBUG=DETAIL, which wraps each
    backend. The wrapper's own barrier before each collective keeps the limit of the start.
    """
    for kind in group._device_types:  # noqa: SLF001
        backend = group._get_backend(kind)  # noqa: SLF001
        getattr(backend, "wrapped_pg", backend)._set_default_timeout(limit)  # noqa: SLF001


def _short(value: str) -> str:
    """Return a value as a message shows it: of a SHA-256 the beginning is enough."""
    return value[:12] if len(value) == SHA256_DIGITS else value


def open_store(env: RankEnv, *, timeout: float, rendezvous: str | None = None) -> Store:
    """Return the store that all ranks see, as soon as they are there; see `Ranks.join`."""
    if not env.launched:
        return cast("Store", local_store())
    limit = timedelta(seconds=timeout)
    url = rendezvous or env.rendezvous
    store, _, _ = next(meet(url, env.rank, env.world_size, timeout=limit))
    store.set_timeout(limit)
    return cast("Store", store)


def local_store() -> Any:
    """Return a store inside this process, for a run of one."""
    return dist.HashStore()  # type: ignore[attr-defined]


def _set_flight_recorder(folder: Path) -> None:
    """Have NCCL write its last collectives to disk when one hangs; the environment may differ."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in (
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3"),
        ("TORCH_FR_BUFFER_SIZE", "20000"),
        ("TORCH_NCCL_DUMP_ON_TIMEOUT", "1"),
        ("TORCH_FR_DUMP_TEMP_FILE", str(folder / "rank_")),
    ):
        os.environ.setdefault(name, value)
