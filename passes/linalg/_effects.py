"""Nests of operations that do something besides computing: checks and updates in place."""

from __future__ import annotations

from ir.core import Value
from passes.linalg._bodies import check
from passes.linalg._nests import Access, Lowering, tensor_type


def asserted(low: Lowering) -> list[Value]:
    """``assert``: a check of every element."""
    message = low.op.attribute("message") or "an element is false"
    loops = low.loops(tensor_type(low.op.operands[0]).shape)
    # a message has room for two numbers, and none if it would be confused with its own text
    shown = loops if len(loops) <= 2 and "{0}" not in str(message) and "{1}" not in str(message) else []
    where = f" at [{', '.join(f'{{{i}}}' for i in range(len(shown)))}]" if shown else ""

    def body(condition: Value) -> None:
        check(condition, f"assert: {message}{where}", [low.index(loop) for loop in shown])

    low.generic(loops, [Access(low.operand("cond"), tuple(n.name for n in loops))], None, body)
    return []
