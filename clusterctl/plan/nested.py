"""Recognizes a launcher in a job's command, and prints the command to type instead.

clusterctl starts the launcher itself, once per node. A launcher inside each rank would start
independent trainings.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from clusterctl.errors import UsageError
from clusterctl.inventory.cluster import Cluster
from clusterctl.node.supervisor.launcher_names import MODULES, PROGRAMS, PYTHON, split_launcher


@dataclass(frozen=True, slots=True, kw_only=True)
class _Flags:
    """How to read the arguments of a launcher."""

    ours: dict[str, str]
    """Flag with a value → clusterctl's flag; empty: clusterctl chooses that itself."""
    ignored: frozenset[str] = frozenset()
    """Flags without a value that mean nothing here."""
    module: frozenset[str] = frozenset({"--module"})
    """Flags that make the next word a module's name."""
    pairs: frozenset[str] = frozenset()
    """Flags with two values."""
    total: frozenset[str] = frozenset()
    """Flags with the number of processes of all nodes together."""


_GPUS = "--gpus"
_KINDS = {
    "torchrun": _Flags(
        ours={
            "--nproc-per-node": _GPUS,
            "--nnodes": "--nodes",
            "--master-port": "--master-port",
            "--max-restarts": "--max-restarts",
            **dict.fromkeys(("--node-rank", "--master-addr", "--local-addr"), ""),
            **dict.fromkeys(("--rdzv-backend", "--rdzv-endpoint", "--rdzv-id"), ""),
        },
        ignored=frozenset({"--standalone", "--use-env", "--no-python"}),
        module=frozenset({"-m", "--module"}),
    ),
    "accelerate launch": _Flags(
        ours={
            "--num-processes": _GPUS,
            "--num-machines": "--nodes",
            "--main-process-port": "--master-port",
            "--max-restarts": "--max-restarts",
            "--mixed-precision": "--env ACCELERATE_MIXED_PRECISION=",
            "--gradient-accumulation-steps": "--env ACCELERATE_GRADIENT_ACCUMULATION_STEPS=",
            **dict.fromkeys(("--machine-rank", "--main-process-ip", "--rdzv-backend"), ""),
        },
        ignored=frozenset({"--multi-gpu", "--same-network", "--no-python"}),
        module=frozenset({"-m", "--module"}),
        total=frozenset({"--num-processes"}),
    ),
    "deepspeed": _Flags(
        ours={
            "--num-gpus": _GPUS,
            "--num-nodes": "--nodes",
            "--master-port": "--master-port",
            **dict.fromkeys(("--master-addr", "-H", "--hostfile", "--launcher", "--node-rank"), ""),
        },
        ignored=frozenset({"--no-ssh", "--force-multi", "--no-local-rank", "--no-python"}),
    ),
    "mpirun": _Flags(
        ours={
            **dict.fromkeys(("-n", "-np", "--np", "-c"), _GPUS),
            "-npernode": _GPUS,
            **dict.fromkeys(("-H", "--host", "-f", "--hostfile", "-hostfile", "--bind-to"), ""),
            **dict.fromkeys(("-bind-to", "--map-by", "-map-by"), ""),
        },
        ignored=frozenset({"--allow-run-as-root", "--oversubscribe"}),
        pairs=frozenset({"--mca", "-mca"}),
        total=frozenset({"-n", "-np", "--np", "-c"}),
    ),
    "srun": _Flags(
        ours={
            **dict.fromkeys(("-N", "--nodes"), "--nodes"),
            "--ntasks-per-node": _GPUS,
            "--gpus-per-node": _GPUS,
            **dict.fromkeys(("-n", "--ntasks"), _GPUS),
            **dict.fromkeys(("-p", "--partition", "-J", "--job-name", "-w", "--nodelist"), ""),
        },
        total=frozenset({"-n", "--ntasks"}),
    ),
}


def launcher_flag(flag: str) -> tuple[str, str, bool] | None:
    """Return whose a launcher's flag with a value is, and clusterctl's flag for it.

    The last item tells whether it counts the processes of all nodes together.
    """
    for name, kind in _KINDS.items():
        if flag in kind.ours:
            return name, kind.ours[flag], flag in kind.total
    return None


def require_no_launcher(cluster: Cluster) -> None:
    """Raise UsageError for a command that starts the ranks itself, unless it runs once per node.

    The hint is the command to type.
    """
    found = _launcher_of(cluster.job.command)
    if found is None or cluster.job.procs_per_node is not None:
        return
    name, rest = found
    command, unknown = _translated(name, rest, cluster)
    where = "command" if cluster.origin("command", "") else "job.command"
    message = (
        f"{where}: expected the training program, found the launcher {name}:"
        " clusterctl itself starts a launcher on every node"
    )
    if unknown:
        message += (
            f"\n{where}: clusterctl has no option for {shlex.join(unknown)}:"
            f" put {_options_of(name)} into job.launcher_args, and other settings into --env"
        )
    raise UsageError(message, hint=shlex.join(command))


def _options_of(name: str) -> str:
    if name == "accelerate launch":
        return "`launcher: accelerate` into the inventory's job, its options"
    return "torchrun's options"


