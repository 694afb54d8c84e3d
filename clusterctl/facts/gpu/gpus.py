"""The accelerators of a node: the vendors' tools, and what the machine shows besides."""

import re
from collections.abc import Callable
from dataclasses import replace

from clusterctl.facts.answers import Answer, Answers
from clusterctl.facts.fact import Fact, Question, Unreadable, if_gpus
from clusterctl.facts.gpu import amd, nvidia
from clusterctl.facts.gpu.accelerators import FabricManager, Gpu, GpuDriver, Gpus, PcieLink
from clusterctl.facts.gpu.nvidia import pci_address
from clusterctl.facts.request import AMD, GPU_SECONDS, program

VERSION = "/proc/driver/nvidia/version"
PEERMEM = tuple(f"/sys/module/{name}/initstate" for name in ("nvidia_peermem", "nv_peer_mem"))
DRIVERS = ("nvidia", "amdgpu")
"""Their names in the kernel."""
_SWITCHES = ("/dev/nvidia-nvswitchctl", "/dev/nvidia-caps-imex-channels")
"""One of these exists on machines with NVSwitches or multi-node NVLink."""
_MANAGER = "nv-fabricmanager"
_SERVICES = ["nvidia-fabricmanager", "nvidia-imex"]
MACHINE = Question(
    files=(VERSION, *PEERMEM),
    folders={
        f"/sys/bus/pci/drivers/{driver}/*": (
            "numa_node", "current_link_width", "max_link_width", "aer_dev_fatal",
            "aer_dev_correctable",
        )
        for driver in DRIVERS
    },
    commands=(
        program("nvlink", ["nvidia-smi", "nvlink", "-s"], GPU_SECONDS, only_if=(VERSION,)),
        program("owners", ["ps", "-e", "-o", "pid=,user:32="], only_if=(VERSION, AMD)),
        program("gpu-services", ["systemctl", "is-active", *_SERVICES], only_if=_SWITCHES),
        program("fabric-manager", [_MANAGER, "--version"], only_if=("/usr/bin/" + _MANAGER,)),
    ),
)  # fmt: skip
"""What the log of nvidia-smi lacks; each program is asked only where there is something to see."""

_GPU = re.compile(r"GPU \d+: .*\(UUID: ([\w-]+)\)")
_LINK = re.compile(r"\s*Link \d+: (\S.*)")
_RATE = re.compile(r"(\d{1,6}(?:\.\d+)?) GB/s")
_VERSION = re.compile(r"\d+\.\d+(?:\.\d+)?")
_FATAL = re.compile(r"\bTOTAL_ERR_FATAL (\d{1,18})\b")
_CORRECTABLE = re.compile(r"\bTOTAL_ERR_COR (\d{1,18})\b")


def with_machine(gpus: Gpus, answers: Answers) -> Gpus:
    """Return the GPUs that the vendor's tool lists, with what the machine shows of each."""
    nvlink = answers.command("nvlink")
    links = parse_nvlinks(nvlink.text) if nvlink.good else None
    rates = nvlink_rates(nvlink.text) if nvlink.good else {}
    owners = _owners(answers)
    return replace(
        gpus,
        devices=tuple(
            replace(
                gpu,
                link=_link(gpu, answers),
                nvlinks=gpu.nvlinks if links is None else links.get(gpu.uuid, ()),
                nvlink_gb_s=rates.get(gpu.uuid),
                processes=None
                if gpu.processes is None
                else tuple(replace(p, user=owners.get(p.pid, p.user)) for p in gpu.processes),
            )
            for gpu in gpus.devices
        ),
        on_bus=_on_bus(answers) if gpus.tool == "nvidia-smi" else (),
        kernel=_kernel(answers) if gpus.tool == "nvidia-smi" else None,
    )


def module_version(answers: Answers) -> str:
    """Return the version of NVIDIA's kernel module that is loaded; empty without one."""
    found = _VERSION.search(answers.text(VERSION) or "")
    return found[0] if found else ""


def _on_bus(answers: Answers) -> tuple[str, ...]:
    folders = answers.below("/sys/bus/pci/drivers/nvidia/")
    return tuple(sorted({path.partition("/")[0] for path in folders}))


def parse_nvlinks(text: str) -> dict[str, tuple[bool, ...]]:
    """Return by UUID which NVLinks are up, from `nvidia-smi nvlink -s`."""
    return {
        uuid: tuple(words.endswith("/s") for words in links) for uuid, links in _links(text).items()
    }


def nvlink_rates(text: str) -> dict[str, float]:
    """Return by UUID the GB/s of all its NVLinks together, in one direction."""
    rates = {
        uuid: sum(float(rate[1]) for words in links if (rate := _RATE.fullmatch(words)))
        for uuid, links in _links(text).items()
    }
    return {uuid: rate for uuid, rate in rates.items() if rate}


def _links(text: str) -> dict[str, list[str]]:
    links: dict[str, list[str]] = {}
    uuid = ""
    for line in text.splitlines():
        if gpu := _GPU.match(line):
            uuid = gpu[1]
        elif uuid and (link := _LINK.match(line)):
            links.setdefault(uuid, []).append(link[1])
    return links


def _owners(answers: Answers) -> dict[int, str]:
    """Return the users of all processes."""
    rows = (line.split() for line in answers.command("owners").text.splitlines())
    return {int(row[0]): row[1] for row in rows if len(row) == 2 and row[0].isdecimal()}  # noqa: PLR2004


def _link(gpu: Gpu, answers: Answers) -> PcieLink:
    """Add what the kernel shows of the PCI device; of AMD's GPUs only the kernel shows it."""
    link = gpu.link or PcieLink()
    address = pci_address(gpu.bus_id)
    for driver in DRIVERS:
        folder = f"/sys/bus/pci/drivers/{driver}/{address}/"
        numa = answers.number(folder + "numa_node")
        fatal = _FATAL.search(answers.text(folder + "aer_dev_fatal") or "")
        if link.width is None:
            link = replace(link, width=answers.number(folder + "current_link_width"))
        if link.max_width is None:
            link = replace(link, max_width=answers.number(folder + "max_link_width"))
        if fatal:
            link = replace(link, fatal=int(fatal[1]))
        repaired = _CORRECTABLE.search(answers.text(folder + "aer_dev_correctable") or "")
        if repaired:
            link = replace(link, correctable=int(repaired[1]))
        if numa is not None and numa >= 0:
            link = replace(link, numa=numa)
    return link


def _kernel(answers: Answers) -> GpuDriver | None:
    version = answers.text(VERSION)
    if version is None:
        return None
    states = answers.command("gpu-services").text.split()
    manager, imex = states if len(states) == 2 else ("", "")  # noqa: PLR2004
    printed = answers.command("fabric-manager")
    found = _VERSION.search(printed.text) if printed.good else None
    return GpuDriver(
        open_modules="Open Kernel Module" in version,
        peermem=any(answers.word(path) == "live" for path in PEERMEM),
        fabric_manager=FabricManager(
            state=manager,
            version=found[0] if found else "",
        )
        if manager
        else None,
        imex=imex,
    )


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
