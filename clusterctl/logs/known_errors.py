"""Finds the cause of a failure in the last lines of a rank, and its remedy."""

import functools
import re
import shlex
from collections.abc import Callable, Sequence

from clusterctl.facts.software.python import NAME_INTERPRETER
from clusterctl.node.printed_error import WAITED, echoes, last_error

PORT_TAKEN = "launch with another --master-port, or without the flag to use a free port"

_COPY = "copy it to every node with clusterctl push, and list it under `job: needs:`"
_Search = Callable[[str], re.Match[str] | None]
_REMEDIES: tuple[tuple[_Search, str], ...] = tuple(
    (functools.partial(re.search, pattern, flags=re.IGNORECASE), remedy)  # compiled when needed
    for pattern, remedy in (
        (
            (
                r"\b(?:cuda|hip) out of memory\b|\boutofmemoryerror\b|cuda failure 2\b"
                r"|\bcublas_status_alloc_failed\b"
            ),
            "use a smaller batch per device with more gradient accumulation",
        ),
        # Before "no space left": a full /dev/shm gives that message, too.
        (
            (
                r"\bunexpected bus error\b|^bus error\b|\binsufficient shared memory\b"
                r"|\bout of shared memory\b|\bunable to write to file </torch_"
                r"|\bshared memory segment\b.*\bno space left\b|killed by signal: bus error"
            ),
            "give the node (or its container) a larger /dev/shm",
        ),
        (
            r"\bibv_reg_mr\w*\b.*\bfailed\b",
            "clusterctl check --only node.memlock; if it finds nothing, compare the kernels:"  # noqa: ISC004
            " clusterctl exec -- grep -H CmaTotal /proc/meminfo",
        ),
        (
            (
                r"\bcannot allocate memory\b|\bcan't allocate memory\b|^memoryerror\b"
                r"|\bbad_alloc\b|\bkilled by signal: killed\b"
            ),
            "use less host memory (fewer data workers, a smaller batch), or raise the container's"  # noqa: ISC004
            " limit: free -m (on the node)",
        ),
        (
            (
                r"\bconnect to 'https://huggingface\b|\bhuggingface\.co'.*\bmax retries exceeded\b"
                r"|\blocalentrynotfounderror\b|\bofflinemodeisenabled\b|\b429 client error\b"
            ),
            "download it once, copy it to the nodes by clusterctl push, and load it from there",
        ),
        (
            (
                r"\bgatedrepoerror\b|\bgated repo\b|\brepositorynotfounderror\b"
                r"|\bis not a valid model identifier\b"
            ),
            "check the name; if it is gated or private: `job: {env_from: [HF_TOKEN]}`",
        ),
        (
            r"\bapi_key not configured\b",
            "`job: {env_from: [WANDB_API_KEY]}`, or --env WANDB_MODE=offline",
        ),
        (
            (
                r"\bsafetensorerror\b.*\bdeserializing header\b|\bfailed reading zip archive\b"
                r"|\binvalid load key, 'v'"
            ),
            "the file is incomplete, or a pointer of Git LFS: copy it again by clusterctl push",
        ),
        (
            r"\bno space left on device\b",
            "free space on the node: df -h shows the full filesystem",
        ),
        # What torch.save says of a full filesystem, or of one that fails.
        (
            (
                r"\bbasic_ios::clear: iostream error\b|\bunexpected pos \d+ vs \d+"
                r"|\bpytorchstreamwriter failed writing\b"
            ),
            "the checkpoint could not be written: df -h (on the node) shows if its filesystem is"  # noqa: ISC004
            " full",
        ),
        (r"\bdisk quota exceeded\b", "free space or raise the quota: quota -s (on the node)"),
        (r"\bno module named '?torch\b(?!_)", NAME_INTERPRETER),
        # An ImportError, too.
        (
            r"\bfailed to map segment from shared object\b",
            "clusterctl check --only storage.noexec: a folder there does not allow programs",
        ),
        (
            r"\bundefined symbol\b",
            "that package was built for another version of torch or CUDA: reinstall it",
        ),
        (
            r"\bversion `glibc\w*_[\d.]+' not found\b",
            "that package needs a newer system library than the node has: install an older build",
        ),
        (
            r"\bcannot open shared object file\b",
            "the node lacks that shared library: install it, or add its folder to LD_LIBRARY_PATH"  # noqa: ISC004
            " (`env_init:` or `job: {env: ...}`)",
        ),
        (
            r"\bimporterror: cannot import name\b",
            "another version of that package is needed: pin it, then clusterctl setup",
        ),
        (r"\bninja is required\b", "install ninja on every node (clusterctl setup)"),
        (
            r"\berror building extension\b|\bcudamismatchexception\b|\bmissingcudaexception\b",
            "it is compiled on the node: nvcc of torch's CUDA version must be there, and CUDA_HOME"  # noqa: ISC004
            " name it; the compiler's own words are further up",
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
            r"(?<![a-z])(?:world_size_\d+_rank|zero_pp_rank|mp_rank)_\d+",
            "a checkpoint in pieces is loaded by as many ranks as saved it: resume on as many,"  # noqa: ISC004
            " or convert it",
        ),
        (
            r"\bfilenotfounderror\b|\bno such file or directory\b",
            _COPY,
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
            r"\bstale file handle\b|\btransport endpoint is not connected\b",
            "look at the file server and its mount: findmnt -T FOLDER (on the node)",
        ),
        (
            r"\binput/output error\b|\bread-only file system\b",
            "the disk or its server fails: dmesg -T | tail (on the node)",
        ),
        (
            r"\bname or service not known\b|\btemporary failure in name resolution\b",
            "the node does not resolve that name: write an address, or fix its /etc/resolv.conf",
        ),
        (
            r"\bduplicate gpu detected\b",
            "two ranks use one GPU: torch.cuda.set_device(int(os.environ['LOCAL_RANK']))",
        ),
        (
            r"\binvalid device ordinal\b",
            "the node runs more ranks than GPUs, or the script does not use LOCAL_RANK",
        ),
        (
            r"\bmismatched nccl version\b|\bnvidia driver on your system is too old\b",
            "clusterctl check --only python: it compares torch of all nodes and their drivers",
        ),
        (
            r"\bdevice-side assert\b|\billegal memory access\b",
            "--env CUDA_LAUNCH_BLOCKING=1 shows the line that fails; an index may be out of range",
        ),
        (
            r"\bcuda-capable devices are busy\b|\bfound no nvidia driver\b",
            "clusterctl check --only accelerator: it asks each node's driver and who uses its GPUs",
        ),
        (
            r"\bno socket interface found\b",
            "NCCL_SOCKET_IFNAME names no interface of the node: leave it to clusterctl",
        ),
        (
            r"\bunable to find address for\b",
            "GLOO_SOCKET_IFNAME must be the whole name of an interface: leave it to clusterctl",
        ),
        (
            r"\bclient socket has (?:timed out|failed)\b.*(?:\blocalhost\b|\b127\.0\.0\.)",
            "the script connects to its own node: it must use MASTER_ADDR and MASTER_PORT as set",
        ),
        (
            r"\bexpected to have finished reduction\b",
            "use every parameter in the loss, or set find_unused_parameters=True of DDP",
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
                r"|\behostunreach\b|\betimedout\b|\bclient socket has (?:timed out|failed)\b"
                r"|\bgot completion from peer\b"
            ),
            "clusterctl check --only network: it connects every node to every other",
        ),
        (
            r"\brank mismatch\b|\bduplicate rank\b",
            "leave RANK, LOCAL_RANK and WORLD_SIZE to clusterctl: not in job.env or the script",
        ),
        (
            WAITED.pattern,
            "a rank did not come in time: look for its last lines with clusterctl logs; if it only"  # noqa: ISC004
            " needs longer, raise timeout= of init_process_group",
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
        # Threads of the process group still run when the interpreter has shut down.
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


# A rank that was restarted many times is judged by the same last lines each time.
_last_error = functools.lru_cache(maxsize=64)(last_error)


def exception_line(lines: Sequence[str]) -> str:
    """Return the line of the error that ended the program; empty if there is none."""
    return _last_error(tuple(lines)).line


def last_line(lines: Sequence[str]) -> str:
    """Return the last line that is not empty."""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def error_line(lines: Sequence[str]) -> str:
    """Return the line of the error, else the last line that is not empty."""
    return exception_line(lines) or last_line(lines)


def is_secondary(lines: Sequence[str]) -> bool:
    """Tell whether a rank failed because another rank or node did."""
    error = _last_error(tuple(lines))
    return error.echo if error.line else echoes(last_line(lines))


def has_waited(lines: Sequence[str]) -> bool:
    """Tell whether a rank failed because it waited too long for another."""
    return bool(WAITED.search(error_line(lines)))


def remedy_for(lines: Sequence[str]) -> str:
    """Return the remedy for a known error; empty for an unknown one."""
    error = _last_error(tuple(lines))
    line = error.line or last_line(lines)
    if line.endswith(":"):
        line = " ".join([line, *lines[error.at + 1 : error.at + 2]])
    remedy = next((remedy for search, remedy in _REMEDIES if search(line)), "")
    missing = _MISSING.search(line) if remedy == _COPY else None
    return _PUSH.format(shlex.quote(missing[2])) if missing else remedy
