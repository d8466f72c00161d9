"""One launch as a function in CUDA C: parameters, the grid, what is computed again of what it takes from outside."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from codegen.cuda.expressions import NARROW, PRIMARY, Expr, binary
from codegen.cuda.expressions import PRODUCT as PRODUCT_LEVEL
from codegen.cuda.gpu_ops import COLLECTIVE
from codegen.cuda.indices import index_expr
from codegen.cuda.memory import ALIGNMENT, static_count
from codegen.cuda.module import BufferRef, KernelParameter
from codegen.cuda.types import in_memory
from codegen.cuda.writer import Buffer, Writer
from codegen.llvm.polynomials import constant
from dialects.gpu.launch import captured_values
from ir.core import Operation, Value
from ir.diagnostics import Diagnostic, GraphError
from ir.dims import Dim, DimExpr, DimFunction, dim_max, product
from ir.dims import symbol as dim_symbol
from ir.layout import AccessArg, RangeArg, layout_of
from ir.types import MemRefType, index

MOST_BLOCKS = 65535
"""Blocks along the second and third axis of a grid, at most."""

_STORES = ("memref.store", "vector.store")
_COMPUTED_AGAIN = ("arith", "math", "affine", "vector")


@dataclass(frozen=True, slots=True)
class Place:
    """Where memory from outside of a launch is; ``constant``: nothing in the program writes it; ``align`` divides the address."""

    ref: BufferRef
    constant: bool
    align: int


class Surroundings(Protocol):
    """What a launch sees of the program around it."""

    def place(self, value: Value) -> Place:
        """Where a buffer is."""

    def may_read_again(self, read: Operation, launch: Operation) -> bool:
        """Whether what was read in front of a launch is still there while the launch runs."""

    def constrain(self, writer: Writer) -> None:
        """Tells a writer's proofs what is known of the named dimensions."""


