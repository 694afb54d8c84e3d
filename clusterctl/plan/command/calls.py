"""Looks through programs that only start another one: env, nohup, docker, uv run, bash -c, ssh."""

import itertools
import posixpath
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import field, replace

from clusterctl.inventory.wrap import APPTAINER_LIKE, DOCKER_LIKE, split_options
from clusterctl.node.supervisor.worlds.launcher_names import split_launcher
from clusterctl.plan.command.shell import Step, read_script
from clusterctl.values import dataclass

_SET = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh"})
_RUNS_SCRIPT = SHELLS | {"source", "."}
SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch", ".slrm", ".job")
"""How shell scripts are called."""
FOLDERS = frozenset({"cd", "pushd", "popd"})
"""Commands after which a script is in another folder."""
_WHICH = re.compile(r"(?:\$\(|`)(?:which|command -v|type -p) ([\w.+-]+)[)`]")
"""The path of a program."""
_BESIDE = re.compile(r"\$\(dirname\W+(?:0|\{?BASH_SOURCE(?:\[0\])?\}?)\W*\)")
"""The folder of a script itself."""
_DEPTH = 6
"""Most programs that start each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A program that a command starts in the end."""

    words: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()
    """What is set for it in front."""
    around: tuple[tuple[str, ...], ...] = ()
    """The programs in front of it, with their options; not env and shells."""
    remote: str = ""
    """The program that starts it on other machines, such as `ssh`; empty: it starts here."""
    host: str = ""
    """The machines that this program names, as they are written; empty: they are not known."""
    detached: bool = False
    """Nothing waits for it."""
    certain: bool = True
    """No condition decides whether it is started."""
    sure: bool = True
    """It is certain, and no default decides what its words are."""
    apart: tuple[int, ...] = ()
    """The subshells of the command that it is in, as `Step.apart`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prefix:
    """How to find the command behind a program's own words."""

    verbs: frozenset[str] = frozenset()
    """Its subcommands that start a command; empty: it has none."""
    valued: frozenset[str] = frozenset()
    """Its options that take the next word."""
    before: int = 0
    """Its own words in front of the command, besides options."""


def _prefix(valued: str = "", *verbs: str, before: int = 0) -> _Prefix:
    return _Prefix(verbs=frozenset(verbs), valued=frozenset(valued.split()), before=before)


