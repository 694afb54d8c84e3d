"""`check` over real hosts: healthy ones are well, each fault gives one finding with its cause."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from clusterctl.errors import UsageError
from clusterctl.inventory import load
from clusterctl.sandbox.gpus import Gpus
from clusterctl.transport.pool import Pool
from clusterctl.verbs.events import Event, Progress
from clusterctl.verbs.preflight.check import CheckOptions, check, find_check, select_checks
from clusterctl.verbs.preflight.connectivity import peers

if TYPE_CHECKING:
    from clusterctl.sandbox.sandbox import Sandbox
    from tests.conftest import MakeSandbox

CHECK = [sys.executable, "-m", "clusterctl", "check", "--json"]
WRONG = {"fail", "warn", "unknown"}


def checked(box: Sandbox, *options: str) -> tuple[int, dict[str, Any]]:
    done = box.run([*CHECK, *options])
    assert done.stdout, done.stderr
    assert "Traceback" not in done.stderr
    return done.returncode, json.loads(done.stdout)


def wrong(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [finding for finding in document["findings"] if finding["status"] in WRONG]


def inventory(box: Sandbox, path: Path, **changes: Any) -> str:
    """Write the sandbox's inventory with changes, and return it."""
    document = yaml.safe_load(box.inventory.read_text()) | changes
    path.write_text(yaml.safe_dump(document))
    return str(path)


@pytest.mark.netns
def test_three_healthy_hosts_with_different_interface_names_are_well(sandbox3: Sandbox) -> None:
    code, document = checked(sandbox3)

    assert (code, wrong(document)) == (0, [])
    rows = document["nodes"]
    assert [(row["rank"], row["host"], row["state"], row["gpus"]) for row in rows] == [
        (0, "node1", "ok", 0),
        (1, "node2", "ok", 0),
        (2, "node3", "ok", 0),
    ]
    assert len({row["interface"] for row in rows}) == 3
    looked_at = {f["check"] for f in document["findings"] if f["status"] == "pass"}
    assert looked_at >= {
        "ssh.connect", "ssh.ping", "storage.shared", "network.pairs", "network.master-port",
        "network.master-reach", "python.found", "python.torch", "node.clock", "node.busy",
    }  # fmt: skip


@pytest.mark.netns
def test_a_check_leaves_nothing_on_the_nodes(sandbox3: Sandbox) -> None:
    def files() -> list[str]:
        own = map(str, Path(sandbox3.folder("node1")).rglob(".clusterctl*"))
        shared = sandbox3.on("node2", ["find", "/shared", "-name", ".clusterctl*"])
        return sorted([*own, *shared.stdout.splitlines()])

    before = files()  # other tests on the same hosts may have synced
    checked(sandbox3)
    assert files() == before
    running = sandbox3.on("node2", ["ps", "ax", "-o", "args"]).stdout
    assert "clusterctl.node" not in running


@dataclass(frozen=True, kw_only=True)
class Case:
    """A fault, and the one finding that it must give."""

    node: str
    kind: str
    value: str | None = None
    check: str
    says: str
    remedy: str
    status: str = "fail"


OF_THE_MASTER_PORT = (
    Case(node="node1", kind="port-rejected", check="network.master-reach",
         says="its firewall blocks connections to its port 29500",
         remedy=r"port_rejected_29500 input ip saddr .* dport 29500 accept \(on node1\)"),
    Case(node="node1", kind="port-taken", check="network.master-port",
         says="held by .*pid", remedy="master_port: 29501"),
)  # fmt: skip
"""Each hides others: nobody reaches the master."""

