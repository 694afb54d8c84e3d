"""From the command to the first all-reduce on four hosts: ours against ssh and torchrun by hand.

`python bench/launch.py [ROUNDS]` (root: it makes network namespaces) takes turns on the same
sandbox; printed are medians and ratios. Ours is the whole of `launch`: check and sync included.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench._box import argument, at_once, clusterctl, hosts, in_turns
from clusterctl.sandbox.sandbox import Sandbox

ROUNDS = argument(1, 3)
HOSTS = 4
PORT = 29650
BUDGETS = {"torchrun": 1.15, "direct": 0.65}

REDUCE = """\
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
t = torch.ones(1)
dist.all_reduce(t)
assert t.item() == int(os.environ["WORLD_SIZE"])
if dist.get_rank() == 0:
    print("reduced", time.time(), flush=True)
dist.destroy_process_group()
"""


def main() -> None:
    """Run all rows."""
    with hosts(HOSTS, "netns") as (box, folder):
        project = folder / "code"
        # By hand the code must be there already; ours finds it equal and sends nothing.
        for place in (project, box.shared / "code"):
            place.mkdir(exist_ok=True)
            (place / "reduce.py").write_text(REDUCE)
        found = in_turns(
            ROUNDS,
            {
                "ssh + torchrun by hand": lambda: by_hand(box),
                "clusterctl launch (torchrun)": lambda: ours(box, project, "torchrun"),
                "clusterctl launch (direct)": lambda: ours(box, project, "direct"),
            },
        )
    show(found)


def by_hand(box: Sandbox) -> float:
    """Type one ssh with torchrun for each host, all at once; return seconds to the all-reduce."""
    began = time.time()
    master = box.hosts[0].address
    typed = (
        f"cd /shared/code && {sys.executable} -m torch.distributed.run --nnodes={HOSTS}"
        f" --nproc-per-node=1 --master-addr={master} --master-port={PORT} --node-rank="
    )
    ssh = ["ssh", "-o", "BatchMode=yes"]
    commands = ([*ssh, h.name, f"{typed}{rank} reduce.py"] for rank, h in enumerate(box.hosts))
    return reduced(at_once(box, commands)[0][1]) - began


def ours(box: Sandbox, project: Path, launcher: str) -> float:
    """Launch; return seconds to the all-reduce."""
    began = time.time()
    words = ["launch", "--launcher", launcher, "--master-port", str(PORT), "--", "reduce.py"]
    return reduced(clusterctl(box, *words, cwd=project, state=project.parent / "state")) - began


def reduced(output: str) -> float:
    """Return when rank 0 had its sum."""
    for line in output.splitlines():
        if "reduced " in line:
            return float(line.split()[-1])
    sys.exit(f"no all-reduce in:\n{output}")


def show(seconds: dict[str, list[float]]) -> None:
    """Print medians and ratios to the first."""
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    base = next(iter(medians.values()))
    print(f"launch to first all-reduce, {HOSTS} hosts, {ROUNDS} rounds")
    for name, median in medians.items():
        wanted = next((limit for word, limit in BUDGETS.items() if f"({word})" in name), None)
        goal = f"  (wanted ≤ {wanted})" if wanted else ""
        print(f"  {name:30} {median:6.2f} s  ratio {median / base:.2f}{goal}")


if __name__ == "__main__":
    main()
