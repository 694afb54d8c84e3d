"""The node's part of a push: say what a path consists of, or take it in and give it on.

The controller leads; a node that lost its controller ends at once, and keeps what it has written.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import zlib
from typing import Any, Dict, Iterator, List, Optional

from clusterctl.node.agent.call_channel import CallChannel, ControllerDisconnected, OperationError
from clusterctl.node.push.chain import Receiver, Sender, inflated, lacking_blocks
from clusterctl.node.push.manifest import MARK, TooManyFilesError, decode, read_tree
from clusterctl.node.push.tree import MAX_SHOWN, Tree
from clusterctl.wire import Message

CONTROLLER_SECONDS = 60.0
"""A controller that is silent for so long has ended; it speaks every few seconds."""
REPORT_SECONDS = 0.5
PIECE = 1 << 20
"""Bytes of a block that go through the controller at a time."""
OLD_SECONDS = 3600
"""No push needs its token for so long."""


def describe(args: Dict[str, Any], body: bytes, channel: CallChannel) -> Message:
    """Hash all of a path; the body of the answer is its manifest.

    Args:
        args: `path`; `leave_out`: continue without what cannot be pushed.
        channel: gets `hashed`, the bytes so far, twice a second.
    """
    del body
    left_out: Optional[List[bytes]] = [] if args.get("leave_out") else None
    hashed, last, lock = 0, 0.0, threading.Lock()

    def progress(count: int) -> None:
        nonlocal hashed, last
        with lock:
            hashed += count
            if time.monotonic() - last > REPORT_SECONDS:
                last = time.monotonic()
                channel.send(Message({"hashed": hashed}))

    path = _path(args["path"])
    try:
        with _file_errors(path):
            manifest = read_tree(path, progress, left_out)
            encoded = manifest.encode()
    except TooManyFilesError as error:
        raise OperationError("too-many-files", str(error)) from error
    head: Dict[str, Any] = {"bytes": manifest.size, "files": len(manifest.files)}
    head.update(blocks=manifest.blocks, content=manifest.content)
    if left_out:
        head["left_out"] = [os.fsdecode(path) for path in left_out[:MAX_SHOWN]]
    return Message(head, encoded)


def push(args: Dict[str, Any], body: bytes, channel: CallChannel) -> Message:
    """Have a path as the manifest says, and let the next node have it.

    Answers: `ready`; then `seen` (the tokens that lie where this node's does), `found` (what is
    missing, and the room for it), `listening` (its port), each to the step of the controller. Later
    ones come by themselves: `received` (bytes), `complete`, `sent` or `lost` (the next node),
    `bad` (a block of the one before that was wrong).

    Args:
        args: `target`; `source` (it is all here), or `certificate`, `key`, `token` by which the
            node before knows this one and it knows that one, `mark` (the token to leave), and
            `pulled` (as `Tree` has it).
    """
    target = _path(args["target"])
    try:
        manifest = decode(body)
    except ValueError as error:
        raise OperationError("manifest", str(error)) from error
    with _file_errors(target):
        source, pulled = bool(args.get("source")), bool(args.get("pulled"))
        node = _Node(args, Tree(target, manifest, source=source, pulled=pulled), channel)
        try:
            return node.run()
        finally:
            node.close()


class _Node:
    """One node's part."""

    def __init__(self, args: Dict[str, Any], tree: Tree, channel: CallChannel) -> None:
        self._tree, self._channel, self._args = tree, channel, args
        self._near = _nearest_folder(_path(args["target"]))
        self._mark = b"" if args.get("source") else _token_path(self._near, args["mark"])
        self._receiver: Optional[Receiver] = None
        self._sender: Optional[Sender] = None
        self._relaying = threading.Event()
        self._ended = threading.Event()
        self._pieces: List[bytes] = []
        self._bad: List[int] = []
        self._finished = False

    def run(self) -> Message:
        if self._mark:
            _remove_old_marks(self._near)
            # One who may not write here may have nothing to write.
            with contextlib.suppress(OSError):
                os.close(os.open(self._mark, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW, 0o600))
        self._channel.send(Message({"ready": True}))
        self._channel.receive_timeout_s = CONTROLLER_SECONDS
        threading.Thread(target=self._report, daemon=True).start()
        steps = {
            "see": self._see,
            "compare": lambda _: self._channel.send(Message({"found": self._tree.compare()})),
            "begin": self._begin,
            "send": self._send,
            "feed": self._feed,
            "relay": self._relay,
            "block": self._take_piece,
            "recheck": self._recheck,
        }
        while True:
            message = self._channel.receive()
            if message is None:
                raise ControllerDisconnected
            step = message.head.get("step")
            if step == "end":
                return Message({"complete": self._tree.complete})
            if step in steps:
                steps[step](message)

    def close(self) -> None:
        self._ended.set()
        self._relaying.set()
        if self._mark:
            _remove(self._mark)
        if self._receiver is not None:
            self._receiver.close()
        if self._sender is not None:
            self._sender.stop()

    def _see(self, message: Message) -> None:
        """Say which nodes write to the same folder."""
        tokens = [t for t in message.head["tokens"] if os.path.exists(_token_path(self._near, t))]
        self._channel.send(Message({"seen": tokens}))

    def _begin(self, message: Message) -> None:
        _remove(self._mark)
        self._tree.begin()
        own = {name: self._args[name] for name in ("certificate", "key", "token")}
        receiver = Receiver(self._tree, message.head["address"], **own)
        self._channel.send(Message({"listening": receiver.port}))
        self._receiver = receiver  # only now: the reporter must not say sooner that all is there

    def _report(self) -> None:
        """Tell how far it is: also the controller, which has no clock, learns that time passes."""
        last = 0.0
        with contextlib.suppress(ControllerDisconnected):
            while not self._ended.is_set():
                receiver = self._receiver
                if receiver is not None and self._report_outcome(receiver):
                    receiver = None
                    self._finished = True
                if time.monotonic() - last > REPORT_SECONDS:
                    last = time.monotonic()
                    tree = self._tree
                    done = {"received": tree.received, "compared": tree.compared}
                    self._channel.send(Message(done))
                self._ended.wait(REPORT_SECONDS / 5)

    def _report_outcome(self, receiver: Receiver) -> bool:
        """Tell of what was wrong, or that all is there; True: there is nothing more to tell."""
        if self._finished:
            return False
        if receiver.failure is not None:
            self._fail(receiver.failure)
            return True
        if receiver.bad or self._bad:
            block = [*receiver.bad, *self._bad][0]
            receiver.bad, self._bad = [], []
            self._channel.send(Message({"bad": block}))
        if not self._tree.complete:
            return False
        try:
            extra = self._tree.finish()
        except OSError as error:
            self._fail(error)
        else:
            head = {"complete": True, "received": self._tree.received}
            shown = {"extra": extra[:MAX_SHOWN], "extras": len(extra)}
            self._channel.send(Message({**head, **shown}))
        return True

    def _fail(self, error: BaseException) -> None:
        name = getattr(error, "filename", None) or self._tree.root
        words = getattr(error, "strerror", None) or repr(error)
        self._channel.send(Message({"failed": "%s: %s" % (os.fsdecode(name), words)}))

    def _send(self, message: Message) -> None:
        """Serve another node from now on."""
        if self._sender is not None:
            self._sender.stop()
        peer = message.head["peer"]
        self._sender = Sender(self._tree, lambda why: self._report_sender(peer, why))
        head = message.head
        self._sender.start(
            head["address"],
            head["port"],
            certificate=head["certificate"],
            shown=head["ticket"].encode(),
            after=head.get("after", 0.0),
        )

    def _report_sender(self, peer: str, why: Optional[Exception]) -> None:
        with contextlib.suppress(ControllerDisconnected):
            if why is None:
                self._channel.send(Message({"sent": peer}))
            elif not self._mark and getattr(why, "filename", None):
                self._fail(why)  # a file is missing, the link is not broken
            else:
                words = getattr(why, "strerror", None) or str(why) or "the connection broke"
                self._channel.send(Message({"lost": peer, "why": words}))

    def _feed(self, message: Message) -> None:
        """Take blocks from the controller, which gets a list of the blocks that are here."""
        del message
        self._pieces = []
        self._channel.send(Message({"feeding": True}, zlib.compress(bytes(self._tree.have), 1)))

    def _take_piece(self, message: Message) -> None:
        self._pieces.append(message.body)
        if not message.head["more"]:
            data, self._pieces = b"".join(self._pieces), []
            index = message.head["index"]
            if not 0 <= index < self._tree.manifest.blocks or not self._tree.write(
                index, memoryview(data)
            ):
                self._bad.append(index)

    def _recheck(self, message: Message) -> None:
        """Say whether the source still has a block that another node says was wrong."""
        head = message.head
        block = head["block"]
        right = block >= self._tree.manifest.blocks or self._tree.holds(block)
        self._channel.send(Message({"right": right, "to": head["peer"]}))

    def _relay(self, message: Message) -> None:
        """Send blocks through the controller."""
        peer = message.head["peer"]
        try:
            have = inflated(message.body, self._tree.manifest.blocks)
        except EOFError as error:
            self._report_sender(peer, error)
            return
        self._relaying.set()
        self._relaying = stopped = threading.Event()

        def run() -> None:
            why: Optional[Exception] = None
            try:
                for index, data in lacking_blocks(self._tree, have, stopped):
                    for start in range(0, len(data), PIECE):
                        head = {"block": index, "to": peer, "more": start + PIECE < len(data)}
                        self._channel.send(Message(head, bytes(data[start : start + PIECE])))
            except ControllerDisconnected:
                return
            except OSError as error:
                why = error
            if not stopped.is_set():
                self._report_sender(peer, why)

        threading.Thread(target=run, daemon=True).start()