OF_ONE_NODE = (
    Case(node="node2", kind="port-dropped", check="network.master-reach",
         says="its firewall blocks connections to the master port.*dport 29500 drop",
         remedy=r"inet port_dropped_29500 output ip daddr 10.77.0.11 accept \(on node2\)"),
    Case(node="node3", kind="port-rejected", check="network.master-reach",
         says="its firewall blocks connections to the master port.*dport 29500 reject",
         remedy=r"inet port_rejected_29500 output ip daddr 10.77.0.11 accept \(on node3\)"),
    Case(node="node4", kind="sshd-killed", check="ssh.connect",
         says="refuses SSH connections.*refused", remedy="sshd"),
    Case(node="node5", kind="frozen", check="ssh.connect",
         says="accepts the connection but does not answer", remedy="sshd|overloaded"),
    Case(node="node6", kind="killed", check="ssh.connect",
         says="does not answer to SSH or ping", remedy="ping"),
    Case(node="node7", kind="shared-unmounted", check="storage.shared",
         says="/shared is not mounted: it is a plain folder", remedy="mount /shared"),
    Case(node="node8", kind="shared-replaced", check="storage.shared",
         says="another filesystem.*as on 6 other nodes", remedy="findmnt"),
    Case(node="node9", kind="hung-mount", check="storage.shared",
         says="does not answer.*no answer within", remedy="umount"),
    Case(node="node10", kind="second-interface", value="ens9=10.77.0.99/24", check="network.route",
         says="two interfaces are in 10.77.0.0/24: eno1np0, ens9", remedy="addr del .* dev ens9",
         status="warn"),
    Case(node="node11", kind="slow", value="50", check="node.cpus",
         says="a run may use 0.5 of .* CPUs", remedy="systemctl show user.slice", status="warn"),
    Case(node="node12", kind="wrong-clock", check="node.clock",
         says="300.* s ahead", remedy="timedatectl"),
)  # fmt: skip


@pytest.mark.netns
@pytest.mark.parametrize(
    ("nodes", "cases"),
    [(12, OF_ONE_NODE), *((3, (case,)) for case in OF_THE_MASTER_PORT)],
    ids=["one-node", *(case.kind for case in OF_THE_MASTER_PORT)],
)
def test_each_fault_gives_one_finding_with_node_cause_and_remedy(
    nodes: int, cases: tuple[Case, ...], make_sandbox: MakeSandbox
) -> None:
    box = make_sandbox(nodes=nodes)
    for case in cases:
        box.fault(case.node, case.kind, case.value)

    code, document = checked(box, "--skip", "ssh.login")  # a busy machine is slow to log in

    found = {tuple(finding["nodes"]): finding for finding in wrong(document)}
    assert found.keys() == {(case.node,) for case in cases}, found
    assert len(wrong(document)) == len(cases)
    for case in cases:
        finding = found[case.node,]
        assert (finding["check"], finding["status"]) == (case.check, case.status)
        said = "\n".join(finding[key] for key in ("message", "wanted", "found"))
        assert re.search(case.says, said, re.DOTALL), said
        assert re.search(case.remedy, finding["remedy"]), finding["remedy"]
    assert code == 1


@pytest.mark.netns
def test_a_second_network_and_another_name_are_noted_and_accepted(
    make_sandbox: MakeSandbox,
) -> None:
    box = make_sandbox()
    box.fault("node2", "second-interface")
    box.fault("node3", "interfaces-renamed")

    code, document = checked(box)

    assert (code, wrong(document)) == (0, [])
    (note,) = [f for f in document["findings"] if f["status"] == "pass" and f["found"]]
    assert note["nodes"] == ["node2"]
    assert "ens9" in note["message"]


@pytest.mark.netns
def test_one_name_for_all_is_wrong_where_an_interface_was_renamed(
    sandbox3: Sandbox, tmp_path: Path
) -> None:
    own = {"job": {"env": {"NCCL_SOCKET_IFNAME": "eth0,enp3s0"}}}
    code, document = checked(sandbox3, "-i", inventory(sandbox3, tmp_path / "hosts.yaml", **own))

    (finding,) = wrong(document)
    assert (code, finding["check"], finding["nodes"]) == (1, "network.ifname", ["node3"])
    assert finding["wanted"] == "=ens5 on this node"