_CONDA = _prefix("-n --name -p --prefix --cwd", "run")
_UV = frozenset({
    "--with", "--with-editable", "--with-requirements", "--extra", "--no-extra", "--group",
    "--no-group", "--only-group", "--env-file", "--package", "-p", "--python", "--project",
    "--directory", "--index", "--default-index", "--index-url", "-i", "--extra-index-url", "-f",
    "--find-links", "-C", "--config-setting", "--config-file", "--cache-dir", "--color", "--from",
})  # fmt: skip
_APPTAINER = frozenset({
    "-B", "--bind", "-H", "--home", "--env", "--env-file", "--pwd", "--cwd", "-W", "--workdir",
    "--overlay", "-S", "--scratch", "--mount", "--network", "--network-args", "--dns",
    "--hostname", "--security", "--add-caps", "--drop-caps", "--apply-cgroups", "--fusemount",
    "--app", "--nvccli-opts", "--memory", "--cpus", "--shm-size",
})  # fmt: skip
_PREFIXES = {
    **dict.fromkeys(("nohup", "exec", "setsid", "command", "builtin", "catchsegv"), _prefix("-a")),
    "time": _prefix("-f -o --format --output"),
    "nice": _prefix("-n --adjustment"),
    "ionice": _prefix("-c -n --class --classdata"),
    "stdbuf": _prefix("-i -o -e --input --output --error"),
    "sudo": _prefix("-u -g -h -p -C -D -R -T --user --group"),
    "numactl": _prefix(
        "-i -m -N -C -p -P -w --interleave --membind --cpunodebind --physcpubind --preferred"
    ),
    "taskset": _prefix("", before=1),
    "flock": _prefix("-w -E --wait --timeout --conflict-exit-code", before=1),
    "strace": _prefix("-e -o -s -p -u -P -E -O -S -I -a -b -X"),
    "uvx": _Prefix(valued=_UV),
    "timeout": _prefix("-s -k --signal --kill-after", before=1),
    "uv": _Prefix(verbs=frozenset({"run"}), valued=_UV),
    **dict.fromkeys(
        ("poetry", "pdm", "pipenv", "rye", "hatch"), _prefix("-p --project -C -e --env", "run")
    ),
    "pixi": _prefix("-e --environment --manifest-path", "run"),
    **dict.fromkeys(("conda", "mamba", "micromamba"), _CONDA),
    **dict.fromkeys(
        APPTAINER_LIKE, _Prefix(verbs=frozenset({"exec", "run"}), valued=_APPTAINER, before=1)
    ),
    "nsys": _prefix("-t -o -s -c -w -f -e --trace --output --sample --force-overwrite", "profile"),
    "ncu": _prefix("-o --export --set --section -k -c --kernel-name --launch-count"),
    "py-spy": _prefix("-o --output -f --format -d --duration -r --rate", "record", "top"),
    "xargs": _prefix("-I -n -P -L -a -d -s -E"),
    "tmux": _prefix("-s -n -t -c -x -y -e -F -f -L -S", "new", "new-session", "new-window", "neww"),
    "screen": _prefix("-S -Logfile -c -e -h -p -s -t -T"),
}
_DETACHED = frozenset({"tmux", "screen"})
_REMOTE = {
    "ssh": _prefix("-b -B -c -D -E -e -F -I -i -J -L -l -m -O -o -p -Q -R -S -W -w", before=1),
    "pdsh": _prefix("-w -x -R -l -f -u -g -t"),
    "clush": _prefix("-w -x -g -X -f -u -t -l -o"),
    **dict.fromkeys(("pssh", "parallel-ssh"), _prefix("-h -H -l -p -o -e -t -x -O")),
}


def calls_of(step: Step, variables: Mapping[str, str]) -> tuple[Call, ...]:
    """Return the programs that a command of a script starts in the end.

    Args:
        step: the command.
        variables: for shells that it starts, as for `read_script`.
    """
    first = Call(
        words=step.words,
        env=step.assigned,
        certain=step.certain,
        sure=step.sure,
        detached=step.background,
    )
    return () if step.assigns else tuple(_Search(variables=variables).inner(first, _DEPTH))


def calls_of_words(words: tuple[str, ...]) -> tuple[Call, ...]:
    """Return the programs that a command starts in the end."""
    return calls_of(Step(line=1, words=words), {})


_Folders = dict[tuple[int, ...], str | None]
"""Where each subshell is that moved."""


def calls_in_folders(
    steps: tuple[Step, ...],
    variables: Mapping[str, str],
    name: str,
    folder: str | None,
    workdirs: Collection[str],
) -> Iterator[tuple[Call, str | None]]:
    """Yield what a script starts, each with the folder that it starts in; None: it is not known.

    Args:
        steps: of the script.
        variables: as for `calls_of`.
        name: of the script.
        folder: in which the script starts.
        workdirs: where the nodes have the code.
    """
    folders: _Folders = {(): folder}
    for step in steps:
        inside: _Folders = {(): _folder_in(folders, step.apart)}
        for call in calls_of(step, variables):
            inner = _folder_in(inside, call.apart)
            if call.words[:1] and call.words[0] in FOLDERS:
                beside = posixpath.dirname(name)
                inner = inside[call.apart] = _moved(inner, call.words, beside, workdirs)
            yield call, inner
        if step.words[:1] and step.words[0] in FOLDERS:
            folders[step.apart] = inside[()]


def _folder_in(folders: _Folders, apart: tuple[int, ...]) -> str | None:
    """Return the folder of a subshell: its own, else that of the one around it."""
    while apart not in folders:
        apart = apart[:-1]
    return folders[apart]


