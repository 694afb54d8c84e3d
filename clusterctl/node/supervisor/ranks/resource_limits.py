"""The resource limits of a run's processes: as high as this user may raise them.

A login shell starts with soft limits that are far below the hard ones (1,024 open files are
common). `ulimit` in `env_init` cannot help, because only the environment of that shell is kept.
"""

from __future__ import annotations

import resource

MOST_FILES = 1 << 20
"""Open files; some programs loop over all numbers up to their limit, which may be a billion."""

RAISED = (
    resource.RLIMIT_NOFILE, resource.RLIMIT_MEMLOCK, resource.RLIMIT_NPROC, resource.RLIMIT_CPU,
    resource.RLIMIT_AS,
)  # fmt: skip
"""Not the stack: glibc sizes the stack of each thread by it. Not core: dumps fill the disk."""


def raise_soft_limits() -> None:
    """Raise the soft limits on files, memory, processes and CPU time; children inherit them."""
    for kind in RAISED:
        soft, hard = resource.getrlimit(kind)
        wanted = hard
        if kind == resource.RLIMIT_NOFILE and not 0 <= hard <= MOST_FILES:
            wanted = MOST_FILES
        if soft in {wanted, resource.RLIM_INFINITY} or 0 <= wanted < soft:
            continue
        try:
            resource.setrlimit(kind, (wanted, hard))
        except (OSError, ValueError):
            continue  # the kernel's own maximum is lower: what we have must do
