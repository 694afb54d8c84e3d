"""Whether every node would import the job's packages from the same place."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator

from clusterctl.checks.finding import Finding, finding
from clusterctl.checks.registry import Check, Facts
from clusterctl.checks.software.python import FOUND, compared, working_pythons
from clusterctl.facts.software.python import ForeignImport, Python
from clusterctl.inventory.cluster import Cluster


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
