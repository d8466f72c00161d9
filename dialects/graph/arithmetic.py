"""Arithmetic of two tensors, elementwise with numpy's broadcasting."""

from __future__ import annotations

from dialects.graph._shapes import broadcast_shapes, require_same_dtype
from ir.opdef import Numeric, Tensor, op
from ir.types import TensorType


def _broadcast(x: TensorType, y: TensorType) -> TensorType:
    dtype = require_same_dtype(("x", x), ("y", y))
    return TensorType(dtype, broadcast_shapes(("x", x), ("y", y)))


@op(infer=_broadcast, elementwise=True, commutative=True, exact=True)
def add(x: Numeric, y: Numeric) -> Tensor:
    """x + y, elementwise.

    Shapes broadcast by numpy's rule; both operands have the same element type.  Integers wrap around (two's
    complement), floats round once.

    Example::

        graph @example(%x: f32[B, 4], %y: f32[4]) -> f32[B, 4] {
          %z = add(%x, %y)
          return %z
        }
    """
    return x + y
