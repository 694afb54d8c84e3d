"""The programs that a node runs for a fact, each with its limit in seconds."""

from __future__ import annotations

from typing import Any

from clusterctl.facts.request import FactRequest

GPU_SECONDS = 20.0
"""A healthy driver answers in 2; nvidia-smi without persistence mode in 10."""
PROGRAM_SECONDS = 5.0
AMD = "/dev/kfd"
NVIDIA = ("/dev/nvidiactl", "/dev/dxg")
"""If one of these exists, there is a driver of the vendor's GPUs."""


def program(
    key: str, argv: list[str], limit_s: float = PROGRAM_SECONDS, *, only_if: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return the question to a program; `only_if`: paths of which one must exist."""
    condition = {"only_if": list(only_if)} if only_if else {}
    return {"key": key, "argv": argv, "limit_s": limit_s, **condition}


def interpreter(
    key: str,
    wanted: FactRequest,
    limit_s: float,
    *args: str,
    container: tuple[str, ...] | None = None,
    only_if: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Return the command that runs our source with the job's interpreter and environment."""
    around = wanted.container.plain if wanted.container is not None else ()
    words = [*(container or around), wanted.interpreter, "-c"]
    command = {
        **program(key, [*words, *args], limit_s, only_if=only_if),
        "source": "clusterctl.node.probe.job_interpreter",
        "source_at": len(words),
        "cwd": "/",
    }
    return {**command, **job_environment(wanted)}


def job_environment(wanted: FactRequest) -> dict[str, Any]:
    """Return what gives a command the job's environment, if that changes what is asked."""
    env = wanted.container.env if wanted.container is not None else wanted.python_env
    if not env and not wanted.env_init:
        return {}
    asked = [[name, value, "asked"] for name, value in env]
    return {"job": {"env": asked, "env_init": wanted.env_init, "workdir": "/"}}
