"""What many threads take of this machine."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from clusterctl.transport import local_limits

HEAPS = """\
import sys, threading
from clusterctl.transport.local_limits import share_arenas
if sys.argv[1:]:
    share_arenas(nodes=1)
ready, leave = threading.Barrier(17), threading.Event()
def work():
    held = bytearray(5000)
    ready.wait()
    leave.wait()
for _ in range(16):
    threading.Thread(target=work, daemon=True).start()
ready.wait()
heaps = [line.split() for line in open("/proc/self/maps")]
print(sum(flags == "rw-p" and int(place.split("-")[0], 16) % (1 << 26) == 0
          for place, flags, *_ in heaps))
"""


LARGE = """\
import ctypes, sys
from clusterctl.transport.local_limits import LARGE, share_arenas
if sys.argv[1:]:
    share_arenas(nodes=int(sys.argv[1]))
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
libc.free(libc.malloc(100 * LARGE))
for _ in range(50):  # the first may fit into what the heap has free
    block = libc.malloc(2 * LARGE)
heap = next(line.split()[0] for line in open("/proc/self/maps") if line.endswith("[heap]\\n"))
first, last = (int(place, 16) for place in heap.split("-"))
print(first <= block < last)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these heaps")
def test_many_threads_share_few_heaps() -> None:
    """The main heap is not among those that are counted."""
    heaps = []
    for argv in ([], ["share"]):
        done = subprocess.run(
            [sys.executable, "-c", HEAPS, *argv], check=True, capture_output=True, text=True
        )
        heaps.append(int(done.stdout))
    assert heaps[0] > local_limits.ARENAS > heaps[1]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has this threshold")
def test_large_blocks_of_many_nodes_go_back_at_once_also_after_a_larger_one() -> None:
    few, many = str(local_limits.MANY - 1), str(local_limits.MANY)
    for argv, in_heap in ([], "True"), ([few], "True"), ([many], "False"):
        done = subprocess.run(
            [sys.executable, "-c", LARGE, *argv], check=True, capture_output=True, text=True
        )
        assert done.stdout.strip() == in_heap


def test_a_python_without_ctypes_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ctypes", None)
    local_limits.share_arenas(nodes=1000)
