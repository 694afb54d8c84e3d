"""A program that `train.sh` starts on every node: its ranks sum up a number."""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    given = parser.parse_args()
    gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if gpu else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    total = torch.zeros(1, device=device)
    for _ in range(given.steps):
        one = torch.ones(1, device=device)
        dist.all_reduce(one)
        total += one
    if dist.get_rank() == 0:
        print(f"ended at {total.item():g} on {dist.get_world_size()} ranks", flush=True)
    dist.destroy_process_group()
    time.sleep(0.1)  # else a thread of gloo may abort the exit (pytorch issue 190489)


if __name__ == "__main__":
    main()
