"""The request for all facts of a node in one round trip."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusterctl.values import dataclass

CLOCK_ROUNDS = 5
"""Round trips at most to measure the clock; the shortest bounds the error."""

KERNEL_SETTINGS = (
    ("clock source", "/sys/devices/system/clocksource/clocksource0/current_clocksource"),
    ("CPU governor", "/sys/devices/system/cpu/cpufreq/policy0/scaling_governor"),
    ("transparent huge pages", "/sys/kernel/mm/transparent_hugepage/enabled"),
    ("NUMA balancing", "/proc/sys/kernel/numa_balancing"),
)
"""Settings that change the speed of a node; of the CPUs the first stands for all."""
UFW = "/etc/ufw/ufw.conf"
FIREWALLD = "/sys/fs/cgroup/system.slice/firewalld.service/cgroup.procs"
"""The processes of the service, if systemd has started it."""
FIREWALL_PROGRAMS = ("nft", "iptables")
FILES = (
    "/proc/sys/kernel/random/boot_id",
    "/proc/sys/kernel/osrelease",
    "/etc/os-release",
    "/proc/meminfo",
    "/proc/uptime",
    "/proc/self/mountinfo",
    "/proc/self/limits",
    "/proc/net/route",
    "/proc/net/ipv6_route",
    "/proc/net/fib_trie",
    "/proc/net/if_inet6",
    "/proc/sys/net/ipv4/ip_local_port_range",
    "/etc/environment",
    "/proc/sys/net/ipv4/ip_local_reserved_ports",
    UFW,
    FIREWALLD,
    "/etc/nccl.conf",
    "/etc/systemd/logind.conf",
    "/usr/lib/systemd/logind.conf",
    "/etc/machine-id",
    "/proc/vmstat",
    "/sys/devices/system/cpu/online",
    *(path for _, path in KERNEL_SETTINGS),
)
LISTENERS = ("/proc/net/tcp", "/proc/net/tcp6")
"""All connections of the node; the kernel takes milliseconds to list them."""
LOGIND_FOLDERS = (
    "/usr/lib/systemd/logind.conf.d/",
    "/run/systemd/logind.conf.d/",
    "/etc/systemd/logind.conf.d/",
)
"""If files have the same name, the one in the later folder counts."""
GLOBS = (
    *(folder + "*.conf" for folder in LOGIND_FOLDERS),
    "/proc/net/bonding/*",
    "~/.nccl.conf",  # last: a home may be on a mount that hangs
)
STATISTICS = (
    "rx_errors", "tx_errors", "rx_crc_errors", "rx_missed_errors", "rx_dropped", "tx_dropped",
)  # fmt: skip
"""Counters of an interface that only grow if something is wrong with it."""
FOLDERS = {
    "/sys/class/net/*": (
        "operstate", "carrier", "flags", "speed", "mtu", "duplex", "carrier_changes",
    ),
    "/sys/class/net/*/statistics": STATISTICS,
    "/proc/sys/net/ipv4/conf/*": ("rp_filter", "arp_ignore"),
    "/proc/sys/net/netfilter": ("nf_conntrack_count", "nf_conntrack_max"),
}  # fmt: skip
"""Small files, by the pattern of their folder."""
RDMA_COUNTERS = (
    "symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors",
    "local_link_integrity_errors", "excessive_buffer_overrun_errors",
)  # fmt: skip
RDMA_GIDS = 16
"""Places of a table of addresses to read: those of each VLAN and address come first."""
_PLACES = tuple(map(str, range(RDMA_GIDS)))
RDMA = {
    "/sys/class/infiniband/*": ("fw_ver", "board_id"),
    "/sys/class/infiniband/*/device": ("vendor",),
    "/sys/class/infiniband/*/ports/*": ("state", "phys_state", "rate", "link_layer", "lid"),
    "/sys/class/infiniband/*/ports/*/pkeys": ("0",),
    "/sys/class/infiniband/*/ports/*/gids": _PLACES,
    "/sys/class/infiniband/*/ports/*/gid_attrs/types": _PLACES,
    "/sys/class/infiniband/*/ports/*/gid_attrs/ndevs": _PLACES,
    "/sys/class/infiniband/*/ports/*/counters": RDMA_COUNTERS,
}
OFI_PLUGINS = (
    "/opt/amazon/ofi-nccl/lib/libnccl-net.so",
    "/opt/amazon/ofi-nccl/lib64/libnccl-net.so",
    "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu/libnccl-net.so",
    "/opt/amazon/ofi-nccl/lib/aarch64-linux-gnu/libnccl-net.so",
    "/opt/amazon/aws-ofi-nccl/lib/libnccl-net.so",
    "/opt/aws-ofi-nccl/lib/libnccl-net.so",
)
"""Where installers and images put aws-ofi-nccl."""
GPU_DRIVERS = ("nvidia", "amdgpu")
"""Their names in the kernel."""
GPU_FILES = (
    "/proc/driver/nvidia/version",
    "/sys/module/nvidia_peermem/initstate",
    "/sys/module/nv_peer_mem/initstate",
)
GPU_FOLDERS = {
    **{
        f"/sys/bus/pci/drivers/{driver}/*": (
            "numa_node", "current_link_width", "max_link_width", "aer_dev_fatal",
            "aer_dev_correctable",
        )
        for driver in GPU_DRIVERS
    },
    "/sys/class/net/*/device": ("numa_node",),
}  # fmt: skip
"""Asked only if GPUs are planned, as GPU_FILES are; without the driver there is none of them."""
KERNEL_LOG = (
    "NVRM: Xid", "SXid", "fallen off the bus", "nvidia-nvswitch", "nvidia-peermem ", " in libnccl",
)  # fmt: skip
"""What a line of the kernel log must contain, one of these; asked only if GPUs are planned."""
LINKS = ("/proc/self/ns/net",)
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
VARIABLES = (
    "NCCL_", "TORCH_", "GLOO_", "TP_", "UCX_", "FI_", "MASTER_", "CUDA_", "LD_LIBRARY", "OMP_",
    "PATH", *PROXIES, *map(str.upper, PROXIES),
)  # fmt: skip
"""The beginnings of the variables that are read, of the session and as `env_init` leaves them."""

GPU_SECONDS = 20.0
"""A healthy driver answers in 2; nvidia-smi without persistence mode in 10."""
PYTHON_SECONDS = 20.0
TORCH_SECONDS = 60.0
"""A first import of torch from a cold network filesystem takes this long."""
PROGRAM_SECONDS = 5.0

_AMD = "/dev/kfd"
_DEVICES = ("/dev/nvidiactl", _AMD, "/dev/dxg")
"""If one of these exists, there is a GPU driver."""
_SWITCHES = ["/dev/nvidia-nvswitchctl", "/dev/nvidia-caps-imex-channels"]
"""One of these exists on machines with NVSwitches or multi-node NVLink."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathQuestion:
    """A path to inspect."""

    path: str
    write: bool = False
    """Try to create a file there."""
    speed: bool = False
    """Measure how fast a small file is written and read there."""
    digest: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerWords:
    """How a program is run in the job's container, and how its image is identified."""

    plain: tuple[str, ...]
    nvidia: tuple[str, ...]
    """With the node's GPUs."""
    amd: tuple[str, ...]
    image: str
    image_id: tuple[str, ...]
    """Prints the image's id; empty: the image is a file."""
    env: tuple[tuple[str, str], ...] = ()
    """The job's, which may say where the daemon is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FactRequest:
    """What to ask one node, beyond what is asked of every node."""

    python: str | None = None
    """The job's interpreter; None: python3 of the session."""
    gpus: int | None = None
    """GPUs that are planned; None: all."""
    places: tuple[PathQuestion, ...] = ()
    lock: str = "clusterctl-run"
    """The name of the node's lock."""
    env_init: str | None = None
    """The shell line that the job's environment needs."""
    packages: tuple[str, ...] = ()
    """Names of packages to look for besides the usual ones."""
    container: ContainerWords | None = None
    """The container that the job runs in, with its interpreter; None: it runs on the node."""
    python_env: tuple[tuple[str, str], ...] = ()
    """The job's variables that Python itself reads, such as PYTHONPATH."""
    launcher_file: str = ""
    """The launcher's own configuration: a path, `~` for the home; empty: it has none."""
    listeners: bool = True
    """Ask which ports are in use: only the master, where the rendezvous needs one."""

    @property
    def interpreter(self) -> str:
        """The interpreter's path or name."""
        return self.python or "python3"


