"""Plays schedules of faults on a real training that restarts itself, and judges what it came to.

Whatever goes wrong, what is restarted ends with the adapter of an undisturbed training, bit for
bit. What must end does so in a documented state, and says why no attempt follows.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from clusterctl.node.restart.judgement import NO_PROGRESS
from tests.chaos import faults, healing_rules, invariants, light_training
from tests.chaos.faults import CHECKPOINTS, Target
from tests.chaos.healed_job import ATTEMPTS
from tests.chaos.healing_rules import ENDING, OUTLIVED, REPLACED, RESTARTED, RESTARTS, SILENT
from tests.chaos.invariants import Done
from tests.chaos.lateness import Meter
from tests.chaos.play import LAST_WAIT, START, Played, judge_remains
from tests.chaos.schedule import GRACE, LOST_AFTER, NODES, SILENCE, Fault, Kind
from tests.chaos.stage import Stage
from tests.cli.runs import ROOT
from tests.train.tiny import LONGEST, make_corpus, make_model
from tests.train.world import World, context
from train.config.config import Config

STEPS, SAVE_STEPS = 12, 2
FIRST_LIMIT, MORE = 3, 3
"""Steps that the training may do before the first fault, and more of them after each."""
HANG_AFTER = 6.0
STEP_TIMEOUT = 5
"""Of collectives, if the data network is cut for longer."""
END = 240.0
"""Seconds until a run is over once nothing keeps it: each attempt imports torch."""
SMALL_DISK = "8m"
NOTICED_LATER: frozenset[Kind] = frozenset({"hang", "silence"})
"""Faults that ranks notice by waiting for each other."""
SHORT, LONG = 4.0, 15.0
"""Seconds until the next fault: a part of an attempt, or some of two."""

Program = Literal["train", "light"]
Storage = Literal["shared", "per-node"]
SPARE_SHARE = 0.4
"""Of those whose checkpoints a spare node sees."""
TRAIN_SHARE = 0.2
"""It imports torch on every node in each attempt, which costs 20 times what the rest does."""

TRAINING: dict[str, Any] = {
    "seq_len": LONGEST,
    "global_batch_size": 6,
    "per_device_train_batch_size": 2,
    "learning_rate": 1e-2,
    "save_total_limit": STEPS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Healing:
    """One training and its faults."""

    seed: int
    program: Program
    launcher: Literal["direct", "torchrun"]
    storage: Storage
    early: bool
    """The first fault comes while ranks start; `after` is since every node has begun."""
    progress: tuple[bool, ...]
    """Whether the training gets further before each fault but the first."""
    faults: tuple[Fault, ...]
    spare: bool = False
    """The last node stands by."""

    def __str__(self) -> str:
        """Return it as one line."""
        when = (" spare" if self.spare else "") + (" early" if self.early else "")
        stands = "".join(" " + ("+" if p else "") + str(f) for p, f in self._each())
        return f"{self.program} {self.launcher} {self.storage}{when}{stands}"

    @property
    def world(self) -> int:
        """Return how many ranks it has."""
        return NODES - self.spare

    def _each(self) -> Iterator[tuple[bool, Fault]]:
        return zip(self.progress, self.faults, strict=True)


def draw(seed: int) -> Healing:
    """Draw the schedule of a seed."""
    dice = random.Random(seed)
    program: Program = "train" if dice.random() < TRAIN_SHARE else "light"
    launcher: Literal["direct", "torchrun"] = "torchrun" if dice.random() < 0.1 else "direct"
    storage = dice.choice(get_args(Storage))
    restarted = [k for k in RESTARTED if k != "agent" or launcher == "torchrun"]
    others: list[Kind] = [*OUTLIVED, "full" if storage == "per-node" else "mount"]
    ending = set(ENDING) - {"mount-off" if storage == "per-node" else "full-off"}
    kinds: list[Kind] = [*dice.choices(restarted, k=dice.choice((0, 1, 1, 2)))]
    kinds += dice.sample(others, dice.choice((0, 1, 1, 2)))
    dice.shuffle(kinds)
    if dice.random() < 0.35 or not kinds:
        kinds.append(dice.choice(sorted(ending)))
    silent = [kind for kind in kinds if kind in SILENT][1:]
    for kind in silent:
        kinds.reverse()
        kinds.remove(kind)
        kinds.reverse()
    found = [Fault(kind=k, node=dice.randrange(NODES), after=round(_gap(dice), 2)) for k in kinds]
    guards = {fault.node for fault in found if fault.kind == "guard"}
    for number, fault in enumerate(found):
        if fault.kind == "supervisor" and fault.node in guards:  # nobody is left to end the run
            found[number] = dataclasses.replace(fault, node=(fault.node + 1) % NODES)
    drawn = Healing(
        seed=seed,
        program=program,
        launcher=launcher,
        storage=storage,
        early=dice.random() < 0.2,
        progress=tuple(dice.random() < 0.6 for _ in found),
        faults=tuple(found),
    )
    if program == "light" and storage == "shared" and dice.random() < SPARE_SHARE:
        return _with_spare(drawn, dice)
    return drawn


def _with_spare(drawn: Healing, dice: random.Random) -> Healing:
    """Let the last node stand by, and another, or itself, be lost as the last that goes wrong."""
    kept = [f for f in drawn.faults if f.kind not in ENDING and f.kind not in SILENT]
    kind: Kind = dice.choice(REPLACED)
    lost = Fault(kind=kind, node=dice.choice((1, 1, 2)), after=round(_gap(dice), 2))
    progress = (*drawn.progress[: len(kept)], True)
    return dataclasses.replace(drawn, spare=True, faults=(*kept, lost), progress=progress)


def _gap(dice: random.Random) -> float:
    return dice.choice((0.0, dice.uniform(0.0, SHORT), dice.uniform(0.0, LONG)))


# The play.


def play(stage: Stage, schedule: Healing) -> Played:
    """Play a schedule to its end; the hosts are whole again afterwards."""
    played = Played(schedule)
    _set_up(stage, schedule)
    limit = stage.box.shared / "limit"
    limit.write_text(str(FIRST_LIMIT))
    output = CHECKPOINTS if schedule.storage == "per-node" else "/shared/checkpoints"
    words = ["launch", "--json", "--no-check", "--no-sync", "--launcher", schedule.launcher]
    lost_after = LOST_AFTER + (SILENCE if "silence" in _kinds(schedule) else 0)
    words += ["--restarts", str(RESTARTS), "--lost-after", f"{lost_after:g}"]
    words += ["--spares", "1"] if schedule.spare else []
    words += ["--start-timeout", f"{START:g}", "--procs-per-node", "1", "--", "healed_job.py"]
    words += [
        schedule.program,
        "/shared/limit",
        str(STEPS),
        str(SAVE_STEPS),
        "--config",
        "healed.yaml",
        "--output-dir",
        output,
    ]
    target = Target(stage=stage, launch=stage.start("launch", *words), checkpoints=output)
    if not stage.wait(lambda: _begun(target, schedule) or target.launch.over(), START):
        played.wrong.append("launch: the ranks did not begin")
    if target.launch.over() and not target.run:
        played.wrong.append("launch: ended without a run")
        return played
    _do_faults(target, schedule, played, limit)
    stage.finish_what_is_due()
    # A stop that is slow to start would find a training that has finished.
    stage.wait(lambda: all(verb.over() for verb in target.stops), LAST_WAIT)
    limit.write_text(str(STEPS))
    played.run = target.run
    if not stage.wait(lambda: _over(target), END, strictly=False):
        alive = {
            node: [s.argv[:100] for s in stage.of_run(node, target.run)] for node in _there(stage)
        }
        played.wrong.append(f"the run did not end: {alive}")
    if not stage.wait(target.launch.over, LAST_WAIT + 10, strictly=False):
        played.wrong.append("launch: did not end with the run")
    for verb in target.stops:
        stage.end(verb)
    _judge(target, schedule, played)
    judge_remains(stage, played)
    played.late = stage.meter.late
    faults.clear(stage)
    for name in ("checkpoints", "alive"):
        shutil.rmtree(stage.box.shared / name, ignore_errors=True)
    return played


def _kinds(schedule: Healing) -> set[Kind]:
    return {fault.kind for fault in schedule.faults}


def _set_up(stage: Stage, schedule: Healing) -> None:
    """Put what is trained on the hosts, once, and the job of this schedule into the inventory."""
    shared, code = stage.box.shared, stage.box.shared / "code"
    for name in ("healed_job.py", "light_training.py"):
        shutil.copy(Path(__file__).parent / name, code)
    if schedule.program == "train" and not (shared / "tiny").exists():
        make_tiny(shared / "tiny")
        shutil.copytree(ROOT / "train", code / "train")  # compiled: each rank would do it
    config = {
        **TRAINING,
        "name_or_path": "/shared/tiny/model",
        "dataset_path": "/shared/tiny/train.jsonl",
        "cache_dir": "/shared/tiny/tokens",
    }
    if "silence" in _kinds(schedule):
        config["step_timeout"] = STEP_TIMEOUT
    (code / "healed.yaml").write_text(yaml.safe_dump(config))
    job: dict[str, Any] = {
        "env": {
            "OMP_NUM_THREADS": "1",
            "LIGHT_STORAGE": schedule.storage,
            "LIGHT_TIMEOUT": str(STEP_TIMEOUT if "silence" in _kinds(schedule) else 300),
        },
        "checkpoints": CHECKPOINTS if schedule.storage == "per-node" else "/shared/checkpoints",
        "resume_args": ["--resume-from-checkpoint", "{checkpoint}"],
        "stop": {"grace": GRACE, "leftovers": 1},
    }
    if "hang" in _kinds(schedule):
        job["hang"] = {"after": HANG_AFTER, "action": "restart"}
    document = yaml.safe_load(stage.inventory.read_text()) | {"job": job}
    stage.inventory.write_text(yaml.safe_dump(document, sort_keys=False))
    (shared / "checkpoints").mkdir(exist_ok=True)  # a fault may come before the first save
    if schedule.storage == "per-node":
        script = 'mkdir -p "$1" && mount -t tmpfs -o size="$2",mode=700 chaos "$1"'
        for node in stage.nodes:
            stage.box.on(node, ["sh", "-c", script, "disk", CHECKPOINTS, SMALL_DISK])


def _begun(target: Target, schedule: Healing) -> bool:
    """Tell whether every node has begun, and unless the faults are early every rank trains."""
    started = {one["node"] for one in target.launch.documents() if one["kind"] == "started"}
    counts = target.stage.witnesses(target.run)
    early = schedule.early or (len(counts) > 0 and min(counts.values()) > FIRST_LIMIT)
    ready = len(counts) == schedule.world and early
    return ready and started == set(target.stage.nodes)


def _do_faults(target: Target, schedule: Healing, played: Played, limit: Path) -> None:
    stage, steps = target.stage, FIRST_LIMIT
    stage.meter = Meter()
    for number, fault in enumerate(schedule.faults):
        if number and schedule.progress[number]:
            steps += MORE
            limit.write_text(str(steps))
        stage.sleep(fault.after)
        began = time.monotonic()
        hit = not _over(target) and faults.do(target, fault)
        played.dones.append(Done(fault=fault, began=began, ended=time.monotonic(), hit=hit))
        if fault.kind in NOTICED_LATER:
            steps += MORE
            limit.write_text(str(steps))


def _there(stage: Stage) -> list[str]:
    return [node for node in stage.nodes if stage.first(node) is not None]


def _over(target: Target) -> bool:
    """Tell whether the run is over on every node that is on."""
    return not any(target.stage.of_run(node, target.run) for node in _there(target.stage))


# What must hold.


def _judge(target: Target, schedule: Healing, played: Played) -> None:
    stage, wrong, run = target.stage, played.wrong, target.run
    faults.heal(stage)
    status = stage.call("status", "status", "--json", run)
    logs = stage.call("logs", "logs", "--raw", run)
    last = stage.call("stop", "stop", run)
    wrong += invariants.wrong_code("status", status.status, 0)
    wrong += invariants.wrong_code("logs", logs.status, 0)
    wrong += invariants.wrong_code("last stop", last.status, 0)
    document = json.loads(status.out.read_text()) if status.status == 0 else {}
    wrong += healing_rules.wrong_end(document, played.dones, stage.nodes, spare=schedule.spare)
    if not target.launch.killed:
        ended = target.launch.first("ended") or {}
        wrong += invariants.wrong_code("launch", target.launch.status, *_codes(document))
        if ended.get("state") != document.get("state"):
            wrong.append(f"launch: ended {ended.get('state')}, status: {document.get('state')}")
    if document.get("state") == "finished":
        wrong += _wrong_adapters(stage, schedule)
    begins, events = _begins(stage, run), _events(stage, run)
    unmounted = any(done.hit and "mount" in done.fault.kind for done in played.dones)
    wrong += healing_rules.wrong_attempts(begins, events, schedule.world, unmounted=unmounted)
    wrong += healing_rules.wrong_waits(events[stage.nodes[0]])
    for verb in target.stops:
        if verb.status == 0 and verb.ended is not None:
            wrong += healing_rules.wrong_after_stop(
                time.time() - (time.monotonic() - verb.ended), events
            )
    counts = stage.witnesses(run)
    lines = logs.out.read_text().splitlines()
    wrong += invariants.wrong_lines("logs", lines, counts, whole=True)
    for number, node in enumerate(stage.nodes):
        if schedule.spare and number:
            continue  # both may have had rank 1
        path = stage.part(node, run) / "ranks" / f"{number}.log"
        own = {rank: count for rank, count in counts.items() if rank % ATTEMPTS == number}
        kept = path.read_text(errors="replace").splitlines() if path.exists() else []
        wrong += invariants.wrong_lines(f"{node}: {path.name}", kept, own, whole=True)


def _codes(document: Mapping[str, Any]) -> tuple[int, ...]:
    code = invariants.code_of(document)
    return (code,) if not document.get("no_restart") else (code, NO_PROGRESS)


def _begins(stage: Stage, run: str) -> list[dict[str, Any]]:
    found = []
    for node in stage.nodes:
        folder = stage.box.folder(node) / "workspace" / "witness" / f"{run}.begins"
        found += [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    return found


def _events(stage: Stage, run: str) -> dict[str, list[dict[str, Any]]]:
    found = {}
    for node in stage.nodes:
        path = stage.part(node, run) / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        found[node] = [json.loads(line) for line in lines]
    return found


def _wrong_adapters(stage: Stage, schedule: Healing) -> list[str]:
    folders = {"all": stage.box.shared / "checkpoints"}
    if schedule.storage == "per-node":
        folders = {n: Path(f"/proc/{stage.first(n)}/root{CHECKPOINTS}") for n in stage.nodes}
    wrong = []
    for node, folder in folders.items():
        path = folder / "adapter" / "adapter_model.safetensors"
        if not path.exists():
            wrong.append(f"{node}: there is no adapter")
        elif path.read_bytes() != undisturbed(schedule.program, schedule.world):
            wrong.append(f"{node}: the adapter is another than that of an undisturbed training")
    return wrong


@cache
def undisturbed(program: Program, world: int) -> bytes:
    """Return the adapter of the same training without restarts, on this machine alone."""
    if program == "light":
        state = b""
        for step in range(1, STEPS + 1):
            parts = [light_training.part(state, rank, step) for rank in range(world)]
            state = light_training.chain(state, parts)
        return state
    with tempfile.TemporaryDirectory() as name:
        make_tiny(Path(name))
        base = Config(name_or_path=f"{name}/model", dataset_path=f"{name}/train.jsonl", **TRAINING)
        done = World(Path(name), base).run(nodes=(1,) * world, max_steps=STEPS)
        return (done.output / "adapter" / "adapter_model.safetensors").read_bytes()


def make_tiny(folder: Path) -> None:
    """Write a model and what it learns, in a process that has torch, as the ranks have."""
    os.environ["OMP_NUM_THREADS"] = "1"
    made = context().Process(target=make_model, args=(folder / "model",))
    made.start()
    made.join()
    assert made.exitcode == 0
    make_corpus(folder / "train.jsonl", 60)
