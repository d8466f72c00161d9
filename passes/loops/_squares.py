"""Squares of 16 by 16 numbers, turned in two halves: what stands between them leaves room for other work.

A square whose rows are keys becomes one whose rows are numbers of all keys.  First every four rows that are 4 apart exchange their
groups of 4 elements (:func:`exchanged`), and four of the results then exchange single elements (:func:`turned`), which makes four rows of
the turned square.  So four rows after the other leave it, while four rows after the other of the next square take the registers that
become free.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dialects.vector import shuffle
from ir.core import Value

SIDE = 16
"""Rows and columns of a square."""
GROUP = 4
"""Elements that move together in the first half, and rows that are made at once in the second."""


def _groups(*chosen: int) -> tuple[int, ...]:
    """The elements of some groups of two rows, one behind the other."""
    return tuple(GROUP * group + n for group in chosen for n in range(GROUP))


def _in_groups(*chosen: int) -> tuple[int, ...]:
    """The same elements of each group of two rows; from 4 on those of the second row."""
    return tuple(n % GROUP + n // GROUP * SIDE + GROUP * group for group in range(SIDE // GROUP) for n in chosen)


FRONT, BEHIND = _groups(0, 1, 4, 5), _groups(2, 3, 6, 7)
EVEN, ODD = _groups(0, 2, 4, 6), _groups(1, 3, 5, 7)
LOW, HIGH = _in_groups(0, 4, 1, 5), _in_groups(2, 6, 3, 7)
LOW_PAIRS, HIGH_PAIRS = _in_groups(0, 1, 4, 5), _in_groups(2, 3, 6, 7)


def _shuffled(x: Value, y: Value, masks: Iterable[tuple[int, ...]], name: str) -> list[Value]:
    return [shuffle(x, y, mask=mask, name=name) for mask in masks]


def exchanged(rows: Sequence[Value]) -> list[Value]:
    """Of four rows: the first group of each, then the second group of each, and so on."""
    a, b, c, d = rows
    (front, behind), (front2, behind2) = (_shuffled(x, y, (FRONT, BEHIND), "halves") for x, y in ((a, b), (c, d)))
    return [*_shuffled(front, front2, (EVEN, ODD), "groups"), *_shuffled(behind, behind2, (EVEN, ODD), "groups")]


def turned(rows: Sequence[Value]) -> list[Value]:
    """Of four rows: the first element of each group, by groups, then the second ones, and so on."""
    a, b, c, d = rows
    (low, high), (low2, high2) = (_shuffled(x, y, (LOW, HIGH), "pairs") for x, y in ((a, b), (c, d)))
    return [*_shuffled(low, low2, (LOW_PAIRS, HIGH_PAIRS), "turned"), *_shuffled(high, high2, (LOW_PAIRS, HIGH_PAIRS), "turned")]
