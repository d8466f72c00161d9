"""Calls of other graphs."""

from __future__ import annotations

from typing import Any

from ir.attributes import GraphRef
from ir.opdef import Stored, op


def _from_callee(callee: GraphRef, *args: Any) -> None:
    """Never used for its result: the types come from the called graph, which the type inference of the module knows."""


@op(infer=_from_callee, result_count=None, pure=False)
def call(callee: GraphRef, *args: Stored) -> Any:
    """Runs another graph of the module.

    ``callee`` is ``@name``; ``args`` are its parameters, in order.  There is one result for each of its results,
    and behind these one for each of its ``inout`` parameters: the updated array.  The types of the arguments must
    fit those of the parameters: symbolic dimensions of the callee take the values (or expressions) of the
    arguments' dimensions, the same name the same dimension everywhere.  A graph may not call itself, directly or
    through others.

    A call may have effects (an ``inout`` parameter of the callee, which needs an ``inout`` parameter as its
    argument), so it is neither removed nor merged; the pass ``inline`` puts the graph in its place.

    Example::

        graph @double(%x: f32[N]) -> f32[N] {
          %y = add(%x, %x)
          return %y
        }

        graph @example(%a: f32[B]) -> f32[B] {
          %b = call(@double, %a)
          return %b
        }
    """
    raise NotImplementedError("graph.call is run by the interpreter")
