"""Sizes and offsets as objects that are equal only when they are the same one, so that comparing them is quick."""

from __future__ import annotations

from collections.abc import Iterable
from operator import le

from ir.dims import Dim
from passes.memory._sizes import Sizes


class Amount:
    """A number of bytes: an expression, and what it is at each of the example sizes."""

    __slots__ = ("below", "dim", "sums", "values", "weight")

    def __init__(self, dim: Dim, values: tuple[int, ...]) -> None:
        self.dim = dim
        self.values = values
        self.weight = sum(values)
        self.below: dict[Amount, bool] = {}
        self.sums: dict[Amount, Amount] = {}


class Amounts:
    """The amounts of one graph, each there once, and what is known of them."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self._known: dict[Dim, Amount] = {}

    def of(self, dim: Dim) -> Amount:
        found = self._known.get(dim)
        if found is None:
            found = self._known[dim] = Amount(dim, self.sizes.examples(dim))
        return found

    def add(self, a: Amount, b: Amount) -> Amount:
        found = a.sums.get(b)
        if found is None:
            found = a.sums[b] = self.of(a.dim + b.dim)
        return found

    def total(self, amounts: Iterable[Amount]) -> Amount:
        """The sum of all."""
        found = self.of(0)
        for amount in sorted(amounts, key=lambda a: a.weight):
            found = self.add(found, amount)
        return found

    def at_most(self, a: Amount, b: Amount) -> bool:
        """Whether ``a <= b`` for all sizes that the graph may have.  An example to the contrary is found sooner than a proof."""
        if a is b:
            return True
        found = a.below.get(b)
        if found is None:
            found = a.below[b] = all(map(le, a.values, b.values)) and self.sizes.at_most(a.dim, b.dim)
        return found

    def largest(self, amounts: Iterable[Amount]) -> Amount:
        """The largest of some, as one of them where that is known."""
        kept: list[Amount] = []
        for amount in dict.fromkeys(amounts):
            if not any(self.at_most(amount, k) for k in kept):
                kept = [k for k in kept if not self.at_most(k, amount)]
                kept.append(amount)
        return kept[0] if len(kept) == 1 else self.of(self.sizes.largest(k.dim for k in kept))
