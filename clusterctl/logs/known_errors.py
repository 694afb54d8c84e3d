"""Finds the cause of a failure in the last lines of a rank, and its remedy."""

import posixpath
import re
import shlex
import signal
from collections.abc import Sequence

from clusterctl.facts.software.python import NAME_INTERPRETER
from clusterctl.node.printed_cause import cause_of, known_last_error, last_line
from clusterctl.node.printed_error import WAITED

PORT_TAKEN = "launch with another --master-port, or without the flag to use a free port"

_COPY = "copy it to every node with clusterctl push, and list it under `job: needs:`"
FAULTY_GPU = "the GPU is faulty: exclude the node with --exclude"
OUT_OF_MEMORY = (
    "the kernel's out-of-memory killer ran on the node during the run: use less host memory"
    " (fewer data workers, a smaller batch), or raise the memory limit of the container"
)
NOT_OUT_OF_MEMORY = (
    "a user or program on the node sent SIGKILL; the kernel's out-of-memory killer did not run"
)
PERHAPS_OOM = "probably the kernel's out-of-memory killer: dmesg -T | tail (on the node)"
NO_ROOM_FOR_LOGS = (
    "the disk of the run's folder was nearly full then: print fails on a full disk, and the error"
    " has no room either; make room on the node, or set `state:` to a folder on another disk"
)
CPU_LIMIT = (
    "the kernel kills a process of this user there after {} s of CPU time: raise `cpu` in"
    " /etc/security/limits.conf (ulimit -H -t shows it)"
)
_REMEDIES: dict[str, str] = {
    "ray-memory": (
        "Ray killed a worker because its node had too little host memory: let fewer run at once"
        " (memory= or more num_cpus= of the task), or raise RAY_memory_usage_threshold in job.env"
    ),
    "ray-options": (
        "Ray runs already, on all nodes: take num_cpus, num_gpus and the like out of ray.init();"
        " `launcher_args: [--num-cpus=8]` sets them for each node"
    ),
    "ray-version": (
        "the cluster of job.ray_address has another Ray or Python: set `python:` to the same one"
    ),
    "ray-worker": (
        "what it printed last is in ray/session_*/logs/worker-*.err of the run's folder, on"
        " the node with that ip"
    ),
    "cuda-oom": "use a smaller batch per device with more gradient accumulation",
    "shared-memory": "give the node (or its container) a larger /dev/shm",
    "memlock": (
        "clusterctl check --only node.memlock; if it finds nothing, compare the kernels:"
        " clusterctl exec -- grep -H CmaTotal /proc/meminfo"
    ),
    "host-memory": (
        "use less host memory (fewer data workers, a smaller batch), or raise the container's"
        " limit: free -m (on the node)"
    ),
    "hub-unreachable": (
        "download it once, copy it to the nodes by clusterctl push, and load it from there"
    ),
    "hub-access": "check the name; if it is gated or private: `job: {env_from: [HF_TOKEN]}`",
    "wandb-key": "`job: {env_from: [WANDB_API_KEY]}`, or --env WANDB_MODE=offline",
    "broken-file": (
        "the file is incomplete, or a pointer of Git LFS: copy it again by clusterctl push"
    ),
    "weights-only": (
        "if you trust the file: --env TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1, or weights_only=False in"
        " the script's torch.load"
    ),
    "no-space": "free space on the node: df -h shows the full filesystem",
    "failed-write": (
        "the checkpoint could not be written: df -h (on the node) shows if its filesystem is full"
    ),
    "quota": "free space or raise the quota: quota -s (on the node)",
    "no-torch": NAME_INTERPRETER,
    "noexec": "clusterctl check --only storage.noexec: a folder there does not allow programs",
    "undefined-symbol": (
        "that package was built for another version of torch or CUDA: reinstall it"
    ),
    "glibc": "that package needs a newer system library than the node has: install an older build",
    "shared-library": (
        "the node lacks that shared library: install it, or add its folder to LD_LIBRARY_PATH"
        " (`env_init:` or `job: {env: ...}`)"
    ),
    "import-name": "another version of that package is needed: pin it, then clusterctl setup",
    "ninja": "install ninja on every node (clusterctl setup)",
    "extension-build": (
        "it is compiled on the node: nvcc of torch's CUDA version must be there, and CUDA_HOME"
        " name it; the compiler's own words are further up"
    ),
    "no-module": (
        "install it on every node (clusterctl setup), or name another interpreter as `python:`;"
        " if it is a file of yours that git ignores, no sync brings it"
    ),
    "port-taken": PORT_TAKEN,
    "no-script": "the script does not exist in `workdir:`: clusterctl sync copies it there",
    "checkpoint-pieces": (
        "a checkpoint in pieces is loaded by as many ranks as saved it: resume on as many,"
        " or convert it"
    ),
    "missing-file": _COPY,
    "permission": "give the SSH user access to that path on the node",
    "open-files": (
        "raise the hard limit on the node: `* - nofile 1048576` in /etc/security/limits.conf"
    ),
    "stale-handle": "look at the file server and its mount: findmnt -T FOLDER (on the node)",
    "io-error": "the disk or its server fails: dmesg -T | tail (on the node)",
    "name-resolution": (
        "the node does not resolve that name: write an address, or fix its /etc/resolv.conf"
    ),
    "duplicate-gpu": (
        "two ranks use one GPU: torch.cuda.set_device(int(os.environ['LOCAL_RANK']))"
    ),
    "device-ordinal": ("the node runs more ranks than GPUs, or the script does not use LOCAL_RANK"),
    "versions": (
        "clusterctl check --only python: it compares torch of all nodes and their drivers"
    ),
    "device-assert": (
        "--env CUDA_LAUNCH_BLOCKING=1 shows the line that fails; an index may be out of range"
    ),
    "gpu-busy": (
        "clusterctl check --only accelerator: it asks each node's driver and who uses its GPUs"
    ),
    "no-interface": "NCCL_SOCKET_IFNAME names no interface of the node: leave it to clusterctl",
    "no-address": (
        "GLOO_SOCKET_IFNAME must be the whole name of an interface: leave it to clusterctl"
    ),
    "own-node": (
        "the script connects to its own node: it must use MASTER_ADDR and MASTER_PORT as set"
    ),
    "unused-parameter": (
        "use every parameter in the loss, or set find_unused_parameters=True of DDP"
    ),
    "ecc": FAULTY_GPU,
    "non-finite": "resume from the last checkpoint with a lower learning rate",
    "unreachable": "clusterctl check --only network: it connects every node to every other",
    "rank-mismatch": (
        "leave RANK, LOCAL_RANK and WORLD_SIZE to clusterctl: not in job.env or the script"
    ),
    "waited": (
        "a rank did not come in time: look for its last lines with clusterctl logs; if it only"
        " needs longer, raise timeout= of init_process_group"
    ),
    "gpu-lost": "clusterctl check --only accelerator: it names the lost GPU and its Xid",
    "driver-mismatch": (
        "sudo reboot (on the node): its GPU driver was updated while the old one was loaded"
    ),
    "nvml": (
        "restart the container: `systemctl daemon-reload` on its machine takes its GPUs away;"
        " without a container, a device cgroup denies them, as to a Slurm job without --gpus"
    ),
    "nccl-on-cpu": (
        "NCCL needs a GPU for each rank: on CPUs let the program use gloo; if the node has GPUs,"
        " clusterctl check --only accelerator,python"
    ),
    "no-gpu": (
        "clusterctl check --only accelerator,python: it asks each node's driver and torch; a"
        " container may have lost its GPUs to `systemctl daemon-reload`: restart it"
    ),
    "fabric": "clusterctl check --only accelerator.fabric: nvidia-fabricmanager must run",
    "processes": (
        "clusterctl check --only node.processes: raise nproc in /etc/security/limits.conf"
    ),
    "old-driver": (
        "clusterctl check --only python: it compares torch with each node's driver and GPUs"
    ),
    "gloo-thread": (
        "a gloo thread outlived Python (pytorch issue 190489): end the script with"
        " torch.distributed.destroy_process_group() and time.sleep(0.1)"
    ),
}
"""Kind of cause → what to do."""

