"""Turns a node's raw answers into its facts: one parser for each source; the rest is unknown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from clusterctl.facts.answers import NOT_ASKED, Answer, Answers
from clusterctl.facts.gpu import amd, nvidia
from clusterctl.facts.gpu.accelerators import Gpus
from clusterctl.facts.gpu.gpu_machine import module_version, with_machine
from clusterctl.facts.machine.kernel_log import parse_kernel_log
from clusterctl.facts.machine.machine import Clock, RunLock
from clusterctl.facts.machine.parse_machine_state import parse_machine_state
from clusterctl.facts.machine.system import (
    parse_etc_environment,
    parse_kill_user_processes,
    parse_launcher_config,
    parse_limits,
    parse_listeners,
    parse_memory,
    parse_nccl_conf,
    parse_os,
    parse_port_range,
)
from clusterctl.facts.network.interfaces import (
    parse_bonds,
    parse_counters,
    parse_interfaces,
)
from clusterctl.facts.network.network_settings import (
    hide_credentials,
    parse_conntrack,
    parse_firewall,
    parse_reserved_ports,
)
from clusterctl.facts.network.rdma import (
    parse_ofi_plugin,
    parse_rdma,
    parse_rdma_counters,
    rdma_problem,
)
from clusterctl.facts.network.routes import parse_routes
from clusterctl.facts.nodefacts import NodeFacts, UnknownFact
from clusterctl.facts.request import FactRequest
from clusterctl.facts.software.python import parse_image, parse_job_environment, parse_python
from clusterctl.facts.software.software import AgentPython
from clusterctl.facts.storage.mounts import Mount, mount_of, parse_mounts
from clusterctl.facts.storage.storage import PathFacts

T = TypeVar("T")
_TOLD = 500
"""Letters of what a vendor's tool that failed printed."""
_SMI: tuple[tuple[str, Callable[[str], Gpus]], ...] = (
    ("nvidia-smi", nvidia.parse_nvidia_smi),
    ("amd-smi", amd.parse_amd_smi),
    ("rocm-smi", amd.parse_rocm_smi),
)


def parse_facts(
    node: str, answers: Answers, wanted: FactRequest, *, clock: Clock | None
) -> NodeFacts:
    """Return the facts of a node that answered."""
    own = _object(answers.json("self"))
    names = _object(answers.json("names"))
    gpus, gaps = _gpus(answers)
    mounts = parse_mounts(answers.text("/proc/self/mountinfo") or "")
    shm = _object(answers.json("path:/dev/shm"))
    listed = names.get("addresses")
    link = answers.by_key.get("link:/proc/self/ns/net")
    if "addresses" not in names:
        why = str(names.get("error", "")) or answers.by_key.get("names", NOT_ASKED).why()
        gaps.append(UnknownFact(what="hostname_addresses", why=why))
    interfaces = parse_interfaces(answers)
    rdma = parse_rdma(answers)
    if rdma is None:
        gaps.append(UnknownFact(what="rdma", why=rdma_problem(answers)))
    job = parse_job_environment(answers)
    kernel_log, why = parse_kernel_log(answers)
    if why:
        gaps.append(UnknownFact(what="kernel_log", why=why))
    return NodeFacts(
        node=node,
        kernel_log=kernel_log,
        machine=parse_machine_state(answers, mounts),
        hostname=_as(str, names.get("hostname")),
        hostname_addresses=tuple(map(str, listed)) if isinstance(listed, list) else None,
        boot_id=answers.word("/proc/sys/kernel/random/boot_id"),
        netns=link.text if link is not None and link.good else None,
        os=_of(answers, "/etc/os-release", parse_os),
        kernel=answers.word("/proc/sys/kernel/osrelease"),
        arch=_as(str, own.get("arch")),
        uid=_as(int, own.get("uid")),
        user=_as(str, own.get("user")),
        cpus=_as(int, own.get("cpus")),
        memory_bytes=_of(answers, "/proc/meminfo", parse_memory),
        shm_bytes=_as(int, shm.get("total")),
        clock=clock,
        interfaces=interfaces,
        bond_ports=parse_bonds(answers),
        counters=(*parse_counters(answers, interfaces), *parse_rdma_counters(answers, rdma)),
        routes=parse_routes(answers),
        listeners=parse_listeners(answers),
        ephemeral_ports=_of(answers, "/proc/sys/net/ipv4/ip_local_port_range", parse_port_range),
        reserved_ports=_of(
            answers, "/proc/sys/net/ipv4/ip_local_reserved_ports", parse_reserved_ports
        ),
        conntrack=parse_conntrack(answers),
        firewall=parse_firewall(answers, _object(own.get("programs"))),
        rdma=rdma,
        ofi_plugin=parse_ofi_plugin(answers),
        gpus=gpus,
        python=parse_python(
            answers,
            asked=wanted.interpreter,
            container=wanted.container.image if wanted.container else "",
        ),
        agent=_agent(own.get("agent")),
        rsync=_as(str, _object(own.get("programs")).get("rsync")),
        paths=tuple(_path(answers, place.path, mounts) for place in wanted.places),
        lock=_lock(answers),
        sharing=_sharing(answers),
        limits=_of(answers, "/proc/self/limits", parse_limits),
        kill_user_processes=parse_kill_user_processes(answers),
        linger=_as(bool, own.get("linger")),
        environment=hide_credentials(_pairs(own.get("variables"))),
        etc_environment=_of(answers, "/etc/environment", parse_etc_environment) or (),
        job_environment=hide_credentials(job) if wanted.env_init else None,
        nccl_conf=parse_nccl_conf(answers),
        image=parse_image(answers),
        launcher_config=parse_launcher_config(answers, wanted.launcher_file),
        gaps=tuple(gaps),
        timed_out=tuple(key for key, one in answers.by_key.items() if one.state == "timeout"),
    )