@pytest.mark.netns
def test_a_firewall_that_leaves_only_ssh_is_found_on_ephemeral_ports(
    make_sandbox: MakeSandbox,
) -> None:
    box = make_sandbox()
    rule = "tcp dport != 22 tcp flags & (syn|ack) == syn drop"
    rules = f"table inet t {{\n chain c {{\n type filter hook input priority 0;\n {rule}\n }}\n}}\n"
    done = box.on("node2", ["nft", "-f", "-"], input=rules)
    assert done.returncode == 0, done.stderr

    code, document = checked(box)

    (finding,) = wrong(document)
    assert (code, finding["check"], finding["nodes"]) == (1, "network.pairs", ["node2"])
    assert finding["message"] == "TCP to it fails from node1, node3"


@pytest.mark.netns
@pytest.mark.parametrize(
    ("kind", "found"), [("gpu-missing", "1 x NVIDIA"), ("gpu-driver-lost", "exit code 9")]
)
def test_a_gpu_that_is_missing_or_lost_its_driver(
    kind: str, found: str, make_sandbox: MakeSandbox
) -> None:
    box = make_sandbox(nodes=2, gpus=Gpus(model="H100", count=2))
    assert checked(box, "--only", "accelerator")[0] == 0
    box.fault("node2", kind)

    code, document = checked(box)

    # Findings on torch depend on the machine: on its build, and on the time of the import.
    by_check = {f["check"]: f for f in wrong(document) if not f["check"].startswith("python.")}
    assert code == 1
    assert by_check["accelerator.count"]["nodes"] == ["node2"]
    assert found in by_check["accelerator.count"]["found"]
    assert len(by_check) == 1


@pytest.mark.netns
def test_a_lost_gpu_is_one_finding_that_names_the_card(make_sandbox: MakeSandbox) -> None:
    box = make_sandbox(nodes=2, gpus=Gpus(model="H100", count=2))
    box.fault("node2", "gpu-lost")

    code, document = checked(box, "--only", "accelerator")

    (finding,) = wrong(document)
    assert (code, finding["check"], finding["nodes"]) == (1, "accelerator.lost", ["node2"])
    assert finding["found"].startswith("GPU is lost: 0000:23:00.0")
    assert "reboot" in finding["remedy"]


HOLD_THE_NODE = """
import json, socket
door = socket.socket(socket.AF_UNIX)
door.bind("\\0clusterctl-run")
door.listen()
print("held", flush=True)
while True:
    caller, _ = door.accept()
    caller.recv(4096)
    caller.sendall(json.dumps({"run": "lab-1-abcd", "user": "ada", "since": 0}).encode() + b"\\n")
    caller.close()
"""


@pytest.mark.netns
def test_a_node_that_another_run_holds_names_the_run(make_sandbox: MakeSandbox) -> None:
    box = make_sandbox(nodes=2)
    argv = box.backend.on(box.host("node2"), [sys.executable, "-c", HOLD_THE_NODE])
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        code, document = checked(box)
        holder.kill()

    (finding,) = wrong(document)
    assert (code, finding["check"], finding["nodes"]) == (1, "node.busy", ["node2"])
    assert finding["found"] == "run lab-1-abcd of ada since 1970-01-01 00:00 UTC"
    assert finding["remedy"].startswith(
        "wait for it, or ask its owner, who can: clusterctl stop lab-1-abcd; "
    )


@pytest.mark.netns
def test_what_the_job_needs_and_its_own_check(sandbox3: Sandbox, tmp_path: Path) -> None:
    for node, size in (("node1", 10), ("node2", 10), ("node3", 11)):
        script = f"mkdir -p /root/need && head -c {size} /dev/zero > /root/need/data"
        sandbox3.on(node, ["sh", "-c", script])
    job = {
        "needs": ["/root/need"],
        "check": ["sh", "-c", 'test "$RATE" = "a b; *" || { hostname; exit 1; }'],
        "env": {"RATE": "a b; *"},
    }
    path = inventory(sandbox3, tmp_path / "hosts.yaml", job=job, workdir="/root")

    code, document = checked(sandbox3, "-i", path)

    (finding,) = wrong(document)
    assert (code, finding["check"], finding["nodes"]) == (1, "storage.needs", ["node3"])
    assert (finding["wanted"], finding["found"]) == ("10 bytes in 1 file", "11 bytes in 1 file")
    passed = {f["check"]: f["nodes"] for f in document["findings"] if f["status"] == "pass"}
    assert passed["job.check"] == ["node1", "node2"]


