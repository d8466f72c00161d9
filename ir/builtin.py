"""The two operations that end a region; every program has them."""

from __future__ import annotations

from typing import Any

from ir.opdef import AnyValue, op


def _nothing(*values: Any) -> tuple[()]:
    return ()


@op(infer=_nothing, name="return", is_terminator=True, pure=False, exact_bits=True)
def return_(*values: AnyValue) -> None:
    """Ends a graph; its operands are the results.

    Example::

        graph @example(%x: f32[4]) -> f32[4] {
          return %x
        }
    """


@op(infer=_nothing, name="yield", is_terminator=True, pure=False, exact_bits=True)
def yield_(*values: AnyValue) -> None:
    """Ends the region of an operation and hands values back to it.

    Example::

        graph @example(%x: f32[B]) -> f32[B] {
          %s = scf.for(%i = 0 to 3, %acc = %x) {
            %t = add(%acc, %acc) : f32[B]
            yield %t
          } : f32[B]
          return %s
        }
    """
