"""Calling a graph with arrays: matching them with the parameters, and what the symbolic dimensions are then."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ir.core import Constraint, Graph, Parameter
from ir.diagnostics import Diagnostic, GraphError
from ir.dims import Dim, DimExpr, UnknownDim, exact_div, substitute, symbols_of
from ir.printer import format_constraint, format_name
from ir.types import MemRefType, TensorType, UnknownType, dtype_from_numpy, tensor_shape

if TYPE_CHECKING:
    from numpy.typing import NDArray

_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "<=": lambda a, b: a <= b,
    "<": lambda a, b: a < b,
    "==": lambda a, b: a == b,
    ">=": lambda a, b: a >= b,
    ">": lambda a, b: a > b,
}


def array_type(array: NDArray[Any], parameter: Parameter) -> TensorType:
    """The tensor type of an array.  Raises GraphError for element types that don't exist here."""
    dtype = dtype_from_numpy(array.dtype)
    if dtype is None:
        message = f"%{parameter.name}: arrays of {array.dtype} are not supported"
        raise GraphError(Diagnostic(message, parameter.loc))
    if isinstance(parameter.type, (TensorType, MemRefType)) and parameter.type.dtype.name == "index" and dtype.name == "i64":
        dtype = parameter.type.dtype
    if dtype.is_block and not array.ndim:
        raise GraphError(Diagnostic(f"%{parameter.name}: a single block of {dtype} is no tensor", parameter.loc))
    return TensorType(dtype, tensor_shape(dtype, array.shape))


def bind_shapes(graph: Graph, types: Sequence[TensorType]) -> dict[str, int]:
    """Values of the symbolic dimensions for concrete parameter types.

    Raises :class:`GraphError` for a wrong count, element type, rank or dimension, naming the parameter with both
    types, for one name with two values, and for values outside the ``where`` clause.
    """
    parameters = graph.parameters
    check_count(graph, len(types))
    bindings: dict[str, int] = {}
    origin: dict[str, str] = {}
    pending: list[tuple[Parameter, TensorType, Dim, int]] = []
    for parameter, type_ in zip(parameters, types, strict=True):
        declared = parameter.type
        if isinstance(declared, UnknownType):
            continue
        if not isinstance(declared, (TensorType, MemRefType)) or declared.dtype != type_.dtype or len(declared.shape) != type_.rank:
            raise _mismatch(parameter, type_)
        for dim, size in zip(declared.shape, type_.shape, strict=True):
            assert isinstance(size, int)
            if isinstance(dim, UnknownDim):
                continue
            if isinstance(dim, int):
                if dim != size:
                    raise _mismatch(parameter, type_)
                continue
            pending.append((parameter, type_, dim, size))
    _solve(pending, bindings, origin)
    check_constraints(graph.constraints, bindings, graph)
    return bindings


def check_count(graph: Graph, count: int) -> None:
    """Raises GraphError unless the graph takes ``count`` inputs."""
    if count != len(graph.parameters):
        names = ", ".join(format_name(p.name) for p in graph.parameters)
        raise GraphError(Diagnostic(f"graph @{graph.name} takes {len(graph.parameters)} inputs ({names}), found {count}", graph.loc))


def _mismatch(parameter: Parameter, type_: TensorType, detail: str = "") -> GraphError:
    wanted = parameter.type
    hint = None
    if isinstance(wanted, (TensorType, MemRefType)) and wanted.dtype != type_.dtype and not wanted.dtype.is_block:
        hint = f"in numpy: array.astype('{wanted.dtype.numpy.name}')"
    return GraphError(Diagnostic(f"%{parameter.name} is {wanted}, but the array is {type_}{detail}", parameter.loc, hint))


def _solve(pending: list[tuple[Parameter, TensorType, Dim, int]], bindings: dict[str, int], origin: dict[str, str]) -> None:
    """Solves dimension = size for every entry: plain names first, then expressions with one unknown of degree one."""
    remaining = pending
    while remaining:
        postponed = []
        for entry in remaining:
            parameter, type_, dim, size = entry
            value = substitute(dim, bindings)
            if isinstance(value, int):
                if value != size:
                    names = ", ".join(f"{n}={bindings[n]} (from %{origin[n]})" for n in symbols_of(dim))
                    raise _mismatch(parameter, type_, f": {dim} is {value} with {names}, not {size}")
                continue
            solved = solve_dimension(value, size)
            if solved is None:
                postponed.append(entry)
                continue
            name, found = solved
            if found is None or found < 0:
                raise _mismatch(parameter, type_, f": no {name} gives {dim} = {size}")
            bindings[name] = found
            origin[name] = parameter.name
        if len(postponed) == len(remaining):
            parameter, type_, dim, size = postponed[0]
            unknown = ", ".join(n for n in symbols_of(dim) if n not in bindings)
            raise _mismatch(parameter, type_, f": {unknown} can't be found from {dim} = {size}")
        remaining = postponed


