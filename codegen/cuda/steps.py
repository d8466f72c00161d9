"""The host's side: where memory is, sizes and conditions that are known without data, and the steps of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from codegen.cuda.alike import SITE, Launched, Outside, alike
from codegen.cuda.kernels import KernelWriter, Place, buffer_alignment, fold
from codegen.cuda.module import (
    ARENA_ALIGNMENT,
    AssertStep,
    BufferRef,
    Compare,
    Condition,
    CopyStep,
    IfStep,
    Kernel,
    KernelParameter,
    LaunchStep,
    Logic,
    LoopStep,
    Mark,
    PrintStep,
    Step,
)
from codegen.cuda.names import kernel_identifier, unique
from codegen.cuda.writer import Writer
from codegen.llvm.native import STORED, Argument, Site
from codegen.llvm.plan import result_memory, writes_later
from ir.attributes import Dense
from ir.core import Block, Graph, Operation, Value
from ir.diagnostics import Diagnostic, GraphError
from ir.dims import Dim, DimExpr, ceildiv, dim_max, dim_min, floordiv, mod, product, substitute, symbol
from ir.layout import AccessArg, ExpressionArg, RangeArg, layout_of
from ir.types import MemRefType, TensorType, boolean, byte_count, index

ALIGNMENT = 16
"""Bytes to which all memory of the device is aligned, arrays from outside too: no load is larger."""

_STORES = ("memref.store", "vector.store")
_PURE = ("arith", "math", "affine", "vector")


class HostWriter:
    """Goes through the main block of a graph."""

    def __init__(self, graph: Graph, symbols: Sequence[str], parameters: Sequence[Argument], marked: bool, checked: bool = False) -> None:
        self.graph = graph
        self.known_symbols = symbols
        self.parameters = parameters
        self.marked = marked
        self.checked = checked
        self.kernels: list[Kernel] = []
        self.sites: list[Site] = [Site("error", "", "a dimension, or a product of dimensions, is larger than 2^40", location=graph.loc)]
        self.marks: list[Mark] = []
        self.stored: list[Operation] = []
        self.arena: Dim = 0
        self.guards: dict[tuple[str, ...], None] = {}
        self._statements: dict[tuple[int, int], str] = {}
        self._places: dict[Value, BufferRef] = {}
        self._tensors: dict[Value, BufferRef] = {p: BufferRef("parameter", p.index) for p in graph.parameters if isinstance(p.type, TensorType)}
        self._sizes: dict[Value, Dim] = {}
        self._conditions: dict[Value, Condition] = {}
        self._results = result_memory(graph, {})
        self._known: dict[str, str] = {}
        self._launched: dict[Any, Launched] = {}
        self._names: set[str] = set()
        for p in graph.parameters:
            if isinstance(p.type, MemRefType):
                self._places[p] = BufferRef("parameter", p.index)

    # -- blocks ----------------------------------------------------------------------------------------------------

    def run(self, block: Block) -> tuple[Step, ...]:
        """The steps of a block."""
        steps: list[Step] = []
        for op in block:
            if op.definition.is_terminator:
                if block is self.graph.block:
                    steps += self._return(op)
                elif op.operands:
                    raise self._problem(op, "a loop or choice around kernels carries values")
                break
            steps += self._operation(op)
        return tuple(steps)

    def _problem(self, op: Operation, what: str) -> GraphError:
        return GraphError(Diagnostic(f"codegen: {what}", op.loc))

    def _operation(self, op: Operation) -> Iterator[Step]:
        name = op.definition.full_name
        handler = _HANDLERS.get(name)
        if name in STORED:
            self.stored.append(op)
            self._tensors[op.results[0]] = BufferRef("stored", len(self.stored) - 1)
        elif handler is not None:
            yield from handler(self, op)
        elif op.definition.dialect in _PURE and not op.regions and name not in _STORES:
            self._remember(op)  # kernels that need it read or compute it again
        else:
            raise self._problem(op, f"{op.definition.text_name} is in no kernel, and the host can't run it")

    # -- what the host knows ---------------------------------------------------------------------------------------

    def size(self, expr: Dim, op: Operation) -> Dim:
        """An expression of an operation over dimensions and variables of loops around kernels."""
        if isinstance(expr, int):
            return expr
        names: dict[str, Dim] = {}
        for position, value in enumerate(op.operands):
            found = self._sizes.get(value)
            if found is not None:
                names[f"%{position}"] = found
            elif f"%{position}" in str(expr):
                raise self._problem(op, f"the host needs %{value.name}, which depends on data")
        return substitute(expr, names)

    def _remember(self, op: Operation) -> None:
        """Keeps a size or a condition that follows from dimensions."""
        if len(op.results) != 1:
            return
        result = op.results[0]
        dtype = getattr(result.type, "dtype", None)
        if dtype == index:
            size = self._size_of(op)
            if size is not None:
                self._sizes[result] = size
        elif dtype == boolean:
            condition = self._condition_of(op)
            if condition is not None:
                self._conditions[result] = condition

    def _size_of(self, op: Operation) -> Dim | None:
        name = op.definition.full_name
        if name == "arith.constant":
            value = op.attributes["value"]
            assert isinstance(value, Dense)
            return int(value.array) if value.array.ndim == 0 else None
        known = [self._sizes.get(v) for v in op.operands]
        if any(k is None for k in known):
            return None
        sizes = [k for k in known if k is not None]
        try:
            if op.definition.dialect == "affine":
                exprs = [self.size(a.expr, op) for a in layout_of(op) if isinstance(a, ExpressionArg)]
                return _AFFINE[op.definition.name](*exprs)
            return _ARITH[name](*sizes) if name in _ARITH else None
        except ZeroDivisionError:
            return None

    def _condition_of(self, op: Operation) -> Condition | None:
        name = op.definition.full_name
        if name == "arith.constant":
            value = op.attributes["value"]
            assert isinstance(value, Dense)
            return bool(value.array) if value.array.ndim == 0 else None
        if name == "arith.cmpi":
            left, right = (self._sizes.get(v) for v in op.operands)
            if left is not None and right is not None:
                return Compare(str(op.attributes["predicate"]), left, right)  # type: ignore[arg-type]
        if name in _LOGIC:
            a, b = (self._conditions.get(v) for v in op.operands)
            if a is not None and b is not None:
                return Logic(_LOGIC[name], a, b)  # type: ignore[arg-type]
        return None

    def condition(self, value: Value, op: Operation) -> Condition:
        """A bool that the host must know."""
        found = self._conditions.get(value)
        if found is None:
            raise self._problem(op, f"the host needs %{value.name}, which depends on data")
        return found

    # -- memory ----------------------------------------------------------------------------------------------------

    def place(self, value: Value) -> Place:
        """Where a buffer is."""
        ref = self._places.get(value)
        if ref is None:
            raise GraphError(Diagnostic(f"codegen: the host doesn't know the memory of %{value.name}", value.location))
        outside = ref.kind == "parameter"
        constant = ref.kind == "stored" or (outside and not self.parameters[ref.index].written)  # the runtime copies arrays that overlap
        return Place(ref, constant, buffer_alignment(ref.offset, ALIGNMENT))

    def tensor(self, value: Value) -> BufferRef:
        """Where a tensor is."""
        found = self._tensors.get(value)
        if found is None:
            raise GraphError(Diagnostic(f"codegen: %{value.name} is no tensor that the device has", value.location))
        return found

    def piece(self, size: Dim) -> BufferRef:
        """New memory in the arena."""
        found = BufferRef("arena", 0, self.arena)
        self.arena = self.arena + ceildiv(size, ARENA_ALIGNMENT) * ARENA_ALIGNMENT
        return found

    def constrain(self, writer: Writer) -> None:
        """Tells a writer's proofs what is known of the named dimensions."""
        for name in self.known_symbols:
            writer.space.symbol(name)
        writer.space.constrain(self.graph.constraints)

    def may_read_again(self, read: Operation, launch: Operation) -> bool:
        """Whether nothing up to the end of a launch writes what was read."""
        access = layout_of(read)[0]
        assert isinstance(access, AccessArg)
        source = read.operands[access.position]
        around: Operation | None = launch
        while around is not None and around.block is not read.block:
            around = around.block.parent.parent if around.block is not None and around.block.parent is not None else None
        op = read.next
        while op is not None:
            if any(self._may_be_one(source, target) for target in _targets(op)):
                return False
            if op is around:
                return True
            op = op.next
        return False

    def _may_be_one(self, a: Value, b: Value) -> bool:
        """Whether two buffers may have memory in common."""
        first, second = (self._places.get(_outermost(v, self._places)) for v in (a, b))
        if second is None or first is None:
            return second is not None or b.type.space == ""  # type: ignore[union-attr]  # else it is memory on the chip
        if first.kind != second.kind or (first.index != second.index and first.kind != "parameter"):
            return False
        if first.kind == "parameter":  # arrays that are written may be one; others are only read
            return first.index == second.index or (self.parameters[first.index].written and self.parameters[second.index].written)
        return not (_is_behind(second, first, a.type) or _is_behind(first, second, b.type))

    # -- the end ---------------------------------------------------------------------------------------------------

    def _return(self, op: Operation) -> Iterator[Step]:
        for position, value in enumerate(op.operands):
            source, target = self.tensor(value), BufferRef("result", position)
            if source != target:
                assert isinstance(value.type, TensorType)
                yield CopyStep(source, target, byte_count(value.type.dtype, value.type.shape))

    # -- launches --------------------------------------------------------------------------------------------------

    def launch(self, op: Operation) -> Iterator[Step]:
        """A kernel, unless there is one that does the same, and the step that runs it."""
        key, outside = alike(op, self)
        launched = self._launched.get(key) if key is not None else None
        if launched is None:
            launched = self._new_launch(op, outside)
            if key is not None:
                self._launched[key] = launched
        base = len(self.sites)
        self.sites += launched.sites_for(op)
        sizes = [self.size(a.stop, op) for a in layout_of(op) if isinstance(a, RangeArg)]
        yield LaunchStep(launched.kernel, fold(sizes), launched.arguments_for(outside, self, base), op.loc)

    def _new_launch(self, op: Operation, outside: Sequence[Value]) -> Launched:
        """Writes the kernel of a launch; if there is one with the same text, that is it."""
        writer = KernelWriter(op, self, self._statements, marked=self.marked, checked=self.checked)
        writer.write()
        for monomial in writer.space.guarded:
            self.guards[tuple(writer.space.atoms[n].name for n in monomial)] = None
        finished = writer.finished()
        parameters = writer.parameters()
        key = f"{writer.head('')}\n{finished.key()}"
        name = self._known.get(key)
        if name is None:
            name = self._known[key] = unique(kernel_identifier(self.graph.name, str(op.attribute("name")) or f"{len(self.kernels)}"), self._names)
            self._names.add(name)
            first = len(self.marks)
            self.marks += [Mark(first + n, kind, name, what) for n, (kind, what) in enumerate(finished.marks)]  # type: ignore[arg-type]
            source = f"{finished.render(writer.head(name))}\n{{\n{finished.text(first)}\n}}\n"
            threads = op.attribute("threads")
            assert isinstance(threads, int)
            given = tuple(replace(p, name=finished.render(p.name)) for p, _, _ in parameters)
            self.kernels.append(Kernel(name, source, given, threads, writer.shared_bytes, writer.together, writer.checks))
        return Launched(name, op, tuple(finished.sites), tuple(self._source_of(p, a, writer, outside) for p, _, a in parameters))

    def _source_of(self, parameter: KernelParameter, argument: BufferRef | Dim | None, writer: KernelWriter, outside: Sequence[Value]) -> Any:
        """Where the argument of a parameter comes from, in any launch that is alike."""
        if isinstance(argument, BufferRef):
            assert parameter.type is not None
            dtype = parameter.type.dtype
            for position, value in enumerate(outside):
                type_ = value.type
                if isinstance(type_, MemRefType) and type_.dtype == dtype and self.place(value).ref == argument:
                    return Outside(position)
            return argument
        return SITE if writer.uses("site") and parameter.name == writer.fixed("site") else argument


