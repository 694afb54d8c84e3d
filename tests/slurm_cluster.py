"""A Slurm cluster on sandbox hosts: a real slurmctld on the first one, a slurmd on the others."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from clusterctl.sandbox.sandbox import Sandbox
from tests.waiting import BUSY, wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch")
SBIN = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NEEDS_SLURM = (
    pytest.mark.netns,
    pytest.mark.skipif(os.geteuid() != 0, reason="starts Slurm's daemons, which needs root"),
    pytest.mark.skipif(
        not all(shutil.which(name, path=SBIN) for name in PROGRAMS),
        reason="needs slurmctld, slurmd, slurm-client and munge (.ci/setup optional)",
    ),
)

CONF = """\
ClusterName=sandbox
SlurmctldHost={login}({address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=/tmp/slurm/munge.socket
StateSaveLocation=/tmp/slurm/state
SlurmdSpoolDir=/tmp/slurm/spool
SlurmctldPidFile=/tmp/slurm/slurmctld.pid
SlurmdPidFile=/tmp/slurm/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
SwitchType=switch/none
KillWait=3
DebugFlags=NO_CONF_HASH
{nodes}
PartitionName=main Nodes={names} Default=YES MaxTime=INFINITE State=UP
"""


@dataclass(frozen=True, slots=True)
class SlurmCluster:
    """The cluster, and the ways to use it from its login node."""

    sandbox: Sandbox
    folder: Path
    """On the shared filesystem, as this machine sees it."""
    daemons: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def login(self) -> str:
        """The node from which people submit; it runs slurmctld and no jobs."""
        return self.sandbox.hosts[0].name

    @property
    def compute(self) -> tuple[str, ...]:
        """The nodes that Slurm gives to jobs."""
        return tuple(host.name for host in self.sandbox.hosts[1:])

    def shared(self, *parts: str) -> str:
        """Return a path below the folder, as the hosts see it."""
        return "/".join((self.sandbox.hosts[0].shared, self.folder.name, *parts))

    def argv(
        self, words: Sequence[str], env: Mapping[str, str] | None = None, cwd: str = ""
    ) -> list[str]:
        """Return the argv that runs a command on the login node."""
        variables = {"PATH": SBIN, "SLURM_CONF": "/tmp/slurm/slurm.conf", **(env or {})}
        pairs = [f"{name}={value}" for name, value in variables.items()]
        argv = ["env", f"--chdir={cwd or self.shared()}", "--default-signal", *pairs, *words]
        return self.sandbox.backend.on(self.sandbox.host(self.login), argv)

    def run(
        self,
        *words: str,
        env: Mapping[str, str] | None = None,
        seconds: float = BUSY,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the login node and wait for it."""
        done = subprocess.run(
            self.argv(words, env),
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False,
        )  # fmt: skip
        assert not check or done.returncode == 0, (words, done)
        return done

    def clusterctl(self, *words: str) -> list[str]:
        """Return the argv of clusterctl on any node."""
        return [sys.executable, "-m", "clusterctl", *words]

    def jobs(self) -> list[str]:
        """Return the ids of the jobs that Slurm has not ended."""
        return self.run("squeue", "--noheader", "--format=%i").stdout.split()


@contextmanager
def started(sandbox: Sandbox) -> Iterator[SlurmCluster]:
    """Run Slurm on the hosts of a sandbox, which is removed at the end."""
    cluster = SlurmCluster(sandbox, sandbox.shared / "slurm")
    try:
        _start(cluster)
        yield cluster
    finally:
        sandbox.down()
        for daemon in cluster.daemons:
            daemon.wait()


def _start(cluster: SlurmCluster) -> None:
    sandbox = cluster.sandbox
    cluster.folder.mkdir()
    login, *compute = sandbox.hosts
    nodes = [
        f"NodeName={host.name} NodeAddr={host.address} CPUs=4 State=UNKNOWN" for host in compute
    ]
    conf = CONF.format(
        login=login.name,
        address=login.address,
        nodes="\n".join(nodes),
        names=",".join(cluster.compute),
    )
    for host in sandbox.hosts:
        _prepare(sandbox.folder(host.name) / "tmp" / "slurm", conf)

    def daemon(host: str, *words: str) -> None:
        argv = ["env", "SLURM_CONF=/tmp/slurm/slurm.conf", f"PATH={SBIN}", *words]
        log = (cluster.folder / f"{host}.log").open("ab")
        with log:
            process = subprocess.Popen(
                sandbox.backend.on(sandbox.host(host), argv),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        cluster.daemons.append(process)

    for host in sandbox.hosts:
        daemon(
            host.name, "munged", "--force", "--foreground", "--key-file=/tmp/slurm/munge.key",
            "--socket=/tmp/slurm/munge.socket", "--pid-file=/tmp/slurm/munge.pid",
            "--log-file=/tmp/slurm/munge.log", "--seed-file=/tmp/slurm/munge.seed",
        )  # fmt: skip
    for host in sandbox.hosts:
        wait_until((_slurm(sandbox, host.name) / "munge.socket").exists)
    daemon(login.name, "slurmctld", "-D", "-c")
    for host in compute:
        # slurmd wants to make cgroups even where it does not track by them.
        writable = "mount -o remount,rw,bind /sys/fs/cgroup; exec slurmd -D -N " + host.name
        daemon(host.name, "sh", "-c", writable)
    idle = f"idle {len(compute)}"
    wait_until(lambda: idle in cluster.run("sinfo", "-h", "-o", "%T %D", check=False).stdout)


def _slurm(sandbox: Sandbox, host: str) -> Path:
    return sandbox.folder(host) / "tmp" / "slurm"


def _prepare(folder: Path, conf: str) -> None:
    (folder / "spool").mkdir(parents=True)
    folder.chmod(0o755)
    (folder / "slurm.conf").write_text(conf)
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    key = folder / "munge.key"
    key.write_bytes(b"k" * 128)
    key.chmod(0o400)
