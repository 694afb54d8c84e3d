"""From the command to the first all-reduce on four hosts: ours against ssh and torchrun by hand.

`python bench/launch.py [ROUNDS]` (root: it makes network namespaces) takes turns on the same
sandbox; printed are medians and ratios. Ours is the whole of `launch`: check and sync included.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
# Compiled modules are kept, as in every installation, and as those of the rivals are.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

from clusterctl.sandbox import sandbox  # noqa: E402
from clusterctl.sandbox.backend import SandboxSpec  # noqa: E402
from clusterctl.sandbox.sandbox import Sandbox  # noqa: E402

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 3
HOSTS = 4
PORT = 29650
LIMIT = 300
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
    box = sandbox.up(f"benchlaunch{os.getpid()}", SandboxSpec(nodes=HOSTS), backend="netns")
    try:
        with tempfile.TemporaryDirectory() as folder:
            project = Path(folder) / "code"
            project.mkdir()
            (project / "reduce.py").write_text(REDUCE)
            # By hand the code must be there already; ours finds it equal and sends nothing.
            place = box.shared / "code"
            place.mkdir(exist_ok=True)
            (place / "reduce.py").write_text(REDUCE)
            compare(
                {
                    "ssh + torchrun by hand": lambda: by_hand(box),
                    "clusterctl launch (torchrun)": lambda: ours(box, project, "torchrun"),
                    "clusterctl launch (direct)": lambda: ours(box, project, "direct"),
                }
            )
    finally:
        box.down()


def by_hand(box: Sandbox) -> float:
    """Type one ssh with torchrun for each host, all at once; return seconds to the all-reduce."""
    began = time.time()
    master = box.hosts[0].address
    typed = (
        f"cd /shared/code && {sys.executable} -m torch.distributed.run --nnodes={HOSTS}"
        f" --nproc-per-node=1 --master-addr={master} --master-port={PORT} --node-rank="
    )
    started = [
        subprocess.Popen(
            box.command(["ssh", "-o", "BatchMode=yes", host.name, f"{typed}{rank} reduce.py"]),
            env=box.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for rank, host in enumerate(box.hosts)
    ]
    outputs = [process.communicate(timeout=LIMIT)[0] for process in started]
    return reduced(outputs[0]) - began


def ours(box: Sandbox, project: Path, launcher: str) -> float:
    """Launch; return seconds to the all-reduce."""
    began = time.time()
    words = ["launch", "--launcher", launcher, "--master-port", str(PORT), "--", "reduce.py"]
    answer = box.run(
        [sys.executable, "-m", "clusterctl", *words],
        env={"PYTHONPATH": str(ROOT), "CLUSTERCTL_STATE": str(project.parent / "state")},
        cwd=project,
        timeout=LIMIT,
    )
    if answer.returncode:
        sys.exit(f"launch failed ({answer.returncode}):\n{answer.stderr}\n{answer.stdout}")
    return reduced(answer.stdout) - began


def reduced(output: str) -> float:
    """Return when rank 0 had its sum."""
    for line in output.splitlines():
        if "reduced " in line:
            return float(line.split()[-1])
    sys.exit(f"no all-reduce in:\n{output}")


def compare(ways: dict[str, Callable[[], float]]) -> None:
    """Take turns and print medians and ratios to the first."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, run in ways.items():
            seconds[name].append(run())
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    base = next(iter(medians.values()))
    print(f"launch to first all-reduce, {HOSTS} hosts, {ROUNDS} rounds")
    for name, median in medians.items():
        wanted = next((limit for word, limit in BUDGETS.items() if f"({word})" in name), None)
        goal = f"  (wanted ≤ {wanted})" if wanted else ""
        print(f"  {name:30} {median:6.2f} s  ratio {median / base:.2f}{goal}")


if __name__ == "__main__":
    main()
