"""Finds what in a command or its script would start a training apart from the planned one.

Such words come from examples for one machine, such as `--standalone` and NODE_RANK=0.
"""

import posixpath
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, replace

from clusterctl.inventory.cluster import Cluster
from clusterctl.inventory.ranges import BadRange, expand_hosts
from clusterctl.node.supervisor.worlds.launcher_names import PYTHON
from clusterctl.plan import launchers
from clusterctl.plan.command.calls import (
    FOLDERS,
    SCRIPTS,
    Call,
    calls_in_folders,
    calls_of,
    calls_of_words,
    in_folder,
    is_shell,
    script_in,
)
from clusterctl.plan.command.launcher_flags import OURS, READ_ENVIRONMENT, Start, start_of
from clusterctl.plan.command.nested import Typed, once_a_node
from clusterctl.plan.command.nodes_apart import LOCAL, alone, has_config
from clusterctl.plan.command.shell import Step, read_script
from clusterctl.values import dataclass

_TRIVIAL = frozenset({"echo", "printf", "disown", "exit", "sleep", "date", "set"})
_BRIEF = re.compile(r"0*\d(?:\.\d*)?s?|\.\d+s?")
"""How long a script may sleep at its end without waiting for a training."""
_SCRIPTS_READ = 8
"""Most scripts that are read for one command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Words with which the ranks would not be those of the plan."""

    where: str
    """`train.sh:3`, or `command`."""
    message: str
    hint: str
    fatal: bool = True
    """It is certain; else `launch` only warns."""


def once_per_node(cluster: Cluster) -> bool:
    """Tell whether the command runs once on every node, and starts the ranks there itself."""
    job = cluster.job
    return job.procs_per_node == 1 and not launchers.find_launcher(job.launcher).argv


@dataclass(frozen=True, slots=True, kw_only=True)
class _Script:
    """A script, or the command itself, as its rules need it."""

    name: str
    """Empty: the command."""
    folder: str | None
    """In which it starts, from that of the code; None: it is not known."""
    steps: tuple[Step, ...]
    cluster: Cluster
    variables: Mapping[str, str]

    @property
    def nodes(self) -> int | None:
        """How many nodes the run has; None: Slurm decides."""
        return len(self.cluster.nodes) or None

    def where(self, line: int) -> str:
        return f"{self.name}:{line}" if self.name else "command"


@dataclass(slots=True)
class Words:
    """What a command and the scripts that it runs say."""

    problems: list[Problem] = field(default_factory=list)
    programs: list[tuple[str, ...]] = field(default_factory=list)
    """The Python programs that they start, with their arguments."""


def words_of(cluster: Cluster, text_of: Callable[[str], str]) -> Words:
    """Read a job's command, and the scripts that it runs.

    Args:
        cluster: the nodes and the job.
        text_of: returns the text of a file by its path in the folder; empty: there is none.
    """
    variables = {**dict(cluster.job.env), **{name: f"${name}" for name in _names_set(cluster)}}
    workdirs = {node.workdir for node in cluster.nodes if node.workdir}
    found = Words()
    first = Step(line=1, words=cluster.job.command)
    waiting = [_Script(name="", folder="", steps=(first,), cluster=cluster, variables=variables)]
    read: set[str] = set()
    while waiting:
        script = waiting.pop(0)
        for call, folder in calls_in_folders(
            script.steps, variables, script.name, script.folder, workdirs
        ):
            program = _program_of(call)
            if program and (file := in_folder(folder, program[0], workdirs)):
                found.programs.append((file, *program[1:]))
            name, args = script_in(call.words)
            name = in_folder(folder, name, workdirs)
            text = text_of(name) if name and not call.remote else ""
            if (
                text
                and name not in read
                and len(read) < _SCRIPTS_READ
                and is_shell(call.words, name, text)
            ):
                read.add(name)
                steps = read_script(text, variables, args, certain=call.certain)
                waiting.append(replace(script, name=name, folder=folder, steps=steps))
        if script.name or once_per_node(cluster):
            found.problems += _problems(script)
    return found


def _names_set(cluster: Cluster) -> frozenset[str]:
    """Return the variables that the nodes or ranks get."""
    driver = launchers.find_launcher(cluster.job.launcher).one_driver
    return frozenset({"NNODES", "NODE_RANK"}) if driver else OURS


def _program_of(call: Call) -> tuple[str, ...]:
    """Return the Python program that a call starts, with its arguments; empty: none."""
    start = start_of(call.words)
    words = call.words if start is None else start.program
    if words and PYTHON.fullmatch(posixpath.basename(words[0])):
        words = tuple(words[next((n for n, w in enumerate(words) if n and w[0:1] != "-"), 1) :])
    return words if words and words[0].endswith(".py") else ()


def _problems(script: _Script) -> Iterator[Problem]:
    last = {name: at for at, step in enumerate(script.steps) for name in step.kept}
    for at, step in enumerate(script.steps):
        if step.assigns:
            kept = tuple(each for each in step.assigned if last.get(each[0], -1) <= at)
            yield from _assignments(script, step, kept)
            continue
        calls = calls_of(step, script.variables)
        for call in calls:
            if call.certain:
                yield from _of_call(script, step, call)
        waits = any(call.words[:1] == ("wait",) for call in calls)
        if not waits and all(map(_is_trivial, script.steps[at + 1 :])):
            yield from _left_behind(script, step, calls)


def _is_trivial(step: Step) -> bool:
    """Tell whether a training in the background is not waited for here."""
    if step.words[:1] == ("sleep",):
        return all(map(_BRIEF.fullmatch, step.words[1:]))
    return step.assigns or step.words[0] in _TRIVIAL