def solve_dimension(dim: Dim, size: int) -> tuple[str, int | None] | None:
    """name, value for ``coefficient * name + constant = size``; a value of None when there is none.

    None as a whole when the dimension has another form.
    """
    if not isinstance(dim, DimExpr):
        return None
    constant = sum(c for m, c in dim.terms if not m)
    rest = [(m, c) for m, c in dim.terms if m]
    if len(rest) != 1 or len(rest[0][0]) != 1 or not isinstance(rest[0][0][0], str):
        return None
    quotient = exact_div(size - constant, rest[0][1])
    return rest[0][0][0], quotient if isinstance(quotient, int) else None


def check_constraints(constraints: Sequence[Constraint], bindings: Mapping[str, int], graph: Graph) -> None:
    """Raises GraphError for the first condition that doesn't hold, with the numbers."""
    for constraint in constraints:
        values = [substitute(d, bindings) for d in constraint.dims]
        if not all(isinstance(v, int) for v in values):
            continue
        for comparison, left, right in zip(constraint.comparisons, values, values[1:], strict=False):
            if not _COMPARE[comparison](left, right):  # type: ignore[arg-type]
                names = dict.fromkeys(n for d in constraint.dims for n in symbols_of(d))
                shown = ", ".join(f"{n} = {bindings[n]}" for n in names if n in bindings)
                raise GraphError(Diagnostic(f"graph @{graph.name} wants {format_constraint(constraint)}, but {shown}", graph.loc))


def constraint_holds(constraint: Constraint, bindings: Mapping[str, int]) -> bool:
    """Whether a condition is true for the given values (true while a name is open)."""
    values = [substitute(d, bindings) for d in constraint.dims]
    if not all(isinstance(v, int) for v in values):
        return True
    return all(_COMPARE[c](a, b) for c, a, b in zip(constraint.comparisons, values, values[1:], strict=False))  # type: ignore[arg-type]


def is_masked(value: object) -> bool:
    """Whether this is a masked array.  numpy's module of these takes long to load, and nobody has one before it is loaded."""
    module = sys.modules.get("numpy.ma")
    return module is not None and isinstance(value, module.MaskedArray)


def overlaps_itself(array: NDArray[Any]) -> bool:
    """Whether elements of an array may share memory: False is a promise."""
    reach = array.itemsize
    for stride, size in sorted((abs(s), n) for s, n in zip(array.strides, array.shape, strict=True) if n > 1):
        if stride < reach and array.size:
            return True
        reach = stride * (size - 1) + reach
    return False


def overlap(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Whether two arrays have memory in common; interleaved ones have not."""
    import numpy as np

    return bool(np.may_share_memory(a, b) and np.shares_memory(a, b))


def check_updatable(graph: Graph, arrays: Sequence[NDArray[Any]]) -> None:
    """Raises GraphError for an ``inout`` array that overlaps itself or another one: there would be no one last version."""
    seen: list[tuple[Parameter, NDArray[Any]]] = []
    for parameter in graph.parameters:
        if not parameter.inout:
            continue
        array = arrays[parameter.index]
        if overlaps_itself(array):
            raise GraphError(Diagnostic(f"%{parameter.name} is inout, but elements of the array share memory", parameter.loc))
        for other, earlier in seen:
            if overlap(array, earlier):
                raise GraphError(Diagnostic(f"%{parameter.name} and %{other.name} are inout, but their arrays share memory", parameter.loc))
        seen.append((parameter, array))


def match_arguments(graph: Graph, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Arguments in parameter order, from positions and names.  Raises GraphError for missing, extra or doubled ones."""
    names = [p.name for p in graph.parameters]
    if len(args) > len(names):
        raise GraphError(Diagnostic(f"graph @{graph.name} takes {len(names)} inputs, found {len(args)}", graph.loc))
    given: dict[str, Any] = dict(zip(names, args, strict=False))
    for name, value in kwargs.items():
        if name not in names:
            hint = f"its inputs are {', '.join('%' + n for n in names)}"
            raise GraphError(Diagnostic(f"graph @{graph.name} has no input %{name}", graph.loc, hint))
        if name in given:
            raise GraphError(Diagnostic(f"input %{name} is given twice", graph.loc))
        given[name] = value
    missing = [f"%{n}" for n in names if n not in given]
    if missing:
        raise GraphError(Diagnostic(f"graph @{graph.name} lacks input{'s' * (len(missing) > 1)} {', '.join(missing)}", graph.loc))
    return [given[n] for n in names]

