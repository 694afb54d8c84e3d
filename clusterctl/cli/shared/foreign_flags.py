"""Flags of torchrun, accelerate, deepspeed, mpirun, srun and pdsh: what to type instead.

So it is with the inventory's keys, typed as flags, and with other words for ours.
"""

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace

from clusterctl.inventory.cluster import Job, Ssh
from clusterctl.inventory.kinds import Kind
from clusterctl.inventory.schema import DefaultsSection, NetworkSection
from clusterctl.inventory.settings import keys_of
from clusterctl.plan.command.launcher_flags import (
    INCLUDE,
    VISIBLE,
    hosts_and_gpus,
    launcher_flag,
    passed_on,
    words_for_gpus,
)
from clusterctl.values import dataclass

_OURS = {
    "-w": "--nodes", "--hosts": "--nodes", "-x": "--exclude", "--exclude-nodes": "--exclude",
    "--exclude-hosts": "--exclude", "--retries": "--restarts", "--procs": "--procs-per-node",
    "--nodelist": "--nodes", "--job-name": "--name", "-J": "--name",
}  # fmt: skip
_OUR_SWITCHES = {
    "--avoid": "--exclude-quarantined", "--avoid-quarantined": "--exclude-quarantined",
    "--skip-quarantined": "--exclude-quarantined", "--background": "--detach",
    "--skip-check": "--no-check", "--skip-checks": "--no-check", "--no-checks": "--no-check",
    "--skip-sync": "--no-sync",
}  # fmt: skip
_CONSENT = frozenset({"--assume-yes", "--yes", "-y", "--no-input", "--non-interactive"})
_SLURM = frozenset({
    "--account", "--constraint", "--cpus-per-task", "--gres", "--mem", "--partition", "--qos",
    "--reservation", "--time",
})  # fmt: skip
_SLURM_SHORT = {"-A": "--account", "-C": "--constraint", "-p": "--partition", "-t": "--time"}
_SECTIONS = {"ssh": Ssh, "defaults": DefaultsSection, "network": NetworkSection, "job": Job}
_KEYS = {
    "key": "identity", "ssh-key": "identity", "identity-file": "identity", "jump-host": "jump",
    "proxy-jump": "jump", "username": "user", "interpreter": "python",
}  # fmt: skip
"""Other words for keys of the inventory."""
_INTERFACE = frozenset(
    {"--interface", "--iface", "--ifname", "--socket-ifname", "--network-interface"}
)
_HOSTFILES = frozenset({"--hostfile", "-hostfile", "-f"})
_SWITCHES = frozenset({
    "--standalone", "--no-python", "--multi-gpu", "--no-ssh", "--force-multi", "--same-network",
})  # fmt: skip


