"""Refuses a command that starts a launcher, and makes the one to type instead."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from clusterctl.errors import UsageError
from clusterctl.inventory.cluster import Cluster
from clusterctl.inventory.ranges import fold_hosts
from clusterctl.inventory.wrap import APPTAINER_LIKE, DOCKER_LIKE
from clusterctl.node.supervisor.worlds.launcher_names import PYTHON
from clusterctl.plan.command.calls import SCRIPTS, Call, calls_of_words
from clusterctl.plan.command.launcher_flags import (
    EXCLUDE,
    GPUS,
    INCLUDE,
    OURS,
    READ_ENVIRONMENT,
    VISIBLE,
    hosts_and_gpus,
    kind_of,
    shell_words,
    start_of,
    words_for_gpus,
)
from clusterctl.plan.launchers import find_launcher

_SUBMITTERS = {
    ("sbatch",): "clusterctl launch --launcher slurm --",
    ("ray", "job", "submit"): "clusterctl launch --launcher ray --",
}
"""Commands that submit a job, and what does so here."""
_RAY_DRIVERS = frozenset(
    {
        "openrlhf.cli.train_ppo_ray", "verl.trainer.main_generation",
        "verl.trainer.main_generation_server", "verl.trainer.main_ppo",
        "verl.trainer.main_ppo_v0", "verl.trainer.sft_trainer_ray",
    }
)  # fmt: skip
"""Modules that run once and ask Ray for workers on all nodes."""
_TERMINALS = frozenset({"screen", "tmux"})
_ACCELERATE_ENV = {
    "--mixed-precision": "ACCELERATE_MIXED_PRECISION",
    "--gradient-accumulation-steps": "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
    "--num-cpu-threads-per-process": "OMP_NUM_THREADS",
}
"""What accelerate's own launcher does with these flags."""


def once_a_node(command: tuple[str, ...], env: Iterable[str] = ()) -> str:
    """Return the command that runs a script with a launcher once per node."""
    # Without a slash it would be looked for in PATH.
    bare = command and command[0].endswith(SCRIPTS) and "/" not in command[0]
    words = shlex.join(("bash", *command) if bare else command) or "COMMAND"
    sets = "".join(f" --env {shlex.quote(each)}" for each in env)
    return f"clusterctl launch --launcher direct --procs-per-node 1{sets} -- {words}"


