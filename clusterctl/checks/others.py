"""Compares each node with all others, in one look at them: a cluster may have a thousand."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from statistics import median
from typing import Any, TypeVar

from clusterctl.checks.finding import Finding, Status, finding

T = TypeVar("T")


def medians_of_others(values: Mapping[str, float]) -> dict[str, float]:
    """Return for each node the median of the other nodes' values; for a single one nothing."""
    ordered = sorted(values.values())
    middle = len(ordered) // 2
    found: dict[str, float] = {}
    # Of the places in the list without the node's own value.
    near = (middle - 1, middle) if len(ordered) % 2 else (middle - 1,)
    for name, own in values.items() if len(ordered) > 1 else ():
        place = bisect_left(ordered, own)
        found[name] = median(ordered[i if i < place else i + 1] for i in near)
    return found


def most_frequent(values: Iterable[T]) -> T | None:
    """Return the value that most have, of equally frequent ones the first; None of no value."""
    return next((value for value, _ in Counter(values).most_common(1)), None)


def highest_of_most_frequent(values: Iterable[Any]) -> Any:  # noqa: ANN401  (of any that compare)
    """Return the value that most have, of equally frequent ones the highest; None of no value."""
    return max(Counter(values).items(), key=lambda item: item[::-1], default=(None, 0))[0]


def outliers(values: Mapping[str, T]) -> Iterator[tuple[str, T, T]]:
    """Yield each node whose value is not the most frequent one, its value, and that one."""
    usual = most_frequent(values.values())
    for name, value in values.items():
        if usual is not None and value != usual:
            yield name, value, usual


def other_version(
    status: Status, node: str, what: str, found: str, usual: str, remedy: str
) -> Finding:
    """Return the finding on a node whose version is not the most frequent one."""
    message = f"another version of {what} than on the other nodes"
    return finding(status, node, message, wanted=usual, found=found, remedy=remedy)
