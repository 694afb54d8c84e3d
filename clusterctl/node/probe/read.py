"""Operation `read`: raw answers to many questions, in one round trip; `collect_facts` extends it.

Nothing is interpreted here and nothing installed: files, globs, links, programs and paths come
back as bytes, and the controller parses them. Each question has a limit of its own.

The head's `answers` lists `[key, state, size, exit code, seconds, words]`; the deflated body
holds their bytes in the same order. States: ok, absent, denied, error, timeout, too-long.
"""

from __future__ import annotations

import _socket
import _thread
import io
import os
import sys
import time
import zlib

from clusterctl.node.agent.call_channel import CallChannel, ControllerDisconnected
from clusterctl.node.agent.child_tasks import Child, gather, run_function, run_program
from clusterctl.node.agent.loader import Importer, program, read_sources
from clusterctl.node.probe.folders import matching, read_folder
from clusterctl.node.probe.interface_addresses import list_interfaces
from clusterctl.node.probe.kernel_log import read_kernel_log
from clusterctl.node.probe.machine_state import describe_machine
from clusterctl.node.probe.path_probe import probe_path
from clusterctl.node.program_path import find_program
from clusterctl.own_files import user_name
from clusterctl.wire import BadFrame, Message, from_json, read_message, to_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterable, List

    Write = Callable[[bytes], None]

MODULES = ("_ctypes", "_ssl")
"""Parts of the standard library that a run needs and some builds of Python lack."""
FILE_LIMIT = 1024 * 1024
_CHUNK = 1 << 16
RDMA = "/sys/class/infiniband"
FILES_SECONDS = 5.0
"""For all files of /proc and /sys together, the lock and the host name."""
CLOCK_SECONDS = 60.0
"""How long the answers wait for a controller that is still busy with other nodes."""


def read(args: Dict[str, Any], body: bytes, channel: CallChannel) -> Message:
    """Answer the questions of `args`.

    Args:
        args: `files`, `globs`, `links` (paths and patterns), `folders` and `rdma` (path: a pattern,
            files: names of one-line files there), `commands` (key, argv, limit_s, and
            optionally cwd, source: a clusterctl module whose text is argument `source_at`, modules:
            likewise, clusterctl modules as one program, only_if: paths of which one must exist,
            job: as `job_environment` takes it), `paths` (see `path_probe.probe_path`),
            `local_paths` (read together with the files: they cannot hang), `variables` (prefixes of
            environment variables to tell), `programs` (to find on PATH), `lock` (whose holder to
            name), `build_locks` (patterns: locks to describe), `clock` (round trips that will be
            asked for at most), `kernel_log` (what its lines must contain, one of these).
        body: values of the job's `env_from`, as JSON.
        channel: serves the clock's round trips while the children work.
    """
    secrets = from_json(body or b"{}")
    late = _late_questions(args)
    files = run_function("files", lambda write: _files(args, late, write), FILES_SECONDS)
    children = [files]
    if args.get("rdma") and os.path.isdir(RDMA):
        # Apart from the other files: a device whose firmware died may hang.
        children.append(
            run_function("rdma", lambda write: _folders(args["rdma"], write), FILES_SECONDS)
        )
    patterns = args.get("kernel_log")
    if patterns:
        reader = lambda write: read_kernel_log(patterns, write)  # noqa: E731
        children.append(run_function("kernel-log", reader, FILES_SECONDS))
    for path in filter(_is_slow, args.get("paths", [])):
        limit = float(path.get("limit_s", FILES_SECONDS))
        children.append(run_function("path:" + path["path"], _writer(_path_prober(path)), limit))
    for command in args.get("commands", []):
        children.extend(_start(command, secrets))
    # While the children run: the controller may be busy with a slower node for long.
    clock = _thread.allocate_lock()
    clock.acquire()
    _thread.start_new_thread(_serve_clock, (channel, args.get("clock", 0), clock))
    # A program of the job may take minutes: none continues without a controller.
    gather(children, needless=lambda: channel.disconnected)
    if files.state != "ok" or files.exit_code:
        # What hung there must not cost these. A child for each at once would cost 1 ms each.
        answered = {frame.head["key"] for frame in _frames(files.output)}
        missing = [
            run_function(key, _writer(ask), FILES_SECONDS)
            for key, ask in late.items()
            if key not in answered
        ]
        gather(missing)
        children += missing
    clock.acquire(timeout=CLOCK_SECONDS)
    return _pack(children)


