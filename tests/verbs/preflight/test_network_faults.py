"""Faults of links and paths between real hosts: each names its node, and nothing else fails."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.verbs.preflight.test_check import checked, wrong

if TYPE_CHECKING:
    from clusterctl.sandbox.sandbox import Sandbox
    from tests.conftest import MakeSandbox

pytestmark = pytest.mark.netns
STATISTICS = "/sys/class/net/{}/statistics/{}"


def on(box: Sandbox, node: str, *argv: str, text: str = "") -> str:
    done = box.on(node, list(argv), input=text)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def replace_file(box: Sandbox, node: str, path: str, text: str) -> Path:
    """Put a file of ours over one of the kernel's, and return it."""
    own = Path(box.folder(node)) / path.replace("/", "_")
    own.write_text(text)
    on(box, node, "mount", "--bind", box.backend.seen(box.host(node), own.name), path)
    return own


@contextmanager
def growing(path: Path) -> Iterator[None]:
    """Count in a file, as a link does that has errors."""
    over = threading.Event()

    def count() -> None:
        descriptor = os.open(path, os.O_WRONLY)
        for number in itertools.count(1):
            os.pwrite(descriptor, f"{number:012}\n".encode(), 0)
            if over.wait(0.01):
                break
        os.close(descriptor)

    thread = threading.Thread(target=count)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_link_whose_errors_grow_is_named(make_sandbox: MakeSandbox) -> None:
    box = make_sandbox()
    counter = STATISTICS.format(box.host("node2").interface, "rx_crc_errors")
    with growing(replace_file(box, "node2", counter, "000000000000\n")):
        code, document = checked(box)

    (finding,) = wrong(document)
    assert (code, finding["check"], finding["nodes"]) == (0, "network.errors", ["node2"])
    assert finding["message"] == "enp3s0 counts errors during this check"
    assert finding["found"].startswith("rx_crc_errors +")


def test_a_link_that_was_pulled_often_is_named(make_sandbox: MakeSandbox) -> None:
    box = make_sandbox()
    host = box.host("node3")
    for _ in range(12):
        box.backend.run_ip(f"link set {host.name} down", f"link set {host.name} up")  # type: ignore[attr-defined]
    box.backend.wait_for_links([host])  # type: ignore[attr-defined]

    code, document = checked(box)

    (finding,) = wrong(document)
    assert (code, finding["check"], finding["nodes"]) == (0, "network.flaps", ["node3"])
    assert int(finding["found"].split()[0]) >= 24


def test_a_half_duplex_link_is_named(make_sandbox: MakeSandbox) -> None:
    box = make_sandbox(nodes=2)
    replace_file(box, "node2", f"/sys/class/net/{box.host('node2').interface}/duplex", "half\n")

    code, document = checked(box)

    (finding,) = wrong(document)
    assert (code, finding["check"], finding["nodes"]) == (0, "network.link", ["node2"])
    assert finding["found"] == "half duplex on enp3s0"
