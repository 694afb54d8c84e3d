"""Whether the job's interpreter and its packages are there, alike, and can use the hardware."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from clusterctl.checks.finding import Finding, Status
from clusterctl.checks.planned import planned_gpus, words_of
from clusterctl.checks.registry import Facts, check
from clusterctl.checks.shares import Missing, explained
from clusterctl.checks.storage import SHARED
from clusterctl.checks.wording import counted, last_line
from clusterctl.facts.interpreter import NAME_INTERPRETER
from clusterctl.facts.nodefacts import NodeFacts, Python, Torch
from clusterctl.inventory.cluster import LAUNCHABLE, Cluster
from clusterctl.network.choice import Network

FOUND = "python.found"
TORCH = "python.torch"
JOB_CHECK = "job.check"


def _pythons(facts: Facts) -> dict[str, Python]:
    """Return the interpreters that started."""
    return {n.node: n.python for n in facts.values() if n.python and not n.python.problem}


@check(
    FOUND,
    title="the job's interpreter starts in a non-interactive shell",
    why="What ~/.bashrc or a login shell activates is not there when SSH runs a command.",
    needs=("python",),
)
def found(facts: Facts, _network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Say why it did not start; where it lies on a share that is missing, that is the cause."""
    missing = Missing.of(facts, cluster)
    for node in facts.values():
        python = node.python
        if python is None or not python.problem:
            continue
        if missing.explains(node.node, python.asked):
            yield explained(FOUND, node.node, python.asked)
            continue
        yield Finding(
            check=FOUND,
            status="unknown" if python.problem.startswith("no answer") else "fail",
            nodes=(node.node,),
            message="the job's interpreter does not start",
            wanted=python.asked,
            found=python.problem,
            remedy=_make_python(python, node.user or "its user"),
        )


def _make_python(python: Python, user: str) -> str:
    folder, in_venv, _ = python.asked.rpartition("/bin/")
    is_venv = in_venv and folder not in {"", "/usr", "/usr/local"}
    make = f"python3 -m venv {shlex.quote(folder)}" if is_venv else "sudo apt-get install python3"
    if "Permission denied" in python.problem:
        make = f"let {shlex.quote(user)} read and run {shlex.quote(python.asked)}"
    return f"{make} (there), or write another absolute path as `python:` in the inventory"


@check(
    "python.version",
    title="all nodes run the job with one Python",
    why="Pickled objects and compiled packages do not cross minor versions.",
    after=(FOUND,),
)
def version(facts: Facts, _network: Network, _cluster: Cluster) -> Iterator[Finding]:
    """Compare with what most nodes have; another patch level is a warning."""
    pythons = _pythons(facts)
    minor = {name: ".".join(p.version.split(".")[:2]) for name, p in pythons.items()}

    def status(name: str, usual: str) -> Status:
        return "warn" if usual.startswith(minor[name] + ".") else "fail"

    yield from _odd_ones(
        "python.version",
        {name: python.version for name, python in pythons.items()},
        "Python",
        status,
        lambda _name, usual: (
            f"install Python {shlex.quote(usual)} there, or give another `python:` in the inventory"
        ),
    )


