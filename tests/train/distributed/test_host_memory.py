"""The memory that a node can still give: of the machine, or what its cgroups leave."""

from __future__ import annotations

from pathlib import Path

import pytest

from train.distributed.host_memory import available, physical

MIB = 1 << 20


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a machine with 1000 MiB available and no cgroup."""
    write(tmp_path, "proc/meminfo", f"MemTotal: 2048000 kB\nMemAvailable:    {1000 * 1024} kB\n")
    write(tmp_path, "proc/self/cgroup", "")
    return tmp_path


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def limit(root: Path, folder: str, most: str, used: int, cached: int) -> None:
    """Put a limit on a cgroup of version 2."""
    write(root, f"sys/fs/cgroup{folder}/memory.max", f"{most}\n")
    write(root, f"sys/fs/cgroup{folder}/memory.current", f"{used}\n")
    stat = f"anon 5\ninactive_file {cached}\nactive_file {MIB}\nworkingset_x 7\n"
    write(root, f"sys/fs/cgroup{folder}/memory.stat", stat)


def test_without_limits_it_is_what_the_machine_has(root: Path) -> None:
    assert available(root) == 1000 * MIB
    write(root, "proc/self/cgroup", "0::/slurm/job\n")
    limit(root, "/slurm/job", "max", 900 * MIB, 0)
    assert available(root) == 1000 * MIB
    assert available() > 0


def test_the_narrowest_cgroup_counts_and_its_page_cache_is_free(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/slurm/job/step\n")
    limit(root, "/slurm/job/step", str(900 * MIB), 500 * MIB, 99 * MIB)
    assert available(root) == 500 * MIB
    limit(root, "/slurm/job", str(400 * MIB), 100 * MIB, 0)
    assert available(root) == 301 * MIB


def test_a_container_sees_its_cgroup_as_the_root(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/../../outside\n")
    limit(root, "", str(64 * MIB), 32 * MIB, 0)
    assert available(root) == 33 * MIB


def test_version_1_has_other_files(root: Path) -> None:
    write(root, "proc/self/cgroup", "3:cpu,cpuacct:/job\n9:memory:/job\n")
    write(root, "sys/fs/cgroup/memory/job/memory.limit_in_bytes", str(100 * MIB))
    write(root, "sys/fs/cgroup/memory/job/memory.usage_in_bytes", str(90 * MIB))
    write(
        root, "sys/fs/cgroup/memory/job/memory.stat", f"inactive_file 5\ntotal_active_file {MIB}\n"
    )
    assert available(root) == 11 * MIB


def test_without_linuxs_files_it_is_all_of_the_machine(root: Path) -> None:
    (root / "proc/meminfo").write_text("MemTotal: 2048000 kB\n")
    assert available(root) == physical()
    assert available(root / "nowhere") == physical() > 0
