"""A verdict on the screen, as JSON, HTML and Markdown; what others wrote cannot drive any."""

from __future__ import annotations

import io
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from clusterctl.checks.finding import Finding, Status, skip
from clusterctl.checks.registry import CHECKS
from clusterctl.errors import UsageError
from clusterctl.facts.changes import Change
from clusterctl.facts.gpu.accelerators import Gpu, Gpus
from clusterctl.facts.ladder import GpuTrial, Ladder, NcclTransport, Rail, Rung
from clusterctl.facts.machine.system import SshStatus
from clusterctl.facts.network.interfaces import Interface
from clusterctl.facts.network.pairwise import Collective, PairRate
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.inventory.cluster import Cluster, Node, Ssh
from clusterctl.report.check import print_check, print_choices, print_explanation, verdict
from clusterctl.report.console import make_console
from clusterctl.report.html.check import html_page
from clusterctl.report.html.frame import write
from clusterctl.verbs.preflight.check import CheckOptions, CheckResult, LastGood, judge
from tests.small_disk import small_disk

EVIL = "\x1b]0;owned\x07\x1b[2J<script>alert(1)</script> [bold]|x|\nsecond"


def a_node(name: str, gpus: int = 8) -> Node:
    return Node(host=f"host-{name}", name=name, ssh=Ssh(), gpus=gpus)


def facts_of(name: str, number: int) -> NodeFacts:
    return NodeFacts(
        node=name,
        boot_id=name,
        arch="x86_64",
        interfaces=(Interface(name="eth0", addresses=(f"10.0.0.{number}/24",), running=True),),
        gpus=Gpus(
            tool="nvidia-smi",
            devices=tuple(Gpu(index=i, name="NVIDIA H100 80GB HBM3") for i in range(8)),
        ),
        rsync="/usr/bin/rsync",
    )


@pytest.fixture
def result() -> CheckResult:
    names = ("gpu1", "gpu2", "gpu3")
    cluster = Cluster(name="lab", nodes=tuple(a_node(name) for name in names))
    facts = {name: facts_of(name, i + 1) for i, name in enumerate(names)}
    facts["gpu2"] = replace(facts["gpu2"], rsync="", hostname=EVIL)
    facts["gpu3"] = NodeFacts(
        node="gpu3",
        reach=SshStatus(state="refused", phase="connect", words=EVIL, hint="start sshd"),
    )
    only = ("ssh.connect", "node.rsync", "node.clock", "node.arch")
    judged = judge(cluster, facts, CheckOptions(only=only))
    return replace(judged, seconds=1.25)


def printed(result: CheckResult, width: int = 80, *, color: bool = False) -> str:
    stream = io.StringIO()
    console = Console(
        file=stream, width=width, markup=False, highlight=False, emoji=False,
        force_terminal=color, color_system="standard" if color else None,
    )  # fmt: skip
    print_check(console, result)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("remedy", "check", "nodes"),
    [
        ("sudo dmesg (on the node); reboot", "node.errors", "'gpu[1-2]'"),
        ("sudo nft x (on 10.0.0.2, and likewise on every node)", "network.mtu", "10.0.0.2"),
        ("start sshd (on the node)", "ssh.connect", ""),
        ("clusterctl sync", "job.check", ""),
    ],
)
def test_a_command_for_a_node_comes_with_the_way_to_run_it_there(
    remedy: str, check: str, nodes: str, result: CheckResult
) -> None:
    nodes_of = ("gpu1", "gpu2")
    one = Finding(check=check, status="fail", nodes=nodes_of, message="", remedy=remedy)
    hint = f"hint: to run a command on a node: clusterctl exec --nodes {nodes} -- COMMAND"
    text = printed(replace(result, findings=(one,)), width=200)
    assert (hint in text) is bool(nodes)
    assert bool(nodes) is ("to run a command" in text)


def test_the_jobs_own_check_is_named_if_it_passed(result: CheckResult) -> None:
    passed = Finding(check="job.check", status="pass", nodes=("gpu1", "gpu2"), message="")
    assert "job.check" not in printed(result)
    text = printed(replace(result, findings=(*result.findings, passed)))
    assert "job.check: passed on 2 of 3 nodes: gpu[1-2]\n" in text
    failed = replace(passed, status="fail", nodes=("gpu3",), message="no config")
    text = printed(replace(result, findings=(passed, failed)))
    assert (text.count("no config"), text.count("job.check: passed")) == (1, 1)
    skipped = replace(passed, status="skip")
    assert "job.check" not in printed(replace(result, findings=(*result.findings, skipped)))


