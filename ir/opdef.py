"""Op definitions: the one place where an operation is described.

Most operations are defined by a decorated function::

    @op(infer=elementwise, elementwise=True)
    def relu(x: Numeric) -> Tensor:
        '''max(x, 0), elementwise. ...'''
        return np.maximum(x, 0)

* The **signature** is the schema.  Positional parameters annotated with an operand kind are operands, ``*xs`` takes any
  number, keyword-only parameters are optional operands (annotated ``Kind | None``) or attributes with defaults.  A
  positional parameter annotated with an attribute type may be written by position (``constant(1.0)``).
* ``infer`` gets the operand types and attributes under the same names and returns the result type or a tuple of types,
  or raises :class:`TypeProblem`.
* The **body** is the reference semantics on numpy arrays; floats narrower than 64 bits arrive widened to float64 and
  the result is rounded once, unless ``exact_bits=True`` says that the body only moves or compares elements.
* The **docstring** is the reference page; its indented ``.graph`` example is run by the tests.

Operations with regions use :class:`RegionOpDef`, which spells these things out as methods.
"""

from __future__ import annotations

import inspect
import types as python_types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

from ir.attributes import Attribute, Dense, FileRef, GraphRef
from ir.diagnostics import did_you_mean
from ir.dims import Dim, DimExpr, UnknownDim
from ir.types import (
    ELEMENT_DTYPES,
    TYPE_CLASSES,
    DType,
    MemRefType,
    ScalarType,
    TensorType,
    Type,
    UnknownType,
    VectorType,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ir.core import Operation, Use


class TypeProblem(Exception):
    """What an inference function raises: a message, and the operand or attribute (by name) that is wrong."""

    def __init__(self, message: str, *, operand: str | int | None = None, attribute: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.operand = operand
        self.attribute = attribute
        self.hint = hint


class ExecutionError(Exception):
    """What an op body raises when the values (not the types) are wrong: an index out of range, a division by zero."""


@dataclass(frozen=True, slots=True)
class OperandKind:
    """What an operand may be: a tensor, or a scalar / vector of the lower levels, with some element types."""

    name: str
    dtypes: tuple[str, ...] = ()  # DType.kind values; empty allows all but blocks
    classes: tuple[type, ...] = (TensorType,)

    def problem(self, type_: Type) -> str | None:
        """Why ``type_`` is not allowed; None when it is."""
        if isinstance(type_, UnknownType):
            return None
        if not isinstance(type_, self.classes):
            return f"expected {self.name}, found {type_}"
        kind = type_.dtype.kind  # type: ignore[attr-defined]
        if kind not in self.dtypes if self.dtypes else kind == "block":
            return f"expected {self.name}{' whose elements stand alone' * (not self.dtypes)}, found {type_}"
        return None

    def hint(self, type_: Type) -> str | None:
        """What to do about the problem; None when there is nothing to say."""
        blocks = isinstance(type_, TensorType) and type_.dtype.is_block
        advice = "its elements are stored in blocks: dequantize(..., dtype=f32) makes numbers of them, linear multiplies by their rows"
        return advice if blocks else None


ELEMENT_KINDS = ("float", "int", "uint", "index", "bool")
"""Kinds of element types whose elements stand alone."""

_ANY = "NDArray[Any]"
if TYPE_CHECKING:
    Tensor = NDArray[Any]
    Stored = NDArray[Any]
    NumericOrBlocks = NDArray[Any]
    Blocks = NDArray[Any]
    Float = NDArray[Any]
    Integer = NDArray[Any]
    Numeric = NDArray[Any]
    Boolean = NDArray[Any]
    Scalar = Any
    FloatScalar = Any
    IntegerScalar = Any
    SignedScalar = Any
    UnsignedScalar = Any
    BooleanScalar = Any
    BitsScalar = Any
    Vector = Any
    Buffer = NDArray[Any]
    AnyValue = Any
else:
    Tensor = Annotated[Any, OperandKind("a tensor")]
    Stored = Annotated[Any, OperandKind("a tensor", (*ELEMENT_KINDS, "block"))]
    NumericOrBlocks = Annotated[Any, OperandKind("a tensor of numbers or blocks", ("float", "int", "uint", "index", "block"))]
    Blocks = Annotated[Any, OperandKind("a tensor of blocks (q4_0, q4_1 or q8_0)", ("block",))]
    Float = Annotated[Any, OperandKind("a tensor of floats", ("float",))]
    Integer = Annotated[Any, OperandKind("a tensor of integers", ("int", "uint", "index"))]
    Numeric = Annotated[Any, OperandKind("a tensor of numbers", ("float", "int", "uint", "index"))]
    Boolean = Annotated[Any, OperandKind("a tensor of bool", ("bool",))]
    Scalar = Annotated[Any, OperandKind("a scalar or vector", (), (ScalarType, VectorType))]
    FloatScalar = Annotated[Any, OperandKind("a float scalar or vector", ("float",), (ScalarType, VectorType))]
    IntegerScalar = Annotated[Any, OperandKind("an integer scalar or vector", ("int", "uint", "index"), (ScalarType, VectorType))]
    SignedScalar = Annotated[Any, OperandKind("a scalar or vector of signed integers", ("int", "index"), (ScalarType, VectorType))]
    UnsignedScalar = Annotated[Any, OperandKind("a scalar or vector of unsigned integers", ("uint",), (ScalarType, VectorType))]
    BooleanScalar = Annotated[Any, OperandKind("a bool scalar or vector", ("bool",), (ScalarType, VectorType))]
    BitsScalar = Annotated[Any, OperandKind("a scalar or vector of integers or bool", ("int", "uint", "index", "bool"), (ScalarType, VectorType))]
    Vector = Annotated[Any, OperandKind("a vector", (), (VectorType,))]
    Buffer = Annotated[Any, OperandKind("a memref", (), (MemRefType,))]
    AnyValue = Annotated[Any, OperandKind("a value", (*ELEMENT_KINDS, "block"), TYPE_CLASSES)]

Shape = tuple[Dim, ...]
"""Attribute annotation: a list of dimensions."""


@dataclass(frozen=True, slots=True)
class OperandSpec:
    """One operand of a signature."""

    name: str
    kind: OperandKind
    optional: bool = False
    variadic: bool = False


@dataclass(frozen=True, slots=True)
class AttributeSpec:
    """One attribute of a signature.  ``annotation`` is its Python type; ``required`` means that it has no default."""

    name: str
    annotation: Any
    default: Attribute
    required: bool
    positional: bool

    def convert(self, value: Attribute) -> Attribute:
        """The value in the form the op expects (``0`` becomes ``0.0`` for a float).  Raises ValueError with a message."""
        converted, ok = _convert(value, self.annotation)
        if not ok:
            raise ValueError(f"expected {describe_annotation(self.annotation)}")
        return converted  # type: ignore[no-any-return]


def _convert(value: Any, annotation: Any) -> tuple[Any, bool]:
    origin = typing.get_origin(annotation)
    if origin in (Union, python_types.UnionType):
        for option in typing.get_args(annotation):
            converted, ok = _convert(value, option)
            if ok:
                return converted, True
        return value, False
    if origin is Literal:
        return value, any(value == o and type(value) is type(o) for o in typing.get_args(annotation))
    if origin is tuple:
        if not isinstance(value, tuple):
            return value, False
        element = typing.get_args(annotation)[0]
        items = [_convert(v, element) for v in value]
        return tuple(v for v, _ in items), all(ok for _, ok in items)
    if isinstance(value, DType) and value.is_block:
        return value, False  # nothing is computed in blocks
    if annotation in (None, type(None)):
        return value, value is None
    if annotation is bool:
        return value, isinstance(value, bool)
    if annotation is int:
        return value, isinstance(value, int) and not isinstance(value, bool)
    if annotation is float:
        if isinstance(value, int) and not isinstance(value, bool):
            try:
                return float(value), True
            except OverflowError:
                return value, False
        return value, isinstance(value, float)
    return value, isinstance(value, annotation)


_ANNOTATION_NAMES: dict[Any, str] = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a string",
    DType: "an element type",
    TensorType: "a tensor type",
    Dense: "a constant",
    GraphRef: "a graph (@name)",
    FileRef: "a file (@name)",
    DimExpr: "a dimension",
    UnknownDim: "?",
    type(None): "none",
}


def describe_annotation(annotation: Any) -> str:
    """An attribute's type in words, for messages and reference pages."""
    origin = typing.get_origin(annotation)
    if annotation == Dim:
        return "a dimension"
    if annotation == Shape:
        return "a list of dimensions"
    if origin in (Union, python_types.UnionType):
        return " or ".join(dict.fromkeys(describe_annotation(a) for a in typing.get_args(annotation)))
    if origin is Literal:
        return "one of " + ", ".join(f'"{a}"' if isinstance(a, str) else str(a) for a in typing.get_args(annotation))
    if origin is tuple:
        return f"a list (each {describe_annotation(typing.get_args(annotation)[0])})"
    return _ANNOTATION_NAMES.get(annotation, getattr(annotation, "__name__", str(annotation)))


InferFunction = Callable[..., Any]


class OpDef:
    """The definition of an operation; see the module's docstring.  Calling it builds or computes.

    Flags: ``pure`` (no effect beyond its results; may be removed, merged, moved), ``elementwise`` (result i depends on
    operand elements i only, after broadcasting), ``commutative`` (the first two operands may be swapped),
    ``exact`` (integer-valued float inputs give the exact result, so that order does not matter),
    ``exact_bits`` (moves or compares elements, computes nothing), ``is_terminator``, ``composite`` (has a
    decomposition into primitives), ``traps`` (may fail on some values, so it must not be run speculatively),
    ``index_operands`` (operand -> (indexed operand, axis attribute or number): its values are indices along that axis),
    ``updates`` (the operand of which the result is a new version, written in place; see :mod:`ir.updates`),
    ``declared_result`` (only the program says the result's type: ``infer`` gets it as ``result_type`` and checks it).
    """

    def __init__(
        self,
        name: str,
        dialect: str,
        operands: Sequence[OperandSpec],
        attributes: Sequence[AttributeSpec],
        infer: InferFunction | None,
        body: Callable[..., Any] | None,
        doc: str,
        *,
        pure: bool = True,
        elementwise: bool = False,
        commutative: bool = False,
        exact: bool = False,
        exact_bits: bool = False,
        is_terminator: bool = False,
        composite: bool = False,
        traps: bool = False,
        index_operands: Mapping[str, tuple[str, str | int]] | None = None,
        needs_output_type: bool = False,
        result_count: int | None = 1,
        updates: str | None = None,
        declared_result: bool = False,
    ) -> None:
        self.name = name
        self.dialect = dialect
        self.full_name = f"{dialect}.{name}"
        """The name with its dialect."""
        self.text_name = name if dialect == "graph" else self.full_name
        """The name as programs write it: without the prefix of the ``graph`` dialect."""
        self.operand_specs = tuple(operands)
        self.attribute_specs = {a.name: a for a in attributes}
        self.infer_function = infer
        self.body = body
        self.doc = doc
        self.pure = pure
        self.elementwise = elementwise
        self.commutative = commutative
        self.exact = exact or exact_bits
        self.exact_bits = exact_bits
        self.is_terminator = is_terminator
        self.composite = composite
        self.traps = traps
        self.index_operands = dict(index_operands or {})
        self.needs_output_type = needs_output_type
        self.updates = updates
        self.declared_result = declared_result
        self.result_count = result_count  # None: as many as the program names
        self.required_operands = tuple(o for o in self.operand_specs if not o.optional and not o.variadic)
        self.variadic = next((o for o in self.operand_specs if o.variadic), None)
        self.optional_operands = tuple(o for o in self.operand_specs if o.optional)
        self.positional_attributes = tuple(a for a in attributes if a.positional)

    @property
    def summary(self) -> str:
        """The first sentence of the docstring."""
        return self.doc.strip().split("\n\n")[0].replace("\n", " ").strip()

    def __repr__(self) -> str:
        return f"<op {self.full_name}>"

    # -- operands and attributes of an operation -------------------------------------------------------------------

    def operand_names(self, op: Operation) -> list[str]:
        """The signature name of each operand of ``op``; a variadic one repeats."""
        present = op.attributes.get(PRESENT, ()) if self.optional_operands else ()
        assert isinstance(present, tuple)
        names = [o.name for o in self.required_operands]
        extra = len(op.operand_uses) - len(names) - len(present)
        if self.variadic is not None:
            names += [self.variadic.name] * extra
        return names + [str(p) for p in present]

    def operand_position(self, op: Operation, name: str) -> int | None:
        """Index of the (first) operand called ``name``; None when it is absent."""
        names = self.operand_names(op)
        return names.index(name) if name in names else None

    def attribute_default(self, name: str) -> Attribute:
        return self.attribute_specs[name].default

    def full_attributes(self, attributes: Mapping[str, Attribute]) -> dict[str, Attribute]:
        """All attributes of the signature, defaults filled in; dotted additions left out."""
        return {n: attributes.get(n, s.default) for n, s in self.attribute_specs.items()}

    # -- types -----------------------------------------------------------------------------------------------------

    def infer(
        self, types: Sequence[Type], names: Sequence[str], attributes: Mapping[str, Attribute], declared: Sequence[Type] = ()
    ) -> tuple[Type, ...] | None:
        """Result types for operand types; None when an unknown operand leaves them open.

        ``declared`` are the types written on the results, which ``declared_result`` operations need.
        Raises :class:`TypeProblem` when the operands don't fit.
        """
        unknown = False
        kinds = {o.name: o.kind for o in self.operand_specs}
        for position, (type_, name) in enumerate(zip(types, names, strict=True)):
            problem = kinds[name].problem(type_)
            if problem:
                raise TypeProblem(problem, operand=position, hint=kinds[name].hint(type_))
            unknown = unknown or isinstance(type_, UnknownType)
        if unknown or self.infer_function is None:
            return None
        positional: list[Type] = []
        keyword: dict[str, Any] = {o.name: None for o in self.optional_operands}
        for type_, name in zip(types, names, strict=True):
            if name in keyword:
                keyword[name] = type_
            else:
                positional.append(type_)
        filled = self.full_attributes(attributes)
        leading = [filled.pop(a.name) for a in self.positional_attributes]
        if self.declared_result:
            if not declared or isinstance(declared[0], UnknownType):
                raise TypeProblem("the type of the result is not written", hint="write it behind the operation, after a colon")
            keyword["result_type"] = declared[0]
        result = self.infer_function(*leading, *positional, **keyword, **filled)
        return result if isinstance(result, tuple) else (result,)

    # -- evaluation ------------------------------------------------------------------------------------------------

    def evaluate(
        self,
        arrays: Sequence[NDArray[Any]],
        names: Sequence[str],
        attributes: Mapping[str, Attribute],
        result_types: Sequence[Type],
        operand_dtypes: Sequence[DType],
        double: bool = False,
    ) -> tuple[NDArray[Any], ...]:
        """Runs the body on numpy arrays.

        Narrow floats are widened to float64 and the results rounded once to their types; with ``double`` the
        results stay float64 (used to compare two programs without rounding noise).
        Raises :class:`ExecutionError` for values the op can't handle.
        """
        from ir.evaluate import call_body

        return call_body(self, arrays, names, attributes, result_types, operand_dtypes, double)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Builds the op when arguments are Values (or a builder is active and there are none), else computes."""
        from ir.builder import call_op

        return call_op(self, args, kwargs)

    # -- hooks for RegionOpDef -------------------------------------------------------------------------------------

    has_layout = False
    takes_expressions = False

    def verify(self, op: Operation) -> None:
        """Further checks of one operation.  Raises :class:`TypeProblem`."""


PRESENT = "operand.present"
"""Attribute that lists which optional operands an operation has, in signature order (never printed)."""


class RegionOpDef(OpDef):
    """Base of operations with regions, accesses or ranges: subclass it and make one instance.

    ``has_layout`` operations keep the written form of their arguments in an attribute (see :mod:`ir.layout`); those with
    ``takes_expressions`` have index expressions for arguments, and nothing else.
    ``optional`` operands, written by name, come behind those of the layout.
    """

    has_layout = True

    def __init__(
        self, name: str, dialect: str, attributes: Sequence[AttributeSpec] = (), optional: Sequence[OperandSpec] = (), **flags: Any
    ) -> None:
        doc = inspect.getdoc(type(self)) or ""
        super().__init__(name, dialect, optional, attributes, None, None, doc, **flags)

    def operand_names(self, op: Operation) -> list[str]:
        present = op.attributes.get(PRESENT, ()) if self.optional_operands else ()
        assert isinstance(present, tuple)
        return [""] * (len(op.operand_uses) - len(present)) + [str(p) for p in present]

    def region_argument_types(self, op: Operation, operand_types: Sequence[Type]) -> list[Type]:
        """Types of the region's arguments, in order."""
        return []

    def merge_yielded(self, op: Operation, yields: Sequence[Sequence[Type]]) -> Sequence[Type] | None:
        """What the regions yield together, from the operand types of each one's terminator (none without one)."""
        return yields[0] if yields else None

    def infer_op(self, op: Operation, operand_types: Sequence[Type], yielded: Sequence[Type] | None) -> tuple[Type, ...]:
        """Result types; ``yielded`` is what :meth:`merge_yielded` gives."""
        return ()

    def execute(self, interpreter: Any, op: Operation, operands: list[Any], environment: Any) -> tuple[Any, ...]:
        """Runs the operation in the reference interpreter."""
        raise NotImplementedError(self.full_name)


REGISTRY: dict[str, OpDef] = {}
"""Every loaded definition by full name.  Use :func:`ir.registry.find_op` to load dialects on demand."""


def register(definition: OpDef) -> OpDef:
    """Adds a definition.  Raises ValueError when the name is taken."""
    if definition.full_name in REGISTRY:
        raise ValueError(f"op {definition.full_name} is defined twice")
    REGISTRY[definition.full_name] = definition
    return definition


def op(*, infer: InferFunction, dialect: str = "graph", name: str | None = None, **flags: Any) -> Callable[[Callable[..., Any]], OpDef]:
    """Makes a definition from a function; see the module's docstring for the rules and :class:`OpDef` for the flags."""

    def decorate(function: Callable[..., Any]) -> OpDef:
        hints = _type_hints(function)
        operands, attributes = _read_signature(function, hints)
        flags.setdefault("result_count", _count_results(hints.get("return")))
        op_name = name or function.__name__.rstrip("_")
        definition = OpDef(op_name, dialect, operands, attributes, infer, function, inspect.getdoc(function) or "", **flags)
        definition.__doc__ = definition.doc
        return register(definition)

    return decorate


def _type_hints(function: Callable[..., Any]) -> dict[str, Any]:
    """What annotations stand for.  The same few are written again and again, so each is compiled once (``typing`` takes 5 times as long)."""
    values = function.__globals__
    return {name: eval(_compiled(text), values) if isinstance(text, str) else text for name, text in function.__annotations__.items()}


@lru_cache(maxsize=1000)
def _compiled(annotation: str) -> Any:
    return compile(annotation, "<annotation>", "eval")


def _read_signature(function: Callable[..., Any], hints: dict[str, Any]) -> tuple[list[OperandSpec], list[AttributeSpec]]:
    operands: list[OperandSpec] = []
    attributes: list[AttributeSpec] = []
    for parameter in inspect.signature(function).parameters.values():
        annotation = hints[parameter.name]
        if parameter.name == "output_type":
            continue  # passed by the interpreter when needs_output_type is set
        kind, optional = _operand_kind(annotation)
        public = parameter.name
        if kind is not None:
            variadic = parameter.kind is inspect.Parameter.VAR_POSITIONAL
            operands.append(OperandSpec(public, kind, optional, variadic))
        else:
            required = parameter.default is inspect.Parameter.empty
            positional = parameter.kind is not inspect.Parameter.KEYWORD_ONLY
            default = None if required else parameter.default
            attributes.append(AttributeSpec(public, annotation, default, required, positional))
    return operands, attributes


def _count_results(hint: Any) -> int:
    if hint is None or hint is type(None):
        return 0
    return len(typing.get_args(hint)) if typing.get_origin(hint) is tuple else 1


def _operand_kind(annotation: Any) -> tuple[OperandKind | None, bool]:
    if typing.get_origin(annotation) is Annotated:
        for extra in annotation.__metadata__:
            if isinstance(extra, OperandKind):
                return extra, False
    if typing.get_origin(annotation) in (Union, python_types.UnionType):
        for option in typing.get_args(annotation):
            kind, _ = _operand_kind(option)
            if kind is not None:
                return kind, True
    return None, False


def check_attributes(definition: OpDef, attributes: Mapping[str, Attribute]) -> dict[str, Attribute]:
    """Attributes converted and completed where required; defaults are dropped.

    Raises :class:`TypeProblem` for an unknown, missing or ill-typed attribute.
    """
    from ir.attributes import attribute_key

    result: dict[str, Attribute] = {}
    for key, value in attributes.items():
        spec = definition.attribute_specs.get(key)
        if spec is None:
            if "." in key:
                result[key] = value
                continue
            known = [*definition.attribute_specs, *(o.name for o in definition.optional_operands)]
            hint = did_you_mean(key, known) or (f"it takes {', '.join(known)}" if known else "it takes no attributes")
            raise TypeProblem(f"'{definition.text_name}' has no attribute '{key}'", attribute=key, hint=hint)
        try:
            converted = spec.convert(value)
        except ValueError as error:
            near = did_you_mean(str(value), ELEMENT_DTYPES) if spec.annotation is DType and not isinstance(value, DType) else None
            if isinstance(value, DType) and value.is_block:
                near = "blocks come from files of weights and parameters; nothing is converted to them"
            raise TypeProblem(f"attribute '{key}': {error}, found {_show(value)}", attribute=key, hint=near) from None
        if spec.required or attribute_key(converted) != attribute_key(spec.default):
            result[key] = converted
    for spec in definition.attribute_specs.values():
        if spec.required and spec.name not in result:
            form = f"write {spec.name}=..., {describe_annotation(spec.annotation)}"
            raise TypeProblem(f"'{definition.text_name}' needs attribute '{spec.name}'", hint=form)
    return result


def _show(value: Attribute) -> str:
    from ir.printer import format_attribute

    text = format_attribute(value)
    return text if len(text) <= 60 else text[:57] + "..."


def operand_use_for(op: Operation, operand: str | int | None) -> Use | None:
    """The use that a :class:`TypeProblem` points at."""
    if isinstance(operand, int):
        return op.operand_uses[operand] if operand < len(op.operand_uses) else None
    if isinstance(operand, str):
        return op.operand_use(operand)
    return None
