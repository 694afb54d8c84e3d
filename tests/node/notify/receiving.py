"""A real HTTP server on this machine that keeps what it was sent, and answers as a test wants."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class Receiver:
    """What the server got, and what it answers."""

    def __init__(self) -> None:
        self.got: list[tuple[str, Mapping[str, str], bytes]] = []
        self.answers: list[int] = []
        """The codes of the next answers; 200 once there are none."""
        self.body = b"ok"
        self.headers: dict[str, str] = {}
        self.seconds = 0.0
        """How long an answer takes."""
        self.url = ""

    @property
    def messages(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, _, body in list(self.got)]

    @property
    def events(self) -> list[str]:
        return [one["event"] for one in self.messages]


@contextmanager
def receiving(certificate: Path | None = None) -> Iterator[Receiver]:
    """Serve until the block ends; with a certificate and its key, over TLS."""
    known = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            known.got.append((self.path, dict(self.headers), body))
            time.sleep(known.seconds)
            self.send_response(known.answers.pop(0) if known.answers else 200)
            for name, value in known.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(known.body)))
            self.end_headers()
            self.wfile.write(known.body)

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    scheme = "http" if certificate is None else "https"
    known.url = f"{scheme}://127.0.0.1:{server.server_address[1]}/services/T0SECRET/B0SECRET"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield known
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
