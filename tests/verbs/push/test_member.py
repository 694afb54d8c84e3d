"""What became of a path on one node."""

import pytest

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