def _moved(
    folder: str | None, words: tuple[str, ...], beside: str, workdirs: Collection[str]
) -> str | None:
    """Return the folder after `cd`; None: it is not known, or outside the code."""
    target = next((word for word in words[1:] if not word.startswith("-")), "")
    if _BESIDE.fullmatch(target):
        return beside
    if not target or target.startswith("~") or re.search(r"[$`]", target):
        return None
    if target.startswith("/"):
        return in_code(target, workdirs)
    if folder is None:
        return None
    moved = posixpath.normpath(posixpath.join(folder, target))
    return None if moved.startswith("..") else moved


def in_folder(folder: str | None, name: str, workdirs: Collection[str]) -> str:
    """Return the path of a file in the code, or an absolute one elsewhere; empty: not known."""
    if posixpath.isabs(name):
        return in_code(name, workdirs) or name
    if folder and name:
        return posixpath.normpath(posixpath.join(folder, name))
    return name if folder is not None else ""


def in_code(path: str, workdirs: Collection[str]) -> str | None:
    """Return a node's path relative to the code there, which the sync takes from the folder here.

    None: it is elsewhere.
    """
    for workdir in workdirs:
        inside = posixpath.relpath(path, workdir)
        if inside.split("/")[0] != "..":
            return "" if inside == "." else inside
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    variables: Mapping[str, str] = field(default_factory=dict)
    subshells: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    """Numbers for the subshells of all scripts in one command."""

    def inner(self, call: Call, depth: int) -> Iterator[Call]:
        """Yield what is left of a call without the programs in front."""
        words = list(call.words)
        env = list(call.env)
        while words and (match := _SET.fullmatch(words[0])):
            env.append((match[1], match[2]))
            del words[0]
        if words and (path := _WHICH.fullmatch(words[0])):
            words[0] = path[1]
        call = replace(call, words=tuple(words), env=tuple(env))
        name = posixpath.basename(words[0]) if words else ""
        if not words or not depth:
            yield call
        elif name == "env":
            rest = words[1:]
            while rest and (rest[0].startswith("-")):
                rest = rest[2:] if rest[0] in {"-u", "-C", "--unset", "--chdir"} else rest[1:]
            yield from self.inner(replace(call, words=tuple(rest)), depth - 1)
        elif name == "eval":
            yield from self.of_text(call, " ".join(words[1:]), depth - 1)
        elif name in SHELLS or name == "script":
            text = _inline(words)
            if text is None:
                yield call
            else:
                apart = (*call.apart, next(self.subshells))
                yield from self.of_text(replace(call, apart=apart), text, depth - 1)
        elif name in _REMOTE:
            apart = (*call.apart, next(self.subshells))
            host = _host(name, words)
            call = replace(call, words=tuple(words), remote=name, host=host, apart=apart)
            text = " ".join(_after(words, _REMOTE[name]) or ())
            yield from self.of_text(call, text, depth - 1) if text else iter([call])
        else:
            yield from self._wrapped(call, name, words, depth)

    def _wrapped(self, call: Call, name: str, words: list[str], depth: int) -> Iterator[Call]:
        if name in DOCKER_LIKE:
            rest, more, detached = _in_container(words)
        else:
            rest = _after(words, _PREFIXES[name]) if name in _PREFIXES else None
            rest = rest or _launcher_behind(words)
            more, detached = [], name in _DETACHED
        if not rest:
            yield call
            return
        around = tuple(words[: len(words) - len(rest)])
        call = replace(
            call,
            words=tuple(rest),
            env=(*call.env, *more),
            around=(*call.around, around),
            detached=call.detached or detached,
        )
        if len(rest) == 1 and (name in _DETACHED or " " in rest[0]):
            yield from self.of_text(call, rest[0], depth - 1)
        else:
            yield from self.inner(call, depth - 1)

    def of_text(self, call: Call, text: str, depth: int) -> Iterator[Call]:
        """Yield the programs of a script that a call gives to a shell."""
        if depth <= 0:
            yield call
            return
        for step in read_script(text, self.variables, subshells=self.subshells):
            if step.assigns:
                call = replace(call, env=(*call.env, *step.assigned))
            else:
                within = replace(
                    call,
                    words=step.words,
                    env=(*call.env, *step.assigned),
                    certain=call.certain and step.certain,
                    sure=call.sure and step.sure,
                    detached=call.detached or step.background,
                    apart=(*call.apart, *step.apart),
                )
                yield from self.inner(within, depth)


