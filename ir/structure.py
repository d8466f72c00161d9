"""Which operations are alike: the same in everything but the values from outside that they use, names, places and comments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ir.attributes import attribute_key
from ir.core import Operation, Value
from ir.diagnostics import AnyLocation
from ir.layout import LAYOUT

Structure = tuple[Any, ...]
"""Equal for two operations exactly when one is the other under a renaming of values; see :func:`structure_of`."""


class Copy(NamedTuple):
    """What an operation is a copy of, and which values (of those from outside, at least) stand in the place of which.

    A copy with ``locations`` is a stand-in: it has the very regions of the original, so what is inside uses the original's values, and
    has the original's places, for which ``locations`` has others.  It has no results, and no loop inside of it is shared by threads.
    """

    original: Operation
    mapping: Mapping[Value, Value]
    locations: Mapping[AnyLocation, AnyLocation] | None = None


Copies = Mapping[Operation, Copy]
"""Operations that are copies of others."""

_END = "end"


def structure_of(op: Operation, describe: Callable[[Value], Any]) -> tuple[Structure, list[Value]]:
    """The structure of an operation with its regions, and the values from outside that it uses, in the order of first use.

    ``describe`` says what has to agree about a value from outside besides which uses are of the same value: its type, say.
    """
    numbers: dict[Value, int] = {}
    outside: list[Value] = []
    found: list[Any] = []
    _visit(op, numbers, outside, found.append, describe)
    return tuple(found), outside


def _visit(
    op: Operation, numbers: dict[Value, int], outside: list[Value], add: Callable[[Any], None], describe: Callable[[Value], Any]
) -> None:
    add(op.definition)
    add((len(op.operand_uses), len(op.results), len(op.regions)))
    for use in op.operand_uses:
        value = use.value
        number = numbers.get(value)
        if number is None:
            number = numbers[value] = len(numbers)
            outside.append(value)
            add(describe(value))
        add(number)
    attributes = op.attributes
    if attributes:
        for name in attributes if len(attributes) == 1 else sorted(attributes):
            attribute = attributes[name]
            add(name)
            add(attribute if name == LAYOUT else attribute_key(attribute))
    for result in op.results:
        numbers[result] = len(numbers)
        add(result.type)
    for region in op.regions:
        for block in region.blocks:
            for argument in block.arguments:
                numbers[argument] = len(numbers)
                add(argument.type)
            inner = block.first
            while inner is not None:
                _visit(inner, numbers, outside, add, describe)
                inner = inner.next
            add(_END)