_Reader = Callable[[str, str, str], "Answer | None"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What to type instead of one flag and its value."""

    why: str
    words: tuple[str, ...] = ()
    hint: str = ""
    """Instead of the command that was typed."""


def answer_to(flag: str, value: str, known: Callable[[str], bool]) -> Answer | None:
    """Return what to type for a flag of another program; None: it is none that we know.

    Args:
        flag: with its dashes, as typed.
        value: empty if it has none.
        known: tells whether the verb has a flag.
    """
    name = flag.replace("_", "-")
    if name == INCLUDE:
        return _included(flag, value, known)
    if name in _CONSENT:
        words = ("--yes",) if known("--yes") else ()
        why = f"expected --yes, found {flag}" if words else f"{flag} is not needed here"
        return Answer(why=why, words=words)
    if known(ours := _OUR_SWITCHES.get(name, "")):
        return Answer(why=f"expected {ours}, found {flag}", words=(ours,))
    if value and known(ours := _OURS.get(name, "")):
        return _instead(flag, ours, value)
    # Without a job, `-f` may stand for "force".
    readers: list[_Reader] = [_hostfile, _of_inventory] if name != "-f" else [_of_inventory]
    if known("--failed"):  # of `runs`, which are no settings of an inventory
        readers = []
    if known("--launcher"):
        readers = [_hostfile, _needless, _passed_on, _of_sbatch, _translated, _of_inventory]
    found = (read(flag, name, value) for read in readers)
    return next(filter(None, found), None)


def _hostfile(flag: str, name: str, value: str) -> Answer | None:
    why = f"{flag}: the hosts are those of the inventory, which init makes of a hostfile"
    hint = shlex.join(("clusterctl", "init", "--from", value or "hostfile"))
    return Answer(why=why, hint=hint) if name in _HOSTFILES else None


def _needless(flag: str, name: str, _value: str) -> Answer | None:
    why = f"{flag} is not needed: clusterctl starts the launcher on every node"
    return Answer(why=why) if name in _SWITCHES else None


def _passed_on(flag: str, name: str, value: str) -> Answer | None:
    elastic = (name == "--nnodes" and ":" in value) or name == "--rdzv-backend"
    program = "torchrun" if elastic else passed_on(name)
    if not program:
        return None
    args = f"--launcher-args={shlex.quote(f'{flag}={value}' if value else flag)}"
    launcher = () if program == "torchrun" else ("--launcher", "accelerate")
    why = f"{flag} is the launcher's: --launcher-args passes it on"
    return Answer(why=why, words=(*launcher, args))


def _of_sbatch(flag: str, name: str, value: str) -> Answer | None:
    name = _SLURM_SHORT.get(name, name)
    hint = f"job: {{slurm: {{{name[2:]}: {value or 'VALUE'}}}}} in the inventory"
    why = f"{flag} is sbatch's, which the inventory names"
    return Answer(why=why, hint=hint) if name in _SLURM else None


def _of_inventory(flag: str, name: str, value: str) -> Answer | None:
    if name in _INTERFACE:
        why = f"{flag}: each node has the interface of its address on the data network"
        return Answer(why=why, hint="network: {subnet: 10.11.7.0/24} in the inventory")
    place = ""
    word = name.lstrip("-")
    key = _KEYS.get(word, word.replace("-", "_"))
    if name == "--master":
        place = f"nodes: [{{host: {value or 'HOST'}, master: true}}, ...]"
    for section, model in _SECTIONS.items() if name.startswith("--") else ():
        found = keys_of(model).get(key)
        if found and isinstance(found.kind, Kind) and not found.flag:
            items, shown = found.kind.items, value or "VALUE"
            if isinstance(items, type) or found.kind.names:
                shown = "..."
            elif items:
                shown = f"[{shown}]"
            place = place or f"{section}: {{{key}: {shown}}}"
    why = f"{flag} is a key of the inventory, not a flag"
    return Answer(why=why, hint=f"{place} in the inventory") if place else None


def _translated(flag: str, name: str, value: str) -> Answer | None:
    program, ours, counts_all = launcher_flag(name) or ("", "", False)
    if not program:
        return None
    if counts_all:
        rule = "clusterctl starts one per GPU (fewer: --gpus N, per node)"
        return Answer(why=f"{flag} counts the ranks of all nodes: {rule}")
    if not ours:
        return Answer(why=f"{flag} is {program}'s: clusterctl sets it itself")
    if ours == VISIBLE and re.fullmatch(r"\d+(?:,\d+)*", value):
        words = words_for_gpus(value)
        return Answer(why=f"expected {words[0]}, found {flag}", words=words)
    if ours in {"--gpus", VISIBLE} and not value.isdecimal():
        return Answer(why=f"{flag}={value}: clusterctl starts one rank per GPU by itself")
    return _instead(flag, ours, value)


def _included(flag: str, value: str, known: Callable[[str], bool]) -> Answer | None:
    """Translate deepspeed's `--include gpu1:0,1@gpu2:0,1`."""
    if not value or not known("--nodes"):
        return None
    hosts, gpus = hosts_and_gpus(value)
    answer = _instead(flag, "--nodes", ",".join(hosts))
    if not gpus or not known("--env"):
        return answer
    if len(gpus) > 1:
        return replace(answer, why=f"{answer.why}; `gpus:` of each node tells how many it uses")
    return replace(answer, words=(*answer.words, *words_for_gpus(*gpus)))


def _instead(flag: str, ours: str, value: str) -> Answer:
    return Answer(why=f"expected {ours}, found {flag}", words=(ours, value))


def translate(
    words: Sequence[str], rest: Sequence[str], known: Callable[[str], bool]
) -> tuple[list[str], list[str], list[Answer]]:
    """Return our words for what was typed, what is still unknown, and an answer for each flag.

    Args:
        words: what was typed without the rest.
        rest: the words that the verb does not know.
        known: tells whether the verb has a flag.
    """
    typed, unknown, answers = list(words), list[str](), list[Answer]()
    pending = list(rest)
    while pending:
        word = pending.pop(0)
        flag, equals, value = word.partition("=")
        takes = not equals and bool(pending) and not pending[0].startswith("-")
        if (
            word.startswith("-")
            and flag.replace("_", "-") in _SWITCHES | _CONSENT | _OUR_SWITCHES.keys()
        ):
            takes = False
        answer = answer_to(flag, pending[0] if takes else value, known)
        if answer is None or not word.startswith("-"):
            unknown.append(word)
            continue
        if takes:
            del pending[0]
        answers.append(answer)
        new = answer.words
        typed += new[2:] if new[0:1] == ("--launcher",) and "--launcher" in typed else new
    return typed, unknown, answers
