"""What became of a path on one node."""

import pytest

from clusterctl.errors import OPERATION, NodeError
from clusterctl.verbs.push.member import Member


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


@pytest.mark.parametrize(
    ("words", "hint"),
    [("/data: Permission denied", "--to DIR"), ("/data: No space left on device", "")],
)
def test_a_node_that_refuses_its_user_the_path_has_a_hint(words: str, hint: str) -> None:
    outcome = Member("a", "token", error=NodeError("file", OPERATION, words)).outcome("/data")
    assert (outcome.state, outcome.hint[-8:]) == ("failed", hint)
