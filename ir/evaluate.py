"""Running an op's body on numpy arrays with the reference rounding rule.

The rule: a narrow float (f32, f16, bf16) is widened to float64, the body computes there, and the result is rounded
once to its type.  So sums do not depend on the order of their terms beyond float64 rounding, and unary functions are
correctly rounded almost everywhere: the interpreter can judge compiled code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ir.attributes import Attribute
from ir.types import DType, MemRefType, Type, bf16, f64

if TYPE_CHECKING:
    from ir.opdef import OpDef


def round_to(array: NDArray[Any], dtype: DType) -> NDArray[Any]:
    """``array`` converted to a float type with one rounding (nearest, ties to even); NaN stays NaN."""
    target = dtype.numpy
    if array.dtype == target:
        return array
    with np.errstate(all="ignore"):
        if dtype == bf16 and array.dtype == np.float64:
            # The library converts through float32, which would round twice; rounding to odd first makes it once.
            narrow = array.astype(np.float32)
            back = narrow.astype(np.float64)
            bits = narrow.view(np.uint32) if narrow.ndim else narrow.reshape(1).view(np.uint32).reshape(())
            inexact = (back != array) & np.isfinite(narrow)
            toward = np.where(np.abs(back) > np.abs(array), bits - np.uint32(1), bits)
            odd = np.where(inexact, toward | np.uint32(1), bits).astype(np.uint32)
            return odd.view(np.float32).astype(target)
        return array.astype(target)


READS_STORED_BITS = frozenset({"graph.bitcast", "arith.bitcast"})
"""Operations that look at the stored bits of elements: what ``double`` keeps wider is rounded before them."""


def call_body(
    definition: OpDef,
    arrays: Sequence[NDArray[Any]],
    names: Sequence[str],
    attributes: Mapping[str, Attribute],
    result_types: Sequence[Type],
    operand_dtypes: Sequence[DType],
    double: bool,
) -> tuple[NDArray[Any], ...]:
    """See :meth:`ir.opdef.OpDef.evaluate`."""
    assert definition.body is not None, definition.full_name
    if definition.full_name in READS_STORED_BITS and operand_dtypes[0] == result_types[0].dtype:  # type: ignore[union-attr]
        return (_finish(arrays[0], result_types[0], double),)  # no bits are looked at, so nothing is rounded for them
    widen = not definition.exact_bits
    positional: list[Any] = []
    keyword: dict[str, Any] = {o.name: None for o in definition.optional_operands}
    for array, name, dtype in zip(arrays, names, operand_dtypes, strict=True):
        if definition.full_name in READS_STORED_BITS and dtype.is_float:
            array = round_to(array, dtype)
        elif widen and dtype.is_float and array.dtype != np.float64:
            with np.errstate(invalid="ignore"):  # a signaling NaN is no reason to warn
                array = array.astype(np.float64)
        if name in keyword:
            keyword[name] = array
        else:
            positional.append(array)
    filled: dict[str, Any] = definition.full_attributes(attributes)
    leading = [filled.pop(a.name) for a in definition.positional_attributes]
    if definition.needs_output_type:
        keyword["output_type"] = result_types[0] if len(result_types) == 1 else tuple(result_types)
    with np.errstate(all="ignore"):
        result = definition.body(*leading, *positional, **keyword, **filled)
    results = result if isinstance(result, tuple) else (result,) if result is not None else ()
    return tuple(_finish(np.asarray(r), t, double) for r, t in zip(results, result_types, strict=True))


def _finish(array: NDArray[Any], type_: Type, double: bool) -> NDArray[Any]:
    if isinstance(type_, MemRefType):
        return array  # memory is shared, never converted
    dtype: DType = type_.dtype  # type: ignore[union-attr]
    if dtype.is_float:
        return round_to(array, f64 if double else dtype)
    return array if array.dtype == dtype.numpy else array.astype(dtype.numpy)
