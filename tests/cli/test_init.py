"""`clusterctl init` as a person types it, without a look at the hosts."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from clusterctl.cli.shared.main import main
from clusterctl.inventory import load
from clusterctl.inventory.schema import json_schema
from clusterctl.verbs.init import draft
from tests.cli.test_json import validate


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "My Project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("CLUSTERCTL_INVENTORY", raising=False)
    return folder


def test_hosts_are_filled_in(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(
            [
                "init",
                "--no-connect",
                "gpu[01-04]",
                "root@10.0.0.9:2222",
                "[fd00::5]:22",
                "localhost",
            ]
        )
        == 0
    )
    cluster = load(Path("hosts.yaml"))
    assert cluster.name == "my-project"
    assert [(node.host, node.ssh.user, node.ssh.port) for node in cluster.nodes] == [
        ("gpu01", None, None),
        ("gpu02", None, None),
        ("gpu03", None, None),
        ("gpu04", None, None),
        ("10.0.0.9", "root", 2222),
        ("fd00::5", None, 22),
        ("localhost", None, None),
    ]
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        "wrote hosts.yaml\nhint: clusterctl check --accept-new, which records the hosts' keys\n"
    )


def test_what_was_written_is_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "--no-connect", "--json", "gpu1"]) == 0
    document = json.loads(capsys.readouterr().out)
    validate("init", document)
    assert document == {"schema": 1, "file": "hosts.yaml", "undecided": [], "failed": []}


def test_every_node_has_a_folder_for_the_code() -> None:
    assert main(["init", "--no-connect", "--name", "lab", "ada@gpu[01-02]", "root@gpu03"]) == 0
    assert [node.workdir for node in load(Path("hosts.yaml")).nodes] == [
        "/home/ada/clusterctl/lab", "/home/ada/clusterctl/lab", "/root/clusterctl/lab",
    ]  # fmt: skip


@pytest.mark.parametrize(("tools", "gpus"), [(("sh",), None), ((), 0)])
def test_this_machine_is_written_as_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tools: tuple[str, ...], gpus: int | None
) -> None:
    site = tmp_path / "venv" / "lib" / "python3.11" / "site-packages" / "torch"
    site.mkdir(parents=True)
    (site / "version.py").touch()
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "venv"))
    monkeypatch.setattr("clusterctl.verbs.init.draft._GPU_TOOLS", tools)
    monkeypatch.setattr("clusterctl.verbs.init.draft._GPU_SIGNS", ())
    assert main(["init", "--no-connect", "--name", "here", "localhost", "gpu01"]) == 0
    here, other = load(Path("hosts.yaml")).nodes
    assert (here.gpus, here.python) == (gpus, f"{tmp_path}/venv/bin/python")
    assert here.workdir == str(Path.home() / "clusterctl" / "here")
    assert (other.gpus, other.python) == (None, None)


def test_one_host_with_several_ports_is_one_machine() -> None:
    assert main(["init", "--no-connect", "10.0.0.9:2201", "10.0.0.9:2202"]) == 0
    cluster = load(Path("hosts.yaml"))
    assert cluster.same_machine
    assert [node.name for node in cluster.nodes] == ["10.0.0.9_2201", "10.0.0.9_2202"]


@pytest.mark.parametrize("hosts", [["gpu[01-02]"], ["a@gpu01", "root@gpu02"]])
def test_a_private_key_is_written_for_all_hosts(folder: Path, hosts: list[str]) -> None:
    key = folder / "my key"
    key.write_text("-----BEGIN OPENSSH PRIVATE KEY-----\n")
    assert main(["init", "--no-connect", "--name", "lab", "--identity", "my key", *hosts]) == 0
    assert {node.ssh.identity for node in load(Path("hosts.yaml")).nodes} == {str(key)}
    assert Path("hosts.yaml").read_text().count("ssh: {") == 1


def test_a_key_in_the_home_folder_is_named_for_all_who_share_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    key = "ansible_ssh_private_key_file"
    variables = {"g1": {key: "~/.ssh/k"}, "g2": {key: f"../{tmp_path.name}/k2"}}
    listing = {"_meta": {"hostvars": variables}, "g": {"hosts": ["g1", "g2"]}}
    Path("hosts").write_text(json.dumps(listing))
    assert main(["init", "--no-connect", "--from", "hosts"]) == 0
    text = Path("hosts.yaml").read_text()
    assert "identity: ~/.ssh/k}" in text
    assert "identity: ~/k2}" in text
    keys = [node.ssh.identity for node in load(Path("hosts.yaml")).nodes]
    assert keys == [str(tmp_path / ".ssh/k"), str(tmp_path / "k2")]


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("none", None, "expected a private key, found: No such file or directory"),
        ("key.pub", "ssh-ed25519 AAAA", "expected a private key, found another file\nhint: --id"),
    ],
)
def test_an_identity_that_is_no_private_key_is_refused(
    capsys: pytest.CaptureFixture[str], name: str, text: str | None, told: str
) -> None:
    if text is not None:
        Path(name).write_text(text)
    assert main(["init", "--no-connect", "--identity", name, "gpu01"]) == 2
    assert f"--identity {name}: {told}" in capsys.readouterr().err
    assert not Path("hosts.yaml").exists()


def test_without_hosts_it_is_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "--no-connect", "--name", "here"]) == 0
    first, *_, note, hint = capsys.readouterr().err.splitlines()
    assert (first, note) == (
        "wrote hosts.yaml",
        "no HOST was named, so this machine is the only node",
    )
    assert hint == "hint: others: clusterctl init --force gpu1 gpu2"
    cluster = load(Path("hosts.yaml"))
    assert (cluster.name, [node.local for node in cluster.nodes]) == ("here", [True])


def test_what_is_commented_out_is_right_when_it_is_not(folder: Path) -> None:
    main(["init", "--no-connect", "gpu01", "--name", "lab"])
    lines = (folder / "hosts.yaml").read_text().splitlines()
    start = lines.index("# ssh: {user: ubuntu, identity: ~/.ssh/id_ed25519, jump: bastion}")
    text = "\n".join([*lines[:start], *(line.removeprefix("# ") for line in lines[start:])])
    (folder / "full.yaml").write_text(text)
    cluster = load(folder / "full.yaml")
    assert cluster.job.resume_args == ("--resume-from-checkpoint", "{checkpoint}")
    assert cluster.nodes[0].gpus == 8


def test_the_schema_is_printed_for_editors(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", "--print-schema"]) == 0
    assert json.loads(capsys.readouterr().out) == json_schema()
    assert not (folder / "hosts.yaml").exists()


def test_a_file_that_the_variable_names_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("lab.yaml").write_text("mine")
    monkeypatch.setenv("CLUSTERCTL_INVENTORY", "lab.yaml")
    assert main(["init", "--no-connect", "gpu01"]) == 2
    first = capsys.readouterr().err.splitlines()[1]
    assert first == (
        "hint: CLUSTERCTL_INVENTORY names it; to write ./hosts.yaml: unset CLUSTERCTL_INVENTORY"
    )
    monkeypatch.delenv("CLUSTERCTL_INVENTORY")
    assert main(["init", "--no-connect", "gpu01"]) == 0


def test_a_file_that_is_there_stays(capsys: pytest.CaptureFixture[str]) -> None:
    Path("hosts.yaml").write_text("mine")
    assert main(["init", "--no-connect", "gpu01"]) == 2
    assert Path("hosts.yaml").read_text() == "mine"
    assert capsys.readouterr().err == (
        "error: hosts.yaml: expected no file yet, found one\n"
        "hint: overwrite it: clusterctl init --no-connect gpu01 --force\n"
    )
    assert main(["init", "--from", "missing"]) == 2  # `--force` would be no way out
    assert "--force" not in capsys.readouterr().err
    assert main(["init", "--no-connect", "--force", "gpu01"]) == 0
    assert load(Path("hosts.yaml")).nodes[0].host == "gpu01"


def test_hosts_that_are_none_are_all_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "--no-connect", "gpu01", "gpu01", "b[3-1]", "--name", "My Lab"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        (
            "error: --name: expected a name of 1 to 24 characters a-z, 0-9 and -, no - in front,"
            ' found "My Lab"'
        ),
        ('error: HOST 2: expected each host once, found "gpu01" again (first at HOST 1)'),
        'error: HOST 3: expected the smaller number first: 1-3, found "b[3-1]"',
        "hint: clusterctl init --help",
    ]
    assert not Path("hosts.yaml").exists()


@pytest.mark.parametrize("words", [["hostfile"], ["--hostfile", "hostfile"]])
def test_a_file_as_a_host_gets_the_flag_for_it(
    words: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "hostfile").write_text("gpu1 slots=8\n")
    assert main(["init", *words]) == 2
    assert "clusterctl init --from hostfile" in capsys.readouterr().err
    assert not (folder / "hosts.yaml").exists()


def test_a_hostfile_is_converted(folder: Path) -> None:
    (folder / "hostfile").write_text("gpu01 slots=8\ngpu02 slots=8\nroot@gpu03 slots=4\n")
    assert main(["init", "--from", "hostfile", "--no-connect", "-i", "new.yaml"]) == 0
    found = [(node.host, node.gpus, node.ssh.user) for node in load(Path("new.yaml")).nodes]
    assert found == [("gpu01", 8, None), ("gpu02", 8, None), ("gpu03", 4, "root")]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--from", "nowhere"], "error: --from nowhere: expected a file or slurm, found no such"),
        (
            ["-i", "no/such/hosts.yaml"],
            "error: no/such/hosts.yaml: expected a place to write, found",
        ),
        (["--force", "-i", "."], "error: .: expected a place to write, found: Is a directory"),
    ],
)
def test_what_cannot_be_ends_with_2(
    capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    assert main(["init", "--no-connect", *words]) == 2
    assert capsys.readouterr().err.startswith(told)


@pytest.mark.parametrize("name", ["...", "ÄÖ", "x" * 40])
def test_any_folder_gives_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / name)
    assert main(["init", "--no-connect"]) == 0
    assert load(Path("hosts.yaml")).name in {"cluster", "x" * 24}


def test_hosts_come_from_a_file_or_an_allocation(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "all.json").write_text(
        '{"_meta": {"hostvars": {"gpu01": {"ansible_user": "ada"}, "www": {}}},'
        ' "gpus": {"hosts": ["gpu01"]}, "web": {"hosts": ["www"]}}'
    )
    words = ["init", "--no-connect", "--force", "--from"]
    assert main([*words, "all.json", "--group", "gpus"]) == 0
    cluster = load(Path("hosts.yaml"))
    assert cluster.name == "my-project"
    assert [(node.host, node.ssh.user) for node in cluster.nodes] == [("gpu01", "ada")]
    monkeypatch.setenv("SLURM_JOB_NODELIST", "dgx[1-2]")
    assert main([*words, "slurm", "--name", "lab"]) == 0
    cluster = load(Path("hosts.yaml"))
    assert (cluster.name, [node.host for node in cluster.nodes]) == ("lab", ["dgx1", "dgx2"])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--from", "nowhere"], "--from nowhere: expected a file or slurm, found no such file"),
        (["--from", "slurm", "gpu01"], "--from: expected no HOST, found some"),
        (
            ["--from", "slurm", "--group", "x"],
            "--group: expected an Ansible inventory, found slurm",
        ),
        (["--group", "x", "gpu01"], "--group: expected --from FILE with it, found none"),
    ],
)
def test_sources_that_contradict_are_refused(
    capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    assert main(["init", *words]) == 2
    assert capsys.readouterr().err.startswith(f"error: {told}")


def test_a_file_that_cannot_be_written_is_not_left_empty(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(draft, "write_named", full)
    assert main(["init", "--no-connect", "gpu1"]) == 2
    assert "No space left" in capsys.readouterr().err
    assert list(folder.iterdir()) == []
