"""Creating operations: arity and attribute checks, type inference, insertion and names in one call.

Op definitions are callable: inside ``with Builder(...)`` the call ``g.add(x, y)`` builds and returns the result value
(a tuple for several); on numpy arrays it computes.
"""

from __future__ import annotations

import contextvars
from collections.abc import Mapping, Sequence
from typing import Any

from ir.attributes import Attribute
from ir.core import Block, Operation, Region, Value
from ir.diagnostics import AnyLocation, Diagnostic, GraphError
from ir.opdef import PRESENT, OpDef, OperandKind, TypeProblem, check_attributes
from ir.types import UNKNOWN, MemRefType, ScalarType, TensorType, Type, VectorType, dtype_from_numpy, tensor_shape

ArrayType = TensorType | MemRefType | ScalarType | VectorType

_active: contextvars.ContextVar[Builder | None] = contextvars.ContextVar("builder", default=None)


class Builder:
    """Inserts operations before ``before`` (at the end of ``block`` for None).

    ``origin`` is the name that new values derive theirs from: with origin ``h2`` an ``exp`` makes ``%h2.exp``.
    ``loc`` is given to the new operations.  As a context manager it is where called definitions build.
    """

    def __init__(self, block: Block, before: Operation | None = None, *, origin: str | None = None, loc: AnyLocation | None = None) -> None:
        self.block = block
        self.before = before
        self.origin = origin
        self.loc = loc
        self.created: list[Operation] = []
        self._token: contextvars.Token[Builder | None] | None = None

    @classmethod
    def before_op(cls, op: Operation) -> Builder:
        """A builder in front of ``op`` that names new values after its first result."""
        assert op.block is not None
        origin = op.results[0].name if op.results else None
        return cls(op.block, op, origin=origin, loc=op.loc)

    def __enter__(self) -> Builder:
        self._token = _active.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._token is not None
        _active.reset(self._token)
        self._token = None

    def create(
        self,
        definition: OpDef,
        operands: Sequence[Value],
        attributes: Mapping[str, Attribute] | None = None,
        *,
        optional: Mapping[str, Value] | None = None,
        regions: Sequence[Region] = (),
        result_types: Sequence[Type] | None = None,
        name: str | None = None,
    ) -> Operation:
        """Builds and inserts an operation.

        ``result_types`` are inferred when not given.  Raises :class:`GraphError` when operands or attributes don't fit.
        """
        given = dict(optional or {})
        present = tuple(o.name for o in definition.optional_operands if o.name in given)
        values = [*operands, *(given[n] for n in present)]
        required = len(definition.required_operands)
        if not definition.has_layout and (len(operands) < required or (len(operands) > required and definition.variadic is None)):
            raise GraphError(Diagnostic(f"'{definition.text_name}' takes {required} operands, found {len(operands)}", self.loc))
        try:
            checked = check_attributes(definition, attributes or {})
        except TypeProblem as problem:
            raise GraphError(Diagnostic(problem.message, self.loc, problem.hint)) from None
        if present:
            checked[PRESENT] = present
        op = Operation(definition, values, checked, regions, loc=self.loc)
        checked_later = definition.infer_function is None or not definition.declared_result
        types = result_types if result_types is not None and checked_later else infer_result_types(op, result_types or ())
        base = name or self._derived_name(definition)
        op.results = tuple(Value(base if i == 0 else f"{base}.{i}", t, op, i) for i, t in enumerate(types))
        for value in op.results:
            value.auto_named = name is None
        self.block.insert_before(self.before, op)
        self.created.append(op)
        return op

    def _derived_name(self, definition: OpDef) -> str:
        return f"{self.origin}.{definition.name}" if self.origin else definition.name


def infer_result_types(op: Operation, declared: Sequence[Type] = ()) -> tuple[Type, ...]:
    """Types of a new operation's results, unknown where they can't be inferred.  Raises :class:`GraphError`."""
    definition = op.definition
    try:
        inferred = definition.infer([v.type for v in op.operands], definition.operand_names(op), op.attributes, declared)
    except TypeProblem as problem:
        raise GraphError(Diagnostic(f"{definition.text_name}: {problem.message}", op.loc, problem.hint)) from None
    if inferred is not None:
        return inferred
    return (UNKNOWN,) * (definition.result_count or 0)


def current_builder() -> Builder | None:
    """The builder that called definitions use at the moment."""
    return _active.get()


def call_op(definition: OpDef, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """See :meth:`ir.opdef.OpDef.__call__`."""
    positional = len(definition.positional_attributes)
    attributes: dict[str, Any] = {a.name: v for a, v in zip(definition.positional_attributes, args[:positional], strict=False)}
    operands = list(args[positional:])
    optional: dict[str, Any] = {}
    wanted = {o.name for o in definition.optional_operands}
    for key, value in kwargs.items():
        if key in wanted:
            if value is not None:
                optional[key] = value
        elif key not in ("name", "result_type"):
            attributes[key] = value
    declared = [kwargs["result_type"]] if "result_type" in kwargs else None
    builder = _active.get()
    involved = [*operands, *optional.values()]
    if any(isinstance(v, Value) for v in involved) or (builder is not None and not involved):
        if builder is None:
            raise RuntimeError(f"'{definition.text_name}' was called on values outside a builder")
        op = builder.create(definition, operands, attributes, optional=optional, result_types=declared, name=kwargs.get("name"))
        return op.results[0] if len(op.results) == 1 else op.results
    return _compute(definition, operands, optional, attributes, declared or ())


def _compute(
    definition: OpDef, operands: Sequence[Any], optional: Mapping[str, Any], attributes: Mapping[str, Any], declared: Sequence[Type]
) -> Any:
    import numpy as np

    present = [o.name for o in definition.optional_operands if o.name in optional]
    arrays = [np.asarray(a) for a in (*operands, *(optional[n] for n in present))]
    names = [o.name for o in definition.required_operands]
    if definition.variadic is not None:
        names += [definition.variadic.name] * (len(operands) - len(names))
    if len(names) != len(operands):
        raise GraphError(f"'{definition.text_name}' takes {len(names)} operands, found {len(operands)}")
    names += present
    kinds = {o.name: o.kind for o in definition.operand_specs}
    types = [_array_type(definition, kinds[n], a) for n, a in zip(names, arrays, strict=True)]
    try:
        checked = check_attributes(definition, attributes)
        result_types = definition.infer(types, names, checked, declared)
    except TypeProblem as problem:
        raise GraphError(f"{definition.text_name}: {problem.message}") from None
    assert result_types is not None
    results = definition.evaluate(arrays, names, checked, result_types, [t.dtype for t in types])
    return results[0] if len(results) == 1 else results


def _array_type(definition: OpDef, kind: OperandKind, array: Any) -> ArrayType:
    """The type that an array stands for as an operand of this kind."""
    dtype = dtype_from_numpy(array.dtype)
    if dtype is None:
        raise GraphError(f"{definition.text_name}: no element type for numpy dtype {array.dtype}")
    shape = tensor_shape(dtype, array.shape)
    if TensorType in kind.classes:
        return TensorType(dtype, shape)
    if MemRefType in kind.classes:
        return MemRefType(dtype, shape)
    return VectorType(dtype, shape) if shape or ScalarType not in kind.classes else ScalarType(dtype)


