"""Special functions of one tensor, elementwise, beside those of ``elementwise``."""

from __future__ import annotations

from typing import Any

from dialects.graph import _special
from ir.opdef import Float, Tensor, op
from ir.types import TensorType


def _same(x: TensorType, **_: Any) -> TensorType:
    return x


@op(infer=_same, elementwise=True)
def erfc(x: Float) -> Tensor:
    """The complementary error function 1 - erf(x), elementwise.

    Keeps its digits where erf(x) is close to 1, down to denormals.  erfc(inf) is 0, erfc(-inf) is 2, NaN stays NaN.
    Computed by the rational approximations of W. J. Cody, Math. Comp. 23 (1969) 631-637.

    Example::

        graph @example(%x: f32[B, 4]) -> f32[B, 4] {
          %y = erfc(%x)
          return %y
        }
    """
    return _special.erfc(x)