# -- operations of the host --------------------------------------------------------------------------------------------


def _from_tensor(h: HostWriter, op: Operation) -> Iterator[Step]:
    h._places[op.results[0]] = h.tensor(op.operands[0])
    return iter(())


def _alloc(h: HostWriter, op: Operation) -> Iterator[Step]:
    result = op.results[0]
    type_ = result.type
    assert isinstance(type_, MemRefType)
    if result in h._results:
        h._places[result] = BufferRef("result", h._results[result])
    else:
        h._places[result] = h.piece(byte_count(type_.dtype, type_.shape))
    return iter(())


def _reshape(h: HostWriter, op: Operation) -> Iterator[Step]:
    h._places[op.results[0]] = h.place(op.operands[0]).ref
    return iter(())


def _view(h: HostWriter, op: Operation) -> Iterator[Step]:
    ref, offset = h.place(op.operands[0]).ref, op.attributes["offset"]
    assert isinstance(offset, (int, DimExpr))
    h._places[op.results[0]] = BufferRef(ref.kind, ref.index, ref.offset + offset)
    if not h.checked:
        return
    bytes_, type_ = op.operands[0].type, op.results[0].type
    assert isinstance(bytes_, MemRefType) and isinstance(type_, MemRefType)
    end = offset + product((*type_.shape, type_.dtype.itemsize))
    sizes = ", ".join(f"{{{n + 2}}}" for n in range(len(bytes_.shape)))
    item = type_.dtype.itemsize
    inside = Logic("and", Compare("ge", offset, 0), Compare("le", end, product(bytes_.shape)))
    checks: list[tuple[Condition, str, tuple[Dim, ...]]] = [
        (Compare("eq", mod(offset, item), 0), f"offset {{0}} is not a multiple of {item}, the bytes of {type_.dtype}", ()),
        (inside, f"bytes {{0}} to {{1}} are outside memref<{bytes_.dtype}[{sizes}]>", bytes_.shape),
    ]
    for condition, message, dims in checks:
        h.sites.append(Site("error", "memref.view", message, dims, op.loc, given=tuple(range(2 + len(dims))), operation=op))
        yield AssertStep(condition, len(h.sites) - 1, offset, end)


