"""One collective across the nodes, run by the job's own torch; its text is run with `-c`.

Arguments: rank, world size, master address, port, seconds. Sums numbers that differ by rank, so
that a wrong answer shows, then a block that is large enough to tell a bandwidth.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from typing import Any, Dict

BLOCK = 16 * 1024 * 1024
"""Numbers of four bytes in the block."""
ROUNDS = 3


def all_reduce(rank: int, world: int, address: str, port: int, limit_s: float) -> Dict[str, Any]:
    """Join the others, sum, and tell how it went."""
    import torch  # noqa: PLC0415  (seconds, and only here)
    import torch.distributed as dist  # noqa: PLC0415

    cuda = torch.cuda.is_available()
    device = torch.device("cuda", 0) if cuda else torch.device("cpu")
    host = "[%s]" % address if ":" in address else address
    dist.init_process_group(
        "nccl" if cuda else "gloo",
        init_method="tcp://%s:%d" % (host, port),
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=limit_s),
    )
    total = torch.tensor([float(rank + 1)], device=device)
    dist.all_reduce(total)
    block = torch.ones(BLOCK, device=device)
    best = float("inf")
    for _ in range(ROUNDS):
        dist.barrier()
        began = time.monotonic()
        dist.all_reduce(block)
        block.flatten()[0].item()  # waits for the device
        best = min(best, time.monotonic() - began)
    dist.destroy_process_group()
    moved = 4 * BLOCK * 2 * (world - 1) / world
    return {
        "backend": "nccl" if cuda else "gloo",
        "right": total.item() == world * (world + 1) / 2,
        "gbps": 8 * moved / best / 1e9,
        "error": "",
    }


def main() -> None:
    """Print the outcome as JSON, the last line of stdout."""
    rank, world, address, port, limit_s = sys.argv[1:]
    try:
        answer = all_reduce(int(rank), int(world), address, int(port), float(limit_s))
    except Exception as error:  # noqa: BLE001  (whatever it is, it is the answer)
        answer = {"backend": "", "right": False, "gbps": 0.0, "error": str(error)}
    print(json.dumps(answer), flush=True)  # noqa: T201  (this is the program's output)
    # A backend's threads may wait for peers that exited; nothing is left to do.
    os._exit(0)


if __name__ == "__main__":
    main()
