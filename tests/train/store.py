"""A real object store on this machine: moto's server of S3, in a process of its own."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.request
from dataclasses import dataclass

SERVER = """
import sys
from moto.moto_server.threaded_moto_server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""
SECRET = "a-key-that-nobody-may-print"


@dataclass(slots=True, kw_only=True)
class Store:
    """The server and its bucket `runs`."""

    process: subprocess.Popen[str]
    port: int

    @classmethod
    def start(cls) -> Store:
        """Start it; it ends with this process."""
        process = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        assert process.stdout
        store = cls(process=process, port=int(process.stdout.readline()))
        store.ask("PUT", "")
        return store

    @property
    def variables(self) -> dict[str, str]:
        """By which programs find it."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": "somebody",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def ask(self, method: str, path: str, content: bytes | None = None) -> bytes:
        """Send a request about something in the bucket."""
        url = f"http://127.0.0.1:{self.port}/runs{path}"
        headers = {
            "Authorization": "AWS somebody:signature",  # (moto looks no closer)
            "Content-Type": "application/octet-stream",  # (a form's fields would be no content)
        }
        request = urllib.request.Request(url, content, headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            found: bytes = answer.read()
        return found

    def keys(self, below: str = "") -> set[str]:
        """Return the names of what is in the bucket."""
        listing = self.ask("GET", f"?list-type=2&prefix={below}").decode()
        return {key.removeprefix(below) for key in re.findall("<Key>([^<]+)</Key>", listing)}

    def pause(self, *, over: bool = False) -> None:
        """Answer nothing until the pause is over."""
        self.process.send_signal(signal.SIGCONT if over else signal.SIGSTOP)

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.communicate()