def _dim(h: HostWriter, op: Operation) -> Iterator[Step]:
    type_, axis = op.operands[0].type, op.attributes["axis"]
    assert isinstance(type_, MemRefType) and isinstance(axis, int)
    h._sizes[op.results[0]] = type_.shape[axis]
    return iter(())


def _is_aligned(h: HostWriter, op: Operation) -> Iterator[Step]:
    h._conditions[op.results[0]] = False  # the host does not know where memory lies
    return iter(())


def _read(h: HostWriter, op: Operation) -> Iterator[Step]:
    return iter(())


def _to_tensor(h: HostWriter, op: Operation) -> Iterator[Step]:
    source, result = op.operands[0], op.results[0]
    if op.block is not h.graph.block:
        raise h._problem(op, "memref.to_tensor inside a loop")
    ref = h.place(source).ref
    if writes_later(h.graph, op, source, {}):
        assert isinstance(result.type, TensorType)
        size = byte_count(result.type.dtype, result.type.shape)
        copy = h.piece(size)
        h._tensors[result] = copy
        yield CopyStep(ref, copy, size)
    else:
        h._tensors[result] = ref


def _copy(h: HostWriter, op: Operation) -> Iterator[Step]:
    source, target = op.operands
    type_ = source.type
    assert isinstance(type_, MemRefType)
    yield CopyStep(h.place(source).ref, h.place(target).ref, byte_count(type_.dtype, type_.shape), h._may_be_one(source, target))


