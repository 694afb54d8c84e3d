"""Which interpreters of this node have torch; run by the session's python3, never by the agent.

Each line of the output is a JSON object: first the home, then one for each interpreter as soon as
it has answered. What hangs, such as a dead mount, costs only the candidates after it.
"""

from __future__ import annotations

import glob
import json
import os
import pwd
import signal
import subprocess
import sys
import time

from clusterctl.node.agent.loader import Importer, read_sources

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterator, List, Optional

MOST = 24
"""Interpreters that are asked, at most."""
LISTED = 64
"""Paths that one pattern gives, at most."""
ASK_SECONDS = 5.0
ALL_SECONDS = 20.0
SOURCE = "clusterctl.node.probe.job_interpreter"
ENVIRONMENTS = (".venv", "venv")
CONDAS = ("~/miniconda3", "~/anaconda3", "~/miniforge3", "~/mambaforge", "/opt/conda")
LAST = (
    "~/*/bin/python", "~/.virtualenvs/*/bin/python",
    "/opt/*/bin/python", "/usr/local/bin/python3", "/usr/bin/python3",
)  # fmt: skip
_PLAIN_MOUNTS = 2
"""Parts of a path; mounts further down belong to a container engine or to a job."""
_SYSTEM = frozenset(
    {"", "boot", "dev", "etc", "lib", "proc", "run", "snap", "sys", "tmp", "usr", "var"}
)


def find(folder: str) -> None:
    """Write the home, the interpreters that answer, and as `slow` those that take too long.

    Args:
        folder: the name of the project's folder.
    """
    _say({"home": os.path.expanduser("~")})
    source = Importer(read_sources()).get_source(SOURCE)
    until = time.monotonic() + ALL_SECONDS
    seen: Dict[str, None] = {}
    for path in candidates(folder):
        if path in seen or not os.access(path, os.X_OK) or os.path.isdir(path):
            continue
        seen[path] = None
        answer = _output([path, "-c", source])
        words = (answer or "").split("\0")
        if answer is None:
            _say({"slow": path})
        elif len(words) > 2:  # noqa: PLR2004  (executable, version, torch's build)
            packages = dict(zip(words[3::2], words[4::2]))
            torch = packages.get("torch", "")
            _say({"python": path, "version": words[1], "build": words[2], "torch": torch})
        if len(seen) >= MOST or time.monotonic() > until:
            return


def candidates(folder: str) -> Iterator[str]:
    """Yield the paths where interpreters usually are, the likeliest first."""
    for active in ("VIRTUAL_ENV", "CONDA_PREFIX"):  # of this machine's own shell, if it is one
        if os.environ.get(active):
            yield os.environ[active] + "/bin/python"
    yield from _of_login_shell()
    mounts = _mounts()
    for top in ("~", *mounts):
        for name in ENVIRONMENTS:
            yield os.path.expanduser("%s/%s/%s/bin/python" % (top, folder, name))
    for conda in CONDAS:
        yield from _matching(conda + "/bin/python")
        yield from _matching(conda + "/envs/*/bin/python")
    for name in ENVIRONMENTS:
        yield os.path.expanduser("~/%s/bin/python" % name)
        yield from _matching("~/*/%s/bin/python" % name)
    for pattern in LAST:
        yield from _matching(pattern)
    for mount in mounts:
        for name in ENVIRONMENTS:
            yield "%s/%s/bin/python" % (mount, name)
        yield from _matching(mount + "/*/bin/python")  # last: a large folder takes long to list


def _of_login_shell() -> Iterator[str]:
    try:
        shell = pwd.getpwuid(os.getuid()).pw_shell
    except KeyError:
        return
    for name in ("python3", "python"):
        # A profile may print lines of its own.
        answer = _output([shell or "/bin/sh", "-lc", "command -v " + name])
        lines = (answer or "").splitlines()
        yield from (line for line in lines[-1:] if line.startswith("/"))


def _mounts() -> List[str]:
    """Return the mounts that may hold a project's files."""
    found = []
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            point = line.split(" ")[4]
            parts = point.split("/")[1:]
            if parts[0] not in _SYSTEM and len(parts) <= _PLAIN_MOUNTS and "\\" not in point:
                found.append(point)
    return found


def _matching(pattern: str) -> List[str]:
    return sorted(path for _, path in zip(range(LISTED), glob.iglob(os.path.expanduser(pattern))))


def _output(argv: List[str]) -> Optional[str]:
    """Return what a program prints; nothing if it fails, None if it takes too long."""
    try:
        running = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,  # a group of its own, which ends with it
        )
    except (OSError, ValueError):
        return ""
    try:
        data, _ = running.communicate(timeout=ASK_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(running.pid, signal.SIGKILL)
        running.communicate()
        return None
    return data.decode("utf-8", "replace") if running.returncode == 0 else ""


def _say(document: Dict[str, str]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()
