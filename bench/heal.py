"""From the death of a rank to the first step of the next attempt: ours against torchrun's own.

`python bench/heal.py [ROUNDS]` (root: it makes network namespaces) takes turns on the same hosts
with the same program: `launch --restarts 1`, and `torchrun --max-restarts=1` typed over ssh on each
host. Both load the same checkpoint. Printed are medians, their ratio, and the parts of ours.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench._box import argument, at_once, clusterctl, hosts, in_turns
from clusterctl.sandbox.sandbox import Sandbox

ROUNDS = argument(1, 3)
HOSTS = 2
PORT = 29650
BY_HAND_LIMIT = 150
"""Seconds for a start and a restart; a turn that takes longer has not healed."""
WANTED = 1.0

PROGRAM = """\
import os, signal, sys, time
from pathlib import Path

began = time.time()
import torch, torch.distributed as dist
from safetensors.torch import load_file, save_file

dist.init_process_group("gloo")
rank, out = dist.get_rank(), Path(os.environ["OUT"])
saved = out / "checkpoint-10"
again = saved.exists()
at = Path(sys.argv[sys.argv.index("--resume") + 1]) if "--resume" in sys.argv else saved
weights = load_file(at / "model.safetensors")["w"] if again else torch.zeros(1 << 20)
for step in range(11 if again else 1, 30):
    dist.all_reduce(weights)
    time.sleep(0.02)
    if again:
        (out / f"stepped-{rank}").write_text(f"{began} {time.time()}")
        break
    if step == 10:
        if rank == 0:
            saved.mkdir()
            save_file({"w": weights}, saved / "model.safetensors")
            (saved / "trainer_state.json").write_text('{"global_step": 10}')
        dist.barrier()
    if step == 20 and rank == 1:
        (out / "died").write_text(str(time.time()))
        os.kill(os.getpid(), signal.SIGKILL)
dist.destroy_process_group()
"""
PARTS = (
    "ended and verified",
    "checks and agreement",
    "wait",
    "next supervisor",
    "rank's start",
    "imports, meeting and load",
)


def main() -> None:
    """Run all rows."""
    with hosts(HOSTS, "netns") as (box, own):
        project = own / "code"
        for folder in (project, box.shared / "code"):  # by hand it must be there already
            folder.mkdir(exist_ok=True)
            (folder / "heal.py").write_text(PROGRAM)
        numbers = itertools.count()

        def turn(way: Callable[[Path], float]) -> float:
            out = box.shared / f"out-{next(numbers)}"
            out.mkdir()
            return way(out)

        parts: dict[str, list[list[float]]] = {"torchrun": [], "direct": []}
        ways: dict[str, Callable[[Path], float]] = {
            "torchrun --max-restarts=1 by hand": lambda out: by_hand(box, out)
        }
        for launcher, rows in parts.items():
            name = f"launch --restarts 1 ({launcher})"
            ways[name] = functools.partial(ours, box, project, launcher, rows)
        found = in_turns(ROUNDS, {n: functools.partial(turn, way) for n, way in ways.items()})
    show(found)
    for launcher, rows in parts.items():
        medians = [statistics.median(column) for column in zip(*rows, strict=True)]
        told = ", ".join(f"{n} {m:.2f}" for n, m in zip(PARTS, medians, strict=True))
        print(f"  {launcher}: {told}")


def by_hand(box: Sandbox, out: Path) -> float:
    """Type one ssh with torchrun for each host, all at once; infinity: it did not heal.

    With the store that torch shares by default, a rank that starts again may find the address of
    one that died, and give up (pytorch issue 135712; seen with torch 2.13, c10d and static). So
    torchrun gets the variable that helps.
    """
    typed = (
        f"cd /shared/code && OUT=/shared/{out.name} TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"
        f" timeout {BY_HAND_LIMIT} {sys.executable} -m torch.distributed.run --nnodes={HOSTS}"
        f" --nproc-per-node=1 --max-restarts=1 --rdzv-backend=c10d --rdzv-id={out.name}"
        f" --rdzv-endpoint={box.hosts[0].address}:{PORT} heal.py"
    )
    ssh = ["ssh", "-o", "BatchMode=yes"]
    done = at_once(box, ([*ssh, host.name, typed] for host in box.hosts))
    if any(code for code, _ in done):
        print("torchrun did not heal:\n" + "\n".join(text for _, text in done), file=sys.stderr)
        return float("inf")
    return healed(out)


def ours(box: Sandbox, project: Path, launcher: str, parts: list[list[float]], out: Path) -> float:
    """Launch, and keep how long each part took."""
    job = {"checkpoints": f"/shared/{out.name}", "resume_args": ["--resume", "{checkpoint}"]}
    inventory = project.parent / "hosts.yaml"
    document = yaml.safe_load(box.inventory.read_text())
    inventory.write_text(yaml.safe_dump(document | {"job": job}))
    words = ["launch", "-i", str(inventory), "--launcher", launcher, "--restarts", "1"]
    words += ["--no-check", "--master-port", str(PORT), "--env", f"OUT=/shared/{out.name}"]
    clusterctl(box, *words, "--", "heal.py", cwd=project, state=project.parent / "state")
    seconds = healed(out)
    died = float((out / "died").read_text())
    parts.append(steps_of(box, died, began_of(out), died + seconds))
    return seconds


def steps_of(box: Sandbox, died: float, began: float, stepped: float) -> list[float]:
    """Return how long each of PARTS took, by the master's events of the newest run."""
    runs = (box.folder("node1") / "var-tmp" / "clusterctl-0" / box.name).iterdir()
    newest = max(runs, key=lambda path: path.stat().st_mtime)
    events = [json.loads(one) for one in (newest / "node1" / "events.jsonl").open()]
    first = {kind: next(e for e in events if e["kind"] == kind) for kind in ("end", "again")}
    ups = [one["time"] for one in events if one["kind"] == "supervisor-up"]
    again = first["again"]
    moments = [died, first["end"]["over"], again["time"], again["time"] + again["wait_s"]]
    moments += [ups[1], began, stepped]
    return [after - before for before, after in itertools.pairwise(moments)]


def began_of(out: Path) -> float:
    """Return when the first rank of the next attempt ran."""
    return min(float(path.read_text().split()[0]) for path in out.glob("stepped-*"))


def healed(out: Path) -> float:
    """Return the seconds from the death to the first step on every rank."""
    stepped = [float(path.read_text().split()[1]) for path in out.glob("stepped-*")]
    assert len(stepped) == HOSTS, "not every rank made a step"
    return max(stepped) - float((out / "died").read_text())


def show(seconds: dict[str, list[float]]) -> None:
    """Print medians and ratios to the first."""
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    base = next(iter(medians.values()))
    load = os.getloadavg()[0]
    print(f"death of a rank to the next step, {HOSTS} hosts, {ROUNDS} rounds, load {load:.1f}")
    for name, median in medians.items():
        goal = f"  (wanted ≤ {WANTED})" if "launch" in name else ""
        spread = f"{min(seconds[name]):.2f} to {max(seconds[name]):.2f}"
        print(f"  {name:34} {median:6.2f} s ({spread})  ratio {median / base:.2f}{goal}")


if __name__ == "__main__":
    main()