def _print(h: HostWriter, op: Operation) -> Iterator[Step]:
    value = op.operands[0]
    assert isinstance(value.type, TensorType)
    label = str(op.attribute("label"))
    h.sites.append(Site("print", "print", "the callback failed", location=op.loc, type=value.type, label=label, operation=op))
    yield PrintStep(h.tensor(value), value.type, label, len(h.sites) - 1)


def _launch(h: HostWriter, op: Operation) -> Iterator[Step]:
    yield from h.launch(op)


def _for(h: HostWriter, op: Operation) -> Iterator[Step]:
    bounds = layout_of(op)[0]
    assert isinstance(bounds, RangeArg)
    if op.results:
        raise h._problem(op, "a loop around kernels carries values")
    block = op.regions[0].block
    variable = f"%{block.arguments[0].name}"
    h._sizes[block.arguments[0]] = symbol(variable)
    start, stop, step = (h.size(e, op) for e in (bounds.start, bounds.stop, bounds.step))
    body = h.run(block)
    if body:
        yield LoopStep(variable, start, stop, step, body)


def _if(h: HostWriter, op: Operation) -> Iterator[Step]:
    if op.results:
        raise h._problem(op, "a choice around kernels has results")
    condition = h.condition(op.operands[0], op)
    branches = [h.run(region.block) for region in op.regions]
    if any(branches):
        yield IfStep(condition, branches[0], branches[1] if len(branches) > 1 else ())


