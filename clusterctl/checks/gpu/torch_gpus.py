"""Whether torch can use the GPUs of each node."""

import re
import shlex
from collections.abc import Collection, Iterator

from clusterctl.checks.finding import Finding, Status, fail, finding
from clusterctl.checks.gpu.lost_gpus import LOST
from clusterctl.checks.others import other_version, outliers
from clusterctl.checks.registry import Check, Facts
from clusterctl.checks.software.python import FOUND, TORCH, working_pythons
from clusterctl.checks.wording import counted
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.facts.software.python import Python, Torch
from clusterctl.inventory.cluster import Cluster
from clusterctl.plan.processes import planned_gpus

_CUDA = re.compile(r"(sm|compute)_(\d{1,3})(\d)([af]?)")


def supports(archs: Collection[str], device: str) -> bool:
    """Return whether code for one of these architectures runs on a GPU of another.

    NVIDIA: machine code (`sm_80`) runs on equal and later minors of its major; with the suffix
    `a` on this GPU only, with `f` within its family, which is taken as the major. PTX
    (`compute_80`) is compiled for any later GPU. AMD: only the same name.
    """
    wanted = _CUDA.fullmatch(device)
    if wanted is None:
        return device in archs
    major, minor = int(wanted[2]), int(wanted[3])
    for arch in archs:
        found = _CUDA.fullmatch(arch)
        if found is None:
            continue
        built, least = int(found[2]), int(found[3])
        if found[4] == "a":
            fits = (built, least) == (major, minor)
        elif found[1] == "compute" and not found[4]:
            fits = (built, least) <= (major, minor)
        else:
            fits = built == major and least <= minor
        if fits:
            return True
    return False


def driver_supports(cuda: str, build: str) -> bool | None:
    """Return whether a driver for up to CUDA `cuda` runs what is built with `build`.

    Within a major version every driver does; None: one of the two is not a CUDA version.
    """
    majors = [re.match(r"(\d{1,3})\.\d", text) for text in (cuda, build)]
    driver, wanted = (int(found[1]) if found else None for found in majors)
    return None if driver is None or wanted is None else driver >= wanted


DRIVER = "python.driver"
ARCH = "python.arch"


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
def driver(node: NodeFacts, cluster: Cluster) -> Iterator[Finding]:
    """Compare the major versions, unless torch works: NVIDIA's compatibility package may help."""
    python = node.python
    if python is None or not _uses_gpus(node, cluster) or _driver_fits(node) is not False:
        return
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
def arch(node: NodeFacts, cluster: Cluster) -> Iterator[Finding]:
    """Compare what torch was built for with the GPUs that it sees."""
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
    explained_by=(FOUND, TORCH, DRIVER, ARCH, LOST, "accelerator.count"),
    applies=_uses_gpus,
)
def cuda(node: NodeFacts, cluster: Cluster) -> Iterator[Finding]:
    """Judge the nodes where GPUs are planned and torch is installed."""
    python = node.python
    planned = planned_gpus(cluster, node)
    if not planned or python is None or python.problem or not python.torch_build:
        return
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
def nccl(facts: Facts) -> Iterator[Finding]:
    """Compare the versions that torch loaded."""
    pythons = working_pythons(facts)
    known = {n: p.torch.nccl for n, p in pythons.items() if p.torch and p.torch.nccl}
    remedy = "install the same torch on the node, and look for LD_LIBRARY_PATH in its ~/.bashrc"
    for name, found, usual in outliers(known):
        yield other_version("fail", name, "NCCL", found, usual, remedy)