_NO_MODULE = re.compile(r"\bNo module named '([\w.]{1,200})'")
_REMOVED = frozenset({
    "asynchat", "asyncore", "distutils", "imp", "smtpd",
    "aifc", "audioop", "cgi", "cgitb", "chunk", "crypt", "imghdr", "lib2to3", "mailcap", "nntplib",
    "pipes", "sndhdr", "telnetlib", "uu", "xdrlib",
})  # fmt: skip
"""Modules that Python 3.12 and 3.13 no longer have."""
_OLDER_PYTHON = (
    "Python no longer has that module since 3.12 or 3.13: name an older interpreter as `python:`"
)
_PYTHONHOME = (
    "Python does not find its own library: remove PYTHONHOME from job.env, env_init or the start"
    " files of the login shell, such as ~/.bashrc"
)
_MISSING = re.compile(r"\bNo such file or directory: (['\"])([^'\"].*?)\1")
"""A FileNotFoundError about a path."""
_IGNORED = (
    "a sync brings neither what git ignores nor what a link leads to: clusterctl push {0} --to {1}"
    " copies it from this folder"
)
_PUSH = (
    "clusterctl push {0} copies it from a node that has it;"
    " with `job: {{needs: [{0}]}}`, launch stops without it"
)


def signal_name(number: int) -> str:
    """Return `SIGKILL` for 9; a number that has no name stays one."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def exception_line(lines: Sequence[str]) -> str:
    """Return the line of the error that ended the program; empty if there is none."""
    return known_last_error(tuple(lines)).line


def error_line(lines: Sequence[str]) -> str:
    """Return the line of the error, else the last line that is not empty."""
    return exception_line(lines) or last_line(lines)


def is_secondary(lines: Sequence[str]) -> bool:
    """Tell whether a rank failed because another rank or node did."""
    return cause_of(lines).echo


def has_waited(lines: Sequence[str]) -> bool:
    """Tell whether a rank failed because it waited too long for another."""
    return bool(WAITED.search(error_line(lines)))


def remedy_for(lines: Sequence[str]) -> str:
    """Return the remedy for a known error; empty for an unknown one."""
    cause = cause_of(lines)
    remedy = _REMEDIES.get(cause.kind, "")
    if cause.kind == "no-module" and (module := _NO_MODULE.search(cause.line)):
        if module[1].partition(".")[0] in _REMOVED:
            return _OLDER_PYTHON
        if module[1] == "encodings":
            return _PYTHONHOME
        # Without the package itself, Python names only that.
        remedy = _REMEDIES["import-name"] if "." in module[1] else remedy
    missing = _MISSING.search(cause.line) if remedy == _COPY else None
    if missing is None:
        return remedy
    path = missing[2]
    if posixpath.isabs(path):
        return _PUSH.format(shlex.quote(path))
    return _IGNORED.format(shlex.quote(path), shlex.quote(posixpath.dirname(path) or "."))
