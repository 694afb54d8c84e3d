"""Whether each GPU computes right and fast, alone and with its neighbors; `--deep` tries it."""

import re
from collections.abc import Callable, Iterator, Mapping
from statistics import median

from clusterctl.checks.finding import Finding, fail, finding, skip, unknown, warn
from clusterctl.checks.gpu.expected_speed import Expectation, between_gpus, report
from clusterctl.checks.network.collectives import DEEP, with_block_size
from clusterctl.checks.registry import Applies, Check, Facts
from clusterctl.checks.wording import main_line
from clusterctl.facts.ladder import Dcgm, GpuTrial
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.inventory.cluster import Cluster
from clusterctl.values import dataclass

SLOW = 0.75
"""Part of the peers' median below which a GPU, or the GPUs of a node, are slow."""
GPUS = "deep.gpus"
DCGM = "deep.dcgm"
INSIDE = "deep.node"

_ECC = "sudo dmesg | grep -i xid; nvidia-smi -q -d ECC,ROW_REMAPPER -i {gpus} (on the node)"
_CAUSES = (
    (
        r"out of memory",
        "GPU {gpus} has no memory left: another process holds it",
        "nvidia-smi --query-compute-apps=gpu_uuid,pid,used_memory --format=csv (on the node)",
    ),
    (
        r"busy or unavailable",
        "GPU {gpus} is held by another process, or its compute mode forbids this one",
        "nvidia-smi -q -d COMPUTE,PIDS -i {gpus} (on the node)",
    ),
    (
        r"\bECC\b|unspecified launch failure|illegal (memory access|instruction)|fallen off",
        "GPU {gpus} fails while it computes: its memory or the chip has an error",
        f"{_ECC}; then reset the GPU, or train without the node",
    ),
    (
        r"not compiled with CUDA",
        "torch is built without CUDA",
        "install a torch with CUDA on the node: https://pytorch.org/get-started/locally",
    ),
    (
        r"driver\b.*\btoo old|driver version is insufficient|unsupported toolchain",
        "the driver is too old for this torch",
        "update the driver of the node, or install torch for an older CUDA",
    ),
    (
        r"no kernel image",
        "this torch has no code for GPU {gpus}",
        "install a newer torch on the node: https://pytorch.org/get-started/locally",
    ),
    (
        r"invalid device ordinal|no CUDA-capable device|No CUDA GPUs are available",
        "torch does not see GPU {gpus}",
        "look for CUDA_VISIBLE_DEVICES in the node's ~/.bashrc, and for GPUs in MIG mode",
    ),
    (
        r"nccl|NCCL",
        "NCCL fails on GPU {gpus}",
        "clusterctl launch --debug shows what NCCL does",
    ),
)
"""How torch, CUDA and NCCL word it → what it means, and what to do."""
WAITED = re.compile(
    r"no answer within|[Tt]imed out|remote process exited|[Cc]onnection (reset|closed)"
)
"""What a rank prints when another one exited."""
_FAILS = ("GPU {gpus} fails", _ECC)


def complaint(error: str) -> tuple[str, str]:
    """Return what an error of torch means, and what to do."""
    for pattern, message, remedy in _CAUSES:
        if re.search(pattern, error):
            return message, remedy
    return _FAILS


def _reached(rung: str) -> Applies:
    def applies(node: NodeFacts, _cluster: Cluster) -> bool:
        return any(r.name == rung for r in node.trials.rungs)

    return applies


def not_reached(facts: Facts, rungs: str) -> Iterator[Finding]:
    """Say of each node that was stopped earlier which rung stopped it, and where it broke."""
    for node in facts.values():
        ladder = node.trials
        if ladder.stopped and rungs not in {r.name for r in ladder.rungs}:
            where = ", ".join(ladder.blamed) or "a node"
            yield skip(node.node, f"not tried: rung {ladder.stopped!r} broke on {where}")


