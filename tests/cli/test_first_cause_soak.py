"""A node that is lost, or a rank that raises, at any moment: the first cause is that, each time.

A soak: CLUSTERCTL_SOAK_ROUNDS rounds of each launcher, by default 50, from CLUSTERCTL_SOAK_SEED on.
CLUSTERCTL_SOAK_FAULTS takes only some, such as `killed,raise`. `pytest -s` prints each round.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self, cast

import pytest
import yaml

from clusterctl.errors import LaunchRefused
from tests.cli.conftest import MakeProject
from tests.cli.runs import Project
from tests.conftest import MakeSandbox
from tests.waiting import BUSY

pytestmark = [pytest.mark.netns, pytest.mark.soak]

Launcher = Literal["direct", "torchrun", "accelerate"]
Fault = Literal["killed", "link-down", "processes", "raise"]
"""A power failure, a cut, the end of all processes of the run on a node; or a rank raises."""
FAULTS = os.environ.get("CLUSTERCTL_SOAK_FAULTS", "killed,raise,link-down,raise,killed,processes")
LAUNCHERS: tuple[Launcher, ...] = ("direct", "torchrun", "accelerate")
NODES = ("node1", "node2", "node3")
MOMENTS = ("check", "env_init", "begin", "rendezvous", "first", "middle", "saving", "end")
"""When it happens; env_init, which the check tries first, or the job leaves a mark at each."""
REFUSED = MOMENTS[:2]
"""If a node is lost then, nothing was launched."""
TRAIN = """
import atexit, os, pathlib, threading, time
from datetime import timedelta

rank, victim = int(os.environ["RANK"]), int(os.environ["VICTIM"])


def at(moment):
    pathlib.Path(os.environ["MARKS"], f"{moment}-{rank}").touch()
    if os.environ["RAISES"] == moment and rank == victim:
        seconds = float(os.environ["TEARDOWN"])
        if os.environ["HOW"] == "thread":
            threading.Thread(target=time.sleep, args=(seconds,)).start()
        else:
            atexit.register(time.sleep, seconds)
        raise ValueError("bad sample 17")


at("begin")
import torch
import torch.distributed as dist

try:
    at("rendezvous")
    time.sleep(1 if rank == victim else 0)
    dist.init_process_group("gloo")
    group = dist.new_group(timeout=timedelta(seconds=float(os.environ["PATIENCE"])))
    for step in range(60):
        dist.all_reduce(torch.ones(1), group=group)
        print("step", step, flush=True)
        if step in (0, 20):
            at("first" if step == 0 else "middle")
        if step == 40:
            at("saving")
            time.sleep(2 if rank == 0 else 0)
        time.sleep(0.05)
    at("end")
    time.sleep(2)
finally:
    if os.environ["HOW"] != "thread" and dist.is_initialized():
        dist.destroy_process_group()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What happens to one run."""

    launcher: Launcher
    fault: Fault
    moment: str
    after: float
    """Seconds after the moment's mark; a rank raises at once."""
    victim: int
    """The rank, one on each node."""
    lost_after: int
    patience: int
    """Seconds that ranks wait for each other; less than a loss takes, or far more."""
    teardown: float
    how: Literal["atexit", "thread"]
    stops: bool
    """A lost node that is back is cleared up before its run is looked at again."""

    @classmethod
    def of(cls, launcher: Launcher, seed: int) -> Self:
        """Return the round of a seed."""
        chance = random.Random(f"{launcher} {seed}")
        faults = cast(list[Fault], FAULTS.split(","))
        fault = faults[seed % len(faults)]
        moments = {"raise": MOMENTS[3:-1], "processes": MOMENTS[2:]}.get(fault, MOMENTS)
        return cls(
            launcher=launcher,
            fault=fault,
            moment=chance.choice(moments),
            after=chance.uniform(0, 1.5),
            victim=chance.randrange(len(NODES)),
            lost_after=chance.choice((5, 12)),
            patience=chance.choice((6, 1800)),
            teardown=chance.uniform(5, 20),
            how=chance.choice(("atexit", "thread")),
            stops=chance.choice((False, True)),
        )

    @property
    def node(self) -> str:
        """The node of the victim."""
        return NODES[self.victim]

    @property
    def may_finish(self) -> bool:
        """All ranks may end well, and the node which was cut off tells that when it is back."""
        return self.fault == "link-down" and self.moment == "end"

    def wrong(self, where: str, said: Mapping[str, Any]) -> list[str]:
        """Return what is wrong in what a command or a record said of the end."""
        cause = said.get("first_cause") or {}
        found = (said.get("state"), said.get("ended_by"), cause.get("node"), cause.get("rank"))
        if self.fault == "raise":
            wrong = found != ("failed", "job", self.node, self.victim)
            wrong |= "ValueError: bad sample 17" not in cause.get("message", "")
        else:
            wrong = found != ("lost", "lost", self.node, None) or cause.get("kind") != "node-lost"
            wrong |= f"--exclude {self.node}" not in cause.get("remedy", "")
        return [
            f"{where}: {found}, {cause.get('kind')}: {cause.get('message')}; {cause.get('remedy')}"
        ] * wrong


