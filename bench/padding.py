"""How much of a step is filling, and how unevenly the work falls on ranks: plain, balanced, packed.

Counts only, nothing is timed: lengths as fine-tuning data has them (log-normal), dealt out by
train/'s own code. `python bench/padding.py [--samples N] [--ranks W]`
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from train.config.batch_size import batch_size
from train.config.config import Config
from train.data.batches import Batches, Position
from train.data.mixture import Share
from train.data.token_store import Ints

SEQ_LEN = 2048


@dataclass(frozen=True)
class Samples:
    """Samples of certain lengths, and of no content."""

    lengths: Ints

    @property
    def targets(self) -> Ints:
        """All but the first token."""
        return self.lengths - 1

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def shares(self) -> tuple[Share, ...]:
        """Return the only data set."""
        return (Share(samples=len(self)),)

    def sample(self, number: int) -> tuple[Ints, Ints]:
        """Return zeros."""
        ids = np.zeros(self.lengths[number], np.int64)
        return ids, ids


def measure(samples: Samples, mode: str, ranks: int, each: int) -> tuple[float, float, int]:
    """Return share of filling, the slowest rank's work against the mean, and steps an epoch."""
    config = Config(
        name_or_path="-",
        dataset_path="-",
        batching=mode,  # type: ignore[arg-type]
        seq_len=SEQ_LEN,
        per_device_train_batch_size=each,
        global_batch_size=each * ranks * 4,
    )
    size = batch_size(config, ranks)
    parts = [
        Batches(samples, None, config, size, rank=rank)  # type: ignore[arg-type]
        for rank in range(ranks)
    ]
    padding = tokens = steps = 0
    uneven = []
    position = Position()
    while position.epoch == 0:
        step = [part.step(position) for part in parts]
        padded_tokens = [sum(int(b.input_ids.size) for b in one.micro_batches) for one in step]
        padding += sum(padded_tokens) - step[0].tokens
        tokens += step[0].tokens
        # Ranks meet in every pass: a step takes as long as the longest pass of each.
        sizes = [[int(b.input_ids.size) for b in one.micro_batches] for one in step]
        uneven.append(sum(map(max, zip(*sizes, strict=True))) / (sum(padded_tokens) / ranks))
        position = step[0].position
        steps += 1
    return padding / (padding + tokens), float(np.mean(uneven)), steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=8192)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--batch", type=int, default=4, help="samples in one pass of one rank")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    lengths = rng.lognormal(5.5, 0.9, options.samples).clip(8, SEQ_LEN).astype(np.int64)
    samples = Samples(lengths)
    mean = lengths.mean()
    print(f"{len(samples)} samples of {mean:.0f} tokens on average, {options.ranks} ranks")
    print(f"{'batching':10} {'filling':>8} {'longest/mean':>13} {'steps':>6} {'time to plain':>14}")
    base = None
    for mode in ("plain", "balanced", "packed"):
        filling, uneven, steps = measure(samples, mode, options.ranks, options.batch)
        work = uneven / (1 - filling)
        base = base or work
        print(f"{mode:10} {filling:8.1%} {uneven:13.3f} {steps:6} {work / base:14.2f}")


if __name__ == "__main__":
    main()