def read_arguments(wanted: FactRequest) -> dict[str, Any]:
    """Return the arguments of the node's `read`."""
    files = [*FILES, *(LISTENERS if wanted.listeners else ())]
    return {
        "files": files if wanted.gpus == 0 else [*files, *GPU_FILES],
        "globs": [*GLOBS, *([wanted.launcher_file] if wanted.launcher_file else [])],
        "folders": folder_questions(FOLDERS if wanted.gpus == 0 else {**FOLDERS, **GPU_FOLDERS}),
        "rdma": folder_questions(RDMA),
        "links": [*LINKS, *(() if wanted.gpus == 0 else OFI_PLUGINS)],
        "kernel_log": [] if wanted.gpus == 0 else list(KERNEL_LOG),
        "variables": list(VARIABLES),
        "paths": [
            {
                "path": place.path,
                "write": place.write,
                "speed": place.speed,
                "digest": place.digest,
            }
            for place in wanted.places
        ],
        "local_paths": ["/dev/shm"],  # noqa: S108  (read, not written to)
        "commands": _commands(wanted),
        "programs": ["rsync", *FIREWALL_PROGRAMS],
        "lock": wanted.lock,
        "clock": CLOCK_ROUNDS,
    }


def folder_questions(folders: Mapping[str, tuple[str, ...]]) -> list[dict[str, Any]]:
    """Return what to ask of the small files in folders."""
    return [{"path": path, "files": list(files)} for path, files in folders.items()]


