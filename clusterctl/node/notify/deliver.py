"""Sends one message to one receiver, once; to be called in a process of its own, which may hang.

The receiver is a command that reads the message, or a URL that gets it by POST. Both have the
job's environment: its proxies and certificates count, and no others. A URL is a secret: it is in no
argument, no file and no word of an answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess

    from clusterctl.node.run.processes.environ_bytes import Environment

SECONDS = 10.0
"""How long a server may be silent."""
COMMAND_SECONDS = 30.0
LIMIT_SECONDS = COMMAND_SECONDS + 5.0
"""After which one that calls this gives up."""
ANSWER_LIMIT = 200
"""Characters of an answer, or of the last line that a command printed, that are passed on."""
OUTPUT_BYTES, ANSWER_BYTES = 65536, 4096
SHORTEST_SECRET = 6
"""Characters of a part of a URL that is hidden in an answer, and of a value of `env_from`."""
LONGEST_WAIT = 60.0
DRAIN_SECONDS = 1.0
"""For the output of a command that has ended, if another process still holds its pipe."""
_AGAIN = (408, 425, 429, 500, 502, 503, 504)
"""Answers after which another try may succeed."""


def receiver(target: Mapping[str, Any]) -> str:
    """Return how a receiver is called: by the name of its variable, or its program."""
    command = target.get("command")
    name = os.path.basename(command[0]) if command else target.get("webhook_from")
    return "%s %s" % ("command" if command else "webhook", name)


def deliver(
    target: Mapping[str, Any],
    message: Mapping[str, Any],
    urls: Mapping[str, str],
    environment: Environment,
    workdir: str,
) -> Dict[str, Any]:
    """Return `ok`, `answer` in words, and `again` (true, or seconds) if another try may succeed."""
    data = json.dumps(message).encode()
    if target.get("command"):
        found = _run(target["command"], data, environment, workdir)
    else:
        url = urls.get(target["webhook_from"])
        if url is None:
            return {"ok": False, "answer": "the variable was not set at the launch"}
        os.environb.clear()
        os.environb.update(environment)
        found = _post(url, data)
    secrets = [part for url in urls.values() for part in parts_of(url)]
    said = hide(found.pop("said", ""), secrets)[:ANSWER_LIMIT]  # hidden before a secret is cut
    found["answer"] = hide(found["answer"], secrets) + (": " + said if said else "")
    return found


def parts_of(url: str) -> List[str]:
    """Return what of a URL is hidden: it and its parts, but for the server's name."""
    from urllib.parse import urlsplit  # noqa: PLC0415  (start-up counts)

    parts = urlsplit(url)
    words = re.split(r"[/?&=]", parts.path + "?" + parts.query)
    long = [word for word in words if len(word) >= SHORTEST_SECRET]
    return [url, *long, *([parts.path] if len(parts.path) > 1 else [])]


