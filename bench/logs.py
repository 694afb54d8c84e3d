"""A run's logs: ours against `ssh HOST cat`, how late a line is, and a gigabyte with lost links.

`python bench/logs.py [MB] [ROUNDS] [SECONDS] [FOLLOWED_MB] [LARGE_MB]` starts three hosts; 0
leaves a part out. First, MB of logs such as ten hours of six ranks leave are read by `logs
--raw`, by `logs --collect` and by one `ssh HOST cat` a host at once, in turns. Then LARGE_MB are,
for which a command's own start weighs less. The lines are those of a training: time, step, loss,
norm, tok/s, memory, now and then a warning or a traceback. `ssh` uses the cipher that
`clusterctl` agrees on, and then its own first choice. paramiko alone, which carries our bytes, is
measured beside them. CPU seconds are those of the client, the servers and all they start: when
other programs use the cores, read their ratio. Second, a launch is followed for SECONDS: how long
a line takes from its rank to the reader of stdout. Third, FOLLOWED_MB of numbered lines are
followed while connections are killed; each rank's lines must have the hash of its file.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import psutil

from bench._box import ROOT, argument, cpu_seconds, hosts
from clusterctl.sandbox.sandbox import Sandbox

MB, ROUNDS, SECONDS = argument(1, 98), argument(2, 5), argument(3, 20)
FOLLOWED_MB, LARGE_MB = argument(4, 1000), argument(5, 1000)
LARGE_ROUNDS = 2
HOSTS = 3
PER_HOST = 2
CUTS = 10
CIPHER = "aes128-gcm@openssh.com"
"""What `clusterctl` and OpenSSH agree on."""
HOURS = 10
UNIQUE = 20_000_000
"""Bytes of each log until it begins again."""
NOTES = 2000
"""How often a supervisor's notes of ten hours say how far a log had grown."""
WANTED = 0.5
WANTED_P99 = 0.2
LIMIT = 1800
SETTLE_SECONDS = 0.5
"""Until the servers have waited for the sessions that just ended."""

TIMED = """\
import os, random, sys, time
until = time.time() + float(os.environ["SECONDS"])
while time.time() < until:
    time.sleep(random.expovariate(5))
    print("line", os.environ["RANK"], "%.6f" % time.time(), flush=True)
"""
"""Each rank prints five lines a second, at random moments, as no two ranks do at once."""

TRACEBACK = """\
ERROR data: worker {number} failed, its shard is read again
Traceback (most recent call last):
  File "/workspace/train/data/loader.py", line 217, in __next__
    sample = self.shards[self.shard].read(self.place)
  File "/workspace/train/data/shards.py", line 88, in read
    raise OSError(errno.EIO, f"short read at {number}")
OSError: [Errno 5] short read at {number}
"""

NUMBERED = """\
import os, sys, time
lines = int(os.environ["LINES"])
rank = int(os.environ["RANK"])
for first in range(0, lines, 1000):
    numbers = range(first, min(first + 1000, lines))
    sys.stdout.write("".join("%02d %010d |%s\\n" % (rank, n, "x" * (n % 160)) for n in numbers))
    sys.stdout.flush()
    time.sleep(0.002)
"""
NUMBERED_BYTES = 94.5
"""Of a line of those, on average."""

