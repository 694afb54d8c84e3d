"""Whether the job's packages exist on each node, in one version and from one place."""

import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterator

from clusterctl.checks.finding import Finding, fail, finding, warn
from clusterctl.checks.others import other_version, outliers
from clusterctl.checks.registry import Check, Facts
from clusterctl.checks.software.python import (
    FOUND,
    compared,
    install_command,
    venv_of,
    working_pythons,
)
from clusterctl.facts.software.python import NAME_INTERPRETER, ForeignImport, Python
from clusterctl.inventory.cluster import Cluster, Job

_NONE = "none"
_SEPARATORS = re.compile(r"[-_.]+")


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


_NUMBERS = re.compile(r"v?(\d+(?:\.\d+)*)(\.\*)?(?:\+[\w.]+)?")
"""A final release; `2.13.0+cpu` is 2.13.0. Not `2.0rc1`, whose place only pip knows."""


def fits(version: str, specifiers: str) -> bool:
    """Tell whether a version fits all of `>=2.4,<3`; what cannot be judged here counts as fit."""
    return all(_fits(version, each.strip()) for each in specifiers.split(",") if each.strip())


def _fits(version: str, specifier: str) -> bool:
    match = re.fullmatch(r"(===?|~=|!=|[<>]=?)\s*(\S+)", specifier)
    has, wanted = _NUMBERS.fullmatch(version), _NUMBERS.fullmatch(match[2]) if match else None
    if match is None or has is None or wanted is None:
        return True
    if "+" in wanted[0]:  # the build counts if it is named
        return match[1] != "==" or version.removeprefix("v") == wanted[0].removeprefix("v")
    own, other = _release(has[1]), _release(wanted[1])
    own += (0,) * (len(other) - len(own))  # 2 is 2.0
    same = own[: len(other)] == other if wanted[2] else _padded(own) == _padded(other)
    above = _padded(own) > _padded(other)
    compatible = (above or same) and own[: len(other) - 1] == other[:-1]
    return {
        "==": same,
        "===": same,
        "!=": not same,
        "~=": compatible,
        ">=": above or same,
        "<=": not above,
        ">": above and not same,
        "<": not above and not same,
    }[match[1]]


def _release(text: str) -> tuple[int, ...]:
    return tuple(int(part[:18]) for part in text.split("."))


def _padded(release: tuple[int, ...]) -> tuple[int, ...]:
    """Return it without zeros at its end: 2.4 is 2.4.0."""
    while release[-1:] == (0,):
        release = release[:-1]
    return release
