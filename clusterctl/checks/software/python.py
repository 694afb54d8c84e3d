"""Whether the job's interpreter and its packages exist on each node, and match."""

import posixpath
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterator, Mapping

from clusterctl.checks.finding import Finding, Status, fail, finding, skip, warn
from clusterctl.checks.others import other_version, outliers
from clusterctl.checks.registry import Check, Facts
from clusterctl.checks.software.requirements import fits
from clusterctl.checks.storage.shares import MissingShares, skip_missing
from clusterctl.facts.software.python import ENV_INIT, NAME_INTERPRETER, ForeignImport, Python
from clusterctl.inventory.cluster import Cluster, Job
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


_NONE = "none"
_SEPARATORS = re.compile(r"[-_.]+")
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


def named_packages(job: Job) -> tuple[tuple[str, str], ...]:
    """Return the packages of `job.packages` as their metadata is named, each with its version."""
    found = (word.partition("==") for word in job.packages)
    return tuple((metadata_name(name), version) for name, _, version in found)


def metadata_name(package: str) -> str:
    """Return a package's name as its metadata has it: `Flash_Attn` is flash-attn."""
    return _SEPARATORS.sub("-", package).lower()


@Check(
    "job.packages",
    title="the packages that the job and its requirements.txt name are installed",
    why="A package that is missing ends the run with an ImportError, on one node or on all."
    " `launch` copies requirements.txt, and installs nothing.",
    fix="Install them on all nodes with the job's interpreter: `clusterctl setup` does that for"
    " requirements.txt.",
    source="docs/reference/inventory.md",
    explained_by=(FOUND,),
    required_facts=("python",),
    applies=lambda node, cluster: bool(cluster.job.packages or node.requirements),
)
def named(facts: Facts, cluster: Cluster) -> Iterator[Finding]:
    """Look for each on every node, in the version that is named; requirements.txt only warns."""
    pythons = working_pythons(facts)
    for package, wanted in named_packages(cluster.job):
        for name, python in pythons.items():
            version = python.package(package)
            if version and wanted in {"", version}:
                continue
            yield fail(
                name,
                f"the job's interpreter has {'another' if version else 'no'} {package}",
                wanted=f"{package} {wanted}".strip(),
                found=f"{package} {version}" if version else f"none in {python.executable}",
                remedy=install_command(python, package, wanted),
            )
    known = {package for package, _ in named_packages(cluster.job)}
    for name, python in pythons.items():
        required = [pair for pair in facts[name].requirements if pair[0] not in known]
        if found := _unmet(name, python, required):
            yield found


def _unmet(node: str, python: Python, required: Collection[tuple[str, str]]) -> Finding | None:
    """Return the finding of an interpreter that is older than requirements.txt."""
    unmet = [
        (package, versions)
        for package, versions in required
        if not (version := python.package(package)) or not fits(version, versions)
    ]
    if not unmet:
        return None
    installed = (f"{package} {python.package(package) or _NONE}" for package, _ in unmet)
    words = [f"{package}{versions}" for package, versions in unmet]
    remedy = "clusterctl setup" if venv_of(python) else NAME_INTERPRETER
    if python.container:
        remedy = f"add {shlex.join(words)} to the image {shlex.quote(python.container)}"
    return warn(
        node,
        "the job's interpreter lacks what requirements.txt names",
        wanted=", ".join(words),
        found=f"{', '.join(installed)} in {python.executable}",
        remedy=remedy,
    )


