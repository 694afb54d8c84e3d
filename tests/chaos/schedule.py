"""What is to go wrong in one run, drawn from a seed. Pure: the same seed is the same schedule."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal, get_args

from clusterctl.inventory.cluster import LauncherName

NODES = 3
EARLY_SHARE = 0.15
LOST_AFTER = 10.0
GRACE = 2.0
"""Seconds that the job asks for at a stop."""
PAUSE = 4.0
SHORT_CUT = 3.0
SILENCE = 9.0
AWAY = 4.0
"""Seconds until a mount of checkpoints is there again, or its disk has room."""
LONGEST_GAP = 4.0

Form = Literal["plain", "shell", "daemons", "deaf"]
"""`shell`: a script with `&` and `wait`; `daemons`: forks, and sessions of their own."""

Mild = Literal["controller", "guard", "pause", "cut", "sessions", "sshd", "resume"]
"""What changes nothing: kill -9 of `launch` or of the guard, a supervisor stopped for a while, a
data network cut for a while, SSH sessions or the whole sshd killed, a resume of what still runs."""
Hard = Literal["rank", "agent", "supervisor", "cut-off", "power", "disk", "stop", "stops"]
"""What ends the run: kill -9 of a rank, of torchrun or of the supervisor, a data network cut for
good, a node without power, a full disk under the run's folder, a `stop`, two at the same time."""
Healing = Literal["hang", "silence", "mount", "mount-off", "full", "full-off"]
"""What only runs that restart are given, see `healing`: a rank stopped for good; a data network cut
for so long that the ranks give up; the mount of the checkpoints dead for a while, or for good; its
disk full for a while, or for good as a rank dies there."""
Kind = Mild | Hard | Healing

MILD: tuple[Mild, ...] = get_args(Mild)
HARD: tuple[Hard, ...] = get_args(Hard)
FORMS: tuple[Form, ...] = get_args(Form)

OUTLIVED: frozenset[Kind] = frozenset({"guard", "pause"})
"""Faults that end no run, however early they come: their victim is a supervisor's process, which
is there only once its node has begun."""

TORCHRUN_SHARE = 0.2
"""torchrun imports torch on every node, which costs ten times what the rest of a run does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong."""

    kind: Kind
    node: int
    """Where; it means nothing for what happens at the controller."""
    after: float
    """Seconds since the fault before it; for the first one since every rank has written."""

    def __str__(self) -> str:
        """Return it as one word."""
        return f"+{self.after:.2f}s:{self.kind}@node{self.node + 1}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """One run and its faults."""

    seed: int
    launcher: LauncherName
    form: Form
    procs: int
    """Ranks of each node."""
    early: bool
    """The first fault comes while the run starts: `after` is since it was planned. One without
    delay comes as soon as `launch` begins, before there is anything of the run."""
    faults: tuple[Fault, ...]

    def __str__(self) -> str:
        """Return it as one line."""
        when = " early" if self.early else ""
        faults = " ".join(map(str, self.faults))
        return f"{self.launcher} {self.form} x{self.procs}{when} {faults}"


def draw(seed: int) -> Schedule:
    """Draw the schedule of a seed."""
    dice = random.Random(seed)
    launcher: LauncherName = "torchrun" if dice.random() < TORCHRUN_SHARE else "direct"
    form = dice.choice(FORMS)
    procs = 2 if dice.random() < 0.2 else 1
    known: list[Kind] = [*MILD, *HARD]
    if launcher == "direct":
        known.remove("agent")
    kinds = dice.sample(known, dice.choice((1, 2, 2, 3)))
    nodes: dict[Kind, int] = {}
    gaps: dict[Kind, float] = {}
    for kind in kinds:
        nodes[kind] = dice.randrange(NODES)
        gaps[kind] = round(_gap(dice), 2)
    if "disk" in nodes and nodes["disk"] == nodes.get("power"):
        nodes["disk"] = (nodes["disk"] + 1) % NODES  # that disk is in memory
    return Schedule(
        seed=seed,
        launcher=launcher,
        form=form,
        procs=procs,
        early=dice.random() < EARLY_SHARE,
        faults=tuple(Fault(kind=kind, node=nodes[kind], after=gaps[kind]) for kind in kinds),
    )


def _gap(dice: random.Random) -> float:
    """Return how long until the next fault: often at once, as faults come in company."""
    return dice.choice((0.0, dice.uniform(0.0, 1.0), dice.uniform(0.0, LONGEST_GAP)))
