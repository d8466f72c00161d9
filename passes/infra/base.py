"""What a pass is: a frozen dataclass whose fields are its options.

A pass lives in a file of its own; the file's name with dashes is the pass's name (``constant_fold.py`` holds class
``ConstantFold``, called ``constant-fold``).  Its docstring is its reference page, with the program before and after.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from ir.core import Module

if TYPE_CHECKING:
    from ir.weights import WeightSource
    from passes.infra.decisions import Decisions
    from passes.infra.twins import Folding


@dataclass
class PassContext:
    """What a pass may use besides the module: the weights, a place to count what it did, and one for why, where that is asked for.

    With ``folding`` a pass that ``leaves_out`` nests like others need not make them.
    """

    sources: Mapping[str, WeightSource] = field(default_factory=dict)
    statistics: dict[str, int] = field(default_factory=dict)
    decisions: list[Decisions] | None = None
    folding: Folding | None = None

    def count(self, what: str, amount: int = 1) -> None:
        """Adds to a statistic that ``--statistics`` prints."""
        self.statistics[what] = self.statistics.get(what, 0) + amount


@dataclass(frozen=True)
class Pass:
    """Base of all passes.

    ``preserves`` says what stays the same: ``bits`` of every result on any input, or only ``values`` up to rounding
    (as when one operation becomes several), or ``approximate`` ones (as when a function of f32 becomes a polynomial that is
    good for f32 only).  ``needs_types`` asks for inferred types before it runs; with ``keeps_types``
    all that it makes has a type that can't be known better.  A pass that runs twice changes nothing the second time,
    unless ``idempotent`` is False.

    A ``local`` pass looks at the operations of a graph's own block that have regions one by one: what it makes of one
    depends on the types of the values from outside and on how they are made, not on what else uses them, and it changes
    nothing else.  New operations that belong to a nest stand beside it; pure ones may also stand behind what they use.  So nests
    that are alike become alike, and the pass runs on one of them (:mod:`passes.infra.twins`).  A pass that is ``beside`` nests
    looks at operations without regions, and changes nothing else but which values others use: it may run while nests are folded.
    A pass that ``leaves_out`` nests makes them of operations that are alike, the first one of every kind only if it is given a folding, and
    may run while such nests are missing.
    """

    preserves: ClassVar[Literal["bits", "values", "approximate"]] = "bits"
    needs_types: ClassVar[bool] = True
    keeps_types: ClassVar[bool] = False
    idempotent: ClassVar[bool] = True
    local: ClassVar[bool] = False
    beside: ClassVar[bool] = False
    leaves_out: ClassVar[bool] = False

    def is_local(self) -> bool:
        """Whether the pass is ``local`` with its options."""
        return self.local

    def is_idle(self, module: Module) -> bool:
        """Whether it is known, after a look at one nest of every kind, that the pass would change nothing."""
        return False

    def tolerance(self) -> float | None:
        """How far ``approximate`` values may be off, as a part of the largest element of a result; None for 1e-6, which f32 can have."""
        return None

    def run(self, module: Module, context: PassContext) -> bool:
        """Rewrites the module in place; returns whether anything changed."""
        raise NotImplementedError
