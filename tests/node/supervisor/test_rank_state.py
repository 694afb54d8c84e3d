"""How a rank ended, in words and from torchrun's own."""

from __future__ import annotations

from clusterctl.node.supervisor.ranks.rank_state import ONLY_RANK, Rank, failures_in

# torch 2.13, static rendezvous, two ranks a node.
LOG = """\
W1120 19:34:33.581000 21096 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 21226 closing signal SIGTERM
E1120 19:34:33.601000 21096 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 7) local_rank: 1 (pid: 21228) of binary: /usr/bin/python3
E1120 19:33:36.757000 18860 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -15) local_rank: 0 (pid: 18925) of binary: /usr/bin/python3
"""  # noqa: E501


def test_torchrun_names_the_ends_that_it_saw() -> None:
    assert failures_in(LOG) == {21228: (7, None), 18925: (143, 15)}
    assert failures_in("") == {}


def test_accelerate_names_how_its_only_rank_ended() -> None:
    said = "subprocess.CalledProcessError: Command '['/p y', 'x']' "
    assert failures_in(said + "returned non-zero exit status 7.") == {ONLY_RANK: (7, None)}
    assert failures_in(said + "died with <Signals.SIGKILL: 9>.") == {ONLY_RANK: (137, 9)}


def test_an_end_is_said_in_words() -> None:
    rank = Rank(3, 1)
    rank.has_ended(7 << 8)
    assert rank.describe_end() == "rank 3 ended with exit code 7"
    rank.has_started((100, 5))
    assert (rank.exit_code, rank.running) == (None, True)
    rank.has_ended(9)
    assert rank.describe_end() == "rank 3 was killed by signal 9"
    assert rank.exit_code == 137
