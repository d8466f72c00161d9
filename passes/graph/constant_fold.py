"""Pass ``constant-fold``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dialects.graph._blocks import unpacks_blocks
from dialects.graph.constant import constant, dim, full, initial, iota, weight
from dialects.graph.shape import expand, flatten, reshape, squeeze, transpose, unsqueeze
from ir.attributes import Attribute, Dense, FileRef
from ir.core import Module, Operation, Value
from ir.diagnostics import GraphError
from ir.dims import DimExpr, UnknownDim
from ir.evaluate import round_to
from ir.opdef import REGISTRY, ExecutionError, OpDef, RegionOpDef, TypeProblem
from ir.rewriter import Rewrite, rewrite_greedily
from ir.types import DType, TensorType, Type, i64, is_known, storage_shape
from passes.graph._rules import splat
from passes.infra.base import Pass, PassContext

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ir.weights import WeightSource

OPERAND_LIMIT = 2**26
"""Bytes of the operands of one operation; with more, it is left to run time."""
WORK_LIMIT = 2**28
"""Elements of the result times elements of the largest operand, for operations that may combine each with each."""
WEIGHT_LIMIT = 1024
"""Bytes of a result that comes from a file of weights: those stay in their file, but for a few numbers."""

_SOURCES = (constant, full, iota, weight)
_MOVES = (reshape, flatten, squeeze, unsqueeze, transpose, expand)
"""Each element of the result is one of the operand."""


@dataclass(frozen=True)
class ConstantFold(Pass):
    """Computes what does not depend on the inputs.

    Before::

        %a = constant([1.0, 2.0]) : f32[2]
        %b = exp(%a) : f32[2]
        %n = dim(%x, axis=1) : i64[]

    After::

        %a = constant([1.0, 2.0]) : f32[2]
        %b = constant([2.7182817, 7.389056]) : f32[2]
        %n = constant(4)

    Operations without effect are run by the reference semantics, so the bits are the same, when all of their operands
    are constants: ``constant``, ``full`` and ``iota`` of known shape, and tensors of files of weights that are at hand.
    One that fails on its values (an integer division by zero) is left alone, and fails when the program runs.

    Tensors of blocks (``q4_0``, ``q4_1``, ``q8_0``) are never dequantized here.

    The sizes are known before anything is computed: a result of more than ``budget`` bytes (1024 when weights take
    part) is not written into the program, and neither large operands nor large products are computed.  Elementwise
    operations and changes of shape of tensors whose elements are all the same stay such tensors (``full``), whatever
    their size, symbolic sizes included.  The constants that are no longer needed are removed.
    """

    budget: int = 65536
    """bytes of one result that may become text"""

    def __post_init__(self) -> None:
        if not 0 <= self.budget <= 2**40:
            raise ValueError(f"budget={self.budget} is out of range, it is a number of bytes from 0 to 2**40")

    def run(self, module: Module, context: PassContext) -> bool:
        folder = _Folder(self.budget, context.sources)
        rewrites: Mapping[OpDef, Sequence[Rewrite]] = {d: [folder.fold] for d in REGISTRY.values() if _can_fold(d)}
        changed = False
        for graph in module.graphs.values():
            changed |= rewrite_greedily(graph, rewrites, lambda op: context.count("operations folded"))
        return changed


def _can_fold(definition: OpDef) -> bool:
    return definition.pure and definition.body is not None and not isinstance(definition, RegionOpDef) and definition not in (*_SOURCES, initial)


def _mentions_symbols(value: Attribute) -> bool:
    if isinstance(value, tuple):
        return any(map(_mentions_symbols, value))
    return isinstance(value, (DimExpr, UnknownDim))


def _size(type_: Type) -> int | None:
    """Bytes of a tensor of known size."""
    nbytes = type_.nbytes if isinstance(type_, TensorType) else None
    return nbytes if isinstance(nbytes, int) else None


def _elements(type_: Type) -> int:
    sizes: list[int] = [int(d) for d in type_.shape]  # type: ignore[union-attr, arg-type]
    return math.prod(sizes)


@dataclass(frozen=True)
class _Folder:
    budget: int
    sources: Mapping[str, WeightSource]

    def fold(self, op: Operation) -> Sequence[Value] | None:
        """Constants that stand for the results of ``op``."""
        if not op.results or not all(isinstance(r.type, TensorType) and is_known(r.type) for r in op.results):
            return None
        if op.definition is dim:
            return _fold_dim(op)
        uniform = _fold_uniform(op)
        if uniform is not None:
            return uniform
        if not self._is_affordable(op):
            return None
        arrays = [self._array(v) for v in op.operands]
        if any(a is None for a in arrays):
            return None
        results = _evaluate(op, arrays, [r.type for r in op.results])  # type: ignore[arg-type]
        if results is None:
            return None
        return [constant(Dense(a, r.type.dtype)) for a, r in zip(results, op.results, strict=True)]  # type: ignore[union-attr]

    def _is_affordable(self, op: Operation) -> bool:
        """Whether all sizes are known and small enough, judged by the types alone."""
        if any(map(_mentions_symbols, op.attributes.values())) or unpacks_blocks(op):
            return False
        if any(v.defining_op is None or v.defining_op.definition not in _SOURCES for v in op.operands):
            return False
        weights = any(v.defining_op is not None and v.defining_op.definition is weight for v in op.operands)
        limit = min(self.budget, WEIGHT_LIMIT) if weights else self.budget
        results, operands = [_size(r.type) for r in op.results], [_size(v.type) for v in op.operands]
        if any(s is None or s > limit for s in results) or any(s is None for s in operands):
            return False
        if sum(s for s in operands if s is not None) > OPERAND_LIMIT:
            return False
        if op.definition.elementwise or op.definition.exact_bits:
            return True
        largest = max((_elements(v.type) for v in op.operands), default=1)
        return sum(_elements(r.type) for r in op.results) * largest <= WORK_LIMIT

    def _array(self, value: Value) -> NDArray[Any] | None:
        """The elements of a constant whose size was found small enough."""
        op = value.defining_op
        assert op is not None
        if op.definition is constant:
            dense = op.attributes["value"]
            assert isinstance(dense, Dense)
            return dense.array
        if op.definition is weight:
            return self._weight(op)
        if any(map(_mentions_symbols, op.attributes.values())):
            return None
        results = _evaluate(op, [], [value.type])
        return None if results is None else results[0]

    def _weight(self, op: Operation) -> NDArray[Any] | None:
        file, name = op.attributes["file"], op.attributes["name"]
        assert isinstance(file, FileRef) and isinstance(name, str)
        source = self.sources.get(file.name)
        if source is None:
            return None
        try:
            array = source.read(name)
        except GraphError:  # the run will say it
            return None
        return array if array.shape == storage_shape(op.result.type) else None  # type: ignore[arg-type]


def _evaluate(op: Operation, arrays: Sequence[NDArray[Any]], result_types: Sequence[Type]) -> list[NDArray[Any]] | None:
    """The reference semantics of an operation; None when it fails on these values."""
    names = op.definition.operand_names(op)
    dtypes = [v.type.dtype for v in op.operands]  # type: ignore[union-attr]
    try:
        results = op.definition.evaluate(arrays, names, op.attributes, result_types, dtypes)
    except (ExecutionError, TypeProblem, GraphError, MemoryError):
        return None
    fits = all(a.shape == storage_shape(t) for a, t in zip(results, result_types, strict=True))  # type: ignore[arg-type]
    return list(results) if fits else None


def _fold_dim(op: Operation) -> list[Value] | None:
    """The size of a dimension that is known."""
    type_, axis = op.operands[0].type, op.attribute("axis")
    assert isinstance(axis, int)
    size = type_.shape[axis] if isinstance(type_, TensorType) else None
    return [constant(Dense(np.array(size, np.int64), i64))] if isinstance(size, int) else None


def _fold_uniform(op: Operation) -> list[Value] | None:
    """An operation on tensors whose elements are all the same, element by element."""
    moves = op.definition in _MOVES
    # arithmetic that is exact is the same for one element as for many
    if not moves and not (op.definition.elementwise and op.definition.exact):
        return None
    numbers = [splat(v) for v in op.operands]
    if not numbers or any(n is None for n in numbers):
        return None
    type_ = op.result.type
    assert isinstance(type_, TensorType)
    if moves:
        element = _element(numbers[0], type_.dtype)
    else:
        singles = [_element(n, v.type.dtype) for n, v in zip(numbers, op.operands, strict=True)]  # type: ignore[union-attr]
        results = _evaluate(op, singles, [TensorType(type_.dtype, ())])
        if results is None:
            return None
        element = results[0]
    return [_filled(element, type_)]


def _element(number: bool | int | float | None, dtype: DType) -> NDArray[Any]:
    return round_to(np.array(number, np.float64), dtype) if dtype.is_float else np.array(number, dtype.numpy)


def _filled(element: NDArray[Any], type_: TensorType) -> Value:
    """A tensor of one element, many times."""
    if type_.rank == 0:
        return constant(Dense(element, type_.dtype))  # type: ignore[no-any-return]
    number = float(element) if type_.dtype.is_float else bool(element) if type_.dtype.kind == "bool" else int(element)
    return full(shape=type_.shape, value=number, dtype=type_.dtype)  # type: ignore[no-any-return]
