"""Whether the job's interpreter and its packages exist, match, and can use the GPUs."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from clusterctl.checks.finding import Finding, Status, fail, finding, skip
from clusterctl.checks.registry import Check, Facts
from clusterctl.checks.shares import MissingShares, skip_missing
from clusterctl.checks.storage import SHARED
from clusterctl.checks.wording import counted, last_line
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.facts.python import NAME_INTERPRETER
from clusterctl.facts.torch_archs import driver_supports, supports
from clusterctl.facts.values.software import Python, Torch
from clusterctl.inventory.cluster import Cluster, Job
from clusterctl.network.choice import Network
from clusterctl.plan.launchers import LAUNCHERS
from clusterctl.plan.make import command_with_python
from clusterctl.plan.processes import planned_gpus

FOUND = "python.found"
TORCH = "python.torch"
DRIVER = "python.driver"
ARCH = "python.arch"
JOB_CHECK = "job.check"


def working_pythons(facts: Facts) -> dict[str, Python]:
    """Return the interpreters that started."""
    return {n.node: n.python for n in facts.values() if n.python and not n.python.problem}


def _compared(pythons: Mapping[str, Python]) -> tuple[dict[str, Python], list[Finding]]:
    """Return the interpreters to compare, and a skip for each of the others.

    Where some have torch, one without it is the wrong interpreter: its packages say nothing.
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
def found(facts: Facts, _network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Report why it did not start, unless it is on a missing share."""
    missing = MissingShares.of(facts, cluster)
    for node in facts.values():
        python = node.python
        if python is None or not python.problem:
            continue
        if missing.explains(node.node, python.asked):
            yield skip_missing(node.node, python.asked)
            continue
        yield finding(
            "unknown" if python.problem.startswith("no answer") else "fail",
            node.node,
            "the job's interpreter does not start",
            wanted=python.asked,
            found=python.problem,
            remedy=_make_python(python, node.user or "its user"),
        )


def _make_python(python: Python, user: str) -> str:
    if python.container:
        image = shlex.quote(python.container)
        return f"set `python:` in the inventory to the path of Python in the image {image}"
    folder, in_venv, _ = python.asked.rpartition("/bin/")
    is_venv = in_venv and folder not in {"", "/usr", "/usr/local"}
    make = f"python3 -m venv {shlex.quote(folder)}" if is_venv else "sudo apt-get install python3"
    if "Permission denied" in python.problem:
        make = f"let {shlex.quote(user)} read and execute {shlex.quote(python.asked)}"
    return f"{make} (on the node), or set another absolute path as `python:` in the inventory"


@Check(
    "python.version",
    title="all nodes run the job with the same Python",
    why="Pickled objects and compiled packages do not work across minor versions.",
    fix="Create the environment with one minor version of Python on all nodes.",
    source="https://docs.python.org/3/library/pickle.html",
    explained_by=(FOUND,),
)
def version(facts: Facts, _network: Network, _cluster: Cluster) -> Iterator[Finding]:
    """Compare with most other nodes; another patch level is a warning."""
    pythons, skips = _compared(working_pythons(facts))
    yield from skips
    minor = {name: ".".join(p.version.split(".")[:2]) for name, p in pythons.items()}

    def status(name: str, usual: str) -> Status:
        return "warn" if usual.startswith(minor[name] + ".") else "fail"

    yield from outliers(
        {name: python.version for name, python in pythons.items()},
        "Python",
        status,
        lambda _name, usual: (
            f"install Python {shlex.quote(usual)} on the node, or set another `python:` for it"
        ),
    )


@Check(
    TORCH,
    title="torch is installed, in one version",
    why="Ranks with different versions of torch hang or exchange wrong tensors.",
    fix="Install the same version of torch on all nodes.",
    source="https://docs.pytorch.org/docs/stable/distributed.html",
    explained_by=(FOUND,),
)
def torch(facts: Facts, _network: Network, cluster: Cluster) -> Iterator[Finding]:
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
    yield from outliers(
        {name: installed for name, installed in versions.items() if installed},
        "torch",
        lambda _name, _usual: "fail",
        lambda name, usual: install_command(pythons[name], "torch", usual),
    )


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
    return tuple((_SEPARATORS.sub("-", name).lower(), version) for name, _, version in found)


@Check(
    "job.packages",
    title="the packages that the job names are installed",
    why="A package that is missing ends the run with an ImportError, on one node or on all.",
    fix="Install them on all nodes with the job's interpreter.",
    source="docs/reference/inventory.md",
    explained_by=(FOUND,),
    required_facts=("python",),
    applies=lambda _node, cluster: bool(cluster.job.packages),
)
def named(facts: Facts, _network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Look for each on every node, in the version that is named."""
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


@Check(
    "python.packages",
    title="the training packages have one version",
    why="transformers, peft and similar packages change formats and defaults between versions.",
    fix="Install the same versions on all nodes, such as from one lock file.",
    source="https://pip.pypa.io/en/stable/topics/repeatable-installs/",
    explained_by=(FOUND,),
    blocks=False,
)
def packages(facts: Facts, _network: Network, _cluster: Cluster) -> Iterator[Finding]:
    """Compare every package that any node has."""
    pythons, skips = _compared(working_pythons(facts))
    yield from skips
    names = sorted({p.name for python in pythons.values() for p in python.packages} - {"torch"})
    for package in names:
        versions = {name: python.package(package) for name, python in pythons.items()}

        def remedy(name: str, usual: str, package: str = package) -> str:
            if usual == _NONE:
                remove = shlex.join([pythons[name].executable, "-m", "pip", "uninstall", package])
                return f"{remove}; or install it on the other nodes if the job needs it"
            return install_command(pythons[name], package, usual)

        yield from outliers(
            {name: installed or _NONE for name, installed in versions.items()},
            package,
            lambda _name, _usual: "warn",
            remedy,
        )


def outliers(
    values: Mapping[str, str],
    what: str,
    status: Callable[[str, str], Status],
    remedy: Callable[[str, str], str],
) -> Iterator[Finding]:
    """Yield a finding for each node whose value differs from the most common one."""
    if len(set(values.values())) < 2:  # noqa: PLR2004  (all are equal)
        return
    usual = Counter(values.values()).most_common(1)[0][0]
    for name, value in values.items():
        if value != usual:
            yield finding(
                status(name, usual),
                name,
                f"another version of {what} than on the other nodes",
                wanted=usual,
                found=value,
                remedy=remedy(name, usual),
            )


def _uses_gpus(node: NodeFacts, cluster: Cluster) -> bool:
    return planned_gpus(cluster, node) > 0


@Check(
    DRIVER,
    title="the GPU driver supports the CUDA version of torch",
    why="A driver runs programs for its major version of CUDA and for older ones.",
    fix="Update the driver, or install torch for an older CUDA.",
    source="https://docs.nvidia.com/deploy/cuda-compatibility/index.html",
    explained_by=(FOUND, TORCH, "accelerator.count"),
    applies=lambda node, cluster: _uses_gpus(node, cluster) and _driver_fits(node) is not None,
)
def driver(facts: Facts, _network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Compare the major versions, unless torch works: NVIDIA's compatibility package may help."""
    for node in facts.values():
        python = node.python
        if python is None or not _uses_gpus(node, cluster) or _driver_fits(node) is not False:
            continue
        assert node.gpus is not None
        yield fail(
            node.node,
            "the GPU driver is too old for this torch",
            wanted=f"a driver for CUDA {python.torch_build}",
            found=f"driver {node.gpus.driver} for up to CUDA {node.gpus.cuda}",
            remedy="update the NVIDIA driver, or install a torch for its CUDA version:"
            " https://pytorch.org/get-started/locally",
        )


def _driver_fits(node: NodeFacts) -> bool | None:
    """Return whether the driver is new enough; None if the versions are unknown."""
    if node.python is None or node.gpus is None:
        return None
    asked = node.python.torch
    if asked is not None and (asked.cuda_available or asked.error.startswith("no answer")):
        return True if asked.cuda_available else None
    return driver_supports(node.gpus.cuda, node.python.torch_build)


@Check(
    ARCH,
    title="torch has code for the GPUs",
    why="A build of torch leaves out GPUs that are older or newer: `no kernel image is available`.",
    fix="Install a torch that was built for this GPU, such as a newer release.",
    source="https://developer.nvidia.com/cuda-gpus",
    explained_by=(FOUND, TORCH, DRIVER, "accelerator.count"),
    applies=lambda node, cluster: _uses_gpus(node, cluster) and bool(_archs(node)),
)
def arch(facts: Facts, _network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Compare what torch was built for with the GPUs that it sees."""
    for node in facts.values():
        archs = _archs(node)
        seen = node.python.torch.devices if node.python and node.python.torch else ()
        lacking = sorted({device for device in seen if not supports(archs, device)})
        if archs and lacking and _uses_gpus(node, cluster):
            yield fail(
                node.node,
                "torch has no code for a GPU",
                wanted=", ".join(lacking),
                found=f"torch {node.python.package('torch') if node.python else ''} for "
                + ", ".join(archs),
                remedy="install a torch that has it: https://pytorch.org/get-started/locally",
            )


def _archs(node: NodeFacts) -> tuple[str, ...]:
    known = node.python.torch if node.python else None
    return known.archs if known is not None and known.devices else ()


@Check(
    "python.cuda",
    title="torch can use the accelerators",
    why="torch fails at the first tensor if it was built for CPUs or for a newer driver.",
    fix="Install torch for the CUDA version of the driver, or update the driver.",
    source="https://docs.nvidia.com/deploy/cuda-compatibility/index.html",
    explained_by=(FOUND, TORCH, DRIVER, ARCH, "accelerator.count"),
    applies=_uses_gpus,
)
def cuda(facts: Facts, _network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Judge the nodes where GPUs are planned and torch is installed."""
    for node in facts.values():
        python = node.python
        planned = planned_gpus(cluster, node)
        if not planned or python is None or python.problem or not python.torch_build:
            continue
        complaint = _cuda_complaint(node, python, planned)
        if complaint is not None:
            status, message, seen, remedy = complaint
            yield finding(
                status,
                node.node,
                message,
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
            "install torch for ROCm on the node: https://pytorch.org/get-started/locally"
            if amd
            else shlex.join([*install, "--index-url", wheels]),
        )
    imported = python.torch
    if imported is None:
        return "unknown", "the saved facts lack torch's GPUs", installed, "clusterctl check"
    if not imported.cuda_available:
        return _cuda_missing(node, python, imported, amd=amd)
    if imported.error:
        ask = "amd-smi static" if amd else "nvidia-smi -q"
        return "fail", "torch fails on the GPU", imported.error, f"{ask} (on the node)"
    if imported.device_count < planned:
        return (
            "fail",
            "torch sees fewer GPUs than the job needs",
            f"{imported.device_count}",
            "look for CUDA_VISIBLE_DEVICES in the node's ~/.bashrc, and for GPUs in MIG mode",
        )
    return None


def _cuda_missing(
    node: NodeFacts, python: Python, imported: Torch, *, amd: bool
) -> tuple[Status, str, str, str]:
    """Return why torch has no GPU; unknown if torch did not answer in time."""
    if imported.error.startswith("no answer"):
        again = "clusterctl check (a second import is quicker); else check the disk and the driver"
        return (
            "unknown",
            "torch did not answer in time about the GPUs",
            imported.error,
            again,
        )
    needs = f"torch {python.package('torch')}: it was built for "
    if amd:
        needs += python.torch_build
        remedy = "update the AMD driver, or install torch for its ROCm version"
    else:
        driver = (node.gpus.cuda if node.gpus else "") or "?"
        needs += f"CUDA {python.torch_build}, the driver supports up to {driver}"
        remedy = "update the NVIDIA driver, or install torch for its CUDA version"
    return "fail", "torch cannot use the GPUs", imported.error or needs, remedy


@Check(
    "python.nccl",
    title="NCCL has one version",
    why="Ranks with different versions of NCCL fail to connect, or hang.",
    fix="Install the same torch on all nodes, and remove other NCCL libraries from"
    " LD_LIBRARY_PATH.",
    source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
    explained_by=(FOUND, TORCH, "python.cuda"),
    applies=lambda node, cluster: planned_gpus(cluster, node) > 0,
)
def nccl(facts: Facts, _network: Network, _cluster: Cluster) -> Iterator[Finding]:
    """Compare the versions that torch loaded."""
    yield from outliers(
        {
            name: p.torch.nccl
            for name, p in working_pythons(facts).items()
            if p.torch and p.torch.nccl
        },
        "NCCL",
        lambda _name, _usual: "fail",
        lambda _name, _usual: (
            "install the same torch on the node, and look for LD_LIBRARY_PATH in its ~/.bashrc"
        ),
    )


@Check(
    "node.rsync",
    title="rsync is installed",
    why="`sync` copies the code with it.",
    fix="Install rsync with the package manager of the node.",
    source="https://download.samba.org/pub/rsync/rsync.1",
    required_facts=("rsync",),
    applies=lambda node, cluster: not cluster.node(node.node).local,
)
def rsync(facts: Facts, _network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Judge the other machines; `sync` itself reports a missing rsync on this one."""
    for node in facts.values():
        if node.rsync == "" and not cluster.node(node.node).local:
            yield fail(
                node.node,
                "rsync is not installed",
                wanted="rsync",
                found="no such program",
                remedy="sudo apt-get install rsync",
            )


@Check(
    JOB_CHECK,
    title="the job's own check passes",
    why="Only the job itself can check its configuration, its data and its memory.",
    fix="Run the command of `job.check` on the node by hand, in `workdir`.",
    source="docs/reference/inventory.md",
    explained_by=(SHARED, FOUND, TORCH, "python.cuda", "storage.needs", "storage.writable"),
    after_sync=True,
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
        there = f"run it on the node: {shlex.join(command_with_python(cluster.job.check, python))}"
        sync = "clusterctl sync (in the folder with the code) copies the code there"
        yield finding(
            "fail" if ended else "unknown",
            node.node,
            "the job's own check fails" if ended else "the job's own check did not finish",
            wanted="exit code 0",
            found=last_line(result.output) or result.words or f"exit code {result.exit_code}",
            remedy=sync if _is_absent(cluster.job.check, result.output) else there,
        )


def _is_absent(command: tuple[str, ...], output: str) -> bool:
    """Tell whether Python did not find the command's own module or script."""
    printed = last_line(output)
    if command[0] == "-m" and len(command) > 1:
        module = re.escape(command[1].split(".")[0])
        return re.search(rf"No module named '?{module}\b", printed) is not None
    return "can't open file" in printed and command[0] in printed
