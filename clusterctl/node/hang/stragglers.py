"""Judges for which ranks the others wait, in a run that continues. Pure: others sample.

Ranks that train together are equally slow on the clock. They differ in what they do meanwhile: all
but the slow one rest in a collective for a part of each step. So a rank is slow if it has work of
its own for more of the time than is usual, again and again while the others work, too.

A rank may poll in a collective, and then seems to work. So who seems slow is a suspect until
its stacks tell that it does not wait there.
"""

from __future__ import annotations

from collections import deque
from typing import Deque, Dict, Iterable, List, Mapping, NamedTuple, Tuple

SAMPLES = 12
"""So many samples are judged together: a minute of those of 5 s."""
SCALES = (1, 4, 12)
"""So many samples count as one: in a short one, a rank with long steps may do nothing but wait."""
LEAST = 2 / 3
"""So much of the samples must agree. Else only one rank works for a while: it saves, tokenizes."""
WORKS = 0.02
"""The share of a sample in which the usual rank has work of its own, if it does anything."""
ENTER, LEAVE = 0.25, 0.12
"""The share of the time that the others lose to a slow rank: from where on, and until when."""
LOOKS = 6
"""How often the stacks of a suspect are read before it is judged."""
WAITS = 1 / 2
"""Of what the others lose: who waits in so large a share of the looks only polls meanwhile."""
BLIND_SAMPLES = 6
"""After so many samples without a look, there is nothing on its node that reads stacks."""

Key = Tuple[str, int]
"""A node and a rank: what a node tells concerns none but its own."""


class Work(NamedTuple):
    """What a rank has done since it was first seen; all of it only grows."""

    seen: float
    """Seconds in which it was watched."""
    own: float
    """Of these, when it ran, wanted to run, waited for a disk, or was stopped."""
    ran: float
    """Of these, when it ran: only who runs may poll."""
    looks: int = 0
    """How often its stacks were read."""
    waits: int = 0
    """How often they showed it waiting for others."""


class Slow(NamedTuple):
    """A rank for which the others wait, or seem to."""

    lost: float
    """The share of the time that they lose."""
    began: Work
    """What it had done when it was suspected."""
    sure: bool = False
    refuted: bool = False
    """It waits, too: it only polls meanwhile."""
    samples: int = 0
    """How many there were since it was suspected."""


class _Sample(NamedTuple):
    """The share of the time in which each rank had work of its own."""

    shares: Dict[Key, float]
    usual: float
    most: float
    """What half of the ranks at least do not exceed."""
    ran: Dict[Key, float]
    usually_ran: float


class _Window:
    """The last samples of one length."""

    def __init__(self, scale: int, told: Mapping[Key, Work]) -> None:
        self._scale, self._count = scale, 0
        self._begin = dict(told)
        self._samples: Deque[_Sample] = deque(maxlen=SAMPLES)

    def add(self, told: Mapping[Key, Work]) -> None:
        """Take what all ranks have done until now."""
        self._count += 1
        if self._count % self._scale:
            return
        begin, self._begin = self._begin, dict(told)
        shares = {
            key: min(1.0, max(0.0, work.own - begin[key].own) / (work.seen - begin[key].seen))
            for key, work in told.items()
        }
        ran = {
            key: min(1.0, max(0.0, work.ran - begin[key].ran) / (work.seen - begin[key].seen))
            for key, work in told.items()
        }
        known, usually_ran = list(shares.values()), _median_low(ran.values())
        usual, most = _median_low(known), sorted(known)[len(known) // 2]
        self._samples.append(_Sample(shares, usual, most, ran, usually_ran))

    @property
    def usable(self) -> List[_Sample]:
        """The samples in which the usual rank worked; none if these are too few."""
        found = [one for one in self._samples if one.usual >= WORKS]
        return found if len(found) >= LEAST * SAMPLES else []


class Stragglers:
    """The slow ranks of a run: the master's judgement of what all nodes tell."""

    def __init__(self, period: float) -> None:
        """Judge ranks that are sampled once in so many seconds."""
        self._period = period
        self._last: Dict[Key, Work] = {}
        self._windows: List[_Window] = []
        self.slow: Dict[Key, Slow] = {}

    def see(self, told: Mapping[Key, Work], *, polls: bool = False) -> None:
        """Take what each rank has done.

        Args:
            told: all that run now.
            polls: ranks that wait may well poll, as with NCCL: only a look tells.
        """
        last = self._last
        if told.keys() != last.keys() or any(told[key].seen < last[key].seen for key in told):
            # Ranks have been started, or have ended.
            self._last, self.slow = dict(told), {}
            self._windows = [_Window(scale, told) for scale in SCALES]
        elif len(told) > 1 and all(
            told[key].seen - last[key].seen >= 0.8 * self._period for key in told
        ):
            self._last = dict(told)
            for window in self._windows:
                window.add(told)
            self._judge(polls=polls)

    def _judge(self, *, polls: bool) -> None:
        # The shortest that tells: a long one remembers what is over.
        found = (window.usable for window in self._windows)
        samples = next(filter(None, found), None)
        if samples is None:
            return  # all rest, or only one works: nothing follows from that
        for key, work in self._last.items():
            lost = _lost([one.shares[key] - one.usual for one in samples])
            known = self.slow.get(key)
            if known is None:
                if lost >= ENTER:
                    self.slow[key] = Slow(lost, work)
            elif lost < LEAVE:
                del self.slow[key]
            else:
                known = known._replace(lost=lost, samples=known.samples + 1)
                most = _lost([one.shares[key] - one.most for one in samples])
                ran = sum(one.ran[key] - one.usually_ran for one in samples) / len(samples)
                sure = ran < LEAVE  # it does not poll: it is kept from running
                blind = not polls and (sure or most >= ENTER)
                self.slow[key] = _decided(known, work, sure=sure, blind=blind)


def _median_low(numbers: Iterable[float]) -> float:
    """Return the same as `statistics`, whose import takes long."""
    ordered = sorted(numbers)
    return ordered[(len(ordered) - 1) // 2]


def _lost(gaps: List[float]) -> float:
    """Return the share of the time that others lose to a rank; 0 if that is in few samples only."""
    sustained = sum(gap >= LEAVE for gap in gaps) >= LEAST * len(gaps)
    return sum(gaps) / len(gaps) if sustained else 0.0


def _decided(one: Slow, work: Work, *, sure: bool, blind: bool) -> Slow:
    """Return a suspect as its stacks show it.

    Args:
        work: what it has done until now.
        sure: its stacks need not tell that it does not wait.
        blind: it may be judged without any look.
    """
    if one.sure or one.refuted:
        return one
    looks, waits = work.looks - one.began.looks, work.waits - one.began.waits
    if looks >= LOOKS:
        waiting = not sure and waits >= WAITS * one.lost * looks
        return one._replace(sure=not waiting, refuted=waiting)
    return one._replace(sure=blind and not looks and one.samples >= BLIND_SAMPLES)