def collect_facts(args: Dict[str, Any], body: bytes, channel: CallChannel) -> Message:
    """Send what `read` answers, then do this node's part in the probe between nodes.

    One agent for both: starting it, and its session, is most of what a check costs a node.

    Args:
        args: those of `read`, and `word`: a nonce by which the nodes know each other.
        body: as of `read`.
        channel: brings the steps of the peer probe; none is needed.
    """
    channel.send_and_rest(read(args, body, channel))
    from clusterctl.node.probe.peer_probe import probe_peers  # noqa: PLC0415  (the answers need not wait for it)

    return probe_peers(str(args["word"]), channel)


def _serve_clock(channel: CallChannel, rounds: int, done: _thread.LockType) -> None:
    try:
        if rounds:
            channel.send(Message({"clock": "ready"}))
        for _ in range(rounds):
            asked = channel.receive()
            if asked is None or "enough" in asked.head:
                return
            channel.send(Message({"time": time.time()}))
    except ControllerDisconnected:
        return
    finally:
        done.release()


def _start(command: Dict[str, Any], secrets: Dict[str, str]) -> Iterable[Child]:
    only_if = command.get("only_if")
    if only_if is not None and not any(os.path.exists(path) for path in only_if):
        return
    argv = [os.path.expanduser(command["argv"][0]), *command["argv"][1:]]
    if "source" in command:
        argv.insert(command["source_at"], Importer(read_sources()).get_source(command["source"]))
    if "modules" in command:
        argv.insert(command["source_at"], program(command["modules"]).decode())
    job = command.get("job")
    if command.get("container"):
        from clusterctl.node.run.processes.containers import fill_in  # noqa: PLC0415  (start-up counts)

        argv = [*fill_in(command["container"], os.path.expanduser(command["cwd"])), *argv]
    yield run_program(
        "command:" + command["key"],
        argv,
        float(command["limit_s"]),
        cwd=command.get("cwd"),
        environment=(lambda: _composed(job, secrets)) if job is not None else None,
    )


def _composed(job: Dict[str, Any], secrets: Dict[str, str]) -> Dict[bytes, bytes]:
    from clusterctl.node.run.processes.environment import job_environment  # noqa: PLC0415  (start-up counts)

    return job_environment(job, secrets)


def _lock_holders(machine: str) -> Dict[str, Any]:
    with open("/proc/net/unix", "rb") as file:
        bound = file.read()
    mark = b"@" + machine.encode()
    if mark + b"\n" not in bound and mark + b"/" not in bound:
        return {"holder": None}
    from clusterctl.node import run_lock  # noqa: PLC0415  (start-up counts)

    whole = run_lock.query(machine, {"ask": "who"})
    return {"holder": whole, "sharing": [*run_lock.lock_holders(run_lock.slots(machine))]}


def _is_slow(path: Dict[str, Any]) -> bool:
    """Tell whether to look at a path takes long enough for a child of its own."""
    return bool(path.get("speed") or path.get("digest") or "limit_s" in path)


def _path_prober(path: Dict[str, Any]) -> Callable[[], Dict[str, Any]]:
    return lambda: probe_path(path)


def _writer(ask: Callable[[], Dict[str, Any]]) -> Callable[[Write], None]:
    return lambda write: write(to_json(ask()))


def _late_questions(args: Dict[str, Any]) -> Dict[str, Callable[[], Dict[str, Any]]]:
    """Return what the child of the files asks last, since it may hang; by the answers' keys."""
    quick = [path for path in args.get("paths", []) if not _is_slow(path)]
    return {
        "machine": describe_machine,
        "self": lambda: _describe_process(args),
        **{"path:" + path["path"]: _path_prober(path) for path in quick},
        "build-locks": lambda: _describe_build_locks(args.get("build_locks", [])),
        "names": _resolve_hostname,  # a DNS server may have to tell
    }


def _files(
    args: Dict[str, Any], late: Dict[str, Callable[[], Dict[str, Any]]], write: Write
) -> None:
    """Send each file as a frame of its own: what hangs costs itself and those after it.

    What may hang comes last: a home on a dead mount, and the late questions.
    """
    for name in args.get("files", []):
        write(_answer("file:" + name, name, _contents))
    for name in args.get("links", []):
        write(_answer("link:" + name, name, lambda link: os.readlink(os.fsencode(link))))
    if "lock" in args:
        write(_json_answer("lock", _lock_holders(args["lock"])))
    for path in args.get("local_paths", []):
        write(_json_answer("path:" + path, probe_path({"path": path})))
    write(_answer("interfaces", "", lambda _: to_json(list_interfaces())))
    _folders(args.get("folders", []), write)
    for pattern in args.get("globs", []):
        for name in matching(os.path.expanduser(pattern)):
            write(_answer("file:" + name, name, _contents))
    for key, ask in late.items():
        write(_json_answer(key, ask()))


def _folders(questions: List[Dict[str, Any]], write: Write) -> None:
    """Send each folder's small files as one frame."""
    for question in questions:
        for folder in matching(question["path"]):
            write(_answer("folder:" + folder, folder, _folder_reader(question["files"])))


