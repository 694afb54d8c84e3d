"""The operation `make-venv`: a virtual environment with what a file of requirements lists.

It is made once for what was asked: a file inside tells what that was, and is written last. Of two
nodes that share the folder, one waits for the other and finds it done.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, Iterator, List, Optional

from clusterctl.node.agent.call_channel import CallChannel, ControllerDisconnected, OperationError
from clusterctl.node.commands.running_tool import start_tool, wait_for_tool
from clusterctl.node.file_io import read_json
from clusterctl.node.program_path import find_program
from clusterctl.node.run.processes import processes
from clusterctl.node.run.processes.environ_bytes import original_environment
from clusterctl.own_files import replace_file
from clusterctl.wire import Message

MARKER = ".clusterctl-setup.json"
"""In the environment: the digest of what it was made from, written once all of it is there."""
KEPT_LINES = 15
"""Last lines of a tool that failed."""
_NOISE = ("WARNING: Retrying ", "[notice]")
REPORT_SECONDS = 0.5
WAIT_SECONDS = 0.5
_LIST = """\
import json, sys
from importlib import metadata
found = {d.metadata["Name"].lower().replace("_", "-"): d.version for d in metadata.distributions()}
json.dump({"version": "%d.%d.%d" % sys.version_info[:3], "packages": found}, sys.stdout)
"""


def make_venv(args: Dict[str, Any], body: bytes, channel: CallChannel) -> Message:
    """Make or complete a virtual environment.

    Args:
        args: `venv`: its folder; `base`: the interpreter to make it with, this one where it is
            absent; `digest`: of all that it is made from; `wheels`: names and sizes of wheels,
            which follow on the channel, to install without a network.
        body: the requirements, as pip reads them.
        channel: gets `{"wants": true}` if wheels are needed, and `{"doing": text}` as it goes.

    Returns:
        `state` (created, updated, unchanged), `version` of Python, and `packages`.
    """
    venv = os.path.expanduser(args["venv"])
    processes.become_subreaper()
    reporter = _Reporter(channel)
    with _lock(venv, reporter):
        marker = read_json(os.path.join(venv, MARKER))
        if marker.get("digest") == args["digest"] and _works(venv):
            return Message({"state": "unchanged", **_listed(venv)})
        state = "updated" if os.path.exists(os.path.join(venv, "pyvenv.cfg")) else "created"
        if state == "created" and os.path.isdir(venv) and os.listdir(venv):
            hint = "name another path as `python:` in the inventory, or move the folder away"
            message = "%s is a folder with other files, and no virtual environment" % venv
            raise OperationError("setup", message, hint=hint)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(venv, MARKER))  # until it is whole again
        with tempfile.TemporaryDirectory(prefix="clusterctl-setup-") as folder:
            wheels = _receive_wheels(args.get("wheels") or [], folder, channel, reporter)
            requirements = os.path.join(folder, "requirements.txt")
            with open(os.open(requirements, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
                file.write(body)
            uv = _uv()
            if not _works(venv):
                _create(venv, args.get("base"), uv, reporter)
            _install(venv, requirements, wheels, uv, reporter)
        listed = _listed(venv)
        replace_file(
            os.path.join(venv, MARKER), json.dumps({"digest": args["digest"]}).encode() + b"\n"
        )
    return Message({"state": state, **listed})


class _Reporter:
    """Reports progress, not too often, and notices that the controller has left."""

    def __init__(self, channel: CallChannel) -> None:
        self.channel, self._said = channel, 0.0

    def say(self, text: str) -> None:
        """Say it, if it is time."""
        now = time.monotonic()
        if now - self._said > REPORT_SECONDS:
            self._said = now
            self.channel.send(Message({"doing": text[:200]}))
        if self.channel.disconnected:
            raise ControllerDisconnected


@contextlib.contextmanager
def _lock(venv: str, reporter: _Reporter) -> Iterator[None]:
    """Wait until no other setup works at this folder."""
    parent = os.path.dirname(venv)
    try:
        os.makedirs(parent, exist_ok=True)
        name = os.path.join(parent, ".%s.clusterctl-lock" % os.path.basename(venv))
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        message = "cannot write to %s: %s" % (parent, error.strerror)
        raise OperationError("setup", message, hint=_FOLDER_HINT) from error
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                reporter.say("waiting for another node that makes it")
                time.sleep(WAIT_SECONDS)
            except OSError:
                break  # a share without locks: `shared:` says that one node is enough
        yield
    finally:
        os.close(descriptor)


_FOLDER_HINT = "set `python:` in the inventory to a path in a folder that this user may write"


def _python(venv: str) -> str:
    return os.path.join(venv, "bin", "python")


def _works(venv: str) -> bool:
    """Tell whether the environment's interpreter starts: its base may have been removed."""
    try:
        return subprocess.run([_python(venv), "-I", "-c", ""], check=False).returncode == 0
    except OSError:
        return False