@dataclass(slots=True)
class Typed:
    """The command to type instead of one for other launchers."""

    cluster: Cluster
    nodes: str = ""
    count: int | None = None
    """Number of nodes, if it was given as a number."""
    per_node: int | None = None
    total: int | None = None
    flags: dict[str, str] = field(default_factory=dict)
    launcher: str = ""
    args: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    detach: bool = False
    program: tuple[str, ...] = ()
    unknown: list[tuple[str, str]] = field(default_factory=list)
    """Launchers and words of theirs that have no equivalent."""
    around: list[tuple[str, ...]] = field(default_factory=list)

    @classmethod
    def of(cls, call: Call, cluster: Cluster) -> Typed:
        """Translate a call."""
        shell = shell_words(call.words)
        typed = cls(cluster=cluster, detach="&" in shell[-1:])
        typed.add(replace(call, words=call.words[: len(call.words) - len(shell)]))
        return typed

    def add(self, call: Call) -> None:
        """Add a call, and what its launchers start in turn."""
        self.env |= {name: value for name, value in call.env if name not in OURS}
        self.around += [words for words in call.around if words[:1] != ("nohup",)]
        self.detach |= any(words[0] in {"nohup", *_TERMINALS} for words in call.around)
        start = start_of(call.words)
        if start is None:
            self.program = _plain(call.words)
            return
        if start.name.split()[0] in READ_ENVIRONMENT:
            self.launcher, self.program = "direct", call.words
            if start.name.startswith(("llamafactory-cli", "lmf")):
                self.env.setdefault("FORCE_TORCHRUN", "1")
            gpus = {node.gpus_wanted for node in self.cluster.nodes}
            if start.name.startswith(("swift", "megatron")) and len(gpus) == 1 and all(gpus):
                # Without it, ms-swift uses one GPU of each node.
                self.env.setdefault("NPROC_PER_NODE", str(*gpus))
            return
        # What a launcher starts knows the ranks of a node better: `srun torchrun`.
        for flag, value, written in start.flags:
            self._flag(start.name, flag, value, written)
        inner = calls_of_words(start.program) if start.program and not start.module else ()
        if len(inner) == 1 and inner[0].words:
            self.add(inner[0])
        else:
            self.program = (*(("-m",) if start.module else ()), *(start.program or ("train.py",)))

    def _flag(self, name: str, flag: str, value: str, written: tuple[str, ...]) -> None:
        kind = kind_of(name)
        number = int(value) if value.isdecimal() else None
        # Single GPUs cannot be excluded.
        ours = None if flag == EXCLUDE and ":" in value else kind.ours.get(flag)
        if flag in kind.variables:
            self.env |= {kind.variables[flag]: value, "LT_CLI_USED": "1"}
        if flag in kind.env:
            variable, equals, given = value.partition("=")
            if equals and variable not in OURS:
                self.env[variable] = given
        elif kind.passes(flag):
            self.args += [flag if len(written) > 1 else written[0], *written[1:]]
            self.launcher = "accelerate" if name == "accelerate launch" else self.launcher
        elif ours == GPUS and flag in kind.total:
            self.total = number or self.total
        elif ours == GPUS:
            # A task may have several GPUs.
            known = self.per_node if flag == "--gpus-per-node" else None
            self.per_node = known or number or self.per_node
        elif ours in {INCLUDE, EXCLUDE, VISIBLE, "--nodes"}:
            self._nodes(ours, value)
        elif ours and value:
            self.flags[ours] = value
        elif ours is None and flag not in {*kind.ignored, *kind.variables}:
            self.unknown += [(name, word) for word in written]

    def _nodes(self, ours: str, value: str) -> None:
        if ours == INCLUDE:
            self._include(value)
            return
        if ours == EXCLUDE:
            self.flags[ours] = value.replace("@", ",")
            return
        if ours == VISIBLE:
            if value != "all":
                self._gpus(value)
            return
        least, _, most = value.partition(":")
        if most not in {"", least}:
            self.args.append(f"--nnodes={value}")
        elif least.isdecimal():
            self.count = int(least)

    def _include(self, value: str) -> None:
        """Take over deepspeed's `host:0,1@host2:0,1`."""
        hosts, gpus = hosts_and_gpus(value)
        counts = {len(numbers.split(",")) for numbers in gpus}
        if len(gpus) == 1:
            self._gpus(*gpus)
        elif len(counts) == 1:
            self.per_node = counts.pop()
        if hosts == ("localhost",):
            self.count = 1
        else:
            self.nodes = ",".join(hosts)

    def _gpus(self, numbers: str) -> None:
        """Take over which GPUs each node is to use."""
        flag, value = words_for_gpus(numbers)
        if flag == GPUS:
            self.per_node = int(value)
        else:
            self.env[VISIBLE] = numbers

    def words(self) -> tuple[str, ...]:
        """Return the command to type."""
        known, nodes = len(self.cluster.nodes), self.nodes
        if not nodes and self.count and self.count < known:
            nodes = str(self.count)  # `--nnodes 2` on two nodes needs no flag
            if self.cluster.left_out:  # a number would count those, too
                nodes = fold_hosts(node.name for node in self.cluster.nodes[: self.count])
        ranks = self.per_node
        if ranks is None and self.total is not None:
            ranks = max(1, self.total // (self.count or known or 1))
        cpus = known > 0 and all(node.gpus_wanted == 0 for node in self.cluster.nodes)
        args, env = list(self.args), dict(self.env)
        if self.launcher == "accelerate" and not any(a.startswith("--config") for a in args):
            taken = _as_environment(args)
            args, env, launcher = ([], env | taken, "") if taken else (args, env, "accelerate")
        else:
            launcher = self.launcher
        return (
            *("clusterctl", "launch"),
            *(("--launcher", launcher) if launcher else ()),
            *(("--procs-per-node", "1") if launcher == "direct" else ()),
            *((f"--launcher-args={shlex.join(args)}",) if args else ()),
            *(("--nodes", nodes) if nodes else ()),
            *(("--procs-per-node" if cpus else GPUS, str(ranks)) if ranks else ()),
            *(word for pair in self.flags.items() for word in pair),
            *(word for name, value in env.items() for word in ("--env", f"{name}={value}")),
            *(("--detach",) if self.detach else ()),
            "--",
            *self.program,
        )

    def notes(self) -> tuple[str, ...]:
        """Return what the command to type does not take over, and where it belongs."""
        found = []
        for name in dict.fromkeys(name for name, _ in self.unknown):
            words = shlex.join(word for each, word in self.unknown if each == name)
            place = "--launcher-args" if name in {"torchrun", "accelerate launch"} else "--env"
            found.append(
                f"clusterctl has no option for {words}: put {name}'s settings into {place}"
            )
        found += [f"{shlex.join(words)}: {_place_of(words)}" for words in self.around]
        return tuple(found)


def _place_of(words: tuple[str, ...]) -> str:
    """Return where the inventory has what a program in front does."""
    name = posixpath.basename(words[0])
    if name in DOCKER_LIKE | APPTAINER_LIKE:
        wrap = ", ".join(
            word if re.fullmatch(r"[\w./=-]+", word) else f'"{word}"' for word in words
        )
        return f"`wrap: [{wrap}]` under `job:` in the inventory starts the container"
    if name in {"uv", "poetry", "pdm", "pipenv", "rye", "pixi", "conda", "mamba", "micromamba"}:
        return "`python:` in the inventory names the environment's interpreter"
    if name in {*_TERMINALS, "setsid"}:
        return "--detach leaves the run alone"
    return "`wrap:` under `job:` in the inventory starts it around each rank"


def _as_environment(args: list[str]) -> dict[str, str]:
    """Return variables for accelerate's flags; none if one of them has no variable."""
    found: dict[str, str] = {}
    words = [part for word in args for part in word.split("=", 1)]
    if len(words) % 2:
        return {}
    for flag, value in zip(words[::2], words[1::2], strict=False):
        name = _ACCELERATE_ENV.get(flag.replace("_", "-"))
        if name is None:
            return {}
        found[name] = value
    return found


def _plain(words: tuple[str, ...]) -> tuple[str, ...]:
    """Drop the interpreter: clusterctl runs scripts and modules with the node's own."""
    if len(words) > 1 and PYTHON.fullmatch(posixpath.basename(words[0])):
        after = words[2:] if words[1] == "-u" else words[1:]
        return after or words
    return words


def require_no_launcher(cluster: Cluster) -> None:
    """Raise UsageError for a command that starts the ranks itself, unless it runs once per node.

    The hint is the command to type.
    """
    command = cluster.job.command
    where = "command" if cluster.origin("command", "") else "job.command"
    for words, hint in _SUBMITTERS.items():
        if (*map(posixpath.basename, command[:1]), *command[1 : len(words)]) == words:
            program = command[command.index("--") + 1 :] if "--" in command else ()
            wanted = shlex.join(_plain(program)) if words[0] == "ray" and program else "train.py"
            what = f"{shlex.join(words)}, which each rank would run: one job per rank"
            raise UsageError(
                f"{where}: expected the training program, found {what}", hint=f"{hint} {wanted}"
            )
    drivers = _RAY_DRIVERS.intersection(command)
    if drivers and "-m" in command and not find_launcher(cluster.job.launcher).one_driver:
        typed = Typed.of(calls_of_words(command)[0], cluster)
        typed.launcher = "ray"
        raise UsageError(
            f"{where}: expected a program that each rank runs, found {min(drivers)}, which asks"
            " Ray for workers: each rank would start a training of its own",
            hint=shlex.join(typed.words()),
        )
    if cluster.job.procs_per_node != 1:
        for call in calls_of_words(command):
            start = start_of(call.words)
            apart = bool(call.words) and _apart_in_container(call)
            if start is None and not apart:
                continue
            typed = Typed.of(call, cluster)
            what = f"the launcher {start.name}" if start else shlex.join(call.around[-1])
            why = "clusterctl itself starts a launcher on every node"
            if start is not None and start.name.split()[0] in READ_ENVIRONMENT:
                why = "it starts the ranks of a node itself, so it runs once per node"
            elif start is None:
                why = "a container gets no RANK there, so each rank would train alone"
            message = f"{where}: expected the training program, found {what}: {why}"
            notes = "".join(f"\n{where}: {note}" for note in typed.notes())
            raise UsageError(message + notes, hint=shlex.join(typed.words()))
    _require_program(command, where, cluster)


def _require_program(command: tuple[str, ...], where: str, cluster: Cluster) -> None:
    """Raise UsageError for what is in front, such as a variable, and is no program of the job."""
    calls = calls_of_words(command)
    script = calls[0].words[0] if calls and calls[0].words else ""
    terminals = [
        words[0] for words in (calls[0].around if script else ()) if words[0] in _TERMINALS
    ]
    if terminals:
        found = f"{terminals[0]}, which needs a terminal or leaves the program behind"
    elif command and re.match(r"[A-Za-z_]\w*=", command[0]):
        found = f"the variable {command[0]}"
    elif command[:1] == ("env",) and script.endswith(".py") and "/" not in script:
        found = f"the script {script} behind env, which runs programs only"
    else:
        return
    hint = shlex.join(Typed.of(calls[0], cluster).words())
    raise UsageError(f"{where}: expected a program, found {found}", hint=hint)


def _apart_in_container(call: Call) -> bool:
    """Tell whether a container in front keeps the rank's variables from a Python program."""
    program = posixpath.basename(call.words[0])
    daemons = [words for words in call.around if posixpath.basename(words[0]) in DOCKER_LIKE]
    passes = any(
        word == "--env-file" or word.startswith("--env-file=") or "RANK" in word
        for words in daemons
        for word in words
    )
    return bool(daemons) and not passes and PYTHON.fullmatch(program) is not None