def _path(text: str) -> bytes:
    path = os.path.expanduser(os.fsencode(text))
    if not os.path.isabs(path) or os.path.realpath(path) == b"/":
        raise OperationError("path", "expected an absolute path that is not /, found %s" % text)
    return path


def _nearest_folder(path: bytes) -> bytes:
    near = os.path.realpath(path)
    while not os.path.isdir(near):
        near = os.path.dirname(near)
    return near


def _token_path(folder: bytes, token: str) -> bytes:
    if not token.isalnum():
        raise OperationError("token", "not a token: %r" % token)
    return os.path.join(folder, MARK + token.encode())


def _remove_old_marks(folder: bytes) -> None:
    """Remove the tokens of nodes that were killed."""
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if name.startswith(MARK):
            with contextlib.suppress(OSError):
                if time.time() - os.lstat(path).st_mtime > OLD_SECONDS:
                    os.unlink(path)


def _remove(path: bytes) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


@contextlib.contextmanager
def _file_errors(path: bytes) -> Iterator[None]:
    """Turn what the system refuses, or cannot be pushed, into words that name the file."""
    try:
        yield
    except OSError as error:
        name = os.fsdecode(error.filename or path)
        raise OperationError("file", "%s: %s" % (name, error.strerror or error)) from error
    except TooManyFilesError:
        raise
    except ValueError as error:
        raise OperationError("file", str(error)) from error
