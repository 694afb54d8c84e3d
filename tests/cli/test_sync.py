"""`clusterctl sync` and `forget` between real hosts."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from clusterctl.sandbox.sandbox import Sandbox
from tests.cli.runs import Project, checkpoint
from tests.cli.test_json import validate

pytestmark = pytest.mark.netns

ROOT = Path(__file__).parents[2]


def clusterctl(box: Sandbox, cwd: Path, *words: str) -> tuple[int, str, str]:
    done = box.run(
        [sys.executable, "-m", "clusterctl", *words], cwd=cwd, env={"PYTHONPATH": str(ROOT)}
    )
    return done.returncode, done.stdout, done.stderr


def own_workdirs(box: Sandbox, path: Path, workdir: str = "/workspace/code") -> Path:
    """Write an inventory whose workdir is not shared."""
    text = box.inventory.read_text()
    path.write_text(text.replace("workdir: /shared/code", f"workdir: {workdir}"))
    assert workdir in path.read_text()
    return path


def test_every_host_gets_the_files(sandbox3: Sandbox, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "a b.py").write_text("print(1)\n")
    inventory = str(own_workdirs(sandbox3, tmp_path / "hosts.yaml"))
    status, out, err = clusterctl(sandbox3, code, "sync", "-i", inventory, "--json")
    assert status == 0, err
    result = json.loads(out)
    assert result["schema"] == 1
    assert {node["state"] for node in result["nodes"]} == {"updated"}
    for node in ("node1", "node2", "node3"):
        assert sandbox3.on(node, ["cat", "/workspace/code/a b.py"]).stdout == "print(1)\n"
    (code / "a b.py").unlink()
    (code / "c.py").touch()
    status, out, err = clusterctl(sandbox3, code, "sync", "-i", inventory, "--nodes", "node2")
    assert (status, out) == (0, "")
    assert "node2: /workspace/code: 1 file sent, 1 deleted" in err
    assert "1 of 1 node has the tree" in err


def test_another_workdir_is_synced_and_checked_as_launch_would(
    sandbox3: Sandbox, tmp_path: Path
) -> None:
    (tmp_path / "a.py").touch()
    other = f"/root/{tmp_path.name}"
    status, out, err = clusterctl(sandbox3, tmp_path, "sync", "--workdir", other, "--json")
    assert status == 0, err
    assert {node["workdir"] for node in json.loads(out)["nodes"]} == {other}
    for node in ("node1", "node2", "node3"):
        assert sandbox3.on(node, ["ls", other]).stdout == "a.py\n"
    words = ("check", "--only", "storage.writable", "--json")
    status, out, err = clusterctl(sandbox3, tmp_path, *words, "--workdir", "/proc/none/x")
    assert status == 1, out
    assert "/proc/none/x" in out
    status, out, err = clusterctl(sandbox3, tmp_path, *words, "--workdir", other)
    assert status == 0, out
    assert clusterctl(sandbox3, tmp_path, "sync", "--workdir", "x")[0] == 2


def test_a_shared_workdir_is_written_once(sandbox3: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "a.py").touch()
    work = f"/shared/{tmp_path.name}"
    inventory = tmp_path.with_suffix(".yaml")
    text = sandbox3.inventory.read_text()
    inventory.write_text(text.replace("workdir: /shared/code", f"workdir: {work}"))
    status, out, err = clusterctl(sandbox3, tmp_path, "sync", "-i", str(inventory), "--json")
    assert status == 0, err
    assert [n["state"] for n in json.loads(out)["nodes"]] == ["updated", "shared", "shared"]
    status, out, _ = clusterctl(sandbox3, tmp_path, "sync", "-i", str(inventory), "--json")
    assert [n["state"] for n in json.loads(out)["nodes"]] == ["unchanged"] * 3


def test_a_host_that_was_installed_anew(sandbox3: Sandbox, tmp_path: Path) -> None:
    state = {"XDG_STATE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    name = json.loads(
        sandbox3.run([sys.executable, "-c", NAME, str(sandbox3.inventory)], env=state).stdout
    )
    known = tmp_path / "clusterctl" / name / "known_hosts"
    known.parent.mkdir(parents=True)
    key = "AAAAC3NzaC1lZDI1NTE5AAAAILUYsMaJ+ao3FLjKSWPBaG1bJcTHI9WOzRi0h2l0OXqb"
    known.write_text(f"node2 ssh-ed25519 {key}\nnode3 ssh-ed25519 {key}\n")
    words = [sys.executable, "-m", "clusterctl", "forget", "-i", str(sandbox3.inventory), "node2"]
    words.append("--json")
    done = sandbox3.run(words, env=state)
    assert done.returncode == 0, done.stderr
    assert "node2: forgot the host key of node2" in done.stderr
    assert "--accept-new" in done.stderr
    document = json.loads(done.stdout)
    validate("forget", document)
    assert [(one["node"], one["dropped"]) for one in document["nodes"]] == [("node2", 1)]
    assert known.read_text() == f"node3 ssh-ed25519 {key}\n"


NAME = "import json, sys, pathlib; from clusterctl.inventory import load; \
print(json.dumps(load(pathlib.Path(sys.argv[1])).name))"


@pytest.fixture
def elsewhere(project: Project, tmp_path: Path) -> Project:
    """The same cluster from another folder, which has the inventory alone."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    shutil.copy(project.inventory, folder / "hosts.yaml")
    return replace(project, folder=folder)