def _assert(h: HostWriter, op: Operation) -> Iterator[Step]:
    condition = h.condition(op.operands[0], op)
    numbers: list[Dim] = [0, 0]
    given = []
    for place, name in enumerate(("v0", "v1")):
        value = op.operand(name)
        if value is not None:
            if value not in h._sizes:
                raise h._problem(op, f"the host needs %{value.name}, which depends on data")
            numbers[place] = h._sizes[value]
            given.append(place)
    dims: tuple[Dim, ...] = tuple(op.attribute("dims"))  # type: ignore[arg-type]
    h.sites.append(Site("error", "", str(op.attributes["message"]), dims, op.loc, given=(*given, *range(2, 2 + len(dims))), operation=op))
    yield AssertStep(condition, len(h.sites) - 1, numbers[0], numbers[1])


_HANDLERS: dict[str, Callable[[HostWriter, Operation], Iterator[Step]]] = {
    "memref.from_tensor": _from_tensor, "memref.of_inout": _from_tensor, "memref.alloc": _alloc, "memref.reshape": _reshape,
    "memref.view": _view, "memref.dim": _dim, "memref.is_aligned": _is_aligned, "memref.to_tensor": _to_tensor,
    "memref.copy": _copy, "memref.load": _read, "vector.load": _read, "memref.prefetch": _read, "graph.print": _print,
    "gpu.launch": _launch, "scf.for": _for, "scf.if": _if, "cf.assert": _assert,
}  # fmt: skip

_AFFINE: dict[str, Callable[..., Dim]] = {
    "apply": lambda x: x, "min": dim_min, "max": dim_max, "align_down": lambda x, y: floordiv(x, y) * y,
}  # fmt: skip
_ARITH: dict[str, Callable[..., Dim]] = {
    "arith.addi": lambda x, y: x + y, "arith.subi": lambda x, y: x - y, "arith.muli": lambda x, y: x * y, "arith.floordivsi": floordiv,
    "arith.modsi": mod, "arith.maxsi": dim_max, "arith.minsi": dim_min,
}  # fmt: skip
_LOGIC = {"arith.andi": "and", "arith.ori": "or", "arith.xori": "xor"}


def _targets(op: Operation) -> Iterator[Value]:
    """Buffers that an operation writes, operations inside of it included."""
    for inner in op.walk():
        name = inner.definition.full_name
        if name in _STORES:
            access = layout_of(inner)[1]
            assert isinstance(access, AccessArg)
            yield inner.operands[access.position]
        elif name == "memref.copy":
            yield inner.operands[1]


def _outermost(value: Value, known: dict[Value, BufferRef]) -> Value:
    """The buffer whose place the host knows that a value is a part of, or what it comes from."""
    while value not in known and value.defining_op is not None and value.defining_op.definition.full_name in ("memref.reshape", "memref.view"):
        value = value.defining_op.operands[0]
    return value


def _is_behind(a: BufferRef, b: BufferRef, b_type: object) -> bool:
    """Whether memory a begins where b, of a type, ends, or later."""
    assert isinstance(b_type, MemRefType)
    gap = a.offset - b.offset - product(b_type.shape) * b_type.dtype.itemsize
    if isinstance(gap, int):
        return gap >= 0
    return isinstance(gap, DimExpr) and all(c > 0 for _, c in gap.terms)

