"""Whether the job's interpreter and its torch exist on each node, and match."""

import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping

from clusterctl.checks.finding import Finding, Status, fail, finding, skip, warn
from clusterctl.checks.others import other_version, outliers
from clusterctl.checks.registry import Check, Facts
from clusterctl.checks.storage.shares import MissingShares, skip_missing
from clusterctl.facts.software.python import ENV_INIT, NAME_INTERPRETER, NO_LIBRARY, Python
from clusterctl.inventory.cluster import Cluster
from clusterctl.plan.launchers import LAUNCHERS

FOUND = "python.found"
TORCH = "python.torch"


def working_pythons(facts: Facts) -> dict[str, Python]:
    """Return the interpreters that started."""
    return {n.node: n.python for n in facts.values() if n.python and not n.python.problem}


def compared(pythons: Mapping[str, Python]) -> tuple[dict[str, Python], list[Finding]]:
    """Return the interpreters to compare, and a skip for each of the others.

    Where some have torch, one without it is the wrong interpreter: its packages do not matter.
    """
    with_torch = {name: python for name, python in pythons.items() if python.package("torch")}
    if not with_torch:
        return dict(pythons), []
    others = [name for name in pythons if name not in with_torch]
    return with_torch, [skip(name, "its interpreter has no torch") for name in others]


@Check(
    FOUND,
    title="the job's interpreter starts in a non-interactive shell",
    why="A command over SSH does not get the environment of ~/.bashrc or a login shell.",
    fix="Give the interpreter's path: `defaults: {python: /path/venv/bin/python}`, or activate"
    " the environment in `env_init`.",
    source="docs/reference/inventory.md",
    explained_by=("job.container",),
    required_facts=("python",),
)
def found(facts: Facts, cluster: Cluster) -> Iterator[Finding]:
    """Report why it did not start, unless it is on a missing share."""
    missing = MissingShares.of(facts, cluster)
    for node in facts.values():
        python = node.python
        if python is None or not python.problem:
            continue
        if missing.explains(node.node, python.asked):
            yield skip_missing(node.node, python.asked)
            continue
        slow = python.problem.startswith("no answer")
        if cluster.job.env_init and (slow or python.problem.startswith(ENV_INIT)):
            yield _env_init(node.node, cluster.job.env_init, python.problem, slow=slow)
            continue
        yield finding(
            "unknown" if slow else "fail",
            node.node,
            "the job's interpreter does not start",
            wanted=python.asked,
            found=python.problem,
            remedy=_make_python(python, node.node, node.user or "its user"),
        )


def _env_init(node: str, line: str, problem: str, *, slow: bool) -> Finding:
    """Return the finding of a line that fails, or takes longer than a check waits."""
    if not slow and (remedy := _shell_set_up(line, problem)):
        return fail(node, "env_init fails", wanted=line, found=problem, remedy=remedy)
    tried = f"time {{ {line}; }}" if slow else line
    command = shlex.join(["clusterctl", "exec", "--nodes", node, "--", "bash", "-c", tried])
    return finding(
        "unknown" if slow else "fail",
        node,
        "env_init and the job's interpreter took too long" if slow else "env_init fails",
        wanted=line,
        found=problem,
        remedy=f"{command}; at launch it may take 120 s"
        if slow
        else f"{command}; then correct `env_init:` in the inventory",
    )


_SET_UP = (
    ("micromamba activate", "shell hook", 'eval "$(~/.local/bin/micromamba shell hook -s bash)"'),
    ("mamba activate", "shell hook", 'eval "$(~/miniforge3/bin/mamba shell hook -s bash)"'),
    ("conda activate", "conda.sh", "source ~/miniforge3/etc/profile.d/conda.sh"),
    ("pyenv ", "pyenv init", 'export PATH=~/.pyenv/bin:$PATH; eval "$(pyenv init -)"'),
    ("module ", "/etc/profile", "source /etc/profile"),
    ("ml ", "/etc/profile", "source /etc/profile"),
)
"""What a line uses that is a function of the shell, what sets it up, and how to write that."""
_NOT_SET_UP = re.compile(
    r"\b(conda|mamba|micromamba|module|ml|pyenv): (?:command )?not found|(?:conda|pyenv) init"
    r"|micromamba .*--help"
)
"""The last words of those tools without it."""


def _shell_set_up(line: str, problem: str) -> str:
    """Return the line that also sets a tool up; empty if that is not what is missing."""
    told = _NOT_SET_UP.search(problem.rpartition("; it printed: ")[2])
    if told is None:
        return ""
    for used, done, first in _SET_UP:
        if re.search(rf"\b{used}", line) and done not in line and used.startswith(told[1] or ""):
            return (
                f"no start file such as ~/.bashrc is read here, so `{used.strip()}` is not set up:"
                f" write `env_init: {first}; {line}` with the path that it has there, or name"
                " the environment's interpreter: `defaults: {python: /path/env/bin/python}`"
            )
    return ""