@Check(
    GPUS,
    title="each GPU alone allocates, multiplies right and copies as fast as the others",
    why="A GPU may compute wrong numbers or be slow without an error. All ranks wait for the"
    " slowest one, and every rank gets the wrong gradients.",
    fix="End the processes that hold the GPU. Reset a GPU that fails; if it fails again, train"
    " without the node and have the GPU replaced.",
    source="https://docs.nvidia.com/deploy/gpu-debug-guidelines/index.html",
    explained_by=(DEEP, "python.cuda", "accelerator.count"),
    blocks=False,
    applies=_reached("gpus"),
)
def each_gpu(facts: Facts) -> Iterator[Finding]:
    """Judge what each GPU did, then compare those that did it right."""
    yield from not_reached(facts, "gpus")
    tried = [(node, trial) for node in facts.values() for trial in node.trials.gpus]
    for node, trial in tried:
        if trial.state != "ok":
            yield _failed(node, trial, "a product and a copy in the GPU's memory")
        elif trial.wrong_numbers is None or trial.wrong_copies is None:
            yield unknown(
                node.node,
                "GPU {gpus} gave no result",
                wanted="the number of wrong results",
                found="none",
                remedy="clusterctl check --deep",
                gpus=(trial.index,),
            )
        elif trial.wrong_numbers or trial.wrong_copies:
            what, wrong = (
                ("a product", trial.wrong_numbers)
                if trial.wrong_numbers
                else ("a copy", trial.wrong_copies)
            )
            yield fail(
                node.node,
                "GPU {gpus} computes wrong numbers, without an error: silent data corruption",
                wanted="the product and the copy that are known",
                found=f"{wrong} wrong numbers in {what}",
                remedy="dcgmi diag -r 3 -i {gpus} (on the node); train without the node until the"
                " GPU is replaced",
                gpus=(trial.index,),
            )
    right = [
        (n, t) for n, t in tried if t.state == "ok" and not (t.wrong_numbers or t.wrong_copies)
    ]
    speeds: tuple[tuple[str, str, Callable[[GpuTrial], float | None]], ...] = (
        ("multiplies", "TFLOP/s in bfloat16", lambda trial: trial.tflops),
        ("copies within its memory", "GB/s", lambda trial: trial.memory_gb_s),
    )
    for does, unit, read in speeds:
        yield from _slow_gpus(right, does, unit, read)


def _slow_gpus(
    tried: list[tuple[NodeFacts, GpuTrial]],
    does: str,
    unit: str,
    read: Callable[[GpuTrial], float | None],
) -> Iterator[Finding]:
    """Compare GPUs of one model with each other."""
    speeds: dict[str, list[tuple[str, int, float]]] = {}
    for node, trial in tried:
        model = next((gpu.name for gpu in node.devices if gpu.index == trial.index), "")
        speed = read(trial)
        if speed is not None:
            speeds.setdefault(model, []).append((node.node, trial.index, speed))
    for found in speeds.values():
        usual = median(speed for _, _, speed in found)
        for name, index, speed in found:
            if speed < SLOW * usual:
                yield warn(
                    name,
                    f"GPU {index} {does} far slower than the others",
                    wanted=f"about {usual:.4g} {unit}, as other GPUs",
                    found=f"{speed:.4g} {unit}",
                    remedy="nvidia-smi -q -d PERFORMANCE,CLOCK,TEMPERATURE -i {gpus} (on the"
                    " node); see what else uses it",
                    gpus=(index,),
                )


def _failed(node: NodeFacts, trial: GpuTrial, wanted: str) -> Finding:
    if trial.state == "timeout":
        return fail(
            node.node,
            "GPU {gpus} hangs: the process that tried it was killed",
            wanted=wanted,
            found=trial.error or "no answer",
            remedy=f"{_ECC}; reboot the node if the process is still there",
            gpus=(trial.index,),
        )
    message, remedy = complaint(trial.error)
    return fail(
        node.node,
        message,
        wanted=wanted,
        found=main_line(trial.error) or "no words",
        remedy=remedy,
        gpus=(trial.index,),
    )


_ENGINE = "sudo systemctl start nvidia-dcgm (on the node)"
_DIAGNOSE = "dcgmi diag -r 1 (on the node)"


@Check(
    DCGM,
    title="DCGM's short diagnostic finds nothing",
    why="DCGM knows faults of the GPU and its driver that a program on the GPU does not see.",
    fix="Do what DCGM says. `dcgmi diag -r 2` and `-r 3` look longer and at more.",
    source="https://docs.nvidia.com/datacenter/dcgm/latest/user-guide/dcgm-diagnostics.html",
    explained_by=(DEEP, GPUS),
    blocks=False,
    applies=_reached("dcgm"),
)
def dcgm(facts: Facts) -> Iterator[Finding]:
    """Pass on what failed; what a setting of the machine causes is a warning."""
    yield from not_reached(facts, "dcgm")
    for node in facts.values():
        if not any(rung.name == "dcgm" for rung in node.trials.rungs):
            continue
        found = node.trials.dcgm or Dcgm(state="error", words="no result")
        if found.state in {"absent", "not-asked"}:
            asked = found.state == "absent"
            yield skip(node.node, "DCGM is not installed" if asked else "no GPU of NVIDIA to try")
        elif found.state != "ok":
            stopped = found.state == "no-hostengine"
            yield unknown(
                node.node,
                "DCGM's host engine does not run" if stopped else "DCGM's diagnostic gives nothing",
                wanted="the results of `dcgmi diag -r 1`",
                found=found.words or found.state,
                remedy=_ENGINE if stopped else _DIAGNOSE,
            )
        for test in found.tests:
            if test.status in {"fail", "warn"}:
                soft = test.setting or test.status == "warn"
                yield finding(
                    "warn" if soft else "fail",
                    node.node,
                    f"DCGM's test {test.name!r} {'fails' if test.status == 'fail' else 'warns'}",
                    wanted="pass",
                    found=test.words or test.status,
                    remedy=_DIAGNOSE,
                    gpus=test.gpus,
                )


