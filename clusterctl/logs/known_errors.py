"""Finds the cause of a failure in the last lines of a rank, and its remedy."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from clusterctl.facts.python import NAME_INTERPRETER

_SECONDARY = re.compile(
    r"\bconnection (?:reset|closed|refused|aborted) by (?:remote )?peer\b"
    r"|\bbrokenpipeerror\b|\bbroken pipe\b|\bsocket closed\b|\bremote process exited\b"
    r"|\bnccl(?:remote|system)error\b|\bnccl communicator was aborted\b"
    r"|\bwatchdog caught collective operation timeout\b|\bprocess group watchdog\b"
    r"|\bdistnetworkerror\b(?!.*\bfailed to listen\b)"
    r"|\bdistbackenderror\b|\brendezvousconnectionerror\b"
    r"|\bfailed to recv, got 0 bytes\b|\btimed out waiting \d+ms for (?:recv|send)\b"
    # Not device.cc: an interface without an address is a cause of its own.
    r"|\bgloo/transport/tcp/(?!device\b)\w+\.cc\b",
    re.IGNORECASE,
)
"""What ranks print because another one exited; never the first cause if there is another."""

PORT_TAKEN = "launch with another --master-port, or without the flag to use a free port"

_REMEDIES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), remedy)
    for pattern, remedy in (
        (
            r"\b(?:cuda|hip) out of memory\b|\boutofmemoryerror\b",
            "use a smaller batch per device with more gradient accumulation",
        ),
        # Before "no space left": a full /dev/shm gives that message, too.
        (
            (
                r"\bunexpected bus error\b|^bus error\b|\binsufficient shared memory\b"
                r"|\bout of shared memory\b|\bunable to write to file </torch_"
            ),
            "give the node (or its container) a larger /dev/shm",
        ),
        (
            r"\bno space left on device\b",
            "free space on the node: df -h shows the full filesystem",
        ),
        (r"\bdisk quota exceeded\b", "free space or raise the quota: quota -s (on the node)"),
        (r"\bno module named '?torch\b(?!_)", NAME_INTERPRETER),
        # An ImportError, too.
        (
            r"\bfailed to map segment from shared object\b",
            "clusterctl check --only storage.noexec: a folder there does not allow programs",
        ),
        (
            r"\bmodulenotfounderror: no module named\b|\bimporterror:",
            "install it on every node (clusterctl setup), or name another interpreter as `python:`",
        ),
        # Also without EADDRINUSE: older torch prints this line alone.
        (
            r"\bserver socket has failed to listen\b|\baddress already in use\b|\beaddrinuse\b",
            PORT_TAKEN,
        ),
        (
            r"\bcan't open file '.*\[errno 2\]",
            "the script does not exist in `workdir:`: clusterctl sync copies it there",
        ),
        (
            r"\bfilenotfounderror\b|\bno such file or directory\b",
            "copy it to every node with clusterctl push, and list it under `job: needs:`",
        ),
        (
            r"\bpermissionerror\b|\bpermission denied\b",
            "give the SSH user access to that path on the node",
        ),
        (
            r"\btoo many open files\b",
            "raise the hard limit on the node: `* - nofile 1048576` in /etc/security/limits.conf",
        ),
        (
            r"\bunrecoverable ecc\b|\buncorrectable ecc error\b|\bnvrm: xid\b|\bxid \(pci:",
            "the GPU is faulty: exclude the node with --exclude",
        ),
        (
            r"\bnon-?finite(?:error|loss)?\b|\bloss is nan\b",
            "resume from the last checkpoint with a lower learning rate",
        ),
        (
            (
                r"\bno route to host\b|\bconnection tim(?:eout|ed out)\b"
                r"|\behostunreach\b|\betimedout\b"
            ),
            "clusterctl check --only network: it connects every node to every other",
        ),
        (
            r"\brank mismatch\b|\bduplicate rank\b",
            "leave RANK, LOCAL_RANK and WORLD_SIZE to clusterctl: not in job.env or the script",
        ),
        (
            r"\bcollective operation timeout\b|\bwatchdog caught collective operation timeout\b",
            "a rank did not come to the collective: look for its last lines with clusterctl logs",
        ),
        (
            r"\bibv_reg_mr\b.*\bfailed\b",
            "clusterctl check --only node.memlock: RDMA needs `memlock unlimited`",
        ),
        # A GPU that fails takes each of these ways out, with no Xid in the rank's own log.
        (
            (
                r"\bgpu is lost\b|\bfallen off the bus\b|\bgpu requires reset\b"
                r"|\bnvmlerror_gpuislost\b"
            ),
            "clusterctl check --only accelerator: it names the lost GPU and its Xid",
        ),
        (
            r"\bdriver/library version mismatch\b",
            "sudo reboot (on the node): its GPU driver was updated while the old one was loaded",
        ),
        (
            r"\bfailed to initialize nvml: unknown error\b|\bnvmlerror_unknown\b",
            "restart the container: `systemctl daemon-reload` on its machine takes its GPUs away;"  # noqa: ISC004
            " without a container, a device cgroup denies them, as to a Slurm job without --gpus",
        ),
        (
            r"\bno cuda-capable device is detected\b|\bno cuda gpus are available\b",
            "clusterctl check --only accelerator,python: it asks each node's driver and torch; a"  # noqa: ISC004
            " container may have lost its GPUs to `systemctl daemon-reload`: restart it",
        ),
        (
            r"\bcuda error:? 802\b|\berror 802: system not yet initialized\b",
            "clusterctl check --only accelerator.fabric: nvidia-fabricmanager must run",
        ),
        (
            r"\bresource temporarily unavailable\b|\bcan't start new thread\b",
            "clusterctl check --only node.processes: raise nproc in /etc/security/limits.conf",
        ),
        (
            (
                r"\bcuda driver version is insufficient\b|\bno kernel image is available\b"
                r"|\btorch not compiled with cuda enabled\b"
            ),
            "clusterctl check --only python: it compares torch with each node's driver and GPUs",
        ),
        # Threads of the process group still run when the interpreter is gone.
        (
            r"\bterminate called without an active exception\b",
            "a gloo thread outlived Python (pytorch issue 190489): end the script with"  # noqa: ISC004
            " torch.distributed.destroy_process_group() and time.sleep(0.1)",
        ),
    )
)

_MISSING = re.compile(r"\bNo such file or directory: (['\"])(/.+?)\1")
"""A FileNotFoundError about an absolute path."""
_PUSH = (
    "clusterctl push {0} copies it from a node that has it;"
    " with `job: {{needs: [{0}]}}`, launch stops without it"
)

_EXCEPTION = re.compile(r"^(?:\[rank\d+\]: ?)?[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt)\b")


def exception_line(lines: Sequence[str]) -> str:
    """Return the line of the last exception; empty if there is none."""
    stripped = (line.strip() for line in reversed(lines))
    return next((line for line in stripped if _EXCEPTION.match(line)), "")


def last_line(lines: Sequence[str]) -> str:
    """Return the last line that is not empty."""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def error_line(lines: Sequence[str]) -> str:
    """Return the line of the last exception, else the last line that is not empty."""
    return exception_line(lines) or last_line(lines)


def is_secondary(lines: Sequence[str]) -> bool:
    """Tell whether a rank failed because another rank or node did."""
    return bool(_SECONDARY.search(error_line(lines)))


def remedy_for(lines: Sequence[str]) -> str:
    """Return the remedy for a known error; empty for an unknown one."""
    line = error_line(lines)
    remedy = next((remedy for pattern, remedy in _REMEDIES if pattern.search(line)), "")
    missing = _MISSING.search(line)
    return _PUSH.format(shlex.quote(missing[2])) if missing else remedy
