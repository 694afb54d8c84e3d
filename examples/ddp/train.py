"""Plain PyTorch DDP: trains a small network, saves on rank 0, and resumes."""

from __future__ import annotations

import argparse
import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

stopping = False


def stop(*_: object) -> None:
    """Remember that `clusterctl stop` has asked for the end."""
    global stopping  # noqa: PLW0603
    stopping = True


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--resume", help="a checkpoint to start from")
    given = parser.parse_args()

    gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if gpu else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    signal.signal(signal.SIGTERM, stop)

    torch.manual_seed(0)  # all ranks begin with the same weights
    model = DistributedDataParallel(torch.nn.Linear(16, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    first = 0
    if given.resume:
        state = torch.load(given.resume, map_location=device)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]

    step = first  # what is printed if all steps are done already
    for step in range(first + 1, given.steps + 1):
        # Another seed on each rank: each sees its own part of the data.
        inputs = torch.randn(
            32, 16, generator=torch.Generator().manual_seed(step * world_size + rank)
        )
        inputs = inputs.to(device)
        loss = torch.nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # All ranks must agree on the step after which they stop.
        ends = torch.tensor([float(stopping)], device=device)
        dist.all_reduce(ends, dist.ReduceOp.MAX)
        if rank == 0 and (step % 10 == 0 or ends.item()):
            print(f"step {step} of {given.steps}, loss {loss.item():.4f}", flush=True)
            save(step, model, optimizer)
        if ends.item():
            break
    if rank == 0:
        print(f"ended at step {step} on {world_size} ranks", flush=True)
    dist.destroy_process_group()
    time.sleep(0.1)  # else a thread of gloo may abort the exit (pytorch issue 190489)


def save(step: int, model: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> None:
    """Write a checkpoint under its final name only once it is complete."""
    Path("out").mkdir(exist_ok=True)
    state = {"step": step, "model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, "out/new")
    Path("out/new").replace(f"out/step{step}.pt")


if __name__ == "__main__":
    main()
