"""What a pass decided about joining computations, and why: ``graph-opt explain-fusion`` prints it.

A *step* is one computation as the pass found it.  Steps end in *groups*, which are what is left to run.  A *decision* is
about a step and one that reads what it makes: a :class:`Rule` brought them together, or a :class:`Blocker` kept them apart.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from ir.diagnostics import AnyLocation


class Rule(Enum):
    """How two computations became one; the value says it of the one that makes what the other one reads."""

    MOVED = "its elements are read where they came from"
    INLINED = "computed where it is read, nothing else reads it"
    REPEATED = "cheap, computed again where it is read"
    WIDENED = "a narrow factor, which the product widens where it is read"
    JOINED = "used where it is stored"
    ROWS = "shares the loop over rows"
    MERGED = "one product for all that read the same factor"


class Blocker(Enum):
    """Why two computations stayed apart; the value says it of the one that makes what the other one reads."""

    RESULT = "a result of the graph is a value of its own"
    TENSOR = "read as a whole by an operation on tensors"
    NO_NEST = "an operation that is no nest of parallel loops"
    WRITERS = "more than one nest writes it"
    ORDERED = "its loops run in order"
    EFFECT = "it may stop the program, and what is in between has effects"
    OVERWRITTEN = "memory that it reads is written in between"
    IN_BETWEEN = "something in between reads it as well"
    PRODUCTS = "a product and another sum in one nest"
    OWN_LOOPS = "made by loops of its own inside the nest"
    RESHAPED = "read in another shape, in which its places are no sums of loop variables"
    PLACE = "read at other places than those that are stored"
    COMPUTED_PLACE = "read at places that are computed"
    REREAD = "too costly to compute again: elements are read more than once"
    SEVERAL = "too costly to compute again: there are several readers"
    REDUCED = "a sum that other loops read"
    LOOPS = "different loops"


@dataclass(frozen=True, slots=True)
class Step:
    """One computation as the pass found it: the tensor that it makes, and where the program says so."""

    name: str
    loc: AnyLocation | None


@dataclass(frozen=True, slots=True)
class Decision:
    """What became of a step and one of its readers: numbers of steps, or a reader that is no step by what it is."""

    step: int
    reader: int | str
    verdict: Rule | Blocker


@dataclass
class Group:
    """What is left to run: its loops, the steps in it, and the tensors that it stores."""

    loops: str
    steps: list[int]
    stores: list[str]


@dataclass
class Decisions:
    """The record of one graph; ``what`` a group is."""

    graph: str
    steps: list[Step] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    what: str = "loop nest"