def _gpus(answers: Answers) -> tuple[Gpus | None, list[UnknownFact]]:
    """Parse the vendors' tools in turn; if none is installed, there is no accelerator."""
    gaps: list[UnknownFact] = []
    asked = False
    for key, parse in _SMI:
        answer = answers.command(key)
        if answer.state in {"absent", "not-asked"}:
            asked = asked or answer.state == "absent"
            continue
        text = answer.text + (answer.words if key == "nvidia-smi" else "")  # with its warnings
        # Both amd-smi and rocm-smi are asked: if one answered, the other may be out of date.
        if not answer.good and not nvidia.is_complete(text):
            gaps.append(UnknownFact(what="gpus", why=f"{key}: {_why_not(answer, answers)}"))
            continue
        try:
            gpus = parse(text)
            if gpus.tool == "amd-smi":
                metric, running = (
                    answers.command(name).text for name in ("amd-metric", "amd-process")
                )
                gpus = amd.with_metrics(gpus, text, metric, running)
            return with_machine(gpus, answers), []
        except (ValueError, AttributeError, TypeError, OverflowError, RecursionError) as error:
            gaps.append(UnknownFact(what="gpus", why=f"{key}: {error}"))
    if gaps:
        return None, gaps
    return (Gpus() if asked else None), [] if asked else [UnknownFact(what="gpus", why="not asked")]


def _why_not(answer: Answer, answers: Answers) -> str:
    """Return why a vendor's tool failed; NVML tells a mismatch of versions in two lines."""
    printed = (answer.text + "\n" + answer.words).strip()
    start = printed.find("Failed to initialize NVML")
    if not answer.exit_code or start < 0:
        return answer.why()[:_TOLD]
    told = "; ".join(line.strip() for line in printed[start:].splitlines() if line.strip())
    loaded = module_version(answers)
    mismatch = "mismatch" in told and loaded
    return f"exit code {answer.exit_code}: {told[:_TOLD]}" + (
        f"; loaded: {loaded}" if mismatch else ""
    )


def _agent(process: object) -> AgentPython | None:
    lacks = _object(process).get("lacks")
    if not isinstance(lacks, list):
        return None
    names = tuple(str(name).lstrip("_") for name in lacks)
    return AgentPython(executable=str(_object(process).get("executable", "")), lacks=names)


def _lock(answers: Answers) -> RunLock | None:
    lock = answers.json("lock")
    if not isinstance(lock, dict):
        return None
    holder = lock.get("holder")
    return RunLock() if holder is None else _held_by(_object(holder))


def _sharing(answers: Answers) -> tuple[RunLock, ...]:
    holders = _object(answers.json("lock")).get("sharing")
    return tuple(_held_by(_object(one)) for one in holders) if isinstance(holders, list) else ()


def _held_by(who: Mapping[str, Any]) -> RunLock:
    holds = who.get("holds")
    began = _moment(who.get("since"))
    return RunLock(
        run=str(who.get("run") or f"unknown, of pid {who.get('pid', '?')}"),
        user=str(who.get("user") or who.get("uid", "")),
        since=f"{began:%Y-%m-%d %H:%M} UTC" if began else "",
        about=str(who.get("about") or ""),
        holds=tuple(map(str, holds)) if isinstance(holds, list) else (),
    )


def _moment(since: object) -> datetime | None:
    """Return the time in a lock file, which any user may write: it may be any value."""
    try:
        return datetime.fromtimestamp(since, UTC) if isinstance(since, (int, float)) else None
    except (ValueError, OverflowError, OSError):
        return None


def _path(answers: Answers, path: str, mounts: tuple[Mount, ...]) -> PathFacts:
    answer = answers.by_key.get("path:" + path)
    found = _object(answers.json("path:" + path))
    if answer is None or not found:
        why = answer.why() if answer is not None else "not asked"
        return PathFacts(path=path, problem=why or "no answer")
    facts = PathFacts(
        path=path,
        exists=_as(bool, found.get("exists")),
        folder=_as(bool, found.get("folder")),
        writable=_as(bool, found.get("writable")),
        size=_as(int, found.get("size")),
        entries=_as(int, found.get("entries")),
        digest=str(found.get("digest", "")),
        free_bytes=_as(int, found.get("free")),
        total_bytes=_as(int, found.get("total")),
        free_files=_as(int, found.get("free_files")),
        total_files=_as(int, found.get("total_files")),
        write_rate=_as(float, found.get("write_rate")),
        read_rate=_as(float, found.get("read_rate")),
        file_s=_as(float, found.get("file_s")),
        faults=_texts(found.get("faults")),
        lacks=_texts(found.get("lacks")),
        problem=str(found.get("problem", "")),
    )
    mount = mount_of(mounts, str(found.get("real" if facts.exists else "near") or path))
    if mount is None:
        return facts
    return replace(
        facts,
        mount=mount.point,
        source=mount.source,
        filesystem=mount.filesystem,
        read_only=mount.read_only,
        lock_option=mount.lock_option,
    )


def _of(answers: Answers, path: str, parse: Callable[[str], T | None]) -> T | None:
    text = answers.text(path)
    return parse(text) if text is not None else None


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _as(kind: type[T], value: object) -> T | None:
    """Return a value of exactly this type, else None."""
    return value if type(value) is kind else None


def _texts(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()


def _pairs(value: object) -> tuple[tuple[str, str], ...] | None:
    if not isinstance(value, dict):
        return None
    return tuple(sorted((str(k), str(v)) for k, v in value.items()))
