"""`clusterctl sync` and `forget` between real hosts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from clusterctl.sandbox.sandbox import Sandbox

pytestmark = pytest.mark.netns

ROOT = Path(__file__).parents[2]


def clusterctl(box: Sandbox, cwd: Path, *words: str) -> tuple[int, str, str]:
    done = box.run(
        [sys.executable, "-m", "clusterctl", *words], cwd=cwd, env={"PYTHONPATH": str(ROOT)}
    )
    return done.returncode, done.stdout, done.stderr


def own_workdirs(box: Sandbox, path: Path) -> Path:
    """Write an inventory whose workdir is not shared."""
    text = box.inventory.read_text()
    path.write_text(text.replace("workdir: /shared/code", "workdir: /workspace/code"))
    assert "/workspace/code" in path.read_text()
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
    done = sandbox3.run(words, env=state)
    assert done.returncode == 0, done.stderr
    assert "node2: forgot the host key of node2" in done.stderr
    assert "--accept-new" in done.stderr
    assert known.read_text() == f"node3 ssh-ed25519 {key}\n"


NAME = "import json, sys, pathlib; from clusterctl.inventory import load; \
print(json.dumps(load(pathlib.Path(sys.argv[1])).name))"
