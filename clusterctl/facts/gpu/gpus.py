"""The accelerators of a node: the vendors' tools, and what the machine shows besides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from clusterctl.facts.answers import Answer, Answers
from clusterctl.facts.commands import AMD, GPU_SECONDS, program
from clusterctl.facts.fact import Fact, Unreadable, if_gpus
from clusterctl.facts.gpu import amd, nvidia
from clusterctl.facts.gpu.accelerators import Gpus
from clusterctl.facts.gpu.gpu_machine import MACHINE, module_version, with_machine

_TOLD = 500
"""Letters of what a vendor's tool that failed printed."""
_SMI: tuple[tuple[str, Callable[[str], Gpus]], ...] = (
    ("nvidia-smi", nvidia.parse_nvidia_smi),
    ("amd-smi", amd.parse_amd_smi),
    ("rocm-smi", amd.parse_rocm_smi),
)


_ROCM_OPTIONS = (
    "--showproductname", "--showuniqueid", "--showbus", "--showmeminfo", "vram",
    "--showdriverversion",
)  # fmt: skip
_TOOLS = (
    program("nvidia-smi", ["nvidia-smi", "-q", "-x"], GPU_SECONDS),
    program("amd-smi", ["amd-smi", "static", "--json"], GPU_SECONDS),
    program("rocm-smi", ["rocm-smi", *_ROCM_OPTIONS, "--json"], GPU_SECONDS),
    *(
        program("amd-" + what, ["amd-smi", what, "--json"], GPU_SECONDS, only_if=(AMD,))
        for what in ("metric", "process")
    ),
)


@Fact("gpus", if_gpus(replace(MACHINE, commands=(*_TOOLS, *MACHINE.commands))))
def parse_gpus(answers: Answers) -> Gpus:
    """Parse the vendors' tools in turn; if none is installed, there is no accelerator."""
    gaps: list[str] = []
    asked = False
    for key, parse in _SMI:
        answer = answers.command(key)
        if answer.state in {"absent", "not-asked"}:
            asked = asked or answer.state == "absent"
            continue
        text = answer.text + (answer.words if key == "nvidia-smi" else "")  # with its warnings
        # Both amd-smi and rocm-smi are asked: if one answered, the other may be out of date.
        if not answer.good and not nvidia.is_complete(text):
            gaps.append(f"{key}: {_why_not(answer, answers)}")
            continue
        try:
            gpus = parse(text)
            if gpus.tool == "amd-smi":
                metric, running = (
                    answers.command(name).text for name in ("amd-metric", "amd-process")
                )
                gpus = amd.with_metrics(gpus, text, metric, running)
            return with_machine(gpus, answers)
        except (ValueError, AttributeError, TypeError, OverflowError, RecursionError) as error:
            gaps.append(f"{key}: {error}")
    if gaps or not asked:
        raise Unreadable(*(gaps or ["not asked"]))
    return Gpus()


def _why_not(answer: Answer, answers: Answers) -> str:
    """Return why a vendor's tool failed; NVML tells a mismatch of versions in two lines."""
    printed = (answer.text + "\n" + answer.words).strip()
    start = printed.find("Failed to initialize NVML")
    if not answer.exit_code or start < 0:
        return answer.why()[:_TOLD]
    told = "; ".join(line.strip() for line in printed[start:].splitlines() if line.strip())
    loaded = module_version(answers)
    mismatch = "mismatch" in told and loaded
    return f"exit code {answer.exit_code}: {told[:_TOLD]}" + (
        f"; loaded: {loaded}" if mismatch else ""
    )
