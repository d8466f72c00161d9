"""Generated inputs: sizes for symbolic dimensions and arrays for parameters, the same ones for the same seed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ir.attributes import FileRef, GraphRef
from ir.core import Graph, Module, Operation, Value
from ir.diagnostics import Diagnostic, Diagnostics, GraphError
from ir.dims import Dim, DimExpr, UnknownDim, substitute, symbols_of
from ir.evaluate import round_to
from ir.inference import Inference, unify_call
from ir.signature import check_constraints, constraint_holds
from ir.types import DType, MemRefType, TensorType, Type, array_shape, f16, q4_0, q8_0, type_symbols

if TYPE_CHECKING:
    from numpy.typing import NDArray

Kind = Literal["real", "exact", "special"]
"""``real``: normal random numbers; ``exact``: small integers, so that sums do not round; ``special``: with NaN, infinities,
signed zeros, denormals and large numbers among them."""

CAUTION_LEVELS = 3
"""Some programs fail on some values (a negative weight, a zero divisor).  Level 0 is anything, level 1 positive numbers
and true, level 2 zero for integers; :func:`ir.inputs.generate_inputs` is called again with the next one."""

_SIZES = (3, 4, 2, 5, 8, 16, 1, 6, 7, 9, 12, 32, 64, 128, 256, 512, 1024, 2048, 4096, 0)
_SEARCH_LIMIT = 20_000


def choose_sizes(graph: Graph, given: Mapping[str, int] | None = None, sizes: Sequence[int] = _SIZES) -> dict[str, int]:
    """Values for the symbolic dimensions of a graph that keep its ``where`` clause.

    Raises :class:`GraphError` when the given ones break it, or none is found among ``sizes``.
    """
    names: dict[str, None] = {}
    for parameter in graph.parameters:
        names.update(type_symbols(parameter.type))
    for constraint in graph.constraints:
        for dim in constraint.dims:
            names.update(symbols_of(dim))
    dims = [d for p in graph.parameters if isinstance(p.type, (TensorType, MemRefType)) for d in p.type.shape if isinstance(d, DimExpr)]
    chosen: dict[str, int] = dict(given or {})
    check_constraints(graph.constraints, chosen, graph)
    open_names = [n for n in names if n not in chosen]
    budget = [_SEARCH_LIMIT]
    if not _search(graph, open_names, chosen, dims, sizes, budget):
        raise GraphError(Diagnostic(f"no sizes were found that satisfy the 'where' clause of @{graph.name}", graph.loc, "give them with --shape"))
    return {n: chosen[n] for n in names}


def _search(graph: Graph, names: Sequence[str], chosen: dict[str, int], dims: Sequence[Dim], sizes: Sequence[int], budget: list[int]) -> bool:
    budget[0] -= 1
    if budget[0] < 0 or not all(constraint_holds(c, chosen) for c in graph.constraints):
        return False
    for dim in dims:
        value = substitute(dim, chosen)
        if isinstance(value, int) and value < 0:
            return False
    if not names:
        return True
    for size in sizes:
        chosen[names[0]] = size
        if _search(graph, names[1:], chosen, dims, sizes, budget):
            return True
    del chosen[names[0]]
    return False


def index_limits(module: Module, graph: Graph, types: Mapping[Value, Type], names: Mapping[str, int]) -> dict[Value, int]:
    """For values that hold indices along a dimension: the size of the smallest such dimension."""
    limits: dict[Value, int] = {}
    for op in reversed(list(graph.block)):
        for value, limit in _operation_limits(module, op, types, names, limits):
            limits[value] = min(limit, limits.get(value, limit))
    return limits


def _operation_limits(
    module: Module, op: Operation, types: Mapping[Value, Type], names: Mapping[str, int], limits: Mapping[Value, int]
) -> Iterator[tuple[Value, int]]:
    definition = op.definition
    for operand, (base, axis) in definition.index_operands.items():
        value, indexed = op.operand(operand), op.operand(base)
        if value is None or indexed is None:
            continue
        type_ = types.get(indexed, indexed.type)
        number = op.attribute(axis) if isinstance(axis, str) else axis
        if isinstance(type_, TensorType) and isinstance(number, int) and -type_.rank <= number < type_.rank:
            size = substitute(type_.shape[number], names)
            if isinstance(size, int):
                yield value, size
    if definition.full_name == "graph.call":
        reference = op.attributes["callee"]
        assert isinstance(reference, GraphRef)
        callee = module.graphs[reference.name]
        bound = unify_call(callee, [types.get(v, v.type) for v in op.operands])
        inner_names = {n: v for n, d in bound.items() if isinstance(v := substitute(d, names), int)}
        inner = index_limits(module, callee, types, inner_names)
        for use, parameter in zip(op.operand_uses, callee.parameters, strict=True):
            if parameter in inner:
                yield use.value, inner[parameter]
    elif definition.exact_bits:  # elements pass through
        for result in op.results:
            if result in limits:
                for value in op.operands:
                    yield value, limits[result]


def generate_inputs(
    module: Module, graph: Graph, sizes: Mapping[str, int], kind: Kind = "real", seed: int = 0, caution: int = 0
) -> list[NDArray[Any]]:
    """One array per parameter.

    Integers that the program uses as indices are in range; other integers are small and not negative.
    Raises :class:`GraphError` for a parameter whose type is not known.
    """
    types: dict[Value, Type] = Inference(module, Diagnostics()).run()
    limits = index_limits(module, graph, types, sizes)
    arrays, unknown = [], []
    for position, parameter in enumerate(graph.parameters):
        type_ = types[parameter]
        if not isinstance(type_, (TensorType, MemRefType)) or any(isinstance(d, UnknownDim) for d in type_.shape):
            message = f"%{parameter.name} has no known type, so no input can be generated for it"
            hint = f"give --shape {parameter.name}=f32[4,64] or --input {parameter.name}=FILE.npy"
            unknown.append(Diagnostic(message, parameter.loc, hint))
            continue
        shape = [substitute(d, sizes) for d in type_.shape]
        generator = np.random.default_rng([seed, position, len(shape)])
        arrays.append(generate_array(generator, type_.dtype, [int(d) for d in shape], kind, caution, limits.get(parameter)))  # type: ignore[arg-type]
    if unknown:
        raise GraphError(unknown)
    return arrays


_SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40, 3e38, -3e38, 1.0, -1.0, 0.5, 2.0)


def generate_array(
    generator: np.random.Generator, dtype: DType, shape: Sequence[int], kind: Kind, caution: int = 0, limit: int | None = None
) -> NDArray[Any]:
    """An array of one element type, ``shape`` counts elements; see :data:`Kind` and :data:`CAUTION_LEVELS`."""
    if dtype.is_block:
        return _generate_blocks(generator, dtype, array_shape(TensorType(dtype, tuple(shape))), kind, caution)
    if dtype.kind == "bool":
        return np.ones(shape, np.bool_) if caution else np.asarray(generator.integers(0, 2, shape) == 1)
    if not dtype.is_float:
        low, high = (1, 4) if caution else (0, 4)
        if caution >= 2:
            return np.zeros(shape, dtype.numpy)
        if limit is not None:
            low, high = 0, max(limit, 1)
        return np.asarray(generator.integers(low, high, shape)).astype(dtype.numpy)
    if kind == "exact":
        numbers = generator.integers(1 if caution else -4, 5, shape).astype(np.float64)
    else:
        numbers = np.asarray(generator.standard_normal(shape))
        if kind == "special" and not caution:
            picks = np.asarray(generator.integers(0, len(_SPECIAL), shape))
            numbers = np.where(generator.random(shape) < 0.25, np.asarray(_SPECIAL)[picks], numbers)
        if caution:
            numbers = np.abs(numbers) + 0.01
    return round_to(np.asarray(numbers, np.float64), dtype)


def kind_words(dtype: DType, caution: int) -> str:
    """What ``real`` arrays of an element type are called; see :func:`generate_array`."""
    if dtype.kind == "bool":
        return "all true" if caution else "random truth values"
    if not dtype.is_float and not dtype.is_block:
        return "zeros" if caution >= 2 else "small random integers"
    return "positive random numbers" if caution else "normal random numbers"


def _generate_blocks(generator: np.random.Generator, dtype: DType, stored: Sequence[int], kind: Kind, caution: int) -> NDArray[Any]:
    """Blocks whose numbers are about normal; small integers in ``exact`` ones, none negative with ``caution``.

    Scales and minimums of ``special`` blocks are as special as other floats.
    """
    array = np.zeros(stored, dtype.numpy)
    zero = 8 if dtype == q4_0 else 0
    low, high = (-128, 127) if dtype == q8_0 else (-zero, 15 - zero)
    if kind == "exact":
        low, high = max(low, -4), min(high, 4)
    q = generator.integers(0 if caution else low, high + 1, (*stored, dtype.block)) + zero
    array["qs"] = q if dtype == q8_0 else q[..., :16] | q[..., 16:] << 4
    for name, unit in (("d", 1 / high), ("m", 1.0)):
        if name in array.dtype.names:  # type: ignore[operator]  # a structured dtype has names
            array[name] = generate_array(generator, f16, stored, kind, caution)
            if kind != "exact":
                array[name] *= np.float16(unit)
    return array


class GeneratedWeights:
    """Stands in for files of weights that are not at hand: random tensors of the declared types."""

    def __init__(self, module: Module, file: str, seed: int = 0, kind: Kind = "real") -> None:
        self._types: dict[str, TensorType] = {}
        self._seed = seed
        self._kind: Kind = kind
        for op in module.walk():
            if op.definition.full_name == "graph.weight" and op.attributes["file"] == FileRef(file):
                type_ = op.results[0].type
                if not isinstance(type_, TensorType) or not type_.is_static:
                    raise GraphError(Diagnostic(f"%{op.results[0].name} has no static type, so no weights can be generated for it", op.loc))
                self._types[str(op.attributes["name"])] = type_

    def names(self) -> list[str]:
        return list(self._types)

    def info(self, name: str) -> tuple[DType, tuple[int, ...]]:
        type_ = self._types[name]
        return type_.dtype, tuple(int(d) for d in type_.shape)  # type: ignore[arg-type]

    def read(self, name: str) -> NDArray[Any]:
        dtype, shape = self.info(name)
        generator = np.random.default_rng([self._seed, *name.encode()])
        array = generate_array(generator, dtype, shape, self._kind)
        if dtype.is_block and self._kind != "exact":
            for number in {"d", "m"}.intersection(array.dtype.names or ()):
                array[number] *= np.float16(0.05)
        return array if self._kind == "exact" or not dtype.is_float else round_to(array.astype(np.float64) * 0.05, dtype)

    def close(self) -> None:
        """Nothing to close."""
