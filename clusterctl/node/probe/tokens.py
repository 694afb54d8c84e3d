"""Tokens in shared folders: what one node wrote and the others see proves one filesystem.

The tokens of a sync (`node.mirror`) are others: one operation leaves them, only where files differ,
and a later one looks for their random names. Here a conversation waits for name and content, and
measures how late they are.
"""

from __future__ import annotations

import os
import time

from clusterctl.node.agent.child_tasks import gather, run_function
from clusterctl.wire import decode_line, encode_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional

WRITE_SECONDS = 5.0
POLL_SECONDS = 0.02
PREFIX = ".clusterctl-token-"


class Tokens:
    """The tokens that this node wrote, and the search for the others'."""

    def __init__(self, nonce: str) -> None:
        self._nonce = nonce
        self._written: List[str] = []

    def write(self, wanted: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
        """Write one token for each share, into the first of its folders that takes one.

        Args:
            wanted: `path` (the share), `folders` (to try), `name` (of this node's file).

        Returns:
            For each `path`, `folder` (None where nothing could be written), `words`.
        """
        children = [
            run_function(share["path"], _writer(share, self._nonce), WRITE_SECONDS)
            for share in wanted
        ]
        gather(children)
        answers = []
        for child, share in zip(children, wanted):
            if child.state != "ok" or not child.output:
                answers.append(
                    {"path": share["path"], "folder": None, "words": "no answer in time"}
                )
                # It may come through after all: remove() must try.
                self._written.extend(_file(folder, share["name"]) for folder in share["folders"])
                continue
            answer = decode_line(child.output)
            answers.append(answer)
            if answer["folder"] is not None:
                self._written.append(_file(answer["folder"], share["name"]))
        return answers

    def wait_for(self, wanted: List[Dict[str, Any]], limit_s: float) -> List[Dict[str, Any]]:
        """Look until every token is seen, by name and in the folder's listing, or time is over.

        Args:
            wanted: `path`, `folder`, `name`, `writer`.
            limit_s: seconds to look.

        Returns:
            For each its keys, `seen` (None: the filesystem did not answer) and `delay_s`.
        """
        shares: Dict[str, List[Dict[str, Any]]] = {}
        for token in wanted:
            shares.setdefault(token["path"], []).append(token)
        children = [
            run_function(path, _watcher(tokens, self._nonce, limit_s), limit_s + WRITE_SECONDS)
            for path, tokens in shares.items()
        ]
        gather(children)
        seen: List[Dict[str, Any]] = []
        for child in children:
            answers = child.output.splitlines()
            answer = {
                a["writer"]: a for a in map(decode_line, answers if child.state == "ok" else [])
            }
            silence = {"seen": None, "words": "no answer in time"}
            seen.extend({**t, **answer.get(t["writer"], silence)} for t in shares[child.key])
        return seen

    def remove(self) -> None:
        """Remove what this node wrote."""
        files, self._written = self._written, []
        if files:
            gather([run_function(file, _remover(file), WRITE_SECONDS) for file in files])


def _file(folder: str, name: str) -> str:
    return os.path.join(folder, PREFIX + name)


def _writer(share: Dict[str, Any], nonce: str) -> Callable[[Callable[[bytes], None]], None]:
    def write(answer: Callable[[bytes], None]) -> None:
        words = ""
        for folder in share["folders"]:
            try:
                _write_whole(_file(folder, share["name"]), nonce)
            except OSError as error:
                words = words or os.strerror(error.errno or 0)
                continue
            answer(encode_line({"path": share["path"], "folder": folder, "words": ""}))
            return
        answer(encode_line({"path": share["path"], "folder": None, "words": words}))

    return write


def _write_whole(path: str, nonce: str) -> None:
    """Write so that no other node can see half of it; refuse what is in the way."""
    part = path + ".part"
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "w") as file:
        file.write(nonce)
        file.flush()
        os.fsync(file.fileno())
    os.rename(part, path)


def _watcher(
    tokens: List[Dict[str, Any]], nonce: str, limit_s: float
) -> Callable[[Callable[[bytes], None]], None]:
    def look(answer: Callable[[bytes], None]) -> None:
        began = time.monotonic()
        left = tokens
        while left:
            delay = time.monotonic() - began
            unseen = []
            for token in left:
                words = _problem_with(token["folder"], PREFIX + token["name"], nonce)
                found: Dict[str, Any] = {"writer": token["writer"], "words": words or ""}
                if words is None:
                    found.update(seen=True, delay_s=delay)
                elif delay >= limit_s:
                    found["seen"] = False
                else:
                    unseen.append(token)
                    continue
                answer(encode_line(found))
            left = unseen
            if left:
                time.sleep(POLL_SECONDS)

    return look


def _problem_with(folder: str, name: str, nonce: str) -> Optional[str]:
    """Return what is wrong with a token; None: it is there and right."""
    try:
        # The listing first: NFS caches it apart from the file, and programs use both.
        if name not in os.listdir(folder):
            return "it is not in the folder's listing"
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        with open(os.open(os.path.join(folder, name), flags), "rb") as file:
            return None if file.read(len(nonce) + 1) == nonce.encode() else "its content is another"
    except OSError as error:
        return os.strerror(error.errno or 0)


def _remover(path: str) -> Callable[[Callable[[bytes], None]], None]:
    def remove(_answer: Callable[[bytes], None]) -> None:
        for name in (path, path + ".part"):
            try:
                os.unlink(name)
            except OSError:
                continue  # not there, or the share does not answer

    return remove