@Check(
    "python.packages",
    title="the training packages have one version",
    why="transformers, peft and similar packages change formats and defaults between versions.",
    fix="Install the same versions on all nodes, such as from one lock file.",
    source="https://pip.pypa.io/en/stable/topics/repeatable-installs/",
    explained_by=(FOUND,),
    blocks=False,
)
def packages(facts: Facts) -> Iterator[Finding]:
    """Compare every package that any node has."""
    pythons, skips = compared(working_pythons(facts))
    yield from skips
    names = sorted({p.name for python in pythons.values() for p in python.packages} - {"torch"})
    for package in names:
        versions = {name: python.package(package) or _NONE for name, python in pythons.items()}
        for name, found, usual in outliers(versions):
            if usual == _NONE:
                remove = shlex.join([pythons[name].executable, "-m", "pip", "uninstall", package])
                remedy = f"{remove}; or install it on the other nodes if the job needs it"
            else:
                remedy = install_command(pythons[name], package, usual)
            yield other_version("warn", name, package, found, usual, remedy)


@Check(
    "python.shadowed",
    title="torch and the job's packages are imported from the same place on all nodes",
    why="A PYTHONPATH, a package of the user's own in ~/.local or a `.pth` file can hide the"
    " installed torch on one node: its version is right, and another code runs.",
    fix="Remove that folder from the path, or set `PYTHONPATH` and `PYTHONNOUSERSITE` for all nodes"
    " in `job: env:`.",
    source="https://docs.python.org/3/library/sys_path_init.html",
    explained_by=(FOUND,),
    applies=lambda node, _cluster: node.python is not None and node.python.foreign is not None,
)
def shadowed(facts: Facts, cluster: Cluster) -> Iterator[Finding]:
    """Judge what the interpreter would import, by name; alike on all nodes, a copy is a warning."""
    asked = {
        name: python
        for name, python in working_pythons(facts).items()
        if python.foreign is not None
    }
    pythons, without_torch = compared(asked)
    yield from without_torch
    named = sorted({one.name for python in pythons.values() for one in python.foreign or ()})
    for package in named:
        nodes = {
            name: next((one for one in python.foreign or () if one.name == package), None)
            for name, python in pythons.items()
        }
        counts = Counter(one.file if one else "" for one in nodes.values())
        usual = max(counts, key=lambda file: (counts[file], not file))
        for name, found in nodes.items():
            file = found.file if found else ""
            if file == usual and not (len(counts) == 1 and found and found.hides):
                continue  # if alike: such as a clone on a shared filesystem that is meant
            own = f"the folders of {pythons[name].executable}"
            elsewhere = "the interpreter has it" if file == usual else "on the other nodes"
            yield finding(
                "warn" if file == usual else "fail",
                name,
                f"{package} is imported from another place than {elsewhere}",
                wanted=(found.hides if found else "") or usual or own,
                found=f"{file} (by {found.origin})" if found and found.origin else file or own,
                remedy=_remedy(found, pythons[name], cluster.job.env_init or ""),
            )


def _remedy(found: ForeignImport | None, python: Python, env_init: str) -> str:
    if found is None:
        return "set `PYTHONPATH` in `job: env:` for all nodes, or install it on all in one place"
    if python.container:
        return f"remove {shlex.quote(found.file)} from the image {shlex.quote(python.container)}"
    if found.origin == "PYTHONPATH":
        return _path_remedy(env_init)
    if found.origin == "user site":
        return 'set `PYTHONNOUSERSITE: "1"` in `job: env:`, or uninstall it from ~/.local there'
    if found.origin:
        return f"grep -n . {shlex.quote(found.origin)} (on the node) shows the line to remove"
    why = shlex.join([python.executable, "-c", "import sys; print(sys.path, sys.meta_path)"])
    return f"{why} (on the node) shows what leads there"


def _path_remedy(env_init: str) -> str:
    if "PYTHONPATH" in env_init:
        return "correct `env_init:` in the inventory, which sets PYTHONPATH"
    return ("`env_init` may set it, such as by a module; else " if env_init else "") + (
        "grep -ns PYTHONPATH /etc/environment ~/.ssh/environment ~/.bashrc ~/.profile (on the"
        " node) shows where it is set; or set `PYTHONPATH` in `job: env:` for all nodes"
    )
