"""Names the kind of cause of the error that ended a program, by what it printed.

The supervisors judge by it whether a run is started again; `logs` adds the remedy of each kind.
"""

from __future__ import annotations

import functools
import re
from typing import NamedTuple, Sequence, Tuple

from clusterctl.node.printed_error import WAITED, echoes, last_error

CAUSES: Tuple[Tuple[str, str], ...] = (
    # Before "cuda-oom": Ray's error of that name is about the memory of a node.
    ("ray-memory", r"\bray\.exceptions\.outofmemoryerror\b|\bnode running low on memory\b"),
    ("ray-options", r"\bwhen connecting to an existing cluster, .* must not be provided\b"),
    ("ray-version", r"\bversion mismatch: the cluster was started with\b"),
    (
        "ray-worker",
        r"\bray\.exceptions\.(?:actordied|actorunavailable|rayactor|workercrashed)error\b",
    ),
    (
        "cuda-oom",
        (
            r"\b(?:cuda|hip) out of memory\b|\boutofmemoryerror\b|cuda failure 2\b"
            r"|\bcublas_status_alloc_failed\b"
        ),
    ),
    # Before "no space left": a full /dev/shm gives that message, too.
    (
        "shared-memory",
        (
            r"\bunexpected bus error\b|^bus error\b|\binsufficient shared memory\b"
            r"|\bout of shared memory\b|\bunable to write to file </torch_"
            r"|\bshared memory segment\b.*\bno space left\b|killed by signal: bus error"
        ),
    ),
    ("memlock", r"\bibv_reg_mr\w*\b.*\bfailed\b"),
    (
        "host-memory",
        (
            r"\bcannot allocate memory\b|\bcan't allocate memory\b|^memoryerror\b"
            r"|\bbad_alloc\b|\bkilled by signal: killed\b"
        ),
    ),
    (
        "hub-unreachable",
        (
            r"\bconnect to 'https://huggingface\b|\bhuggingface\.co'.*\bmax retries exceeded\b"
            r"|\blocalentrynotfounderror\b|\bofflinemodeisenabled\b|\b429 client error\b"
            r"|\burlerror: <urlopen error\b|\bhttpsconnectionpool\(.*\bmax retries exceeded\b"
        ),
    ),
    (
        "hub-access",
        (
            r"\bgatedrepoerror\b|\bgated repo\b|\brepositorynotfounderror\b"
            r"|\bis not a valid model identifier\b"
        ),
    ),
    ("wandb-key", r"\bapi_key not configured\b"),
    (
        "broken-file",
        (
            r"\bsafetensorerror\b.*\bdeserializing header\b|\bfailed reading zip archive\b"
            r"|\binvalid load key, 'v'"
        ),
    ),
    ("weights-only", r"\bweights only load failed\b"),
    ("no-space", r"\bno space left on device\b"),
    # What torch.save says of a full filesystem, or of one that fails.
    (
        "failed-write",
        (
            r"\bbasic_ios::clear: iostream error\b|\bunexpected pos \d+ vs \d+"
            r"|\bpytorchstreamwriter failed writing\b"
        ),
    ),
    ("quota", r"\bdisk quota exceeded\b"),
    ("no-torch", r"\bno module named '?torch\b(?![_.])"),
    # An ImportError, too.
    ("noexec", r"\bfailed to map segment from shared object\b"),
    ("undefined-symbol", r"\bundefined symbol\b"),
    ("glibc", r"\bversion `glibc\w*_[\d.]+' not found\b"),
    ("shared-library", r"\bcannot open shared object file\b"),
    ("import-name", r"\bimporterror: cannot import name\b"),
    ("ninja", r"\bninja is required\b"),
    (
        "extension-build",
        (r"\berror building extension\b|\bcudamismatchexception\b|\bmissingcudaexception\b"),
    ),
    ("no-module", r"\bmodulenotfounderror: no module named\b|\bimporterror:"),
    # Also without EADDRINUSE: older torch prints this line alone.
    (
        "port-taken",
        (r"\bserver socket has failed to listen\b|\baddress already in use\b|\beaddrinuse\b"),
    ),
    ("no-script", r"\bcan't open file '.*\[errno 2\]"),
    (
        "checkpoint-pieces",
        (r"(?<![a-z])(?:world_size_\d+_rank|zero_pp_rank|mp_rank)_\d+"),
    ),
    ("missing-file", r"\bfilenotfounderror\b|\bno such file or directory\b"),
    ("permission", r"\bpermissionerror\b|\bpermission denied\b"),
    ("open-files", r"\btoo many open files\b"),
    ("stale-handle", r"\bstale file handle\b|\btransport endpoint is not connected\b"),
    ("io-error", r"\binput/output error\b|\bread-only file system\b"),
    (
        "name-resolution",
        (r"\bname or service not known\b|\btemporary failure in name resolution\b"),
    ),
    ("duplicate-gpu", r"\bduplicate gpu detected\b"),
    ("device-ordinal", r"\binvalid device ordinal\b"),
    (
        "versions",
        (r"\bmismatched nccl version\b|\bnvidia driver on your system is too old\b"),
    ),
    ("device-assert", r"\bdevice-side assert\b|\billegal memory access\b"),
    ("gpu-busy", r"\bcuda-capable devices are busy\b|\bfound no nvidia driver\b"),
    ("no-interface", r"\bno socket interface found\b"),
    ("no-address", r"\bunable to find address for\b"),
    (
        "own-node",
        (r"\bclient socket has (?:timed out|failed)\b.*(?:\blocalhost\b|\b127\.0\.0\.)"),
    ),
    ("unused-parameter", r"\bexpected to have finished reduction\b"),
    ("ecc", r"\bunrecoverable ecc\b|\buncorrectable ecc error\b|\bnvrm: xid\b|\bxid \(pci:"),
    ("non-finite", r"\bnon-?finite(?:error|loss)?\b|\bloss is nan\b"),
    (
        "unreachable",
        (
            r"\bno route to host\b|\bconnection tim(?:eout|ed out)\b"
            r"|\behostunreach\b|\betimedout\b|\bclient socket has (?:timed out|failed)\b"
            r"|\bgot completion from peer\b"
        ),
    ),
    ("rank-mismatch", r"\brank mismatch\b|\bduplicate rank\b"),
    ("waited", WAITED.pattern),
    # A GPU that fails takes each of these ways out, with no Xid in the rank's own log.
    (
        "gpu-lost",
        (
            r"\bgpu is lost\b|\bfallen off the bus\b|\bgpu requires reset\b"
            r"|\bnvmlerror_gpuislost\b"
        ),
    ),
    ("driver-mismatch", r"\bdriver/library version mismatch\b"),
    ("nvml", r"\bfailed to initialize nvml: unknown error\b|\bnvmlerror_unknown\b"),
    ("nccl-on-cpu", r"\bprocessgroupnccl is only supported with gpus\b"),
    ("no-gpu", r"\bno cuda-capable device is detected\b|\bno cuda gpus are available\b"),
    ("fabric", r"\bcuda error:? 802\b|\berror 802: system not yet initialized\b"),
    ("processes", r"\bresource temporarily unavailable\b|\bcan't start new thread\b"),
    (
        "old-driver",
        (
            r"\bcuda driver version is insufficient\b|\bno kernel image is available\b"
            r"|\btorch not compiled with cuda enabled\b"
        ),
    ),
    # Threads of the process group still run when the interpreter has shut down.
    ("gloo-thread", r"\bterminate called without an active exception\b"),
    ("syntax", r"\b(?:syntax|indentation|tab)error:"),
    ("nccl", r"\bnccl|\bibv?_|\binfiniband\b"),
)
"""Kind and pattern; the first that is found in the line counts. Case does not."""


class PrintedCause(NamedTuple):
    """What a program printed of the cause of its end."""

    kind: str
    """Of CAUSES; empty: none that is known."""
    line: str
    """The line that tells, else the last one; empty: nothing was printed."""
    error: bool
    """It is the line of an error."""
    echo: bool
    """It followed from the end or the absence of another rank."""


# A rank that was restarted many times is judged by the same last lines each time.
known_last_error = functools.lru_cache(maxsize=64)(last_error)


def last_line(lines: Sequence[str]) -> str:
    """Return the last line that is not empty."""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def cause_of(lines: Sequence[str]) -> PrintedCause:
    """Return what the last lines of a program tell of the cause of its end."""
    return _cause_of(tuple(lines))


@functools.lru_cache(maxsize=64)
def _cause_of(lines: Tuple[str, ...]) -> PrintedCause:
    error = known_last_error(lines)
    line = said = error.line or last_line(lines)
    if line.endswith(":"):
        said = " ".join([line, *lines[error.at + 1 : error.at + 2]])
    kind = next(
        (kind for kind, pattern in CAUSES if re.search(pattern, said, flags=re.IGNORECASE)), ""
    )
    echo = error.echo if error.line else echoes(line)
    return PrintedCause(kind, said, bool(error.line), echo)
