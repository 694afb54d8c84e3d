"""The environment of a run's processes on this node, put together from everyone who has a say.

From weak to strong: built-in values, the node's own, values chosen by clusterctl, what `env_init`
changes, the job's and the command line's, secrets, what the launcher cannot do without. Names and
values are bytes: what a user wrote arrives unchanged, whatever the node's locale.
"""

from __future__ import annotations

import os
import signal
from shlex import quote
from typing import Any, Dict, List, Mapping, Optional

from clusterctl.node.agent.anonymous_file import anonymous_file
from clusterctl.node.agent.call_channel import OperationError
from clusterctl.node.run.processes.environ_bytes import (
    Environment,
    original_environment,
    parse_environ,
)

ENV_INIT_SECONDS = 120.0
KILL_SECONDS = 1.0
LAST_LINES = 20
PRINTED_BYTES = 65536
"""Of what `env_init` printed, how much is read, from the end."""
SHOWN = 200
"""Characters of the last line that are kept of an `env_init` that worked."""

SESSION_VARIABLES = (b"SSH_CLIENT", b"SSH_CONNECTION", b"SSH_TTY", b"SSH_ORIGINAL_COMMAND",
                     b"SSH_AUTH_SOCK", b"OLDPWD", b"SHLVL", b"_")  # fmt: skip
"""What belongs to the SSH session that starts a run, and is over while the run continues."""

RENDEZVOUS_VARIABLES = (b"RANK", b"LOCAL_RANK", b"WORLD_SIZE", b"LOCAL_WORLD_SIZE",
                        b"GROUP_RANK", b"GROUP_WORLD_SIZE", b"NODE_RANK", b"MASTER_ADDR",
                        b"MASTER_PORT")  # fmt: skip
"""What another launcher may have left behind: a run has its own, or none."""

TASK_VARIABLES = (b"SLURM_PROCID", b"SLURM_LOCALID", b"SLURM_NODEID", b"SLURM_NTASKS",
                  b"SLURM_NPROCS", b"SLURM_NNODES", b"SLURM_TASKS_PER_NODE", b"SLURM_GTIDS",
                  b"SLURM_TASK_PID")  # fmt: skip
"""Of the Slurm step that starts a run: one task. A framework would take them for its rank's."""


def job_environment(
    job: Mapping[str, Any], secrets: Dict[str, str], *, heard: Optional[List[str]] = None
) -> Environment:
    """Return the environment for the job's launcher or ranks.

    Args:
        job: with `env` as [name, value, layer] lists, `path_first`, `env_init`, `workdir`.
        secrets: values of `env_from`, that are nowhere stored.
        heard: gets the last line that `env_init` printed, if it printed any.

    Raises:
        OperationError: `env-init`: the line failed.
    """
    env = base_environment()
    for name, value, layer in job["env"]:
        if layer == "built-in":
            env.setdefault(os.fsencode(name), os.fsencode(value))
        elif layer == "chosen":
            env[os.fsencode(name)] = os.fsencode(value)
    if job.get("path_first"):
        folder = os.fsencode(job["path_first"])
        env[b"PATH"] = folder + b":" + env.get(b"PATH", os.defpath.encode())
    if job.get("env_init"):
        env = run_env_init(job["env_init"], env, heard)
    asked = {name: value for name, value, layer in job["env"] if layer == "asked"}
    needed = {name: value for name, value, layer in job["env"] if layer == "launcher"}
    for name, value in {**asked, **secrets, **needed, "PWD": job["workdir"]}.items():
        env[os.fsencode(name)] = os.fsencode(value)
    return env


def base_environment() -> Environment:
    """Return the node's own environment, without what belongs to this session."""
    return {
        name: value
        for name, value in original_environment().items()
        if name not in SESSION_VARIABLES + RENDEZVOUS_VARIABLES + TASK_VARIABLES
        and not name.startswith((b"TORCHELASTIC_", b"SLURM_STEP"))
    }


def run_env_init(line: str, env: Environment, heard: Optional[List[str]] = None) -> Environment:
    """Return the environment as a shell line leaves it.

    Bash where it is installed, for `source` and `module` are what people write; else `sh`. The
    environment comes back as bytes in a file of its own, so that the line may print.

    Raises:
        OperationError: `env-init`: it failed, left the shell, or did not end in time.
    """
    # Here, because start-up counts and most jobs have no such line.
    import subprocess  # noqa: PLC0415
    from contextlib import suppress  # noqa: PLC0415

    shell = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
    result, output = anonymous_file("environment"), anonymous_file("output")
    script = _SCRIPT % (os.fsencode(line), result)
    try:
        process = subprocess.Popen(
            [os.fsencode(shell), b"-c", script],
            env=env,
            pass_fds=(result,),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            code = process.wait(ENV_INIT_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):  # it may hang in the kernel
                process.wait(KILL_SECONDS)
            raise _failure(line, "did not end within %d s" % ENV_INIT_SECONDS, output) from None
        if code != 0:
            raise _failure(line, "ended with exit code %d" % code, output)
        after = parse_environ(os.pread(result, os.fstat(result).st_size, 0))
        if not after:  # by `exit 0` or `exec`, in what it sources perhaps
            raise _failure(line, "ended the shell, so its environment is not known", output)
        if heard is not None:
            heard += [words[:SHOWN] for words in _printed(output)[-1:]]
    finally:
        os.close(result)
        os.close(output)
    return {name: value for name, value in after.items() if name not in SESSION_VARIABLES}


_SCRIPT = b"""%s
code=$?; [ $code = 0 ] || exit $code
exec cat /proc/self/environ >&%d
"""


def _printed(output: int) -> List[str]:
    end = os.pread(output, PRINTED_BYTES, max(0, os.fstat(output).st_size - PRINTED_BYTES))
    lines = end.decode("utf-8", "backslashreplace").splitlines()
    return [line for line in lines if line.strip()]


def _failure(line: str, how: str, output: int) -> OperationError:
    printed = _printed(output)[-LAST_LINES:]
    message = "env_init %s: %s" % (how, line)
    hint = "try it on the node: bash -c %s; correct `env_init:` in the inventory" % quote(line)
    text = "\n".join([message, *printed])
    return OperationError("env-init", text, line=line, output=printed, hint=hint)
