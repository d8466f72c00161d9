"""The small parts of the text: numbers, strings, dimensions, types, attribute values."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ir.attributes import Attribute, Dense, FileRef, GraphRef
from ir.diagnostics import did_you_mean
from ir.dims import UNKNOWN_DIM, Dim, DimensionTooLarge, DimExpr, apply_function, dim_max, dim_min, symbol
from ir.tokens import Token
from ir.types import DTYPES, UNKNOWN, DType, MemRefType, ScalarType, TensorType, Type, VectorType, block_problem, boolean, f32, i64

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_RANK = 64
MAX_DIM = 2**63 - 1
MAX_CONSTANT = 2**24  # elements of a constant in text; larger ones belong into a file


class LiteralProblem(Exception):
    """A wrong literal, with the offset of the part that is wrong."""

    def __init__(self, message: str, offset: int, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.offset = offset
        self.hint = hint


class Node:
    """A part of the text that is more than one token: ``kind`` is the rule's name in grammar.lark."""

    __slots__ = ("kind", "parts", "start")

    def __init__(self, kind: str, parts: list[Any], start: int) -> None:
        self.kind = kind
        self.parts = parts
        self.start = start


def _rule(kind: str) -> Callable[[Any, list[Any]], Node]:
    def build(self: Any, children: list[Any]) -> Node:
        first = next((c for c in children if isinstance(c, (Token, Node))), None)
        return Node(kind, children, first.start if first is not None else self.previous_end)

    return build


def name_problem(name: str) -> str | None:
    """Why a quoted name is not allowed; None when it is."""
    if not name:
        return "a name can't be empty"
    for c in name:
        if not c.isprintable() or "\ud800" <= c <= "\udfff":
            return f"a name can't contain U+{ord(c):04X}"
    return None


def string_value(token: Token) -> str:
    """The text of a string token, which has JSON's escapes."""
    try:
        value = json.loads(token.text)
    except ValueError:
        raise LiteralProblem("bad escape in this string", token.start, "strings have JSON's escapes") from None
    if any("\ud800" <= c <= "\udfff" for c in value):
        raise LiteralProblem("a string can't contain half of a surrogate pair", token.start)
    return str(value)


def _integer(token: Token) -> int:
    if len(token.text) > 40:
        raise LiteralProblem("this integer is too large", token.start)
    return int(token.text)