@Check(
    INSIDE,
    title="an all-reduce over the GPUs of each node is right, and as fast as its links allow",
    why="It runs NCCL on NVLink or PCIe alone, without the network.",
    fix="If NCCL fails, look at its own words with --debug. If it is slow, compare"
    " `nvidia-smi topo -m` and `nvidia-smi nvlink -s` with those of another node.",
    source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
    explained_by=(DEEP, GPUS),
    blocks=False,
    applies=_reached("inside"),
)
def inside(facts: Facts) -> Iterator[Finding]:
    """Report the GPUs that failed, then the nodes that are slower than their links or others."""
    yield from not_reached(facts, "inside")
    reached: dict[int, dict[str, _Sum]] = {}
    for node in facts.values():
        ranks = node.trials.inside
        broken = [rank for rank in ranks if rank.state != "ok"]
        # Ranks that wait for one that failed end with an error or at the limit, too.
        own = [rank for rank in broken if not WAITED.search(rank.error)] or broken
        wanted = f"an all-reduce over {len(ranks)} GPUs"
        yield from (_failed(node, rank, wanted) for rank in own)
        wrong = [rank.index for rank in ranks if rank.state == "ok" and not rank.right]
        if wrong:
            yield fail(
                node.node,
                "the sum over the GPUs of the node is wrong: silent data corruption",
                wanted=wanted,
                found="a wrong sum on GPU {gpus}",
                remedy="dcgmi diag -r 3 (on the node); train without the node until it passes",
                gpus=tuple(wrong),
            )
        if len(ranks) > 1 and not broken and not wrong:
            reached.setdefault(len(ranks), {})[node.node] = _sum_of(node, ranks)
    for alike in reached.values():
        yield from _compare_nodes(alike)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sum:
    """What the GPUs of a node reached together."""

    gbps: float
    found: str
    expected: Expectation | None


def _sum_of(node: NodeFacts, ranks: tuple[GpuTrial, ...]) -> _Sum:
    gbps = min(rank.gbps or 0.0 for rank in ranks)
    ways = [way for rank in ranks if rank.transport for way in rank.transport.via]
    through = f" through {', '.join(dict.fromkeys(ways))}" if ways else ""
    return _Sum(
        gbps=gbps,
        found=f"{gbps:.4g} Gb/s{with_block_size(ranks[0].block_bytes)}{through}",
        expected=between_gpus(node, [rank.index for rank in ranks], ranks[0].block_bytes),
    )


def _compare_nodes(alike: Mapping[str, _Sum]) -> Iterator[Finding]:
    """Compare each node with its links, then with nodes of as many GPUs."""
    usual = median(one.gbps for one in alike.values())
    well: dict[Expectation | None, list[tuple[float, str, str]]] = {}
    for name, one in alike.items():
        if one.expected is not None and one.gbps < one.expected.least:
            yield warn(
                name,
                "its GPUs exchange data far slower than their links",
                wanted=one.expected.wanted(),
                found=one.found,
                remedy="nvidia-smi topo -m; nvidia-smi nvlink -s; sudo lspci -vvv | grep ACSCtl"
                " (on the node): access control of PCIe switches sends all data through the CPU",
            )
        elif one.gbps < SLOW * usual:
            yield warn(
                name,
                "its GPUs exchange data far slower than those of other nodes",
                wanted=f"about {usual:.4g} Gb/s, as other nodes",
                found=one.found,
                remedy="nvidia-smi topo -m; nvidia-smi nvlink -s (on the node and on another)",
            )
        else:
            well.setdefault(one.expected, []).append((one.gbps, name, one.found))
    for expected, nodes in well.items():
        gbps, _, found = min(nodes)
        names = tuple(name for _, name, _ in nodes)
        yield report(names, "the GPUs of a node all-reduce at", gbps, expected, found)