def _uv() -> Optional[str]:
    path = original_environment().get(b"PATH", os.fsencode(os.defpath))
    extra = [os.path.expanduser("~/.local/bin"), os.path.expanduser("~/.cargo/bin")]
    found = find_program(b"uv", b":".join([path, *map(os.fsencode, extra)]))
    return None if found is None else os.fsdecode(found)


def _create(venv: str, base: Optional[str], uv: Optional[str], reporter: _Reporter) -> None:
    chosen = base or sys.executable
    if uv is not None:
        words = [uv, "venv", "--quiet", "--allow-existing", "--python", chosen, venv]
        _run(words, reporter, "make %s" % venv, "")
        return
    hint = "sudo apt-get install python3-venv (on the node), or install uv there"
    _run([chosen, "-m", "venv", venv], reporter, "make %s" % venv, hint)


def _install(
    venv: str, requirements: str, wheels: str, uv: Optional[str], reporter: _Reporter
) -> None:
    offline = ["--no-index", "--find-links", wheels] if wheels else []
    if uv is not None:
        words = [uv, "pip", "install", "--python", _python(venv), *offline, "-r", requirements]
    else:
        pip = [_python(venv), "-m", "pip", "--disable-pip-version-check", "--no-input"]
        words = [*pip, "install", *offline, "-r", requirements]
    hint = "" if wheels else "a node without a way out: clusterctl setup --offline"
    _run(words, reporter, "install the requirements", hint)


def _run(words: List[str], reporter: _Reporter, what: str, hint: str) -> None:
    """Run a tool and report its lines."""
    lines: List[str] = []
    unfinished = b""

    def keep(_stream: str, data: bytes) -> None:
        nonlocal lines, unfinished
        *whole, unfinished = (unfinished + data).split(b"\n")
        lines = [*lines, *(line.decode("utf-8", "replace").rstrip() for line in whole)]
        lines = lines[-KEPT_LINES:]
        reporter.say(lines[-1] if lines else what)

    try:
        process = start_tool(words, stderr=subprocess.STDOUT)
    except OSError as error:
        message = "cannot %s: %s: %s" % (what, words[0], error.strerror)
        raise OperationError("setup", message, hint=hint) from error
    code, _ = wait_for_tool(process, reporter.channel, keep)
    if code:
        lines = [line for line in lines if not line.startswith(_NOISE)]
        message = "cannot %s: exit code %d" % (what, code)
        raise OperationError("setup", "\n".join([message, *lines]), hint=hint)


def _listed(venv: str) -> Dict[str, Any]:
    """Return the version of Python and of each package."""
    words = [_python(venv), "-I", "-c", _LIST]
    done = subprocess.run(words, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    found: Dict[str, Any] = json.loads(done.stdout)
    return found


def _receive_wheels(
    wheels: List[Dict[str, Any]], folder: str, channel: CallChannel, reporter: _Reporter
) -> str:
    """Write the wheels that follow on the channel; return their folder, empty for none."""
    if not wheels:
        return ""
    channel.send(Message({"wants": True}))
    place = os.path.join(folder, "wheels")
    os.mkdir(place, 0o700)
    for wheel in wheels:
        name, left = os.path.basename(str(wheel["name"])), int(wheel["size"])
        if left > shutil.disk_usage(place).free:
            message = "%s has no room for the wheel %s" % (folder, name)
            raise OperationError("setup", message, hint="make room there, or set TMPDIR")
        with open(os.path.join(place, name), "wb") as file:
            while left > 0:
                part = channel.receive()
                if part is None:
                    raise ControllerDisconnected
                file.write(part.body)
                left -= len(part.body)
                reporter.say("receiving " + name)
    return place


def describe_platform(args: Dict[str, Any], body: bytes, channel: CallChannel) -> Message:
    """Return what wheels must fit here: `python`, `arch`, `glibc`.

    Args:
        args: `base`: the interpreter that the environment is made with.
    """
    del body, channel
    base = args.get("base") or sys.executable
    words = [base, "-I", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    try:
        done = subprocess.run(words, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    except (OSError, subprocess.CalledProcessError) as error:
        raise OperationError("setup", "cannot run %s: %s" % (base, error)) from error
    try:
        glibc = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):
        glibc = ""
    arch = os.uname().machine
    python = done.stdout.decode().strip()
    return Message({"python": python, "arch": arch, "glibc": glibc.rpartition(" ")[2]})