def hide(text: str, secrets: Iterable[str]) -> str:
    """Return a text without secrets, nor the beginning of one where the text was cut."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
        for count in range(min(len(secret), len(text)), SHORTEST_SECRET - 1, -1):
            if text.endswith(secret[:count]):
                text = text[:-count] + "***"
                break
    return text


def _post(url: str, data: bytes) -> Dict[str, Any]:
    import http.client  # noqa: PLC0415  (only a child that sends needs it)
    import ssl  # noqa: PLC0415
    import urllib.error  # noqa: PLC0415
    import urllib.request  # noqa: PLC0415

    class NoRedirects(urllib.request.HTTPRedirectHandler):
        """An answer that names another place is none: what is sent is for this one alone."""

        def redirect_request(self, *_args: Any) -> None:  # noqa: ANN401
            return None

    headers = {"Content-Type": "application/json", "User-Agent": "clusterctl"}
    try:
        opener = urllib.request.build_opener(
            NoRedirects, urllib.request.HTTPSHandler(context=ssl.create_default_context())
        )
        request = urllib.request.Request(url, data, headers, method="POST")  # noqa: S310  (checked)
        with opener.open(request, timeout=SECONDS) as reply:
            return {"ok": True, **_answer(reply.status, reply)}
    except urllib.error.HTTPError as error:
        return _refused(error.code, error.headers, error)
    except urllib.error.URLError as error:
        return {"ok": False, "answer": _why(error.reason), "again": True}
    except (OSError, http.client.HTTPException) as error:
        return {"ok": False, "answer": _why(error), "again": True}
    except Exception as error:  # noqa: BLE001  (its words may have the URL)
        return {"ok": False, "answer": "the URL cannot be used (%s)" % type(error).__name__}


def _refused(code: int, headers: Any, reply: Any) -> Dict[str, Any]:  # noqa: ANN401  (urllib's)
    if code < 400:  # noqa: PLR2004  (a redirect; where it leads is not told)
        words = "HTTP %d: a redirect is not followed; set the URL that it leads to" % code
        return {"ok": False, "answer": words}
    again: Any = code in _AGAIN
    with contextlib.suppress(TypeError, ValueError):
        if again:
            again = min(LONGEST_WAIT, max(0.0, float(headers["Retry-After"])))
    return {"ok": False, **_answer(code, reply), "again": again}


def _answer(code: int, reply: Any) -> Dict[str, str]:  # noqa: ANN401  (a response or an error)
    from http.client import responses  # noqa: PLC0415

    said = ""
    with contextlib.suppress(Exception):  # what it says besides is worth no failure
        said = " ".join(reply.read(ANSWER_BYTES).decode("utf-8", "replace").split())
    return {"answer": ("HTTP %d %s" % (code, responses.get(code, ""))).strip(), "said": said}


def _why(reason: object) -> str:
    """Return why there was no answer, in words that the system has, not those of the URL."""
    if isinstance(reason, OSError):
        verify = getattr(reason, "verify_message", "")
        if verify:
            return "the server's certificate is not valid: %s" % verify
        return str(reason.strerror or reason.args[0] if reason.args else type(reason).__name__)
    return type(reason).__name__


def _run(
    argv: Any,  # noqa: ANN401  (words)
    data: bytes,
    environment: Environment,
    workdir: str,
) -> Dict[str, Any]:
    import subprocess  # noqa: PLC0415  (start-up counts)
    import threading  # noqa: PLC0415  (start-up counts)

    try:
        process = subprocess.Popen(
            [os.fsencode(word) for word in argv],
            env=environment,
            cwd=workdir,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        what = "cannot run %s" % argv[0]
        if error.filename == workdir:
            what = "no workdir %s, which sync makes" % workdir
        return {"ok": False, "answer": "%s: %s" % (what, error.strerror)}
    output, process.stdout = process.stdout, None  # `communicate` would keep all of it
    assert output is not None
    descriptor, last = output.fileno(), bytearray()

    def drain() -> None:
        while data := os.read(descriptor, OUTPUT_BYTES):
            last.extend(data)
            del last[:-OUTPUT_BYTES]

    reader = threading.Thread(target=drain, daemon=True)
    reader.start()
    with _ended(process):
        try:
            process.communicate(data, COMMAND_SECONDS)
        except subprocess.TimeoutExpired:
            return {"ok": False, "answer": "no end within %d s" % COMMAND_SECONDS, "again": True}
    reader.join(DRAIN_SECONDS)
    lines = bytes(last).decode("utf-8", "replace").splitlines()
    if len(last) == OUTPUT_BYTES:
        del lines[0]  # its beginning is lost, and with it what to hide of it
    said = next((line.strip() for line in reversed(lines) if line.strip()), "")
    answer = "exit code %d" % process.returncode
    return {"ok": process.returncode == 0, "answer": answer, "said": said, "again": True}


@contextlib.contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """End a command with all that it started in its session."""
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.poll()


def problem_of(url: str) -> Optional[str]:
    """Return why a URL cannot be posted to, without its words; None: it can."""
    from urllib.parse import urlsplit  # noqa: PLC0415  (start-up counts)

    if not url.isprintable() or not url.isascii() or " " in url:
        return "it has characters that a URL has not"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "it is no URL"
    if parts.scheme not in ("http", "https"):
        return "it does not begin with https:// or http://"
    if not parts.hostname or port == 0 or parts.username or parts.password:
        return "it has no host, or a user in front of it"
    return None
