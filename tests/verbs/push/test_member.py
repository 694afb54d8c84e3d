"""What became of a path on one node."""

import pytest
from rich.console import Console

from clusterctl.errors import OPERATION, NodeError
from clusterctl.report.copies import show_push
from clusterctl.verbs.push.member import Member
from clusterctl.verbs.push.result import PathPush, PushResult


@pytest.mark.parametrize(
    ("extra", "state"),
    [
        ("", "unchanged"),
        ("rng_state_1.pth", "unchanged"),
        ("c-20/rng_state_2.pth, c-20/rng_state_3.pth", "unchanged"),
        ("rng_state_1.pth, model-00003-of-00003.safetensors", "failed"),
        ("rng_state_1.pth and 4 more", "failed"),
    ],
)
def test_a_folder_with_other_files_is_no_copy_but_for_those_of_a_nodes_own_ranks(
    extra: str, state: str
) -> None:
    assert Member("a", "token", extra=extra).outcome("/out").state == state


def test_what_a_push_replaced_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    members = (
        Member("a", "token", missing=2, received=2, replaced="x.txt"),
        Member("b", "token", missing=2, received=2),
        Member("c", "token", replaced="x.txt", leader="a"),
    )
    nodes = tuple(member.outcome("/data") for member in members)
    path = PathPush(path="x", source="a", source_path="/x", bytes=2, files=1, nodes=nodes)
    result = PushResult(cluster="lab", paths=(path,), dry_run=False, seconds=1.0)
    show_push(Console(width=100), result)
    printed = capsys.readouterr().out
    assert "a: /data: received 2 bytes, replaced x.txt\n" in printed
    assert "b: /data: received 2 bytes\n" in printed
    assert "c: /data is shared with a\n" in printed


@pytest.mark.parametrize(
    ("words", "hint"),
    [("/data: Permission denied", "--to DIR"), ("/data: No space left on device", "")],
)
def test_a_node_that_refuses_its_user_the_path_has_a_hint(words: str, hint: str) -> None:
    outcome = Member("a", "token", error=NodeError("file", OPERATION, words)).outcome("/data")
    assert (outcome.state, outcome.hint[-8:]) == ("failed", hint)
