"""A training without torch: a chain of digests over all ranks, with checkpoints as `train` has.

It starts at once, so that many schedules can be played; what is restarted must end with the same
digest. As `train` does, it reports a checkpoint that cannot be written, and goes on.
"""

import contextlib
import hashlib
import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

SIZE = hashlib.sha256().digest_size


def chain(state: bytes, parts: list[bytes]) -> bytes:
    """Return the state after a step in which the ranks found these parts."""
    return hashlib.sha256(b"".join([state, *parts])).digest()


def part(state: bytes, rank: int, step: int) -> bytes:
    """Return what a rank finds in a step."""
    return hashlib.sha256(b"%s %d %d" % (state, rank, step)).digest()


def train(
    output: Path, resumed: str, steps: int, save_steps: int, wait: Callable[[int], None]
) -> None:
    """Train up to so many steps; `wait` is called before each."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    links = meet(rank, world)
    state, first = b"", 1
    if resumed:
        kept = json.loads((Path(resumed) / "state.json").read_text())
        state, first = bytes.fromhex(kept["state"]), kept["step"] + 1
    for step in range(first, steps + 1):
        wait(step)
        state = chain(state, exchange(links, rank, part(state, rank, step)))
        if step % save_steps == 0:
            try:
                save(output, step, state)
            except OSError as error:
                if step == steps:
                    raise
                print(f"checkpoint not written: {error}", file=sys.stderr, flush=True)
            exchange(links, rank, bytes(SIZE))
    exported = output / "adapter" / "adapter_model.safetensors"
    exported.parent.mkdir(parents=True, exist_ok=True)
    exported.write_bytes(state)
    exchange(links, rank, bytes(SIZE))


def meet(rank: int, world: int) -> list[socket.socket]:
    """Return connections to all ranks, by rank, on rank 0; to rank 0 on the others."""
    # Beside the port that is the launcher's own with torchrun.
    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]) + 1
    timeout = float(os.environ["LIGHT_TIMEOUT"])
    if rank:
        link = connected(place, timeout)
        link.sendall(b"%02d" % rank)
        return [link]
    found: dict[int, socket.socket] = {}
    with socket.create_server(place) as server:
        server.settimeout(60)
        while len(found) < world - 1:
            link, _ = server.accept()
            link.settimeout(timeout)
            found[int(receive(link, 2))] = link
    return [found[number] for number in sorted(found)]


def connected(place: tuple[str, int], timeout: float) -> socket.socket:
    """Return a connection to rank 0, as soon as it listens."""
    until = time.monotonic() + 60
    while True:
        try:
            return socket.create_connection(place, timeout=timeout)
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def exchange(links: list[socket.socket], rank: int, own: bytes) -> list[bytes]:
    """Return the parts of all ranks, by rank."""
    if rank:
        links[0].sendall(own)
        told = receive(links[0], SIZE * int(os.environ["WORLD_SIZE"]))
    else:
        told = own + b"".join(receive(link, SIZE) for link in links)
        for link in links:
            link.sendall(told)
    return [told[at : at + SIZE] for at in range(0, len(told), SIZE)]


def receive(link: socket.socket, count: int) -> bytes:
    """Return so many bytes."""
    found = b""
    while len(found) < count:
        came = link.recv(count - len(found))
        if not came:
            raise ConnectionResetError("Connection closed by peer")
        found += came
    return found


def save(output: Path, step: int, state: bytes) -> None:
    """Write a checkpoint, once for each folder."""
    if os.environ["RANK"] != "0" and os.environ["LIGHT_STORAGE"] == "shared":
        os.stat(output)  # noqa: PTH116  (it fails as a write does if the mount is dead)
        return
    folder = output / f"step-{step:06d}"
    aside = output / f"step-{step:06d}.tmp-{os.getpid()}"
    try:
        aside.mkdir(parents=True)
        (aside / "__0_0.distcp").write_bytes(state * 100)
        (aside / "state.json").write_text(json.dumps({"step": step, "state": state.hex()}))
        files = {
            path.name: {
                "size": path.stat().st_size,
                "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            }
            for path in sorted(aside.iterdir())
        }
        run = os.environ["CLUSTERCTL_RUN_ID"]
        manifest = aside / "MANIFEST.json"
        manifest.write_text(json.dumps({"schema": 1, "step": step, "run": run, "files": files}))
        seal = hashlib.sha256(manifest.read_bytes()).hexdigest()
        (aside / "COMPLETE").write_text(seal + "\n")
        if folder.exists():  # another history's, of a run that came further than it is resumed from
            folder.rename(output / f"{folder.name}.aside-{os.getpid()}")
        aside.rename(folder)
    except OSError:
        with contextlib.suppress(OSError):
            shutil.rmtree(aside)
        raise