def _host(name: str, words: list[str]) -> str:
    """Return the machines on which ssh, pdsh and the like start a command."""
    if name == "ssh":
        return "".join((_after(words, replace(_REMOTE[name], before=0)) or ())[:1])
    return next((value for flag, value in itertools.pairwise(words) if flag in {"-w", "-H"}), "")


def _inline(words: list[str]) -> str | None:
    """Return the script in the words of `bash -c`; None: there is none."""
    for at, word in enumerate(words[1:], start=1):
        if not word.startswith(("-", "+")):
            return None
        if not word.startswith("--") and "c" in word:
            return words[at + 1] if at + 1 < len(words) else None
    return None


def _launcher_behind(words: list[str]) -> list[str] | None:
    """Return the launcher that an unknown program starts, as `dotenv run -- torchrun` does."""
    verbs = [at for at, word in enumerate(words[:4]) if at and word in {"run", "exec"}]
    for at in range(verbs[0] + 1, len(words)) if verbs else ():
        if words[at].endswith((".py", *SCRIPTS)):
            return None
        if split_launcher(words[at:]):
            return words[at:]
    return None


def _after(words: list[str], prefix: _Prefix) -> list[str] | None:
    """Return the command behind a program's own words; None: it starts none."""
    rest, before, verbs = words[1:], prefix.before, prefix.verbs
    if verbs:
        while rest and rest[0].startswith("-"):
            rest = rest[2:] if rest[0] in prefix.valued else rest[1:]
        if rest[:1] and rest[0] not in verbs:
            return None
        rest = rest[1:]
    while rest:
        word = rest[0]
        if word == "--" and not before:
            return rest[1:]
        if word == "-m" and prefix is _PREFIXES["uv"]:
            return ["python", *rest]
        if word.startswith("-") and len(word) > 1:
            rest = rest[2:] if word in prefix.valued else rest[1:]
        elif before:
            before -= 1
            rest = rest[1:]
        else:
            return rest
    return None


def _in_container(words: list[str]) -> tuple[list[str] | None, list[tuple[str, str]], bool]:
    """Return the command in a container, the variables that are set for it, and if it detaches."""
    verb = next((at for at, word in enumerate(words[:4]) if word in {"run", "exec"}), None)
    if verb is None:
        return None, [], False
    options, _, command = split_options(words[verb + 1 :])
    entry = [value for name, value in options if name == "--entrypoint"]
    sets = [value.partition("=") for name, value in options if name == "--env"]
    env = [(name, value) for name, equals, value in sets if equals]
    return [*entry[-1:], *command], env, any(name == "--detach" for name, _ in options)


def script_in(words: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Return the script that a program's words run, and its arguments."""
    for at, word in enumerate(words):
        if at and re.match(r"-\w*c", word):
            break
        shell = at == 0 and posixpath.basename(word) in _RUNS_SCRIPT
        if not shell and not (at and word.startswith(("-", "+"))):
            runs = at or "/" in word or word.endswith(SCRIPTS)  # else a program on PATH
            return (word if runs else ""), words[at + 1 :]
    return "", ()


def is_shell(words: tuple[str, ...], name: str, text: str) -> bool:
    """Tell whether what these words run is a shell script, by its name or its first line."""
    head = text[:100].partition("\n")[0]
    by_shell = posixpath.basename(words[0]) in _RUNS_SCRIPT
    return by_shell or name.endswith(SCRIPTS) or re.match(r"#!.*sh\b", head) is not None