def _commands(wanted: FactRequest) -> list[dict[str, Any]]:
    commands: list[dict[str, Any]] = [
        _interpreter(
            "python",
            wanted,
            PYTHON_SECONDS,
            *(VARIABLES if wanted.env_init else ()),
            *(("--", *wanted.packages) if wanted.packages else ()),
        ),
    ]
    if wanted.container and wanted.container.image_id:
        image = _program("image", list(wanted.container.image_id), PYTHON_SECONDS)
        commands.append({**image, **_environment(wanted)})
    if wanted.gpus == 0:
        return commands
    return [
        *commands,
        _program("nvidia-smi", ["nvidia-smi", "-q", "-x"], GPU_SECONDS),
        _program("amd-smi", ["amd-smi", "static", "--json"], GPU_SECONDS),
        _program("rocm-smi", ["rocm-smi", *_ROCM_OPTIONS, "--json"], GPU_SECONDS),
        *_torch_commands(wanted),
        *_nvidia_commands(),
        *(
            {**_program("amd-" + what, ["amd-smi", what, "--json"], GPU_SECONDS), "only_if": [_AMD]}
            for what in ("metric", "process")
        ),
    ]


def _torch_commands(wanted: FactRequest) -> list[dict[str, Any]]:
    """Return the question to torch; a container needs other options for each vendor's GPUs."""
    if wanted.container is None:
        # If no number of GPUs is planned, torch is asked only if there is a driver.
        devices = {} if wanted.gpus else {"only_if": list(_DEVICES)}
        return [{**_interpreter("torch", wanted, TORCH_SECONDS, "torch"), **devices}]
    nvidia = [path for path in _DEVICES if path != _AMD]
    ways = ((wanted.container.nvidia, nvidia), (wanted.container.amd, [_AMD]))
    return [
        {
            **_interpreter("torch", wanted, TORCH_SECONDS, "torch", container=words),
            "only_if": devices,
        }
        for words, devices in ways
    ]


def _nvidia_commands() -> list[dict[str, Any]]:
    """Return what the log of nvidia-smi lacks, each asked only where there is something to see."""
    driver = {"only_if": ["/proc/driver/nvidia/version"]}
    any_driver = {"only_if": [*driver["only_if"], _AMD]}
    manager = "nv-fabricmanager"
    services = ["nvidia-fabricmanager", "nvidia-imex"]
    return [
        {**_program("nvlink", ["nvidia-smi", "nvlink", "-s"], GPU_SECONDS), **driver},
        {**_program("owners", ["ps", "-e", "-o", "pid=,user:32="]), **any_driver},
        {**_program("gpu-services", ["systemctl", "is-active", *services]), "only_if": _SWITCHES},
        {**_program("fabric-manager", [manager, "--version"]), "only_if": ["/usr/bin/" + manager]},
    ]


def _interpreter(
    key: str,
    wanted: FactRequest,
    limit_s: float,
    *args: str,
    container: tuple[str, ...] | None = None,
) -> dict[str, Any]:
    """Return the command that runs our source with the job's interpreter and environment."""
    around = wanted.container.plain if wanted.container is not None else ()
    words = [*(container or around), wanted.interpreter, "-c"]
    command = {
        **_program(key, [*words, *args], limit_s),
        "source": "clusterctl.node.probe.job_interpreter",
        "source_at": len(words),
        "cwd": "/",
    }
    return {**command, **_environment(wanted)}


def _environment(wanted: FactRequest) -> dict[str, Any]:
    """Return what gives a command the job's environment, if that changes what is asked."""
    env = wanted.container.env if wanted.container is not None else wanted.python_env
    if not env and not wanted.env_init:
        return {}
    asked = [[name, value, "asked"] for name, value in env]
    return {"job": {"env": asked, "env_init": wanted.env_init, "workdir": "/"}}


_ROCM_OPTIONS = (
    "--showproductname", "--showuniqueid", "--showbus", "--showmeminfo", "vram",
    "--showdriverversion",
)  # fmt: skip


def _program(key: str, argv: list[str], limit_s: float = PROGRAM_SECONDS) -> dict[str, Any]:
    return {"key": key, "argv": argv, "limit_s": limit_s}