def launch(project: Project, one: Round) -> subprocess.Popen[str]:
    marks = Path(project.workdir).parent / "marks"
    inventory = yaml.safe_load(project.inventory.read_text())
    init = f"n=$(hostname | tr -dc 0-9); cd {marks}; test -e check-$n && touch env_init-$n"
    init = f"({init} || touch check-$n)"
    job = {"env_init": f"{init}; sleep 3" if one.moment in REFUSED else init}
    project.inventory.write_text(yaml.safe_dump(inventory | {"job": job}, sort_keys=False))
    here = project.sandbox.shared / "marks"
    shutil.rmtree(here, ignore_errors=True)
    here.mkdir()
    here.chmod(0o777)
    project.placed.mkdir(exist_ok=True)
    (project.placed / "train.py").write_text(TRAIN)
    env = {
        "MARKS": marks,
        "VICTIM": one.victim,
        "RAISES": one.moment if one.fault == "raise" else "",
        "TEARDOWN": one.teardown,
        "HOW": one.how,
        "PATIENCE": one.patience,
    }
    words = [word for key, value in env.items() for word in ("--env", f"{key}={value}")]
    words += ["--lost-after", str(one.lost_after), "--procs-per-node", "1"]
    words += ["--launcher", one.launcher, "--no-check", "--no-sync", "--json"]
    words += ["--", "train.py"]
    with (project.folder / "launch.jsonl").open("wb") as file:
        return project.start("launch", *words, stdout=file, stderr=subprocess.STDOUT)


def mark(project: Project, one: Round) -> Path:
    number = one.victim + 1 if one.moment in REFUSED else one.victim
    return project.sandbox.shared / "marks" / f"{one.moment}-{number}"


def lose(project: Project, one: Round) -> None:
    if one.fault != "processes":
        project.sandbox.fault(one.node, one.fault)
        return
    started = [event for event in said(project) if event["kind"] == "started"]
    (pid,) = [event["pid"] for event in started if event["node"] == one.node]
    # The guard too, so that nobody is left there to say why.
    kill = f"import os; os.killpg(os.getpgid({pid}), 9)"
    killed = project.sandbox.on(one.node, [sys.executable, "-c", kill])
    assert killed.returncode == 0, killed.stderr


def said(project: Project) -> list[dict[str, Any]]:
    """Return what launch has printed."""
    lines = (project.folder / "launch.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def play(project: Project, one: Round) -> list[str]:
    """Play a round; return what named another cause."""
    following = launch(project, one)
    until = time.monotonic() + BUSY
    while not mark(project, one).exists():
        assert following.poll() is None, said(project)
        assert time.monotonic() < until
        time.sleep(0.02)
    if one.fault != "raise":
        time.sleep(one.after)
        lose(project, one)
    code = following.wait(timeout=2 * BUSY)
    ended = said(project)[-1]
    if one.moment in REFUSED and ended["ended_by"] in {"check", "start"}:
        project.sandbox.heal()
        first, *_ = ended["message"].removeprefix("not launched: ").splitlines()
        named = [name for name in NODES if name in first]
        right = named == [one.node] and code == LaunchRefused.exit_code
        return [f"{code}: {ended['message']}"] * (not right)
    run = ended["run"]
    wrong = one.wrong("launch", ended)
    expected = 1 if one.fault == "raise" else LaunchRefused.exit_code
    if (code, ended["exit_code"]) != (expected, expected):
        wrong.append(f"exit code: {code}, {ended['exit_code']}")
    last = project.status(run)
    wrong += one.wrong("status", last)
    if project.sandbox.faults():
        project.sandbox.heal()
        if one.stops:
            stopped = project.run("stop", run)
            if stopped.returncode:
                wrong.append(f"stop: {stopped.returncode}: {stopped.stdout}{stopped.stderr}")
        last = project.status(run)
        if not (one.may_finish and last["state"] == "finished"):
            wrong += one.wrong("status when it is back", last)
    (path,) = project.state.glob(f"*/{run}/end.json")
    record = json.loads(path.read_text())
    if last["state"] != "finished" or record["state"] != "finished":
        wrong += one.wrong("record", record)
    return wrong


@pytest.mark.timeout(0)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_each_round_names_its_cause(
    make_sandbox: MakeSandbox, make_project: MakeProject, launcher: Launcher
) -> None:
    project = make_project(make_sandbox(nodes=len(NODES)))
    seed = int(os.environ.get("CLUSTERCTL_SOAK_SEED", "0"))
    rounds = int(os.environ.get("CLUSTERCTL_SOAK_ROUNDS", "50"))
    wrong: dict[str, list[str]] = {}
    for number in range(seed, seed + rounds):
        one = Round.of(launcher, number)
        began = time.monotonic()
        found = play(project, one)
        seconds = time.monotonic() - began
        print(
            f"{launcher} {number}: {found or 'right'}, {seconds:.0f} s, {asdict(one)}", flush=True
        )
        if found:
            wrong[f"seed {number}: {asdict(one)}"] = found
    assert not wrong