PARAMIKO = """\
import sys, threading
from pathlib import Path
from clusterctl.inventory import load
from clusterctl.transport.pool import Pool

def read(connection, command):
    stream = connection.run(command)
    while stream.receive(60):
        pass

cluster = load(Path(sys.argv[1]))
with Pool(cluster) as pool:
    for _ in pool.open():
        pass
    threads = [
        threading.Thread(target=read, args=(pool._connection(node.name), sys.argv[2] % node.name))
        for node in cluster.nodes
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def main() -> None:
    """Run all rows."""
    with hosts(HOSTS) as (box, folder):
        bench = Bench(box, folder)
        for size, rounds in ((MB, ROUNDS), (LARGE_MB, LARGE_ROUNDS)):
            if size:
                bench.read_history(size, rounds)
        if SECONDS:
            bench.follow_lines()
        if FOLLOWED_MB:
            bench.follow_through_cuts()


class Bench:
    """A project for three hosts, and the commands on it."""

    def __init__(self, box: Sandbox, folder: Path) -> None:
        """Write the jobs."""
        self.box = box
        self.folder = folder
        self.servers = [
            process
            for host in box.hosts
            for process in map(psutil.Process, box.backend.processes(host))
            if "[listener]" in " ".join(process.cmdline())
        ]
        """Each has waited for every session that it began."""
        self.project = folder / "code"
        self.project.mkdir()
        (self.project / "timed.py").write_text(TIMED)
        (self.project / "numbered.py").write_text(NUMBERED)

    def command(self, *words: str) -> list[str]:
        """Return the argv of `clusterctl` on the controller's side."""
        return self.box.command([sys.executable, "-m", "clusterctl", *words], cwd=self.project)

    def environment(self) -> dict[str, str]:
        """Return the environment of a command."""
        ours = {
            "PYTHONPATH": str(ROOT),
            "CLUSTERCTL_STATE": str(self.folder / "state"),
            "CLUSTERCTL_INVENTORY": str(self.box.inventory),
        }
        return self.box.environment() | ours

    def must(self, argv: Sequence[str]) -> str:
        """Run a command, and return its stdout."""
        done = subprocess.run(
            argv, env=self.environment(), capture_output=True, text=True, check=False, timeout=LIMIT
        )
        if done.returncode:
            sys.exit(f"{' '.join(argv)} ended with {done.returncode}: {done.stderr[-2000:]}")
        return done.stdout

    def launch(self, script: str, *settings: str) -> str:
        """Start a run, and return its name."""
        words = ["--launcher", "direct", "--no-check", "--procs-per-node", str(PER_HOST)]
        env = [word for setting in settings for word in ("--env", setting)]
        return self.must(self.command("launch", "--detach", *words, *env, "--", script)).strip()

    def logs_of(self, run: str) -> dict[int, Path]:
        """Return where the logs of a run lie on this machine, by rank."""
        pattern = f"hosts/*/var-tmp/clusterctl-*/*/{run}/*/ranks/*.log"
        found = {int(path.stem): path for path in self.box.layout.root.glob(pattern)}
        assert len(found) == HOSTS * PER_HOST, found
        return found

    def read_history(self, size: int, rounds: int) -> None:
        """Compare reading what an ended run wrote."""
        run = self.launch("timed.py", "SECONDS=0.5")
        self.must(self.command("logs", "-f", "--raw", run))
        logs = self.logs_of(run)
        for rank, path in logs.items():
            fill(path, rank, size * 1_000_000 // len(logs))
        out = self.folder / "out"
        commands = {
            host.name: f"cat /var/tmp/clusterctl-*/*/{run}/{host.name}/ranks/*.log"
            for host in self.box.hosts
        }
        pattern = next(iter(commands.values())).replace(self.box.hosts[0].name, "%s")
        sides: dict[str, Callable[[], list[list[str]]]] = {
            "ssh cat": lambda: self.ssh(commands, CIPHER),
            "ssh cat, its own cipher": lambda: self.ssh(commands, None),
            "paramiko alone": lambda: [
                self.box.command(
                    [sys.executable, "-c", PARAMIKO, str(self.box.inventory), pattern], cwd=ROOT
                )
            ],
            "logs --raw": lambda: [self.command("logs", "--raw", run)],
            "logs --collect": lambda: [self.command("logs", "--collect", str(out), run)],
        }
        found: dict[str, list[tuple[float, ...]]] = {name: [] for name in sides}
        for number in range(rounds):
            for name, argvs in sides.items():
                shutil.rmtree(out, ignore_errors=True)
                found[name].append(self.timed(argvs(), self.folder / "sink"))
                if number == 0:
                    self.require_equal(name, out, logs)
        print(f"{size} MB of {HOSTS * PER_HOST} ranks on {HOSTS} hosts, {rounds} rounds")
        print(f"  {deflated(next(iter(logs.values())))}")
        show(found, size, {"logs --raw", "logs --collect"})

    def ssh(self, commands: dict[str, str], cipher: str | None) -> list[list[str]]:
        """Return one ssh for each host."""
        words = ["ssh", "-o", "BatchMode=yes", *(("-c", cipher) if cipher else ())]
        return [self.box.command([*words, host, cat]) for host, cat in commands.items()]

    def timed(self, argvs: list[list[str]], sink: Path) -> tuple[float, ...]:
        """Run commands at once into a file each; return the seconds.

        They are those on the clock, of CPU, and of these the client's and the servers'.
        """
        before = cpu_seconds(self.servers)
        began = time.monotonic()
        running = []
        for number, argv in enumerate(argvs):
            with sink.with_suffix(f".{number}").open("wb") as stdout:
                running.append(
                    subprocess.Popen(
                        argv, env=self.environment(), stdout=stdout, stderr=subprocess.DEVNULL
                    )
                )
        if any([process.wait(LIMIT) for process in running]):  # noqa: C419  (wait for every one)
            sys.exit(f"{' '.join(argvs[0])} failed")
        seconds = time.monotonic() - began
        time.sleep(SETTLE_SECONDS)
        client, servers = (
            now - then for now, then in zip(cpu_seconds(self.servers), before, strict=True)
        )
        return seconds, client + servers, client, servers

    def require_equal(self, name: str, out: Path, logs: dict[int, Path]) -> None:
        """Compare what a side brought with the files on the hosts."""
        if name == "logs --collect":
            for rank, path in logs.items():
                copy = out / path.parts[-3] / "ranks" / f"{rank}.log"
                if copy.read_bytes() != path.read_bytes():
                    sys.exit(f"{copy} is not {path}")
        elif name == "logs --raw":
            require_hashes([self.folder / "sink.0"], logs)

    def follow_lines(self) -> None:
        """Measure how long lines take from a rank to the readers of `launch` and of `logs -f`."""
        words = ["--launcher", "direct", "--no-check", "--procs-per-node", str(PER_HOST)]
        argv = self.command("launch", *words, "--env", f"SECONDS={SECONDS}", "--", "timed.py")
        late = sorted(self.delays(argv))
        print(f"a launch of {HOSTS * PER_HOST} ranks is followed, {len(late)} lines")
        p50, p99 = (statistics.quantiles(late, n=100)[n] for n in (49, 98))
        print(f"  line to screen: p50 {p50:.3f} s  p99 {p99:.3f} s  (wanted ≤ {WANTED_P99})")

    def delays(self, argv: list[str]) -> Iterator[float]:
        """Yield how long each line took, but those of a start that waits for other nodes."""
        with subprocess.Popen(
            argv, env=self.environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process:
            assert process.stdout is not None
            first, rest = None, b""
            while data := os.read(process.stdout.fileno(), 1 << 20):
                now = time.time()
                first = first or now
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    if b"line " in line and now - first > 1:
                        yield now - float(line.split()[-1])

    def follow_through_cuts(self) -> None:
        """Follow numbered lines while connections are killed; compare hashes."""
        lines = int(FOLLOWED_MB * 1e6 / NUMBERED_BYTES / HOSTS / PER_HOST)
        run = self.launch("numbered.py", f"LINES={lines}")
        chance = random.Random(0)
        sink, told = self.folder / "followed", self.folder / "told"
        total, cuts = int(lines * HOSTS * PER_HOST * NUMBERED_BYTES), 0
        began = time.monotonic()
        with (
            sink.open("wb") as stdout,
            told.open("wb") as stderr,
            subprocess.Popen(
                self.command("logs", "-f", "--raw", run),
                env=self.environment(),
                stdout=stdout,
                stderr=stderr,
            ) as process,
        ):
            while process.poll() is None:
                time.sleep(0.02)
                if cuts < CUTS and sink.stat().st_size > total * (cuts + 0.5) / CUTS:
                    cuts += self.cut(chance.choice(self.box.hosts).name)
        seconds = time.monotonic() - began
        if process.returncode:
            sys.exit(f"logs -f ended with {process.returncode}: {told.read_text()}")
        require_hashes([sink], self.logs_of(run))
        size = sink.stat().st_size
        print(f"{size / 1e6:.0f} MB of {lines * HOSTS * PER_HOST} lines followed, {cuts} cuts")
        print(f"  each line once and in order; {seconds:.0f} s, {size / seconds / 1e6:.0f} MB/s")

    def cut(self, node: str) -> bool:
        """Kill the server's side of every connection to a host; tell whether there was one."""
        found = [
            process
            for process in map(psutil.Process, self.box.backend.processes(self.box.host(node)))
            if "@notty" in " ".join(process.cmdline())
        ]
        for process in found:
            process.kill()
        return bool(found)


def fill(path: Path, rank: int, size: int) -> None:
    """Write a log, and the notes of when it had grown how far."""
    chance = random.Random(rank)
    data = b"".join(lines_of(rank, min(size, UNIQUE), chance))
    data = (data * (size // len(data) + 1))[:size]
    data = data[: data.rfind(b"\n") + 1]
    length = len(data)
    path.write_bytes(data)
    now = time.time()
    begin = now - HOURS * 3600 + chance.random() * HOURS * 3600 / NOTES
    notes = [
        b"%.3f %d\n" % (begin + n * HOURS * 3600 / NOTES, length * (n + 1) // NOTES)
        for n in range(NOTES)
    ]
    path.with_suffix(".times").write_bytes(b"".join(notes))


def lines_of(rank: int, size: int, chance: random.Random) -> Iterator[bytes]:
    """Yield lines as a training writes them; each begins with its rank, for `require_hashes`."""
    step, moment, loss = 0, 1.79e9, 11.5
    while size > 0:
        step += 1
        seconds = chance.gauss(0.24, 0.01)
        moment += seconds
        loss += (1.8 - loss) * 2e-5 + chance.gauss(0, 0.01)
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(moment))
        text = (
            f"INFO train: step {step}/400000 | loss {loss:.4f} | norm {chance.expovariate(2):.3f}"
            f" | lr {3e-4 * (1 - step / 400000):.3e} | {seconds:.3f} s | {4681 / seconds:.0f} tok/s"
            f" | {61 + chance.random():.1f} GiB\n"
        )
        if step % 997 == 0:
            text += f"WARNING data: sample {chance.getrandbits(40):#x} has {step % 4096} tokens\n"
        if step % 4999 == 0:
            text += TRACEBACK.format(number=chance.getrandbits(30))
        for line in text.splitlines(keepends=True):
            whole = f"{rank:02d} {when},{moment % 1 * 1000:03.0f} {line}".encode()
            size -= len(whole)
            yield whole


def deflated(path: Path) -> str:
    """Tell how far a log deflates, and what that costs."""
    with path.open("rb") as file:
        data = file.read(UNIQUE)
    began = time.process_time()
    small = zlib.compress(data, 1)
    middle = time.process_time()
    zlib.decompress(small)
    rates = [len(data) / 1e6 / used for used in (middle - began, time.process_time() - middle)]
    return "deflated 1:{:.1f}, at {:.0f} MB/s of CPU, inflated at {:.0f}".format(
        len(data) / len(small), *rates
    )


def require_hashes(files: list[Path], logs: dict[int, Path]) -> None:
    """Compare each rank's lines, whatever stands between them, with its log on its host."""
    hashes = {rank: hashlib.sha256() for rank in logs}
    for file in files:
        with file.open("rb") as stream:
            while lines := stream.readlines(1 << 24):
                left = len(lines)
                for rank, own_hash in hashes.items():
                    own = [line for line in lines if line.startswith(b"%02d " % rank)]
                    own_hash.update(b"".join(own))
                    left -= len(own)
                if left:
                    sys.exit(f"{file}: {left} lines are of no rank")
    for rank, path in logs.items():
        with path.open("rb") as stream:
            if hashlib.file_digest(stream, "sha256").digest() != hashes[rank].digest():
                sys.exit(f"rank {rank}: what came is not what {path} holds")


def show(found: dict[str, list[tuple[float, ...]]], size: int, ours: set[str]) -> None:
    """Print medians, and of our sides how fast they were beside the first."""
    medians = {
        name: [statistics.median(each) for each in zip(*v, strict=True)]
        for name, v in found.items()
    }
    base = next(iter(medians.values()))
    for name, (seconds, used, client, servers) in medians.items():
        spread = f"({min(found[name])[0]:.2f} to {max(found[name])[0]:.2f})"
        goal = f"  (wanted ≥ {WANTED})" if name in ours else ""
        print(
            f"  {name:24} {seconds:6.2f} s {spread:16} {size / seconds:4.0f} MB/s"
            f"  speed {base[0] / seconds:.2f}   {used:5.2f} s of CPU ({client:.2f} client,"
            f" {servers:.2f} servers)  {base[1] / used:.2f}{goal}",
            flush=True,
        )


if __name__ == "__main__":
    main()