def _assignments(
    script: _Script, step: Step, assigned: tuple[tuple[str, str], ...]
) -> Iterator[Problem]:
    """Find what each node should have from clusterctl, and gets from the script."""
    names = _names_set(script.cluster) & {"NNODES", "NODE_RANK", "MASTER_ADDR"}
    if not once_per_node(script.cluster):
        names |= _names_set(script.cluster) & {"RANK", "LOCAL_RANK", "WORLD_SIZE"}
    for name, value in assigned if step.sure and script.nodes != 1 else ():
        if name not in names or re.search(r"[$`]", value):
            continue
        right = value == str(script.nodes) if name == "NNODES" else not LOCAL.fullmatch(value)
        if right and name in {"NNODES", "MASTER_ADDR"}:
            continue
        # Such as $1, if the script gets no word.
        empty = "" if value else " (to nothing)"
        yield Problem(
            where=script.where(step.line),
            message=f"it sets {name}={value}{empty} on every node, which clusterctl sets for each"
            " node",
            hint=f'remove the assignment, or write {name}="${{{name}:-{value}}}"'
            if value
            else f"remove the assignment of {name}",
        )


def _of_call(script: _Script, step: Step, call: Call) -> Iterator[Problem]:
    start = start_of(call.words)
    where = script.where(step.line)
    program = posixpath.basename(call.words[0]) if call.words else ""
    if call.remote and _may_be_ours(script, call):
        yield _reaches_others(script, where, call, f"{call.remote} starts {program}")
    if call.remote or start is None:
        return
    if script.nodes != 1 and _has_hosts(start):
        yield _reaches_others(script, where, call, f"{start.name} starts ranks")
    elif launchers.find_launcher(script.cluster.job.launcher).one_driver:
        return  # it runs once, on the master
    elif not once_per_node(script.cluster):
        yield Problem(
            where=where,
            message=f"every rank runs this script, and so starts {start.name} of its own",
            hint=_way_out(script, call, once=True),
        )
    elif script.nodes != 1:
        if start.name.split()[0] in READ_ENVIRONMENT:
            yield from _assignments(script, step, call.env)
        for message, fix in alone(start, script.nodes, script.variables, call.around):
            hint = fix + _way_out(script, call, once=False)
            if call.sure:
                yield Problem(where=where, message=message, hint=hint, fatal=not has_config(start))


def _has_hosts(start: Start) -> bool:
    """Tell whether a launcher starts ranks on other machines itself."""
    if start.name == "srun":
        inner = calls_of_words(start.program)
        return any(
            start_of(call.words) or PYTHON.fullmatch(posixpath.basename(call.words[0]))
            for call in inner
            if call.words
        )
    if start.name == "deepspeed":
        return start.has("-H", "--hostfile") and not start.has("--no-ssh")
    if start.name != "mpirun":
        return False
    hosts = start.value("-H", "--host").split(",")
    return start.has("-f", "--hostfile", "-hostfile") or any(
        host and not LOCAL.fullmatch(host) for host in hosts
    )


def _may_be_ours(script: _Script, call: Call) -> bool:
    """Tell whether a program starts what looks like a rank on another node of the run."""
    host = call.host.rpartition("@")[2]
    program = posixpath.basename(call.words[0]) if call.words else ""
    shell = script_in(call.words)[0].endswith(SCRIPTS)
    if script.nodes == 1 or not (shell or start_of(call.words) or PYTHON.fullmatch(program)):
        return False
    if not host or re.search(r"[$`]", host):
        return start_of(call.words) is not None
    try:
        names = set(expand_hosts(host))
    except BadRange:
        return False
    return any(names & {each.name, each.host, each.address} for each in script.cluster.nodes)


def _reaches_others(script: _Script, where: str, call: Call, what: str) -> Problem:
    return Problem(
        where=where,
        message=f"{what} on other machines, where clusterctl cannot see or stop them:"
        " clusterctl itself starts every node",
        hint=shlex.join(Typed.of(call, script.cluster).words()),
    )


def _left_behind(script: _Script, step: Step, calls: tuple[Call, ...]) -> Iterator[Problem]:
    """Find a training that nothing waits for at the end of a script."""
    for call in calls:
        start = start_of(call.words)
        if start and call.certain and call.detached and not call.remote:
            yield Problem(
                where=script.where(step.line),
                message=f"{start.name} is left in the background at the end: when the script ends,"
                " clusterctl ends what it started",
                hint="start it in the foreground (without `nohup`, `&` and `-d`), or add `wait`;"
                " `clusterctl launch --detach -- …` leaves the whole run alone",
            )


def _way_out(script: _Script, call: Call, *, once: bool) -> str:
    """Return a command to type instead of what a script starts; empty: none is known."""
    typed = Typed.of(call, script.cluster)
    direct = typed.launcher == "direct"
    exports = {
        name: value
        for step in script.steps
        if step.assigns and step.words
        for name, value in step.assigned
        if name not in OURS
    }
    typed.env = {**exports, **typed.env}
    unread = any(re.search(r"[$`]", word) for word in typed.words())
    moves = any(step.words[:1] and step.words[0] in FOLDERS for step in script.steps)
    moves |= script.folder != ""
    readable = not (unread or moves or typed.unknown or typed.around or direct)
    plain = shlex.join(typed.words()) if readable else ""
    if not once:
        before = "or without the script: " if script.name else ""
        return plain and f"\n{before}{plain}"
    again = once_a_node(script.cluster.job.command)
    start = start_of(call.words)
    fixes: list[str] = []
    if start and script.nodes != 1:
        apart = alone(start, script.nodes, script.variables, call.around)
        fixes = [fix for _, fix in apart]
    if not fixes:
        return f"to run it once per node: {again}"
    return f"to run it once per node: {'; '.join(fixes)}; then: {again}" + (
        f"\nor without the script: {plain}" if plain else ""
    )