def _make_python(python: Python, node: str, user: str) -> str:
    if python.container:
        image = shlex.quote(python.container)
        return f"set `python:` in the inventory to the path of Python in the image {image}"
    folder = venv_of(python)
    make = "sudo apt-get install python3 (on the node)"
    if "Permission denied" in python.problem:
        make = f"let {shlex.quote(user)} read and execute {shlex.quote(python.asked)} (on the node)"
    elif NO_LIBRARY in python.problem:
        show = shlex.join(["clusterctl", "exec", "--nodes", node, "--", "printenv", "PYTHONHOME"])
        return f"{show} shows where it looks: let no start file, such as ~/.bashrc, set that"
    elif python.problem.startswith("no answer"):
        make = shlex.join(["clusterctl", "exec", "--nodes", node, "--", python.asked, "-V"])
        make += " shows how long it takes"
    elif folder:
        make = (
            f"clusterctl setup makes {shlex.quote(folder)} from the requirements.txt of this folder"
        )
    return f"{make}, or set another absolute path as `python:` in the inventory"


def venv_of(python: Python) -> str:
    """Return the folder that setup would make or update for it; empty: none."""
    folder, in_venv, _ = python.asked.rpartition("/bin/")
    ours = in_venv and not python.container and folder not in {"", "/usr", "/usr/local"}
    return folder if ours else ""


@Check(
    "python.version",
    title="all nodes run the job with the same Python",
    why="Pickled objects and compiled packages do not work across minor versions.",
    fix="Create the environment with one minor version of Python on all nodes.",
    source="https://docs.python.org/3/library/pickle.html",
    explained_by=(FOUND,),
)
def version(facts: Facts) -> Iterator[Finding]:
    """Compare with most other nodes; another patch level is a warning."""
    pythons, skips = compared(working_pythons(facts))
    yield from skips
    for name, found, usual in outliers({name: p.version for name, p in pythons.items()}):
        minor = ".".join(found.split(".")[:2])
        status: Status = "warn" if usual.startswith(minor + ".") else "fail"
        remedy = f"install Python {shlex.quote(usual)} on the node, or set another `python:` for it"
        yield other_version(status, name, "Python", found, usual, remedy)


@Check(
    "python.activated",
    title="`env_init` activates the environment that `python:` names",
    why="`conda activate` or `module load` changes PATH. Ranks start with `python:`, whatever PATH"
    " has: an absolute path there is another environment, with other packages.",
    fix="Give the activated interpreter: `defaults: {python: /path/env/bin/python}`, or"
    " `python: python` for the first one in PATH.",
    source="docs/reference/inventory.md",
    explained_by=(FOUND,),
    blocks=False,
    required_facts=("python", "environment", "job_environment"),
    applies=lambda _node, cluster: cluster.job.env_init is not None and not cluster.job.wrap,
)
def activated(facts: Facts, cluster: Cluster) -> Iterator[Finding]:
    """Judge the nodes where `env_init` puts an interpreter into PATH."""
    if cluster.job.env_init is None or cluster.job.wrap:
        return
    for name, python in working_pythons(facts).items():
        before = dict(facts[name].environment or ()).get("PATH", "").split(":")
        folder = posixpath.dirname(python.on_path)
        own = posixpath.dirname(python.executable)
        # Pyenv's shims start whichever Python it has chosen, perhaps this one.
        if not folder or folder in {*before, own} or folder.endswith("/shims"):
            continue
        yield warn(
            name,
            "env_init activates another Python than the one that ranks start with",
            wanted=python.on_path,
            found=python.executable,
            remedy=f"set `defaults: {{python: {shlex.quote(python.on_path)}}}` in hosts.yaml",
        )


@Check(
    TORCH,
    title="torch is installed, in one version",
    why="Ranks with different versions of torch hang or exchange wrong tensors.",
    fix="Install the same version of torch on all nodes.",
    source="https://docs.pytorch.org/docs/stable/distributed.html",
    explained_by=(FOUND,),
)
def torch(facts: Facts, cluster: Cluster) -> Iterator[Finding]:
    """Compare the versions; with torchrun every node needs torch."""
    pythons = working_pythons(facts)
    versions = {name: python.package("torch") for name, python in pythons.items()}
    known = LAUNCHERS.get(cluster.job.launcher)
    if not any(versions.values()) and not (known and "torch" in known.packages):
        return
    for name, installed in versions.items():
        if not installed:
            wanted = next(filter(None, versions.values()), "")
            yield fail(
                name,
                "the job's interpreter has no torch",
                wanted=f"torch {wanted}".strip(),
                found=f"none in {pythons[name].executable}",
                remedy=install_command(pythons[name], "torch", wanted)
                if "/" in pythons[name].asked
                else NAME_INTERPRETER,
            )
    present = {name: installed for name, installed in versions.items() if installed}
    for name, found, usual in outliers(present):
        remedy = install_command(pythons[name], "torch", usual)
        yield other_version("fail", name, "torch", found, usual, remedy)


_BUILD = re.compile(r"cpu|cu[0-9]+|rocm[0-9.]+|xpu")


def install_command(python: Python, package: str, version: str) -> str:
    """Return the command; builds such as +cu128 are on an index of their own, not on PyPI."""
    wanted = f"{package}=={version}" if version else package
    if python.container:
        return f"add {shlex.quote(wanted)} to the image {shlex.quote(python.container)}"
    command = shlex.join([python.executable, "-m", "pip", "install", wanted])
    build = version.partition("+")[2]
    if not build:
        return command
    if package == "torch" and _BUILD.fullmatch(build):
        return f"{command} --index-url https://download.pytorch.org/whl/{build}"
    named = f"{shlex.quote(package)} {shlex.quote(version)}"
    return f"install {named} on the node, from the source that the other nodes use"