def test_launch_and_resume_from_a_folder_without_the_code_leave_it_on_the_hosts(
    project: Project, elsewhere: Project
) -> None:
    box = project.sandbox
    own_workdirs(box, project.folder / "own.yaml", "/workspace/elsewhere")
    shutil.copy(project.folder / "own.yaml", elsewhere.folder / "hosts.yaml")
    (project.folder / "train.sh").write_text(f"exec {sys.executable} job.py\n")
    (project.folder / "weights.bin").write_bytes(b"weights")
    own = ("-i", "own.yaml")
    begun = project.run(
        "launch", *own, "--launcher", "direct", "--env", "STEPS=1", "--", "bash", "train.sh"
    )
    assert begun.returncode == 0, begun.stderr

    def on_hosts() -> list[str]:
        found = (
            box.on(n, ["ls", "/workspace/elsewhere"]).stdout for n in ("node1", "node2", "node3")
        )
        return list(found)

    before = on_hosts()
    assert all("train.sh" in listed for listed in before)
    again = ("resume", "-i", "hosts.yaml", "--checkpoint", "weights.bin")
    for words in (
        ("launch", "-i", "hosts.yaml", "--", "bash", "train.sh"),
        ("launch", "-i", "hosts.yaml", "--json", "--", "bash", "train.sh"),
        (*again, "--", "bash", "train.sh", "{checkpoint}"),
    ):
        answer = elsewhere.run(*words)
        assert answer.returncode == 125, answer.stderr
        assert "this folder lacks" in answer.stderr, answer.stderr
        assert f":{project.folder} (node1, node2, node3)" in answer.stderr
        assert f"hint: cd {project.folder}, or --workdir DIR" in answer.stderr
        assert on_hosts() == before
        if "--json" in words:
            document = json.loads(answer.stdout.splitlines()[-1])
            assert (document["ended_by"], document["exit_code"]) == ("sync", 125)
    ran = elsewhere.run(
        "launch",
        "-i",
        "hosts.yaml",
        "--no-sync",
        "--launcher",
        "direct",
        "--env",
        "STEPS=1",
        "--",
        "bash",
        "train.sh",
    )
    assert ran.returncode == 0, ran.stderr
    assert on_hosts() == before
    gone = elsewhere.run(
        "launch", "-i", "hosts.yaml", "--launcher", "direct", "--delete", "--", "sleep", "0"
    )
    assert gone.returncode == 0, gone.stderr
    assert "node[1-3]: /workspace/elsewhere: " in gone.stderr
    assert "deleted (" in gone.stderr
    assert on_hosts() == ["hosts.yaml\n"] * 3


def test_launch_resume_and_sync_print_what_they_delete(project: Project) -> None:
    text = own_workdirs(project.sandbox, project.folder / "own.yaml", "/workspace/deletes")
    checkpoint(project.folder / "out", 10, "lab-1")
    launch = ("launch", "--launcher", "direct", "--", "echo.py")
    resume = ("resume", "--checkpoint", "out/step-000010", "--", "echo.py", "{checkpoint}")
    plain, as_json = (launch, ("sync",)), (resume, ("sync",))  # both launch in one way
    for number in range(4):
        (project.folder / f"old{number}.py").touch()
    here = {"CLUSTERCTL_INVENTORY": str(text)}
    assert project.run("sync", env=here).returncode == 0
    for number, (verb, *words) in enumerate(plain):
        (project.folder / f"old{number}.py").unlink()
        answer = project.run(verb, *words, env=here)
        assert answer.returncode == 0, answer.stderr
        assert "node[1-3]: /workspace/deletes: " in answer.stderr
        assert f"1 deleted (old{number}.py)" in answer.stderr
    for number, (verb, *words) in enumerate(as_json, start=len(plain)):
        (project.folder / f"old{number}.py").unlink()
        answer = project.run(verb, "--json", *words, env=here)
        assert answer.returncode == 0, answer.stderr
        documents = [json.loads(line) for line in answer.stdout.splitlines()]
        synced = next(one for one in documents if one.get("kind", "sync") == "sync")
        told = [(node["deleted"], node["deleted_paths"]) for node in synced["nodes"]]
        assert told == [(1, [f"old{number}.py"])] * 3


def test_what_a_job_needs_in_workdir_may_come_with_the_sync(project: Project) -> None:
    text = own_workdirs(project.sandbox, project.folder / "own.yaml").read_text()
    inventory = yaml.safe_load(text)
    inventory["job"] = {"needs": ["demo/model"], "command": ["job.py"], "env": {"STEPS": "1"}}
    inventory["workdir"] = "/workspace/needs"
    (project.folder / "own.yaml").write_text(yaml.safe_dump(inventory))
    refused = project.run("launch", "-i", "own.yaml", "--launcher", "direct")
    assert refused.returncode == 125, refused.stderr
    assert "demo/model is missing" in refused.stderr
    assert "synced: " in refused.stderr
    (project.folder / "demo").mkdir()
    (project.folder / "demo" / "model").write_text("weights")
    answer = project.run("launch", "-i", "own.yaml", "--launcher", "direct")
    assert answer.returncode == 0, answer.stderr
