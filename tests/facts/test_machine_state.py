"""The state of a machine, from what its kernel writes and from any bytes at all."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from clusterctl.facts.machine.machine_state import (
    KERNEL_SETTINGS,
    parse_cgroups,
    parse_cpu_list,
    parse_machine_state,
    parse_memory_use,
    parse_uptime,
)
from clusterctl.facts.machine.system import UNLIMITED
from clusterctl.facts.nodefacts import NodeFacts, from_document, to_document
from clusterctl.facts.storage.storage import MOUNTS
from tests.damage import ANY_TEXT, damaged_json
from tests.facts.answering import answers

SEEN: dict[str, Any] = {
    "systemd": True, "reboot": False, "tmp": "/tmp", "home": "/home/ada", "gid": 1000,
    "cgroups": [{"cpu.max": "max 100000", "pids.max": "max", "pids.current": "300"}],
    "state_problem": "", "unsynchronized": False, "login": 0.2,
    "processes": {
        "ranks": [{"pid": 7, "rank": "0", "run": "", "command": "python", "age_s": 9.5}],
        "stuck": [{"pid": 8, "command": "ls", "waits_in": "rpc_wait", "age_s": 90.0}],
    },
}  # fmt: skip
"""As `node.probe.machine_state` answers."""


@pytest.mark.parametrize(
    ("text", "count"),
    [("0-3,8", 5), ("0", 1), ("0-255\n".strip(), 256), ("", None), ("3-1", None), ("a", None)],
)
def test_the_cpus_of_a_list(text: str, count: int | None) -> None:
    assert parse_cpu_list(text) == count


@given(st.sets(st.integers(0, 300), min_size=1))
def test_each_cpu_of_a_list_counts_once(numbers: set[int]) -> None:
    assert parse_cpu_list(",".join(map(str, sorted(numbers)))) == len(numbers)


@given(st.lists(st.tuples(st.integers(1, 10**7), st.integers(1, 10**6)), min_size=1))
def test_the_smallest_quota_of_the_groups_counts(quotas: list[tuple[int, int]]) -> None:
    groups = [{"cpu.max": f"{quota} {period}"} for quota, period in quotas]
    limits = parse_cgroups([{"cpu.max": "max 100000"}, *groups])
    assert limits.cpus == min(quota / period for quota, period in quotas)
    assert (limits.memory_bytes, limits.processes_left) == (UNLIMITED, UNLIMITED)


def test_groups_of_version_1_write_a_huge_number_for_no_limit() -> None:
    limits = parse_cgroups(
        [
            {"memory.limit_in_bytes": "9223372036854771712"},
            {"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"},
            {"pids.max": "100", "pids.current": "130"},
        ]
    )
    assert (limits.cpus, limits.memory_bytes, limits.processes_left) == (UNLIMITED, UNLIMITED, 0)


def test_memory_and_kills() -> None:
    meminfo = "MemTotal: 9 kB\nMemAvailable:   6 kB\nSwapTotal:  4 kB\nSwapFree:   1 kB\n"
    meminfo += "CmaTotal:  8 kB\n"
    use = parse_memory_use(meminfo, "oom_kill 3\noom_kill_x 4\n")
    assert (use.available_bytes, use.swap_bytes, use.oom_kills) == (6144, 3072, 3)
    assert (use.cma_bytes, parse_memory_use("", "").cma_bytes) == (8192, None)


def test_a_machine_as_its_agent_sees_it() -> None:
    files = {
        "/etc/machine-id": "ab12\n",
        "/proc/uptime": "12.5 40.0\n",
        "/sys/devices/system/cpu/online": "0-7\n",
        dict(KERNEL_SETTINGS)["transparent huge pages"]: "always [madvise] never\n",
        MOUNTS: "1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 0:5 / /tmp rw,noexec - tmpfs tmp rw\n",
    }
    state = parse_machine_state(answers(files, others={"machine": SEEN}))

    assert state is not None
    assert (state.machine_id, state.online_cpus, state.uptime_s) == ("ab12", 8, 12.5)
    assert state.kernel_settings == (("transparent huge pages", "madvise"),)
    assert (state.clock_synchronized, state.reboot_required, state.login_s) == (True, False, 0.2)
    assert (state.noexec, state.state_problem) == (("/tmp",), "")
    assert state.leftovers is not None
    assert [one.pid for one in (*state.leftovers.ranks, *state.leftovers.stuck)] == [7, 8]


def test_a_container_does_not_own_its_machine_id() -> None:
    seen = {**SEEN, "systemd": False}
    state = parse_machine_state(answers({"/etc/machine-id": "ab\n"}, others={"machine": seen}))
    assert state is not None
    assert state.machine_id is None


@pytest.mark.parametrize(
    ("seen", "setting", "removes"),
    [
        ({"systemd": True, "session": False}, "#RemoveIPC=yes", True),
        ({"systemd": True, "session": False}, "RemoveIPC=no", False),
        ({"systemd": True, "session": True}, "RemoveIPC=yes", False),
        ({"systemd": False, "session": False}, "RemoveIPC=yes", False),
        ({"systemd": True}, "RemoveIPC=yes", None),
    ],
)
def test_shared_memory_is_removed_where_ssh_opens_no_session(
    seen: dict[str, Any], setting: str, *, removes: bool | None
) -> None:
    files = {"/etc/systemd/logind.conf": f"[Login]\n{setting}\n"}
    state = parse_machine_state(answers(files, others={"machine": seen}))
    assert state is not None
    assert state.remove_ipc is removes


def test_what_a_node_did_not_tell_is_unknown() -> None:
    assert parse_machine_state(answers()) is None
    state = parse_machine_state(answers(others={"machine": {}}))
    assert state is not None
    assert state.cgroup is None
    assert state.clock_synchronized is None
    assert state.reboot_required is None
    assert state.noexec is None
    assert state.leftovers is None


@given(damaged_json(SEEN, ANY_TEXT | st.none() | st.integers() | st.booleans()))
@example({**SEEN, "gid": 1 << 64, "login": 10**400})
@example({**SEEN, "login": 1e300})
def test_any_answer_is_a_state_that_can_be_saved(seen: object) -> None:
    state = parse_machine_state(answers(others={"machine": seen}))
    facts = {"a": NodeFacts(node="a", machine=state)}
    assert from_document(to_document(facts)) == facts


@given(ANY_TEXT)
def test_any_text_is_a_file(text: str) -> None:
    assert (parse_cpu_list(text) or 1) > 0
    assert (parse_uptime(text) or 0.0) >= 0
    parse_memory_use(text, text)
    parse_cgroups([{"cpu.max": text, "memory.max": text, "pids.max": text}, text])