class LiteralRules:
    """The parser's callbacks for the parts, and their conversion.  Conversions raise :class:`LiteralProblem`."""

    previous_end: int

    attribute = _rule("attribute")
    binding = _rule("binding")
    access_binding = _rule("access_binding")
    range_binding = _rule("range_binding")
    parallel_dim = _rule("parallel_dim")
    reduce_dim = _rule("reduce_dim")
    access = _rule("access")
    value_list = _rule("list")
    vector_type = _rule("vector_type")
    memref_type = _rule("memref_type")
    memref_field = _rule("memref_field")
    sized_index = _rule("sized_index")
    add = _rule("add")
    sub = _rule("sub")
    mul = _rule("mul")
    division = _rule("division")
    tensor_type = _rule("tensor_type")
    function = _rule("function")
    negative = _rule("negative")

    def indices(self, children: list[Any]) -> list[Any]:
        return children

    def dims(self, children: list[Any]) -> list[Any]:
        return children

    def division_name(self, children: list[Token]) -> Token:
        return children[0]

    # -- dimensions ------------------------------------------------------------------------------------------------

    def dim_of(self, node: Any, value: Callable[[Token], Dim] | None = None) -> Dim:
        """A dimension.  ``value`` says what a ``%name`` in it stands for; without it there can be none."""
        if isinstance(node, Token):
            if node.type == "INT":
                number = _integer(node)
                if number > MAX_DIM:
                    raise LiteralProblem("a dimension is less than 2**63", node.start)
                return number
            if node.type == "UNKNOWN":
                return UNKNOWN_DIM
            if node.type == "NAME" and "." not in node.text and node.text not in DTYPES and node.text not in _WORDS:
                return symbol(node.text)
            if node.type == "VALUE" and value is not None:
                return value(node)
            raise LiteralProblem(f"'{node.text}' is not a dimension", node.start)
        if isinstance(node, Node):
            if node.kind in _ARITHMETIC:
                left, right = (self.dim_of(p, value) for p in node.parts)
                try:
                    return _checked(_ARITHMETIC[node.kind](left, right), node.start)
                except DimensionTooLarge as error:
                    raise LiteralProblem(str(error), node.start) from None
            if node.kind == "negative":
                return 0 - self.dim_of(node.parts[0], value)
            if node.kind == "division":
                left, right = self.dim_of(node.parts[0], value), self.dim_of(node.parts[2], value)
                if right == 0:
                    raise LiteralProblem("division by zero", node.parts[1].start)
                return apply_function(node.parts[1].text, left, right)
            if node.kind == "function" and node.parts[0].text in ("min", "max"):
                return (dim_min if node.parts[0].text == "min" else dim_max)(*(self.dim_of(p, value) for p in node.parts[1:]))
        raise LiteralProblem("expected a dimension", node.start)

    # -- types -----------------------------------------------------------------------------------------------------

    def _dtype(self, token: Token) -> DType:
        dtype = DTYPES.get(token.text)
        if dtype is None:
            hint = did_you_mean(token.text, DTYPES) or f"element types are {', '.join(DTYPES)}"
            raise LiteralProblem(f"there is no element type '{token.text[:80]}'", token.start, hint)
        return dtype

    def type_of(self, node: Any) -> Type:
        """A type."""
        if isinstance(node, Token):
            return UNKNOWN if node.type == "UNKNOWN" else self._alone(ScalarType(self._dtype(node)), node)
        parts = node.parts
        if node.kind == "tensor_type":
            tensor = TensorType(self._dtype(parts[0]), self._shape(parts[1], node))
            problem = block_problem(tensor.dtype, tensor.shape)
            if problem is not None:
                hint = f"its size is a number, or a symbolic one such as {tensor.dtype.block}*K"
                raise LiteralProblem(problem, parts[1][-1].start if parts[1] else node.start, hint)
            return tensor
        if node.kind == "vector_type":
            inner = self._alone(self.type_of(parts[-1]), node)
            if isinstance(inner, TensorType) and inner.is_static:
                return VectorType(inner.dtype, inner.shape)  # type: ignore[arg-type]
            raise LiteralProblem("a vector has an element type and static dimensions: vector<f32[8, 48]>", node.start)
        if node.kind == "memref_type":
            return self._memref(node)
        raise LiteralProblem("expected a type", node.start)

    def _alone(self, type_: Type, node: Any) -> Type:
        """The type, if its elements can stand outside of tensors."""
        if isinstance(type_, (ScalarType, TensorType)) and type_.dtype.is_block:
            raise LiteralProblem(f"{type_.dtype} is an element type of tensors only", node.start, f"write a tensor type: {type_.dtype}[N, 32*K]")
        return type_

    def _shape(self, dims: Sequence[Any], node: Node) -> tuple[Dim, ...]:
        if len(dims) > MAX_RANK:
            raise LiteralProblem(f"a tensor has at most {MAX_RANK} dimensions, this has {len(dims)}", node.start)
        shape = []
        for part in dims:
            dim = self.dim_of(part)
            if isinstance(dim, int) and dim < 0:
                raise LiteralProblem(f"a dimension can't be negative: {dim}", part.start)
            shape.append(dim)
        return tuple(shape)

    def _memref(self, node: Node) -> MemRefType:
        inner = self._alone(self.type_of(node.parts[0]), node)
        if not isinstance(inner, TensorType):
            raise LiteralProblem("a memref has an element type and dimensions: memref<f32[M, 64]>", node.start)
        space, align = "", 0
        for field in node.parts[1:]:
            name, *number = field.parts
            if number and name.text == "align":
                align = _integer(number[0])
                if align <= 0 or align & (align - 1):
                    raise LiteralProblem("align is a power of two", number[0].start)
            elif not number and name.text in ("shared", "global", "local"):
                space = name.text
            else:
                raise LiteralProblem(f"a memref has no field '{name.text}'", name.start, "it has a space (shared, global, local) and align=N")
        return MemRefType(inner.dtype, inner.shape, space, align)

    # -- attributes ------------------------------------------------------------------------------------------------

    def attribute_of(self, node: Any) -> Attribute:
        """An attribute value."""
        if isinstance(node, Token):
            return self._simple_attribute(node)
        if node.kind == "list":
            return tuple(self.attribute_of(p) for p in node.parts)
        if node.kind in ("tensor_type", "vector_type", "memref_type"):
            return self.type_of(node)
        if node.kind == "negative":
            number = self._number(node)
            if number is not None:
                return number
        if node.kind == "function" and node.parts[0].text == "bits":
            return self._float_bits(node)
        return self.dim_of(node)

    def _simple_attribute(self, token: Token) -> Attribute:
        if token.type == "STRING":
            return string_value(token)
        if token.type == "SYMBOL":
            name = token.text[1:]
            return FileRef(name) if self.is_file(name) else GraphRef(name)
        number = self._number(token)
        if number is not None:
            return number
        if token.text in _WORDS:
            return _WORDS[token.text]
        if token.text in DTYPES:
            return DTYPES[token.text]
        return self.dim_of(token)

    def is_file(self, name: str) -> bool:
        """Whether ``@name`` is a declared file; everything else is a graph."""
        raise NotImplementedError

    def _number(self, node: Any) -> int | float | None:
        if isinstance(node, Node):
            if node.kind != "negative":
                return None
            value = self._number(node.parts[0])
            return None if value is None or isinstance(value, bool) else -value
        if node.type == "INT":
            value = _integer(node)
            if not -(2**63) <= value <= 2**64:
                raise LiteralProblem("this integer is too large", node.start)
            return value
        if node.type == "FLOAT":
            value = float(node.text)
            if value in (float("inf"),):
                raise LiteralProblem("this number is too large", node.start, "write inf for infinity")
            return value
        if node.type == "NAME" and node.text in ("inf", "nan"):
            return float(node.text)
        return None

    def _float_bits(self, node: Node) -> float:
        bits = self._bits(node, 64)
        return float(struct.unpack("<d", bits.to_bytes(8, "little"))[0])

    def _bits(self, node: Node, width: int) -> int:
        digits = node.parts[1]
        if len(node.parts) != 2 or not isinstance(digits, Token) or digits.type != "HEX":
            raise LiteralProblem("bits takes one hexadecimal number: bits(0x7fc00001)", node.start)
        if len(digits.text) > 18 or int(digits.text, 16) >> width:
            raise LiteralProblem(f"bits of this type have at most {width // 4} hexadecimal digits", digits.start)
        return int(digits.text, 16)

    # -- constants -------------------------------------------------------------------------------------------------

    def dense_of(self, node: Any, declared: TensorType | None) -> Dense:
        """The constant that a nested list spells out.

        A declared type gives the element type; a single number then fills its whole shape.  Without one, integers
        make i64, true and false make bool, and everything else f32.
        """
        import numpy as np

        leaves: list[Any] = []
        shape = self._flatten(node, leaves)
        dtype = declared.dtype if declared is not None else self._guess_dtype(leaves)
        if declared is not None:
            if dtype.is_block:
                raise LiteralProblem(f"there are no constants of {dtype}: blocks come from files of weights and parameters", node.start)
            if not declared.is_static:
                raise LiteralProblem(f"a constant has static dimensions, not {declared}", node.start)
            if shape == () and declared.shape != ():
                count = declared.elements
                if not isinstance(count, int) or count > MAX_CONSTANT:
                    raise LiteralProblem(f"this constant has {count} elements, at most {MAX_CONSTANT} can be written", node.start)
                one = self._elements(leaves, dtype)
                return Dense(np.full([int(d) for d in declared.shape], one[0], dtype.numpy), dtype)  # type: ignore[arg-type, misc]
            if shape != declared.shape and not (0 in shape and 0 in declared.shape):
                found = TensorType(dtype, shape)
                raise LiteralProblem(f"this constant is {found}, but declared {declared}", node.start)
            shape = declared.shape
        return Dense(self._elements(leaves, dtype).reshape([int(d) for d in shape]), dtype)  # type: ignore[arg-type, misc]

    def _flatten(self, node: Any, leaves: list[Any]) -> tuple[Dim, ...]:
        if not (isinstance(node, Node) and node.kind == "list"):
            leaves.append(node)
            return ()
        inner: tuple[Dim, ...] | None = None
        for part in node.parts:
            shape = self._flatten(part, leaves)
            if inner is not None and shape != inner:
                raise LiteralProblem("the rows of this constant have different lengths", part.start if part is not None else node.start)
            inner = shape
        return (len(node.parts), *(inner or ()))

    def _guess_dtype(self, leaves: Sequence[Any]) -> DType:
        kinds = {type(self.attribute_of(leaf)) for leaf in leaves}
        if kinds == {int}:
            return i64
        return boolean if kinds == {bool} else f32

    def _elements(self, leaves: Sequence[Any], dtype: DType) -> NDArray[Any]:
        import numpy as np

        from ir.evaluate import round_to

        if not dtype.is_float:
            return np.array([self._integer_element(leaf, dtype) for leaf in leaves], dtype.numpy)
        wide = np.zeros(len(leaves), np.float64)
        patches: list[tuple[int, int]] = []
        for i, leaf in enumerate(leaves):
            if isinstance(leaf, Node) and leaf.kind == "function" and leaf.parts[0].text == "bits":
                patches.append((i, self._bits(leaf, dtype.bits)))
                continue
            value = self.attribute_of(leaf)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise LiteralProblem(f"expected a number, this is a constant of {dtype}", leaf.start)
            wide[i] = value
        array = round_to(wide, dtype)
        array = array.copy() if array is wide else array
        view = array.view(f"u{dtype.itemsize}")
        for i, bits in patches:
            view[i] = bits
        return array

    def _integer_element(self, leaf: Any, dtype: DType) -> int:
        value = self.attribute_of(leaf)
        if dtype.kind == "bool":
            if not isinstance(value, bool):
                raise LiteralProblem("expected true or false in a constant of bool", leaf.start)
            return value
        if isinstance(value, bool) or not isinstance(value, int):
            raise LiteralProblem(f"expected an integer, this is a constant of {dtype}", leaf.start)
        if not dtype.min_value <= value <= dtype.max_value:
            raise LiteralProblem(f"{value} does not fit in {dtype}", leaf.start)
        return value


def _checked(dim: Dim, offset: int) -> Dim:
    """``dim``, whose numbers must fit in 64 bits."""
    numbers = [dim] if isinstance(dim, int) else [c for _, c in dim.terms] if isinstance(dim, DimExpr) else []
    if any(abs(n) > MAX_DIM for n in numbers):
        raise LiteralProblem("numbers in a dimension are less than 2**63", offset)
    return dim


_ARITHMETIC: dict[str, Callable[[Any, Any], Dim]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
}
_WORDS: dict[str, Attribute] = {"true": True, "false": False, "none": None, "inf": float("inf"), "nan": float("nan")}