@pytest.mark.netns
def test_before_the_first_sync_the_jobs_own_check_asks_for_it(
    sandbox3: Sandbox, tmp_path: Path
) -> None:
    for node in ("node1", "node2", "node3"):
        sandbox3.on(node, ["mkdir", "-p", "/root/empty"])
    job = {"check": ["-m", "nothing.there", "--check"]}
    path = inventory(sandbox3, tmp_path / "hosts.yaml", job=job, workdir="/root/empty")
    _, document = checked(sandbox3, "-i", path, "--only", "job")
    (finding,) = wrong(document)
    assert finding["remedy"].startswith("clusterctl sync")


@pytest.mark.netns
def test_a_key_that_is_not_there_is_said_though_another_fits(
    sandbox3: Sandbox, tmp_path: Path
) -> None:
    ssh = {"user": "root", "identity": "~/.ssh/nokey"}
    path = inventory(sandbox3, tmp_path / "hosts.yaml", ssh=ssh)
    code, document = checked(sandbox3, "-i", path, "--only", "ssh")
    (finding,) = wrong(document)
    assert (code, finding["check"], finding["status"]) == (0, "ssh.identity", "warn")
    assert finding["found"].endswith("/.ssh/nokey: No such file or directory")


@pytest.mark.netns
def test_where_nobody_answers_no_network_is_judged(make_sandbox: MakeSandbox) -> None:
    box = make_sandbox(nodes=1)
    box.fault("node1", "sshd-killed")
    done = box.run([sys.executable, "-m", "clusterctl", "check"])
    assert done.returncode == 1
    assert "network: the addresses of all nodes are unknown" in done.stdout


@pytest.mark.netns
@pytest.mark.torch
def test_a_deep_check_sums_with_the_jobs_own_torch_what_the_network_gives(
    sandbox3: Sandbox,
) -> None:
    """The hosts' links claim 10 Gb/s."""
    code, document = checked(sandbox3, "--deep", "--nodes", "2")

    # Processes that share a few cores are not equally fast: only that may be said.
    assert (code, {finding["check"] for finding in wrong(document)} - {"deep.pairs"}) == (0, set())
    (deep,) = [f for f in document["findings"] if f["check"] == "deep.all-reduce"]
    assert (deep["status"], deep["nodes"]) == ("pass", ["node1", "node2"])
    assert re.search(r"the gloo all-reduce across the nodes reaches \d", deep["message"])
    assert [(pair["from"], pair["peer"]) for pair in document["pairs"]] == list(
        itertools.permutations(["node1", "node2"], 2)
    )
    pairs = [found for found in document["findings"] if found["check"] == "deep.pairs"]
    assert pairs
    for found in pairs:
        assert "of the 10 Gb/s of the slowest link" in found["message"] or found["status"] == "warn"
        assert found["wanted"].startswith("at least 2 Gb/s, 20 %")
    skipped = {f["check"]: f["message"] for f in document["findings"] if f["status"] == "skip"}
    assert skipped["deep.rails"] == "only with --deep, if all nodes have GPUs"
    assert document["ladder"]["rails"] == []


@pytest.mark.soak  # above, what is measured; tests/checks/deep.pairs judges it
@pytest.mark.netns
@pytest.mark.torch
def test_a_deep_check_names_the_node_whose_network_is_slow(make_sandbox: MakeSandbox) -> None:
    box = make_sandbox(nodes=3)
    box.fault("node3", "slow-network", "20")

    _, document = checked(box, "--deep", "--only", "deep")

    (slow,) = wrong(document)
    assert (slow["check"], slow["nodes"]) == ("deep.pairs", ["node3"])
    assert slow["message"] == "it exchanges data slowly with every other node"