class KernelWriter(Writer):
    """Writes the body of a launch; the parameters follow from what it uses."""

    def __init__(
        self, op: Operation, around: Surroundings, statements: dict[tuple[int, int], str], *, marked: bool = False, checked: bool = False
    ) -> None:
        super().__init__(marked=marked, statements=statements)
        self.checked = checked
        self.launch = op
        self.around = around
        self.together = any(o.definition.full_name in COLLECTIVE for o in op.walk())
        self.checks = False
        self.shared_bytes = 0
        self._first_free = 0
        self._pointers: dict[tuple[BufferRef, str], tuple[str, Place, MemRefType]] = {}
        self._written: set[BufferRef] = set()
        around.constrain(self)

    def write(self) -> None:
        """Writes the whole kernel."""
        op = self.launch
        self.current = op
        self._written = {self.around.place(v).ref for v in _written_from_outside(op)}
        captured = captured_values(op)
        if _depends_on_data(op, captured):
            self.checks = True
            self.line(f"if (go_failed({self.fixed('state')})) return;")
        self._blocks()
        if any(_is_shared(o) for o in op.walk()):
            self.line(f"unsigned char *{self.fixed('shared')} = go_shared();")
            self._first_free = max((_end(o) for o in op.walk() if _is_shared(o) and _offset(o) >= 0), default=0)
        for value in captured:
            if isinstance(value.type, MemRefType):
                self.buffer(value)
            else:
                self.value(value)
        self.run(op.regions[0].block)
        if self.sites:
            self.checks = True
            if self.together and any("go_failed(" in line for line in self.lines):
                raise GraphError(Diagnostic("codegen: a check in a kernel whose threads wait for each other", op.loc))

    # -- the grid --------------------------------------------------------------------------------------------------

    def _blocks(self) -> None:
        """Block numbers; several ranges are one axis where an axis of their own might be too short."""
        op = self.launch
        sizes = [a.stop for a in layout_of(op) if isinstance(a, RangeArg)]
        arguments = op.regions[0].block.arguments
        stops = [self.space.convert(s, op.operands) for s in sizes]
        for argument, stop in zip(arguments, stops, strict=True):
            self.space.counter(argument, {}, stop, constant(1))
            for monomial in self.space.values.get(argument, {}):
                for number in monomial:
                    atom = self.space.atoms[number]
                    if atom.value is argument:
                        atom.magnitude = min(atom.magnitude, NARROW - 1)  # a grid has no more blocks
        if _has_axes(sizes):
            for argument, axis in zip(arguments, "xyz", strict=False):
                if argument.has_uses:
                    self.declare(argument, Expr(f"go_block_{axis}()", cost=1))
            return
        rest = Expr(self.fixed("block"), PRIMARY, 0, NARROW - 1, False)
        self.line(f"const int {rest.text} = go_block_x();")
        for argument, size in zip(arguments[:-1], sizes[:-1], strict=True):
            count = index_expr(self, size, op.operands)
            if argument.has_uses:
                self.declare(argument, binary(rest, "%", count, PRODUCT_LEVEL))
            rest = Expr(binary(rest, "/", count, PRODUCT_LEVEL).text, PRODUCT_LEVEL, 1, NARROW - 1, count.wide)
        if arguments[-1].has_uses:
            self.declare(arguments[-1], rest)

    def thread(self, value: Value) -> Expr:
        """The number of the thread."""
        threads = self.launch.attribute("threads")
        assert isinstance(threads, int)
        self.space.counter(value, {}, constant(threads), constant(1))
        return Expr("go_thread()", cost=1, bound=threads, wide=False)

    # -- what comes from outside -----------------------------------------------------------------------------------

    def outside(self, value: Value) -> Expr:
        op = value.defining_op
        if op is None:
            if getattr(value.type, "dtype", None) != index:
                raise GraphError(Diagnostic(f"codegen: a kernel can't take %{value.name} from the loop around it", self.launch.loc))
            return self.variable_around(value)
        name = op.definition.full_name
        if name in ("memref.load", "vector.load"):
            if not self.around.may_read_again(op, self.launch):
                message = f"codegen: a kernel needs %{value.name}, which was read in front of it from memory that is written since"
                raise GraphError(Diagnostic(message, op.loc))
        elif op.regions or not (op.definition.dialect in _COMPUTED_AGAIN or name in ("memref.dim", "memref.is_aligned")):
            raise GraphError(Diagnostic(f"codegen: a kernel can't compute %{value.name} again, which {op.definition.text_name} made", op.loc))
        for operand in op.operands:
            if not isinstance(operand.type, MemRefType):
                self.value(operand)
        self.operation(op)
        return self.values[value]

    def variable_around(self, value: Value) -> Expr:
        """A loop variable of the host."""
        name = f"%{value.name}"
        if name not in self.symbols:
            self.symbols[name] = Expr(self.token(value.name))
        return self.symbols[name]

    def outside_buffer(self, value: Value) -> Buffer:
        place = self.around.place(value)
        type_ = value.type
        assert isinstance(type_, MemRefType)
        key = (place.ref, type_.dtype.name)
        if key not in self._pointers:
            self._pointers[key] = (self.token(value.name), place, type_)
        return Buffer(self._pointers[key][0], type_, type_.shape, place.align, place.ref not in self._written)

    def shared(self, op: Operation, size: int) -> int:
        """The place of a shared buffer in the block's memory: the planned one, or behind all others."""
        offset = _offset(op)
        if offset < 0:
            offset = -(-self._first_free // ALIGNMENT) * ALIGNMENT
            self._first_free = offset + size
        self.shared_bytes = max(self.shared_bytes, offset + size)
        return offset

    # -- checks ----------------------------------------------------------------------------------------------------

    def fail_unless(self, ok: str, site: str, first: str = "0", second: str = "0") -> None:
        leave = "" if self.together else " return;"
        self.line(f"if (!({ok})) {{ {self._complaint(site, first, second)}{leave} }}")

    def complain_unless(self, ok: str, site: str, first: str, second: str) -> None:
        self.line(f"if (!{ok}) {self._complaint(site, first, second)}")

    def _complaint(self, site: str, first: str, second: str) -> str:
        return f"go_fail({self.fixed('state')}, {self.fixed('site')} + {site}, {first}, {second});"

    # -- the whole -------------------------------------------------------------------------------------------------

    def parameters(self) -> list[tuple[KernelParameter, str, BufferRef | Dim | None]]:
        """What the kernel takes, the declaration (with tokens), and the argument of this launch; the first site is still 0."""
        found: list[tuple[KernelParameter, str, BufferRef | Dim | None]] = []
        for name, place, type_ in self._pointers.values():
            item = in_memory(type_.dtype)
            kind = f"const {item} *__restrict__" if place.constant else f"const {item} *" if place.ref not in self._written else f"{item} *"
            space = " " if place.constant else ""
            found.append((KernelParameter("buffer", name, type_, place.constant), f"{kind}{space}{name}", place.ref))
        for symbol, expr in self.symbols.items():
            found.append((KernelParameter("dim", expr.text), f"go_index {expr.text}", dim_symbol(symbol)))
        if self.uses("site"):
            found.append((KernelParameter("dim", self.fixed("site")), f"go_index {self.fixed('site')}", 0))
        if self.uses("state"):
            found.append((KernelParameter("state", self.fixed("state")), f"go_state *{self.fixed('state')}", None))
        return found

    def head(self, name: str) -> str:
        """The first lines of the function."""
        threads, blocks = self.launch.attribute("threads"), self.launch.attribute("min_blocks")
        bounds = f"{threads}, {blocks}" if blocks else str(threads)
        declarations = [text for _, text, _ in self.parameters()]
        inside = ", ".join(declarations) if len(declarations) <= 5 else "\n  " + ",\n  ".join(declarations)
        return f'extern "C" __global__ void __launch_bounds__({bounds})\n{name}({inside})'


def fold(sizes: Sequence[Dim]) -> tuple[Dim, Dim, Dim]:
    """The grid for ranges of such sizes: an axis for each, or one for all."""
    if _has_axes(sizes):
        padded = [*sizes, 1, 1]
        return padded[0], padded[1], padded[2]
    return product(dim_max(0, s) if _may_be_negative(s) else s for s in sizes), 1, 1  # two of them must not make blocks


def _may_be_negative(size: Dim) -> bool:
    """Whether an expression of sizes, which are 0 or more, might be less."""
    if not isinstance(size, DimExpr):
        return isinstance(size, int) and size < 0
    arguments = (a for monomial, _ in size.terms for f in monomial if isinstance(f, DimFunction) and f.kind != "mod" for a in f.args)
    return any(c < 0 for _, c in size.terms) or any(map(_may_be_negative, arguments))


def _has_axes(sizes: Sequence[Dim]) -> bool:
    return all(isinstance(s, int) and s <= MOST_BLOCKS for s in sizes[1:])


def _is_shared(op: Operation) -> bool:
    if op.definition.full_name != "gpu.alloc":
        return False
    type_ = op.results[0].type
    return isinstance(type_, MemRefType) and type_.space == "shared"


def _offset(op: Operation) -> int:
    offset = op.attribute("offset")
    assert isinstance(offset, int)
    return offset


def _end(op: Operation) -> int:
    type_ = op.results[0].type
    assert isinstance(type_, MemRefType)
    return _offset(op) + static_count(type_) * type_.dtype.itemsize


def _written_from_outside(op: Operation) -> Iterator[Value]:
    """Buffers from outside that a launch stores to."""
    for inner in op.walk():
        if inner.definition.full_name not in _STORES:
            continue
        access = layout_of(inner)[1]
        assert isinstance(access, AccessArg)
        value: Value = inner.operands[access.position]
        while True:
            made = value.defining_op
            if made is None or not _is_inside(made, op):
                break
            if made.definition.full_name not in ("memref.reshape", "memref.view"):
                break
            value = made.operands[0]
        if value.defining_op is None or not _is_inside(value.defining_op, op):
            yield value


def _is_inside(op: Operation, outer: Operation) -> bool:
    at: Operation | None = op
    while at is not None:
        if at is outer:
            return True
        block = at.block
        at = block.parent.parent if block is not None and block.parent is not None else None
    return False


def _depends_on_data(op: Operation, captured: list[Value]) -> bool:
    """Whether some place in memory may follow from numbers that were read: an index comes from memory, or an integer becomes one."""
    seen: list[Operation] = [*op.walk(), *(v.defining_op for v in captured if v.defining_op is not None)]
    for inner in seen:
        if inner.definition.full_name in ("memref.load", "vector.load", "arith.index_cast", "arith.fptosi"):
            result = inner.results[0].type
            if getattr(result, "dtype", None) == index:
                return True
    return False


def buffer_alignment(offset: Dim, base: int) -> int:
    """A power of two that divides ``base`` and every value of an offset in bytes."""
    if isinstance(offset, int):
        divisor = offset
    else:
        assert isinstance(offset, DimExpr)
        divisor = math.gcd(*(c * math.prod(_atom_alignment(a, base) for a in monomial) for monomial, c in offset.terms))
    return min(base, divisor & -divisor) if divisor else base


def _atom_alignment(atom: str | DimFunction, base: int) -> int:
    """A power of two that divides every value of a factor of an offset: plans have maxima of sizes in them."""
    if isinstance(atom, DimFunction) and atom.kind in ("min", "max"):
        return min(buffer_alignment(a, base) for a in atom.args)
    return 1
