"""Building loop nests over buffers: what the lowerings of all operations share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dialects.arith.cast import extf, truncf
from dialects.arith.constant import constant
from dialects.memref import from_tensor, reshape, to_tensor
from ir.attributes import Dense
from ir.builder import Builder, current_builder
from ir.builtin import yield_
from ir.core import DROPPED, Block, Graph, Operation, Parameter, Region, Use, Value
from ir.dims import Dim, DimExpr, substitute, symbol
from ir.evaluate import round_to
from ir.layout import LAYOUT, AccessArg, BindArg, IndexExpr, LoopDim, OperandArg, operand_symbol
from ir.opdef import REGISTRY
from ir.types import DType, MemRefType, ScalarType, TensorType, bf16, f16, f32, index, type_symbols

_LETTERS = "ijklmnpq"


@dataclass(frozen=True)
class Loop:
    """One dimension of a nest: a name as an expression, how far it runs, and whether results are summed up along it."""

    name: DimExpr
    bound: Dim
    reduce: bool = False


@dataclass(frozen=True)
class Access:
    """One element of a buffer; indices are expressions of loop names and dimensions, and of ``OFFSET``.

    ``offset`` is the scalar of type index that ``OFFSET`` stands for.
    """

    buffer: Value
    indices: tuple[Dim, ...]
    offset: Value | None = None


OFFSET = symbol("%offset")


def tensor_type(value: Value) -> TensorType:
    """The type of a value that is a tensor."""
    assert isinstance(value.type, TensorType)
    return value.type


def scalar_dtype(value: Value) -> DType:
    """The element type of a scalar."""
    assert isinstance(value.type, ScalarType)
    return value.type.dtype


def wide_dtype(dtype: DType) -> DType:
    """The type that scalars are computed in: f16 and bf16 are storage types."""
    return f32 if dtype in (f16, bf16) else dtype


def widen(x: Value) -> Value:
    """A scalar in the type that it is computed in."""
    dtype = scalar_dtype(x)
    wide = wide_dtype(dtype)
    return x if wide == dtype else extf(x, result_type=ScalarType(wide))


def narrow(x: Value, dtype: DType) -> Value:
    """A scalar rounded to the type that it is stored in."""
    return x if scalar_dtype(x) == dtype else truncf(x, result_type=ScalarType(dtype))


def number(value: float | int | bool, dtype: DType) -> Value:
    """A constant scalar."""
    array = round_to(np.array(value, np.float64), dtype) if dtype.is_float else np.array(value, dtype.numpy)
    return constant(Dense(array, dtype))  # type: ignore[no-any-return]


class Lowering:
    """State of the lowering of one graph: which buffer holds which tensor, and the operation in progress.

    A buffer is filled once, by the nests of the operation that it belongs to, and only read afterwards; so reshaped
    tensors may share memory, and a tensor can be taken out of its buffer at any later time.  The exception is the memory
    of ``inout`` parameters in ``updated``: each update writes into it, and is told to :meth:`overwrite` before.
    """

    def __init__(self, graph: Graph, updated: Collection[Value] = ()) -> None:
        self.graph = graph
        self.updated = updated
        symbols: dict[str, None] = {}
        for parameter in graph.parameters:
            symbols.update(type_symbols(parameter.type))
        self._symbols = symbols
        self._buffers: dict[Value, Value] = {}
        self.tensors: list[Operation] = []
        self.counts: dict[tuple[Block, tuple[Dim, ...], DType], Value] = {}
        """how many elements there are along open dimensions, as a float: computed once in a block"""
        self.wide: dict[tuple[Block, Value], Value] = {}
        """tensors of f16 and bf16, widened: once in a block"""
        self.op: Operation
        self.builder: Builder

    # -- one operation ---------------------------------------------------------------------------------------------

    def begin(self, op: Operation) -> None:
        """Makes ``op`` the one that nests are built for, in front of it."""
        self.op = op
        origin = next((r.name for r in op.results if r.name != DROPPED), op.definition.name)
        assert op.block is not None
        self.builder = Builder(op.block, op, origin=origin, loc=op.loc)

    @property
    def origin(self) -> str:
        assert self.builder.origin is not None
        return self.builder.origin

    def operand(self, name: str) -> Value:
        """The buffer of the operand called ``name``."""
        value = self.op.operand(name)
        assert value is not None
        return self.buffer(value)

    def buffer(self, tensor: Value) -> Value:
        """The buffer that holds a tensor."""
        found = self._buffers.get(tensor)
        if found is None:
            anchor = _ancestor(self.op, tensor)
            assert anchor.block is not None
            builder = self.builder if anchor is self.op else Builder(anchor.block, anchor, loc=anchor.loc)
            name = f"{tensor.name}.buffer"
            if tensor in self.updated:
                attributes: Any = {LAYOUT: (OperandArg(0),)}
                type_ = MemRefType(tensor_type(tensor).dtype, tensor_type(tensor).shape)
                found = builder.create(REGISTRY["memref.of_inout"], [tensor], attributes, result_types=[type_], name=name).result
            else:
                found = builder.create(from_tensor, [tensor], name=name).result
            self._buffers[tensor] = found
        return found

    def single_constant(self, tensor: Value) -> Dense | None:
        """The only element of a tensor that is written in the program; None for any other tensor."""
        op = tensor.defining_op
        value = op.attributes.get("value") if op is not None and op.name == "graph.constant" else None
        if not isinstance(value, Dense) or value.array.size != 1:
            return None
        return Dense(value.array.reshape(()), value.dtype)

    def alloc(self, dtype: DType, shape: Sequence[Dim], name: str) -> Value:
        """New memory; outside the loops around, as far as their rounds run one after the other."""
        type_ = MemRefType(dtype, tuple(shape))
        place = self.op
        while (outer := _surrounding(place)) is not None and outer.name in ("scf.for", "scf.if"):
            place = outer
        builder = self.builder if place is self.op else Builder(place.block, place, loc=self.op.loc)  # type: ignore[arg-type]
        return builder.create(REGISTRY["memref.alloc"], [], {LAYOUT: ()}, result_types=[type_], name=name).result

    def set_buffer(self, tensor: Value, buffer: Value) -> None:
        """Says where a tensor is."""
        self._buffers[tensor] = buffer

    def result_buffer(self, number: int = 0) -> Value:
        """New memory for a result of the operation."""
        result = self.op.results[number]
        name = self.origin if result.name == DROPPED else result.name
        return self.alloc(tensor_type(result).dtype, tensor_type(result).shape, f"{name}.buffer")

    def reshaped(self, buffer: Value, shape: Sequence[Dim]) -> Value:
        """The same memory under another shape."""
        assert isinstance(buffer.type, MemRefType)
        return self.builder.create(
            reshape, [buffer], result_types=[MemRefType(buffer.type.dtype, tuple(shape))], name=f"{self.origin}.buffer"
        ).result

    def tensor_of(self, buffer: Value, result: Value) -> Value:
        """What a buffer holds, as the tensor that stands for ``result``."""
        op = self.builder.create(to_tensor, [buffer])
        self._buffers[op.result] = buffer
        self.tensors.append(op)
        assert op.result.type == result.type, f"{op.result.type} in the place of {result.type}"
        return op.result

    def is_in_place(self, tensor: Value) -> bool:
        """Whether a tensor is the newest version of a parameter in ``updated``."""
        return tensor in self.updated or (tensor in self._buffers and _base(self._buffers[tensor]).name == "memref.of_inout")

    def overwrite(self, version: Value) -> Value:
        """The memory of the newest version of a parameter, to make the next one in.

        Tensors in this memory that are read later are taken out of it before, here or where they were made.
        """
        buffer = self.buffer(version)
        if isinstance(version, Parameter):
            op = self.builder.create(to_tensor, [buffer], name=f"{version.name}.before")
            self.tensors.append(op)
            for use in _later_uses(self.op, version):
                use.set(op.result)
        base = _base(buffer)
        self._buffers = {t: b for t, b in self._buffers.items() if _base(b) is not base}
        return buffer

    # -- nests -----------------------------------------------------------------------------------------------------

    def names(self, count: int) -> list[DimExpr]:
        """Names of loop dimensions that are no symbolic dimensions of the graph."""
        found: list[DimExpr] = []
        for letters in (_LETTERS, [f"i{n}" for n in range(count + len(self._symbols))]):
            found += [symbol(n) for n in letters if n not in self._symbols]
        return found[:count]

    def generic(self, loops: Sequence[Loop], reads: Sequence[Access], write: Access | None, body: Callable[..., Value | None]) -> None:
        """A ``linalg.generic``.  ``body`` gets the scalars that are read, then the one that is overwritten, if any."""
        accesses = [*reads, *([write] if write is not None else [])]
        suffixes = [*"abcdefgh"[: len(reads)], "o"]
        region = self._region(accesses, suffixes, ())
        with Builder(region.block, origin=self.origin, loc=self.op.loc) as builder:
            found = body(*region.block.arguments)
            builder.create(yield_, [found] if found is not None else [])
        layout = [LoopDim(str(n.name), n.bound, n.reduce) for n in loops] + _bindings(accesses)
        operands = [*(a.buffer for a in accesses), *(a.offset for a in accesses if a.offset is not None)]
        self.builder.create(REGISTRY["linalg.generic"], operands, {LAYOUT: tuple(layout)}, regions=[region], result_types=())

    def reduce(self, loops: Sequence[Loop], reads: Sequence[Access], start: Value, step: Callable[..., Value]) -> Value:
        """A ``linalg.reduce`` in the body of a nest.  ``step`` gets the scalars that are read, then what is accumulated."""
        region = self._region(reads, "abcdefgh", [start])
        with Builder(region.block, origin=self.origin, loc=self.op.loc) as inner:
            inner.create(yield_, [step(*region.block.arguments)])
        layout: list[Any] = [LoopDim(str(n.name), n.bound) for n in loops]
        layout += [*_bindings(reads), BindArg(OperandArg(len(reads)))]
        builder = current_builder()
        assert builder is not None
        operands = [*(a.buffer for a in reads), start]
        attributes: Any = {LAYOUT: tuple(layout)}
        return builder.create(REGISTRY["linalg.reduce"], operands, attributes, regions=[region], result_types=[start.type]).result

    def _region(self, accesses: Sequence[Access], suffixes: Sequence[str], carried: Sequence[Value]) -> Region:
        region = Region()
        for suffix, access in zip(suffixes, accesses, strict=False):
            assert isinstance(access.buffer.type, MemRefType)
            region.block.add_argument(f"{self.origin}.{suffix}", ScalarType(access.buffer.type.dtype))
        for value in carried:
            region.block.add_argument(f"{self.origin}.acc", value.type)
        return region

    def index(self, loop: Loop) -> Value:
        """The value of a loop dimension, in the body of its nest."""
        builder = current_builder()
        assert builder is not None
        attributes: Any = {LAYOUT: (), "dim": str(loop.name)}
        return builder.create(REGISTRY["linalg.index"], [], attributes, result_types=[ScalarType(index)]).result

    def fill(self, buffer: Value, value: float | int | bool) -> None:
        """A nest that stores a constant to every element."""
        assert isinstance(buffer.type, MemRefType)
        loops = self.loops(buffer.type.shape)
        dtype = buffer.type.dtype
        self.generic(loops, [], Access(buffer, tuple(n.name for n in loops)), lambda _: number(value, dtype))

    def loops(self, shape: Sequence[Dim]) -> list[Loop]:
        """A loop for each dimension of a shape."""
        return [Loop(n, d) for n, d in zip(self.names(len(shape)), shape, strict=True)]

    def copy(self, loops: Sequence[Loop], read: Access, write: Access) -> None:
        """A nest that moves elements."""
        self.generic(loops, [read], write, lambda a, _: a)


def _bindings(accesses: Sequence[Access]) -> list[Any]:
    found, offsets = [], len(accesses)
    for position, access in enumerate(accesses):
        indices: Sequence[Dim] = access.indices
        if access.offset is not None:
            indices = [substitute(i, {str(OFFSET): operand_symbol(offsets)}) for i in indices]
            offsets += 1
        found.append(BindArg(AccessArg(position, tuple(map(IndexExpr, indices)))))
    return found


def _base(buffer: Value) -> Operation:
    """The operation that made the memory of a buffer."""
    op = buffer.defining_op
    assert op is not None
    return _base(op.operands[0]) if op.name == "memref.reshape" else op


def _later_uses(op: Operation, value: Value) -> list[Use]:
    """Uses of a value by the operations behind ``op`` in its block, and in their regions."""
    later: set[Operation] = set()
    following = op.next
    while following is not None:
        later.update((following, *following.walk()))
        following = following.next
    return [use for use in value.uses if use.owner in later]


def _surrounding(op: Operation) -> Operation | None:
    return op.block.parent.parent if op.block is not None and op.block.parent is not None else None


def _ancestor(op: Operation, value: Value) -> Operation:
    """``op``, or the operation around it that stands in the block where ``value`` is defined."""
    block = value.owner if isinstance(value.owner, Block) else value.owner.block
    while op.block is not block:
        assert op.block is not None and op.block.parent is not None and op.block.parent.parent is not None
        op = op.block.parent.parent
    return op


def store(builder: Builder, value: Value, buffer: Value, indices: Sequence[Value]) -> None:
    """Writes one element at loop variables."""
    access = AccessArg(1, tuple(IndexExpr(operand_symbol(2 + i)) for i in range(len(indices))))
    attributes: Any = {LAYOUT: (OperandArg(0), access)}
    builder.create(REGISTRY["memref.store"], [value, buffer, *indices], attributes, result_types=())