def once_a_node(command: tuple[str, ...]) -> str:
    """Return the command that runs a script with a launcher once per node."""
    words = shlex.join(command) or "COMMAND"
    return f"clusterctl launch --launcher direct --procs-per-node 1 -- {words}"


def _launcher_of(command: tuple[str, ...]) -> tuple[str, tuple[str, ...]] | None:
    """Return the launcher that a command starts and its arguments; None if it starts none."""
    words = list(command)
    if words and posixpath.basename(words[0]) == "env":
        words = words[1:]
        while words and ("=" in words[0] or words[0].startswith("-")):
            words = words[2:] if words[0] in {"-u", "-C"} else words[1:]
    found = split_launcher(words)
    return (found[0], tuple(found[1])) if found else None


def _translated(
    name: str, rest: tuple[str, ...], cluster: Cluster
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the command to type, and the arguments without an equivalent."""
    kind = _KINDS[name]
    given: list[str] = []
    unknown: list[str] = []
    prefix: tuple[str, ...] = ()
    words = list(rest)
    while words and words[0].startswith("-"):
        written = words.pop(0)
        flag, equals, value = written.partition("=")
        flag = flag.replace("_", "-")
        if flag in kind.module:
            prefix = ("-m",)
        elif flag in kind.pairs:
            unknown += [written, *words[:2]]
            del words[:2]
        elif flag in kind.ours:
            if not equals and words:
                value = words.pop(0)
            given += _ours(kind, flag, value, cluster)
        elif flag not in kind.ignored:
            unknown.append(written)
            if not equals and _is_value(words):
                unknown.append(words.pop(0))
    known = _launcher_of(tuple(words)) is None  # mpirun torchrun: the inner one is next
    program = (*prefix, *_plain(words)) if known else tuple(words)
    return ("clusterctl", "launch", *given, "--", *(program or ("train.py",))), tuple(unknown)


def _plain(words: list[str]) -> list[str]:
    """Drop the interpreter: clusterctl runs scripts and modules with the node's own."""
    if len(words) > 1 and PYTHON.fullmatch(posixpath.basename(words[0])):
        after = words[2:] if words[1] == "-u" else words[1:]
        return after or words
    return words


def _is_value(words: list[str]) -> bool:
    """Tell whether the next word is probably the value of an unknown flag."""
    return (
        len(words) > 1
        and not words[0].startswith("-")
        and not words[0].endswith((".py", ".sh"))
        and not PYTHON.fullmatch(posixpath.basename(words[0]))
    )


def _ours(kind: _Flags, flag: str, value: str, cluster: Cluster) -> Iterator[str]:
    """Yield clusterctl's words for a launcher's flag; none if clusterctl chooses the value."""
    ours, number = kind.ours[flag], int(value) if value.isdecimal() else None
    if ours.startswith("--env"):
        yield from (ours.split()[0], ours.split()[1] + value)
    elif ours == _GPUS:
        if number is not None and flag in kind.total:
            number = max(1, number // len(cluster.nodes))
        if number is not None:
            cpus = all(node.gpus_wanted == 0 for node in cluster.nodes)
            yield from ("--procs-per-node" if cpus else _GPUS, str(number))
    elif ours == "--nodes":
        if number is not None and number < len(cluster.nodes):
            # `--nnodes 2` on two nodes needs no flag.
            yield from (ours, str(number))
    elif ours and value:
        yield from (ours, value)


_COMMENT = re.compile(r"(^|\s)#.*$")
_START = (
    r"(?:^|[;&|({`\"']|\b(?:then|do|else|exec|time|nohup|env|sudo)\s)\s*"
    r"(?:[A-Za-z_]\w*=(?:\"[^\"]*\"|'[^']*'|[^\s\"']*)\s+)*"
)
_IN_SCRIPT = re.compile(
    _START
    + r"(?:\S*/)?(?:"
    + rf"(?P<program>{'|'.join(program for program in PROGRAMS if program != 'srun')})"
    + r"|(?P<accelerate>accelerate\s+launch)"
    + rf"|{PYTHON.pattern}\s+(?:-\w+\s+)*-m\s+(?P<module>{'|'.join(map(re.escape, MODULES))})"
    + r")(?=\s+\S)"
)


def launcher_in_script(script: str) -> tuple[int, str] | None:
    """Return the line number and the name of the first launcher that a shell script starts."""
    number = 1
    for line in script.replace("\\\n", "\0").split("\n"):
        text = _COMMENT.sub("", line.replace("\0", " "))
        if match := _IN_SCRIPT.search(text):
            found = match["program"] or match["accelerate"] or ""
            name = MODULES.get(match["module"] or "") or PROGRAMS.get(found, "accelerate launch")
            return number, name
        number += 1 + line.count("\0")
    return None


def script_of(command: tuple[str, ...]) -> str:
    """Return the shell script that a command runs; empty: it runs none."""
    for word in command:
        name = posixpath.basename(word)
        if name.endswith((".sh", ".bash")):
            return word
        if name not in {"bash", "sh", "dash", "zsh"} and not word.startswith("-"):
            return ""
    return ""