def _folder_reader(names: List[str]) -> Callable[[str], bytes]:
    return lambda folder: read_folder(folder, names)


def _answer(key: str, path: str, read_path: Callable[[str], bytes]) -> bytes:
    try:
        return Message({"key": key, "state": "ok"}, read_path(path)).encode()
    except FileNotFoundError as error:
        state, words = "absent", error.strerror
    except PermissionError as error:
        state, words = "denied", error.strerror
    except OSError as error:
        state, words = "error", error.strerror or str(error)
    return Message({"key": key, "state": state, "words": words}).encode()


def _json_answer(key: str, value: Dict[str, Any]) -> bytes:
    return Message({"key": key, "state": "ok"}, to_json(value)).encode()


def _contents(name: str) -> bytes:
    """Return what is in a file; by system calls alone, for there are many small ones."""
    descriptor = os.open(name, os.O_RDONLY)
    try:
        found = b""
        while len(found) < FILE_LIMIT:
            part = os.read(descriptor, min(_CHUNK, FILE_LIMIT - len(found)))
            if not part:
                break
            found += part
        return found
    finally:
        os.close(descriptor)


def _resolve_hostname() -> Dict[str, Any]:
    """Resolve the host name as the job's libraries will; a broken DNS may take long."""
    name = _socket.gethostname()
    try:
        # As bytes: a text would be made ones by the codec for international names, slow to import.
        found = _socket.getaddrinfo(name.encode(), None, type=_socket.SOCK_STREAM)
    except OSError as error:
        return {"hostname": name, "error": str(error)}
    addresses = sorted({str(entry[4][0]) for entry in found})
    return {"hostname": name, "addresses": addresses}


def _describe_process(args: Dict[str, Any]) -> Dict[str, Any]:
    """Tell of this process: who it is, what it may use, what its session was given.

    It may hang: a folder of PATH may be on a dead mount, and a name with a server of users.
    """
    uid = os.getuid()
    prefixes = tuple(args.get("variables", []))
    user = user_name(uid)
    return {
        "uid": uid,
        "user": user,
        "arch": os.uname().machine,
        "cpus": len(os.sched_getaffinity(0)),
        "linger": os.path.exists("/var/lib/systemd/linger/" + user),
        "variables": {k: v for k, v in os.environ.items() if k.startswith(prefixes)},
        "agent": {"executable": sys.executable, "lacks": [m for m in MODULES if not has_module(m)]},
        "programs": {name: _program(name) for name in args.get("programs", [])},
    }


def has_module(name: str) -> bool:
    """Tell whether this Python has a module, without the cost of its import."""
    finders = (getattr(finder, "find_spec", None) for finder in sys.meta_path)
    return any(find is not None and find(name, None) is not None for find in finders)


def _describe_build_locks(patterns: List[str]) -> Dict[str, Any]:
    paths = [path for each in patterns for path in matching(os.path.expanduser(each))]
    if not paths:
        return {"locks": []}
    from clusterctl.node.probe.build_locks import describe_locks  # noqa: PLC0415  (mostly there are none)

    return {"locks": describe_locks(paths)}


def _program(name: str) -> str:
    """Return where a program is; empty for nowhere on PATH or among those of the administrator."""
    path = os.environb.get(b"PATH", os.fsencode(os.defpath)) + b":/usr/sbin:/sbin"
    return os.fsdecode(find_program(os.fsencode(name), path) or b"")


def _pack(children: List[Child]) -> Message:
    answers: List[List[Any]] = []
    parts: List[bytes] = []
    for child in children:
        if child.key in ("files", "rdma"):
            frames = list(_frames(child.output))
            for frame in frames:
                head = frame.head
                answers.append(
                    [head["key"], head["state"], len(frame.body), None, 0.0, head.get("words", "")]
                )
                parts.append(frame.body)
        if child.key != "files":
            words = child.stderr.decode("utf-8", "replace")
            output = b"" if child.key == "rdma" else child.output
            answers.append(
                [child.key, child.state, len(output), child.exit_code, child.seconds, words]
            )
            parts.append(output)
    # Last: what hung is named before what was not reached because of it.
    answers += [
        [child.key, child.state, 0, child.exit_code, child.seconds, ""]
        for child in children
        if child.key == "files" and child.state != "ok"
    ]
    return Message({"answers": answers}, zlib.compress(b"".join(parts), 1))


def _frames(data: bytes) -> Iterable[Message]:
    """Read the frames of a child that may have been cut off."""
    stream = io.BytesIO(data)
    while True:
        try:
            message = read_message(stream)
        except BadFrame:
            return
        if message is None:
            return
        yield message