def test_a_quiet_check_prints_problems_and_the_verdict(
    result: CheckResult, capsys: pytest.CaptureFixture[str]
) -> None:
    print_check(make_console(sys.stdout), result, quiet=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(("FAIL", "UNKNOWN"))
    assert "FAIL node.rsync  gpu2" in lines
    assert not any("x H100" in line or "checks in" in line for line in lines)
    well = replace(result, findings=())
    print_check(make_console(sys.stdout), well, quiet=True)
    assert capsys.readouterr().out.splitlines() == [verdict(well)]


def test_on_a_narrow_terminal_columns_are_left_out_and_none_is_torn(result: CheckResult) -> None:
    lines = [line.rstrip() for line in printed(result, width=40).splitlines()]

    assert max(map(len, lines)) <= 40
    assert "rank  node  address   state" in lines
    assert "   0  gpu1  10.0.0.1  UNKNOWN" in lines


def test_a_person_sees_nodes_findings_and_the_sum_in_80_columns(result: CheckResult) -> None:
    text = printed(result)
    lines = [line.rstrip() for line in text.splitlines()]

    assert max(map(len, lines)) <= 80
    assert lines[0] == "lab: 3 nodes on 10.0.0.0/24, master 10.0.0.1 port 29500"
    assert "   0  gpu1  10.0.0.1  eth0       8 x H100 80GB HBM3  UNKNOWN" in lines
    assert "   1  gpu2  10.0.0.2  eth0       8 x H100 80GB HBM3  FAIL" in lines
    assert any(re.match(r"   2  gpu3  -  .*\?.*UNREACHABLE", line) for line in lines)
    assert "FAIL node.rsync  gpu2" in lines
    assert "UNKNOWN node.clock  2 of 3 nodes: gpu[1-2]" in lines
    assert "     hint:     sudo apt-get install rsync" in lines
    assert lines[-2:] == [
        "4 checks in 1.2 s: 2 failed, 1 unknown, 1 passed",
        "not ready: 3 problems on 3 nodes",
    ]


@pytest.mark.parametrize(
    ("check", "statuses", "partial", "text"),
    [
        ("ssh.connect", {}, False, "ready to launch"),
        ("ssh.connect", {"fail": 2}, False, "not ready: 1 problem on 2 nodes"),
        (
            "ssh.connect", {"unknown": 1, "warn": 1}, False,
            "not ready: 1 problem and 1 warning on gpu1",
        ),
        ("ssh.ping", {"warn": 1}, False, "ready to launch, with 1 warning on gpu1"),
        ("ssh.ping", {"fail": 1}, False, "ready to launch, with 1 problem on gpu1"),
        ("ssh.ping", {}, True, "these checks found no problem; the others were not asked for"),
        ("ssh.connect", {"fail": 1}, True, "not ready: 1 problem on gpu1"),
    ],
)  # fmt: skip
def test_the_last_line_says_whether_a_run_can_start(
    result: CheckResult, check: str, statuses: dict[Status, int], partial: Any, text: str
) -> None:
    names = ("gpu1", "gpu2")
    findings = tuple(
        Finding(check=check, status=status, nodes=names[:count], message="m")
        for status, count in statuses.items()
    )
    result = replace(result, findings=findings, partial=partial)

    assert printed(result).splitlines()[-1].rstrip() == text
    assert f">{text}</p>" in html_page(result)


def test_of_many_nodes_neighbors_that_are_alike_share_a_line(result: CheckResult) -> None:
    rows = tuple(
        replace(
            result.nodes[0], name=f"n{i:03}", rank=i, address=f"10.0.0.{i + 1}",
            state="fail" if i == 60 else "ok",
        )
        for i in range(128)
    )  # fmt: skip
    lines = [line.rstrip() for line in printed(replace(result, nodes=rows), 100).splitlines()]
    at = lines.index(next(line for line in lines if line.lstrip().startswith("rank")))

    assert [" ".join(line.split()) for line in lines[at + 1 : at + 5]] == [
        "0-59 n[000-059] 10.0.0.1 to 10.0.0.60 eth0 8 x H100 80GB HBM3 ok",
        "60 n060 10.0.0.61 eth0 8 x H100 80GB HBM3 FAIL",
        "61-127 n[061-127] 10.0.0.62 to 10.0.0.128 eth0 8 x H100 80GB HBM3 ok",
        "",
    ]


def test_nodes_where_each_library_chooses_the_same_share_a_block(result: CheckResult) -> None:
    stream = io.StringIO()
    print_choices(make_console(stream), result)

    assert stream.getvalue().splitlines()[:5] == [
        "2 of 3 nodes: gpu[1-2]",
        "     NCCL:       eth0  (NCCL_SOCKET_IFNAME==eth0 from clusterctl)",
        "     Gloo:       eth0  (GLOO_SOCKET_IFNAME=eth0 from clusterctl)",
        "     TensorPipe: eth0  (TP_SOCKET_IFNAME=eth0 from clusterctl)",
        "     NCCL RDMA:  -  (no RDMA device: TCP)",
    ]
    assert "gpu3" not in stream.getvalue()  # nothing is known of it


def test_what_pairs_measured_is_a_table_of_rates_and_one_of_round_trips(
    result: CheckResult,
) -> None:
    facts = dict(result.facts)
    for name, peer, gbps in (("gpu1", "gpu2", 9.5), ("gpu2", "gpu1", 0.25)):
        rate = PairRate(peer=peer, round_trip_s=85e-6, gbps=gbps)
        facts[name] = replace(facts[name], collective=Collective(right=True, pairs=(rate,)))
    deep = replace(result, facts=facts)

    lines = [" ".join(line.split()) for line in printed(deep).splitlines()]
    at = lines.index("Gb/s to gpu1 gpu2")
    assert lines[at + 1 : at + 3] == ["gpu1 - 9.50", "gpu2 0.25 -"]
    at = lines.index("µs there and back gpu1 gpu2")
    assert lines[at + 1 : at + 3] == ["gpu1 - 85", "gpu2 85 -"]
    assert deep.document()["pairs"][0] == {
        "from": "host-gpu1", "peer": "host-gpu2", "round_trip_s": 85e-6, "gbps": 9.5,
    }  # fmt: skip


def test_what_changed_since_the_last_good_run_is_told(result: CheckResult) -> None:
    driver = Change(what="driver", nodes=("gpu3",), before="560.35", after="570.86")
    restarted = Change(what="boot", nodes=("gpu1", "gpu2"), before="a", after="b")
    last = LastGood(run="lab-1", began=1_000_000.0, changes=(driver, restarted))
    changed = replace(result, last_good=last)

    for form in (printed(changed), html_page(changed)):
        assert "driver 560.35 → 570.86 on gpu3" in form
        assert "restarted on 2 of 3 nodes: gpu[1-2]" in form
        assert "hanged since the last good run, 1970-01-1" in form
    unchanged = replace(result, last_good=replace(last, changes=()))
    assert "changed since" not in printed(unchanged)


def test_a_narrow_screen_loses_no_word(result: CheckResult) -> None:
    text = printed(result, 40)

    assert max(len(line.rstrip()) for line in text.splitlines()) <= 40
    squeezed = re.sub(r"\s+", "", text)
    assert "theclocksagree" in squeezed
    assert "sudoapt-getinstallrsync" in squeezed


def test_what_a_node_wrote_is_text_and_nothing_else(result: CheckResult) -> None:
    for text in (printed(result), printed(result, color=True)):
        assert "\x1b]0" not in text
        assert "\x1b[2J" not in text
        assert "[bold]" in text  # shown, not obeyed


def test_meaning_is_never_in_color_alone(result: CheckResult) -> None:
    colored = re.sub(r"\x1b\[[0-9;]*m", "", printed(result, color=True))

    assert [line.rstrip() for line in colored.splitlines()] == printed(result).splitlines()


def test_a_pipe_gets_no_control_sequence(
    result: CheckResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    stream = io.StringIO()
    console = make_console(stream)
    print_check(console, result)

    assert "\x1b" not in stream.getvalue()
    assert console.width == 100


def test_json_has_the_promised_shape(result: CheckResult) -> None:
    document = json.loads(json.dumps(result.document()))

    keys = {"schema", "cluster", "nodes", "findings", "pairs", "ladder", "last_good", "seconds"}
    assert set(document) == keys
    assert (document["last_good"], document["pairs"]) == (None, [])
    assert document["nodes"][0] == {
        "host": "host-gpu1",
        "name": "gpu1",
        "rank": 0,
        "address": "10.0.0.1",
        "interface": "eth0",
        "gpus": 8,
        "state": "unknown",
    }
    assert document["nodes"][2]["gpus"] is None
    (rsync,) = [f for f in document["findings"] if f["check"] == "node.rsync" and f["remedy"]]
    assert rsync["nodes"] == ["host-gpu2"]
    assert rsync["gpus"] == []
    fields = {"check", "status", "nodes", "message", "wanted", "found", "remedy", "gpus"}
    assert set(rsync) == fields


def test_gpus_fold_as_nodes_do(result: CheckResult) -> None:
    sick = Finding(status="fail", nodes=("gpu1", "gpu2"), message="hot", gpus=(0, 1, 2, 5))
    result = replace(result, findings=(replace(sick, check="accelerator.health"),))

    assert "FAIL accelerator.health  GPU 0-2,5 on 2 of 3 nodes: gpu[1-2]" in printed(result)
    assert "GPU 0-2,5 on 2 of 3 nodes: gpu[1-2]" in html_page(result)


def test_the_page_holds_all_and_obeys_nothing(result: CheckResult) -> None:
    page = html_page(result)

    assert "<script>" not in page
    assert "\x1b" not in page
    assert "sudo apt-get install rsync" in page
    assert "10.0.0.2" in page
    assert "http" not in page.replace("https://", "")  # self-contained
    assert "<link" not in page


def test_what_a_finding_does_not_say_has_no_line(result: CheckResult) -> None:
    bare = replace(result, findings=(replace(result.findings[0], wanted="", remedy=""),))
    assert result.findings[0].status == "fail"
    assert "<dt>found" in html_page(bare)
    for form in (html_page(bare), printed(bare)):
        assert "expected" not in form
        assert "hint" not in form


def test_a_check_explains_itself() -> None:
    stream = io.StringIO()
    print_explanation(make_console(stream), CHECKS["network.master-reach"])

    assert stream.getvalue().startswith(
        "network.master-reach: every node can connect to the master port"
    )
    assert "network.master-port" in stream.getvalue()


def test_the_ladder_shows_what_each_node_reached_and_by_which_network(result: CheckResult) -> None:
    rails = tuple(
        Rail(index=index, right=True, gbps=gbps, transport=NcclTransport(network="Socket"))
        for index, gbps in enumerate((330.0, 341.0))
    )
    trial = GpuTrial(index=0, wrong_numbers=0, wrong_copies=0, tflops=700.0, memory_gb_s=2900.0)
    rungs = (Rung(name="across", works=True, seconds=9.0),)
    ladder = Ladder(rungs=rungs, gpus=(trial,), inside=(), rails=rails)
    facts = {**result.facts, "gpu1": replace(result.facts["gpu1"], ladder=ladder)}
    shown = printed(replace(result, facts=facts), width=120)

    (line,) = [line for line in shown.splitlines() if line.startswith("gpu1 ") and "700" in line]
    assert line.split() == ["gpu1", "1", "700", "2900", "-", "330", "to", "341", "Socket"]


def test_what_was_measured_but_not_judged_is_shown(result: CheckResult) -> None:
    told = replace(skip("gpu1", "reaches 5 Gb/s; nothing to compare it with", found="5 Gb/s"),
                   check="deep.node")  # fmt: skip
    quiet = replace(skip("gpu1", "does not apply"), check="deep.rails")
    shown = printed(replace(result, findings=(told, quiet)))

    assert "note deep.node  gpu1\n     reaches 5 Gb/s; nothing to compare it with" in shown
    assert "does not apply" not in shown


def test_a_full_disk_leaves_the_earlier_report_whole(result: CheckResult, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1) as disk:
        (disk / "a.html").write_text("earlier")
        (disk / "other").write_bytes(bytes((1 << 20) - 8192))
        many = replace(result, findings=result.findings * 100)
        with pytest.raises(UsageError, match="No space left on device"):
            write(disk / "a.html", html_page(many))
        assert (disk / "a.html").read_text() == "earlier"
        assert {path.name for path in disk.iterdir()} == {"a.html", "other"}
