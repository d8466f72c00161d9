"""Pass ``expand-math``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

from dialects.arith.cast import extf, truncf
from ir.builder import Builder
from ir.core import Graph, Module, Operation, Value
from ir.diagnostics import did_you_mean
from ir.rewriter import replace_op, walk_graphs
from ir.types import ScalarType, VectorType, bf16, f16, f32
from passes.infra.base import Pass, PassContext
from passes.vector._error import erf, erfc, gelu, normcdf
from passes.vector._exponential import exp, expm1, tanh
from passes.vector._gate import gelu_tanh, sigmoid, silu
from passes.vector._kit import Kit, with_dtype
from passes.vector._logarithm import log, log1p, rsqrt
from passes.vector._power import powf
from passes.vector._trigonometry import cos, sin, tan

EXPANSIONS: dict[str, Callable[..., Value]] = {
    f"math.{function.__name__}": function
    for function in (exp, expm1, tanh, sigmoid, silu, erf, erfc, normcdf, gelu, gelu_tanh, log, log1p, rsqrt, powf, sin, cos, tan)
}
"""By full name of the operation: what builds it from simpler ones, for f32."""


@dataclass(frozen=True)
class ExpandMath(Pass):
    """Replaces functions of f32 by polynomials, for scalars and vectors.

    Before::

        %y = math.rsqrt(%x) : vector<f32[16]>

    After::

        %one = arith.constant(1.0) : f32
        %y.sqrt = math.sqrt(%x) : vector<f32[16]>
        %y = arith.divf(%one, %y.sqrt) : vector<f32[16]>

    exp, expm1, tanh, sigmoid, silu, erf, erfc, normcdf, gelu, gelu_tanh, log, log1p, rsqrt, powf, sin, cos and tan become straight
    code of arithmetic that rounds once (with fused multiply-adds), comparisons, choices and shifts: no calls, no tables, no
    branches.  So a vector is computed at once, and an interpreter and a compiler get the same bits.  Constants are made once, at
    the top of the graph.

    Errors in ulp over all floats, results that are denormal too: exp, log, rsqrt and powf at most 1, expm1, tanh, erf, log1p, sin
    and cos at most 2, sigmoid, silu, gelu_tanh, erfc and normcdf at most 3, gelu and tan at most 4.  Special values are those of
    the operations.  f16 and bf16 are computed in f32 and rounded; f64 stays.
    """

    preserves: ClassVar[Literal["bits", "values", "approximate"]] = "approximate"

    functions: tuple[str, ...] = ()
    """which functions, as [exp, tanh]; all that there are when it is empty"""

    keeps_types: ClassVar[bool] = True
    local: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in self._wanted():
            if name not in EXPANSIONS:
                hint = did_you_mean(name.removeprefix("math."), [n.removeprefix("math.") for n in EXPANSIONS])
                raise ValueError(f"there is no expansion of '{name.removeprefix('math.')[:80]}'" + (f"; {hint}" if hint else ""))

    def _wanted(self) -> list[str]:
        return [n if "." in n else f"math.{n}" for n in self.functions] or list(EXPANSIONS)

    def run(self, module: Module, context: PassContext) -> bool:
        wanted = frozenset(self._wanted())
        changed = False
        for graph in walk_graphs(module):
            kit = Kit(graph)
            for op in _found(graph, wanted):
                _expand(op, kit)
                context.count(f"{op.definition.text_name} expanded")
                changed = True
        return changed


def _found(graph: Graph, wanted: frozenset[str]) -> list[Operation]:
    found = []
    for op in graph.walk():
        if op.name in wanted:
            type_ = op.operands[0].type
            if isinstance(type_, (ScalarType, VectorType)) and type_.dtype in (f32, f16, bf16):
                found.append(op)
    return found


def _expand(op: Operation, kit: Kit) -> None:
    type_ = op.result.type
    assert isinstance(type_, (ScalarType, VectorType))
    stored_wide = type_.dtype == f32
    with Builder.before_op(op):
        wide = [x if stored_wide else extf(x, result_type=with_dtype(x, f32)) for x in op.operands]
        y = EXPANSIONS[op.name](kit, *wide, **op.attributes)
        replace_op(op, [y if stored_wide else truncf(y, result_type=type_)])