@pytest.mark.netns
def test_saved_facts_are_judged_again_without_a_machine(sandbox3: Sandbox, tmp_path: Path) -> None:
    facts, page = tmp_path / "facts.json", tmp_path / "check.html"
    checked(sandbox3, "--save-facts", str(facts))
    document = json.loads(facts.read_text())
    document["nodes"][1]["rsync"] = ""
    facts.write_text(json.dumps(document))

    code, judged = checked(sandbox3, "--facts", str(facts), "--report", str(page))

    assert code == 1
    assert [(f["check"], f["nodes"]) for f in wrong(judged)] == [("node.rsync", ["node2"])]
    assert "rsync is not installed" in page.read_text()


def test_this_machine_alone_is_checked_without_ssh(tmp_path: Path) -> None:
    path = tmp_path / "hosts.yaml"
    path.write_text(
        f"cluster: here\ndefaults: {{gpus: 0, python: {sys.executable}}}\n"
        f"shared: [{tmp_path}]\nworkdir: {tmp_path}\nnodes: [localhost]\n"
    )
    cluster = load(path)
    events: list[Event] = []
    with Pool(cluster) as pool:
        options = CheckOptions(skip=("storage.room",))
        result = check(cluster, pool, options, emit=events.append)

    assert [f for f in result.findings if f.status in {"fail", "unknown"}] == []
    assert result.blocking == ()
    assert {event.phase for event in events if isinstance(event, Progress)} == {
        "connecting",
        "reading facts",
        "trying connections",
    }
    (facts,) = result.facts.values()
    assert facts.clock is not None
    assert abs(facts.clock.offset_s) <= facts.clock.error_s + 0.01


def test_a_check_that_does_not_exist_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        select_checks(CheckOptions(only=("network.pear",)))
    assert caught.value.hint == "--only network.pairs"
    with pytest.raises(UsageError):
        find_check("network")  # an area is no check


def test_areas_stand_for_their_checks() -> None:
    chosen = {
        rule.id for rule in select_checks(CheckOptions(only=("network",), skip=("network.link",)))
    }

    assert "network.pairs" in chosen
    assert "network.link" not in chosen
    assert "ssh.connect" not in chosen


def test_of_many_nodes_each_tries_some_and_all_are_tried() -> None:
    names = tuple(f"n{i}" for i in range(128))
    tried = {name: peers(names, name) for name in names}

    assert max(len(others) for others in tried.values()) <= 8
    assert all(name not in others for name, others in tried.items())
    assert all("n0" in others for name, others in tried.items() if name != "n0")
    times = [sum(name in others for others in tried.values()) for name in names]
    assert min(times) >= 7
    assert set(peers(names[:4], "n1")) == {"n0", "n2", "n3"}


@pytest.mark.soak
def test_128_hosts_are_all_looked_at_and_a_dead_one_hides_no_other(
    make_sandbox: MakeSandbox,
) -> None:
    box = make_sandbox(nodes=128, backend="loopback")
    names = {f"127.0.0.1_{host.port}" for host in box.hosts}
    dead = f"127.0.0.1_{box.host('node77').port}"

    def answers() -> tuple[set[str], dict[str, Any]]:
        _, document = checked(box)  # this machine may have faults of its own
        well = {row["name"] for row in document["nodes"] if row["state"] == "ok"}
        return well, document

    well, document = answers()
    assert well == names
    assert not [finding for finding in wrong(document) if finding["status"] == "unknown"]

    box.fault("node77", "sshd-killed")
    well, document = answers()
    assert well == names - {dead}
    connect = [finding for finding in wrong(document) if finding["check"] == "ssh.connect"]
    assert [finding["nodes"] for finding in connect] == [["127.0.0.1"]]