@check(
    TORCH,
    title="torch is there, of one version",
    why="Ranks with different versions of torch hang or exchange wrong tensors.",
    after=(FOUND,),
)
def torch(facts: Facts, _network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Torch must be there where torchrun starts the ranks, and equal in any case."""
    pythons = _pythons(facts)
    versions = {name: python.package("torch") for name, python in pythons.items()}
    if not any(versions.values()) and cluster.job.launcher != "torchrun":
        return
    for name, installed in versions.items():
        if not installed:
            wanted = next(filter(None, versions.values()), "")
            yield Finding(
                check=TORCH,
                status="fail",
                nodes=(name,),
                message="the job's interpreter has no torch",
                wanted=f"torch {wanted}".strip(),
                found=f"none in {pythons[name].executable}",
                remedy=_install(pythons[name], "torch", wanted)
                if "/" in pythons[name].asked
                else NAME_INTERPRETER,
            )
    yield from _odd_ones(
        TORCH,
        {name: installed for name, installed in versions.items() if installed},
        "torch",
        lambda _name, _usual: "fail",
        lambda name, usual: _install(pythons[name], "torch", usual),
    )


_NONE = "none"
_BUILD = re.compile(r"cpu|cu[0-9]+|rocm[0-9.]+|xpu")


def _install(python: Python, package: str, version: str) -> str:
    """Return the command; what torch was built for is not on PyPI but has an index of its own."""
    wanted = f"{package}=={version}" if version else package
    command = shlex.join([python.executable, "-m", "pip", "install", wanted])
    build = version.partition("+")[2]
    if not build:
        return command
    if package == "torch" and _BUILD.fullmatch(build):
        return f"{command} --index-url https://download.pytorch.org/whl/{build}"
    named = f"{shlex.quote(package)} {shlex.quote(version)}"
    return f"install {named} there, from where the other nodes have it"


@check(
    "python.packages",
    title="the training packages are of one version",
    why="transformers, peft and their like change formats and defaults between versions.",
    after=(FOUND,),
    blocks=False,
)
def packages(facts: Facts, _network: Network, _cluster: Cluster) -> Iterator[Finding]:
    """Compare every package that some node has."""
    pythons = _pythons(facts)
    names = sorted({p.name for python in pythons.values() for p in python.packages} - {"torch"})
    for package in names:
        versions = {name: python.package(package) for name, python in pythons.items()}

        def remedy(name: str, usual: str, package: str = package) -> str:
            if usual == _NONE:
                remove = shlex.join([pythons[name].executable, "-m", "pip", "uninstall", package])
                return f"{remove}; or install it on the others, where the job needs it"
            return _install(pythons[name], package, usual)

        yield from _odd_ones(
            "python.packages",
            {name: installed or _NONE for name, installed in versions.items()},
            package,
            lambda _name, _usual: "warn",
            remedy,
        )


def _odd_ones(
    check_id: str,
    values: Mapping[str, str],
    what: str,
    status: Callable[[str, str], Status],
    remedy: Callable[[str, str], str],
) -> Iterator[Finding]:
    """Yield a finding for each node whose value is not the usual one."""
    if len(set(values.values())) < 2:  # noqa: PLR2004  (one is as it should be)
        return
    usual = Counter(values.values()).most_common(1)[0][0]
    for name, value in values.items():
        if value != usual:
            yield Finding(
                check=check_id,
                status=status(name, usual),
                nodes=(name,),
                message=f"another version of {what} than on the other nodes",
                wanted=usual,
                found=value,
                remedy=remedy(name, usual),
            )


@check(
    "python.cuda",
    title="torch can use the accelerators",
    why="A torch that was built for CPUs, or for a newer driver, fails at the first tensor.",
    after=(FOUND, TORCH, "accelerator.count"),
    applies=lambda node, cluster: planned_gpus(cluster, node) > 0,
)
def cuda(facts: Facts, _network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Look where GPUs are planned and torch is installed."""
    for node in facts.values():
        python = node.python
        planned = planned_gpus(cluster, node)
        if not planned or python is None or python.problem or not python.torch_build:
            continue
        complaint = _cuda_complaint(node, python, planned)
        if complaint is not None:
            status, message, seen, remedy = complaint
            yield Finding(
                check="python.cuda",
                status=status,
                nodes=(node.node,),
                message=message,
                wanted=f"{counted(planned, 'GPU')} that torch can use",
                found=seen,
                remedy=remedy,
            )


def _cuda_complaint(
    node: NodeFacts, python: Python, planned: int
) -> tuple[Status, str, str, str] | None:
    installed = f"torch {python.package('torch')}"
    amd = node.gpus is not None and node.gpus.tool in {"amd-smi", "rocm-smi"}
    if python.torch_build == "cpu":
        install = [python.executable, "-m", "pip", "install", "--force-reinstall", "torch"]
        wheels = "https://download.pytorch.org/whl/cu128"
        return (
            "fail",
            "torch is built for CPUs only",
            installed,
            "install a torch for ROCm there: https://pytorch.org/get-started/locally"
            if amd
            else shlex.join([*install, "--index-url", wheels]),
        )
    told = python.torch
    if told is None:
        return "unknown", "torch was not asked for its GPUs", installed, "clusterctl check"
    if not told.cuda_available:
        return _cuda_missing(node, python, told, amd=amd)
    if told.error:
        ask = "amd-smi static" if amd else "nvidia-smi -q"
        return "fail", "torch fails on the GPU", told.error, f"{ask} (on the node)"
    if told.device_count < planned:
        return (
            "fail",
            "torch sees fewer GPUs than are planned",
            f"{told.device_count}",
            "look for CUDA_VISIBLE_DEVICES in the node's ~/.bashrc, and for MIG",
        )
    return None


def _cuda_missing(
    node: NodeFacts, python: Python, told: Torch, *, amd: bool
) -> tuple[Status, str, str, str]:
    """Say why torch has no GPU; where it did not answer in time, that it may have one."""
    if told.error.startswith("no answer"):
        again = "clusterctl check: a second import is quicker; else look at the disk and the driver"
        return "unknown", "torch did not say whether it can use the GPUs", told.error, again
    needs = f"torch {python.package('torch')}: it was built for "
    if amd:
        needs += python.torch_build
        remedy = "update the AMD driver, or install a torch for its ROCm"
    else:
        driver = (node.gpus.cuda if node.gpus else "") or "?"
        needs += f"CUDA {python.torch_build}, the driver runs up to {driver}"
        remedy = "update the NVIDIA driver, or install a torch for its CUDA"
    return "fail", "torch cannot use the GPUs", told.error or needs, remedy


@check(
    "python.nccl",
    title="NCCL is of one version",
    why="Ranks with different versions of NCCL do not find together, or hang.",
    after=(FOUND, TORCH, "python.cuda"),
    applies=lambda node, cluster: planned_gpus(cluster, node) > 0,
)
def nccl(facts: Facts, _network: Network, _cluster: Cluster) -> Iterator[Finding]:
    """Compare what torch loaded."""
    yield from _odd_ones(
        "python.nccl",
        {name: p.torch.nccl for name, p in _pythons(facts).items() if p.torch and p.torch.nccl},
        "NCCL",
        lambda _name, _usual: "fail",
        lambda _name, _usual: (
            "install the same torch there, and look for LD_LIBRARY_PATH in ~/.bashrc"
        ),
    )


@check(
    "node.rsync",
    title="rsync is installed",
    why="`sync` mirrors the code with it.",
    needs=("rsync",),
    applies=lambda node, cluster: not cluster.node(node.node).local,
)
def rsync(facts: Facts, _network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Look on the node's PATH; what this machine itself needs, `sync` says."""
    for node in facts.values():
        if node.rsync == "" and not cluster.node(node.node).local:
            yield Finding(
                check="node.rsync",
                status="fail",
                nodes=(node.node,),
                message="rsync is not installed",
                wanted="rsync",
                found="no such program",
                remedy="sudo apt-get install rsync",
            )


@check(
    "job.launcher",
    title="the job's launcher is one that can be launched with",
    why="`launch` refuses the others; an inventory may name them for a version that can.",
)
def launcher(facts: Facts, _network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Name those that work."""
    if cluster.job.launcher not in LAUNCHABLE:
        yield Finding(
            check="job.launcher",
            status="fail",
            nodes=tuple(facts),
            message=f"clusterctl does not launch with {cluster.job.launcher} yet",
            wanted=f"job.launcher: {' or '.join(LAUNCHABLE)}",
            found=cluster.job.launcher,
            remedy=f"clusterctl launch --launcher {LAUNCHABLE[0]}, or change it in the inventory",
        )


@check(
    JOB_CHECK,
    title="the job's own check passes",
    why="What only the job knows: its configuration, its data, its memory.",
    after=(SHARED, FOUND, TORCH, "python.cuda", "storage.needs", "storage.writable"),
    code=True,
    applies=lambda node, cluster: bool(cluster.job.check) and node.job_check is not None,
)
def job_check(facts: Facts, _network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Judge by its exit code."""
    for node in facts.values():
        result = node.job_check
        if not cluster.job.check or result is None or result.exit_code == 0:
            continue
        ended = result.exit_code is not None
        python = node.python.asked if node.python else "python3"
        there = f"run it there: {shlex.join(words_of(cluster.job.check, python))}"
        sync = "clusterctl sync brings the code, from the folder that has it"
        yield Finding(
            check=JOB_CHECK,
            status="fail" if ended else "unknown",
            nodes=(node.node,),
            message="the job's own check fails" if ended else "the job's own check did not end",
            wanted="exit code 0",
            found=last_line(result.output) or result.words or f"exit code {result.exit_code}",
            remedy=sync if _is_absent(cluster.job.check, result.output) else there,
        )


def _is_absent(command: tuple[str, ...], output: str) -> bool:
    """Tell whether Python found not even the command's own module or script."""
    said = last_line(output)
    if command[0] == "-m" and len(command) > 1:
        module = re.escape(command[1].split(".")[0])
        return re.search(rf"No module named '?{module}\b", said) is not None
    return "can't open file" in said and command[0] in said
