"""RevokedHostKeys of ssh_config: host keys that must not be accepted, whatever known_hosts has.

OpenSSH takes a list of public keys, or a binary KRL, which only its `ssh-keygen` can read. A file
that cannot be read revokes every key, as it does for `ssh`.
"""

from __future__ import annotations

import base64
import shlex
import subprocess
from pathlib import Path

from clusterctl.errors import NodeError
from clusterctl.safe_text import printable_words

KRL = b"SSHKRL\n\0"
"""How a KRL begins."""
REVOKED_HINT = "do not use this host before you know why"
SIZE_LIMIT = 1 << 26
ASK_SECONDS = 10.0


def is_revoked(path: Path, key_type: str, blob: bytes) -> bool:
    """Tell whether a file of RevokedHostKeys has a key.

    Raises:
        NodeError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            content = file.read(SIZE_LIMIT + 1)
    except (OSError, ValueError) as error:
        raise _unknown(path, getattr(error, "strerror", None) or str(error)) from error
    if len(content) > SIZE_LIMIT:
        raise _unknown(path, f"expected at most {SIZE_LIMIT} bytes, found more")
    encoded = base64.b64encode(blob)
    if not content.startswith(KRL):
        return encoded in content.split()
    asked = f"{key_type} {encoded.decode()}\n"
    try:
        answer = subprocess.run(
            ["ssh-keygen", "-Q", "-f", str(path), "/dev/stdin"],
            input=asked,
            capture_output=True,
            text=True,
            timeout=ASK_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _unknown(path, f"only ssh-keygen reads a KRL: {error}") from error
    verdict = answer.stdout.strip().rpartition(": ")[2]
    if verdict == "REVOKED":
        return True
    if verdict == "ok" and answer.returncode == 0:
        return False
    raise _unknown(path, printable_words(answer.stderr or answer.stdout))


def _check(path: Path) -> str:
    return shlex.join(["ssh-keygen", "-lf", str(path)])


def _unknown(path: Path, why: str) -> NodeError:
    words = f"RevokedHostKeys {path}: {why}; without it no host key is accepted"
    hint = f"correct RevokedHostKeys in ssh_config, or set `via: openssh`: {_check(path)}"
    return NodeError("hostkey", "hostkey", words, hint)
