"""Children with a limit: what hangs is left behind, and none holds a descriptor of ours."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from clusterctl.node.agent.child_tasks import Child, gather, run_function, run_program
from tests.waiting import wait_until


def gathered(*children: Child) -> Child:
    gather(children)
    return children[0]


def test_a_program_gives_its_output_its_words_and_its_code() -> None:
    child = gathered(run_program("x", ["sh", "-c", "echo out; echo words >&2; exit 3"], 5))

    assert (child.state, child.exit_code) == ("ok", 3)
    assert (child.output, child.stderr) == (b"out\n", b"words\n")


def test_a_program_without_what_it_needs_is_absent_and_tells_that(tmp_path: Path) -> None:
    link, script = tmp_path / "python", tmp_path / "x.sh"
    link.symlink_to(tmp_path / "gone")
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    ended = [gathered(run_program("x", [str(path)], 5)) for path in (link, script)]
    assert {one.state for one in ended} == {"absent"}
    assert ended[0].stderr == f"it needs {tmp_path / 'gone'}, which is not there".encode()
    assert ended[1].stderr.startswith(b"it needs the interpreter or loader that it names")


def test_a_program_that_is_not_there_is_absent() -> None:
    assert gathered(run_program("x", ["no-such-program-9"], 5)).state == "absent"


def test_a_program_that_may_not_be_run_is_an_error() -> None:
    child = gathered(run_program("x", ["/etc/passwd"], 5))

    assert (child.state, child.stderr) == ("error", b"Permission denied")


def test_words_are_data_and_never_a_shell_string() -> None:
    child = gathered(run_program("x", ["printf", "%s|", "$HOME `id` ;", "", "ü*"], 5))

    assert child.output.decode() == "$HOME `id` ;||ü*|"


def test_what_hangs_is_killed_with_its_children_and_costs_the_others_nothing() -> None:
    began = time.monotonic()
    hung = run_program("hung", ["sh", "-c", "sleep 60 & echo $!; wait"], 0.3)
    quick = run_program("quick", ["echo", "done"], 5)
    gather([hung, quick])

    assert (hung.state, quick.state, quick.output) == ("timeout", "ok", b"done\n")
    assert time.monotonic() - began < 3
    grandchild = int(hung.output)
    wait_until(lambda: not _runs(grandchild), seconds=5)


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123  (a proc file)
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_program_that_floods_is_ended() -> None:
    assert gathered(run_program("x", ["cat", "/dev/zero"], 10)).state == "too-long"


def descriptors() -> list[str]:
    return os.listdir("/proc/self/fd")  # noqa: PTH208  (names are what is wanted)


def test_a_child_inherits_no_descriptor() -> None:
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    try:
        script = "import os, json; print(json.dumps(os.listdir('/proc/self/fd')))"
        listed = gathered(run_program("x", ["python3", "-S", "-c", script], 10))
        own = run_function("y", lambda write: write(json.dumps(descriptors()).encode()), 5)
        gather([own])
    finally:
        os.close(reader)
        os.close(writer)

    # Beside the three standard ones there is the listing itself.
    assert len(json.loads(listed.output)) == 4
    assert len(json.loads(own.output)) == 4


def test_a_function_that_raises_says_what() -> None:
    def fails(_write: object) -> None:
        raise RuntimeError("it broke")

    child = gathered(run_function("x", fails, 5))

    assert child.exit_code == 126
    assert b"it broke" in child.stderr


@pytest.mark.parametrize("size", [0, 1, 1 << 20])
def test_output_of_any_size_arrives(size: int) -> None:
    assert gathered(run_function("x", lambda write: write(b"x" * size), 10)).output == b"x" * size
