"""A host whose agent is not ours: it asks for files that no sync places, or answers nonsense.

Run by sshd in place of every command: it reads the agent that the controller sends, throws it
away, and speaks the protocol itself.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import zlib
from pathlib import Path


def exactly(count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = os.read(0, count - len(data))
        if not part:
            sys.exit(0)
        data += part
    return data


def line() -> bytes:
    data = b""
    while not data.endswith(b"\n"):
        data += exactly(1)
    return data


def hear() -> dict[str, object]:
    head, body = struct.unpack(">II", exactly(8))
    message: dict[str, object] = json.loads(exactly(head))
    exactly(body)
    return message


def say(head: dict[str, object], body: bytes = b"") -> None:
    data = json.dumps(head).encode()
    sys.stdout.buffer.write(struct.pack(">II", len(data), len(body)) + data + body)
    sys.stdout.buffer.flush()


def take_call() -> dict[str, object]:
    """Read the agent and the request; print what the controller waits for."""
    line()
    line()
    marker = exactly(int(exactly(12)))
    exactly(int(exactly(12)))  # the loader
    exactly(int(exactly(12)))  # the hash of the whole agent
    exactly(int(exactly(12)))  # the sources
    exactly(int(exactly(12)))  # what is compiled
    os.write(1, marker)
    return hear()


def play(script: str) -> None:
    """Answer each operation with the heads that the file has for it, in bytes that it chooses."""
    request = take_call()
    os.write(2, b"\x1b[2J\xff" * 100_000)
    for head in json.loads(Path(script).read_text())[request["op"]]:
        body = head.pop("body", "").encode("latin-1") * head.pop("body_times", 1)
        if head.pop("deflated", False):
            body = zlib.compress(body)
        waits = head.pop("waits", False)
        announced = head.pop("announced", 0)
        for turn in range(head.pop("times", 1)):
            if announced:
                os.write(1, struct.pack(">II", 2, announced) + b"{}")
            if turn:
                head["offset"] = turn * len(body)
            say(head, body)
        while waits and os.read(0, 1 << 16):
            pass


def ask_for_files(loot: str, wanted: list[str]) -> None:
    request = take_call()
    args = request["args"]
    assert isinstance(args, dict)
    if request["op"] == "rsync":
        say({"exec": True})
        Path(loot, ".clusterctl/tmp/own").mkdir(parents=True, exist_ok=True)
        os.chdir(loot)
        os.execvp("rsync", args["argv"])
    say(
        {"need": len(wanted), "deleted": 0, "set_aside": []},
        "".join(f"{w}\0" for w in wanted).encode(),
    )
    hear()
    say({"begun": True, "need": len(wanted), "deleted": 0, "set_aside": []})
    hear()
    say({"need": len(wanted), "deleted": 0, "set_aside": [], "equal": True, "end": True})


if __name__ == "__main__":
    if sys.argv[1] == "--play":
        play(sys.argv[2])
    else:
        ask_for_files(sys.argv[1], sys.argv[2:])
