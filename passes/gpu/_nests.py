"""Nests that become kernels: which blocks the host runs, nests of parallel loops, and what a thread does on its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ir.builder import Builder
from ir.builtin import yield_
from ir.core import Block, Graph, Module, Operation, Region, Trivia, Value
from ir.diagnostics import Diagnostic, GraphError
from ir.dims import Dim, ceildiv, floordiv, product
from ir.layout import LAYOUT, IndexExpr, RangeArg
from ir.opdef import REGISTRY
from ir.references import load_time_graphs
from ir.rewriter import is_pure, walk_graphs
from ir.types import MemRefType, ScalarType, VectorType
from passes.gpu._kernels import launch, less, named, split_index, thread, value_of, when
from passes.loops._blocks import active
from passes.loops._loops import (
    Access,
    body,
    depends_on,
    extent,
    inner_loop,
    move_into,
    parent,
    ranges,
    read_layout,
    value_symbol,
    write_layout,
)  # fmt: skip
from passes.loops._memory import accesses_of, alias, all_accesses

# -- what the host runs ------------------------------------------------------------------------------------------------


def device_graphs(module: Module) -> list[Graph]:
    """The graphs whose nests become kernels: those that run when the program is called."""
    at_load_time = load_time_graphs(module)
    return [g for g in walk_graphs(module) if g.name not in at_load_time]


def host_blocks(block: Block) -> Iterator[Block]:
    """The blocks whose operations the host runs one after the other: that of a graph, and those of control around nests."""
    yield block
    for op in list(block):
        if is_host_control(op):
            for region in op.regions:
                yield from host_blocks(region.block)


def is_host_control(op: Operation) -> bool:
    """Whether a loop or choice stays on the host: it has nests inside, and nothing that it asks for or carries comes from a kernel."""
    if op.name not in ("scf.for", "scf.if") or not any(_is_for_kernels(n) for n in op.walk()):
        return False
    if not all(is_host_value(v) for v in op.operands):
        return False
    inside = [o for region in op.regions for o in region.block]
    if any(accesses_of(o) or o.name == "cf.assert" for o in inside if not o.regions and not o.definition.is_terminator and o.name != "memref.copy"):
        return False  # a scalar that the loop itself loads or stores: one thread runs it all
    terminators = [region.block.terminator for region in op.regions]
    return all(is_host_value(v, op) for t in terminators if t is not None for v in t.operands)


def _is_for_kernels(op: Operation) -> bool:
    """Whether an operation is a nest, a kernel, or will be some."""
    return op.name in ("scf.parallel", "gpu.launch") or (op.definition.dialect == "graph" and not op.definition.is_terminator)


def is_host_value(value: Value, around: Operation | None = None) -> bool:
    """Whether the host knows a value without a kernel: a buffer, a tensor, or arithmetic on dimensions and constants.

    What the regions of ``around`` get as arguments counts as known.
    """
    if not isinstance(value.type, ScalarType):
        return not isinstance(value.type, VectorType)
    op = value.defining_op
    if op is None:
        owner = value.owner
        outer = owner.parent.parent if isinstance(owner, Block) and owner.parent is not None else None
        return outer is None or outer is around or is_host_control(outer)
    if op.name == "memref.dim":
        return True
    if op.regions:
        return is_host_control(op)
    return op.definition.dialect != "gpu" and is_pure(op) and op.name not in ("memref.load", "vector.load") and all(
        is_host_value(v, around) for v in op.operands
    )  # fmt: skip


# -- nests of parallel loops -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ParallelNest:
    """Parallel loops around each other, outermost first, with nothing between; one entry in each list per variable."""

    loops: list[Operation]
    variables: list[Value]
    bounds: list[RangeArg]

    @property
    def body(self) -> Block:
        """What the innermost loop repeats."""
        return body(self.loops[-1])

    @property
    def counts(self) -> list[Dim]:
        """How often each variable steps."""
        return [ceildiv(extent(b), b.step) if b.step != 1 else extent(b) for b in self.bounds]

    @property
    def total(self) -> Dim:
        """How many rounds there are in all."""
        return product(self.counts)

    def starts_at_zero(self) -> bool:
        """Whether all variables run from 0 in steps of 1."""
        return all(b.start == 0 and b.step == 1 for b in self.bounds)


def parallel_nest(loop: Operation) -> ParallelNest:
    """The largest perfect nest of parallel loops from one on whose ranges do not depend on each other."""
    loops, variables, bounds = [loop], list(body(loop).arguments), ranges(loop)
    while (inner := inner_loop(loops[-1])) is not None and inner.name == "scf.parallel":
        more = ranges(inner)
        if any(depends_on(e, variables) for b in more for e in (b.start, b.stop, b.step)):
            break
        loops.append(inner)
        variables += body(inner).arguments
        bounds += more
    return ParallelNest(loops, variables, bounds)


def place_variables(nest: ParallelNest, places: Sequence[Dim]) -> None:
    """Gives the variables of a nest values in the kernel that is built: the places count rounds from 0."""
    for variable, bounds, place in zip(nest.variables, nest.bounds, places, strict=True):
        set_variable(variable, bounds.start + place * bounds.step if (bounds.start, bounds.step) != (0, 1) else place)


def set_variable(variable: Value, place: Dim) -> None:
    """Uses an expression in the place of a loop variable, under its name."""
    variable.replace_all_uses_with(value_of(place, variable.name))


def launch_rounds(nest: ParallelNest, threads: int, tag: str) -> Operation | None:
    """Replaces a nest by a kernel with one thread for each of its rounds, neighbours of the innermost variable side by side.

    A nest that is known to have no rounds is erased.
    """
    loop = nest.loops[0]
    block, anchor, total, counts = loop.block, loop.next, nest.total, nest.counts
    assert block is not None
    if total == 0:
        loop.erase()
        return None
    name = kernel_name(loop) or "check"
    loop.remove()

    def kernel(at_block: Dim) -> None:
        at = named("round", threads * at_block + thread())

        def work() -> None:
            place_variables(nest, split_index(at, counts))
            move_body(nest.body, active().block)

        when(less(at, total), work)

    with Builder(block, anchor, loc=loop.loc):
        made = launch([("block", ceildiv(total, threads))], threads, kernel, name=name, tag=tag)
    hand_over(loop, made)
    return made


def hand_over(old: Operation, new: Operation) -> None:
    """Gives the comments of an operation that is gone to the one in its place."""
    trivia, old.trivia = old.trivia, None
    if trivia is not None:
        new.trivia = Trivia(trivia.blank_before, trivia.detached, trivia.leading, trivia.trailing)


def kernel_name(op: Operation) -> str | None:
    """What a kernel is called: after what it stores first; None where it stores nothing."""
    for inner in op.walk():
        for access in accesses_of(inner):
            if access.writes:
                return access.buffer.name.removesuffix(".flat").removesuffix(".buffer")
    return None


# -- what one thread does ----------------------------------------------------------------------------------------------


def move_body(block: Block, into: Block) -> None:
    """Moves all operations of a body but its terminator to the end of another block, as what one thread does."""
    for op in list(block):
        if not op.definition.is_terminator:
            move_into(op, into)
            make_serial(op)


def make_serial(op: Operation) -> None:
    """Parallel loops in an operation become loops that one thread runs."""
    for inner in list(op.walk()):
        if inner.name == "scf.parallel":
            _split_ranges(inner)
            inner.definition = REGISTRY["scf.for"]
            inner.attributes = {k: v for k, v in inner.attributes.items() if k not in ("mapping", "work")}


def _split_ranges(loop: Operation) -> None:
    """Makes nested loops of one with several variables."""
    while len(bounds := ranges(loop)) > 1:
        block = body(loop)
        region = Region()
        last = block.arguments.pop()
        last.owner, last.index = region.block, 0
        region.block.arguments.append(last)
        for op in list(block):
            op.remove()
            region.block.insert_before(None, op)
        write_layout(loop, bounds[:-1])
        with Builder(block, loc=loop.loc) as builder:
            attributes: Any = {LAYOUT: (RangeArg(0, 0, 1),), **{k: v for k, v in loop.attributes.items() if k == "tag"}}
            made = builder.create(REGISTRY["scf.for"], [], attributes, regions=[region], result_types=[])
            builder.create(yield_, [])
        write_layout(made, [bounds[-1]])


def inside_of(op: Operation, outer: Operation) -> bool:
    """Whether an operation stands in a region of another one, at any depth."""
    at: Operation | None = op
    while at is not None:
        if at is outer:
            return True
        at = parent(at)
    return False


def own_buffers(op: Operation) -> list[Value]:
    """Buffers that are made inside an operation."""
    return [n.result for n in op.walk() if n.name == "memref.alloc" and isinstance(n.result.type, MemRefType)]


def is_lowered(op: Operation) -> bool:
    """Whether there are only operations inside that a kernel can run."""
    inside = [n for n in op.walk() if not n.definition.is_terminator]
    return not any(n.definition.dialect in ("graph", "linalg") or n.name in ("memref.to_tensor", "memref.from_tensor") for n in inside)


def hoist_buffers(loop: Operation) -> None:
    """Moves memory that rounds of a parallel loop make in front of it, one part for each round."""
    for buffer in own_buffers(loop):
        made, type_ = buffer.defining_op, buffer.type
        assert made is not None and isinstance(type_, MemRefType) and loop.block is not None
        around: list[Operation] = []
        at = parent(made)
        while at is not None and at is not parent(loop):
            around.insert(0, at)
            at = parent(at)
        bounds = [(v, b) for o in around if o.name == "scf.parallel" for v, b in zip(body(o).arguments, ranges(o), strict=True)]
        counts = [ceildiv(extent(b), b.step) for _, b in bounds]
        for op in buffer.users:
            if op.name not in ("memref.load", "memref.store", "vector.load", "vector.store", "memref.prefetch"):
                raise GraphError(Diagnostic(f"{op.name}: kernels can't have this of %{buffer.name}, a buffer that a parallel loop makes", op.loc))
            forms = read_layout(op)
            places = tuple(IndexExpr(floordiv(value_symbol(v) - b.start, b.step)) for v, b in bounds)
            write_layout(op, [Access(f.buffer, (*places, *f.indices)) if isinstance(f, Access) and f.buffer is buffer else f for f in forms])
        move_into(made, loop.block, loop)
        buffer.type = MemRefType(type_.dtype, (*counts, *type_.shape), type_.space)


def swap_into_parallel(loop: Operation) -> Operation | None:
    """Makes a parallel loop around a serial one of a serial loop that holds one parallel loop behind scalars: each thread runs all its rounds.

    It may where each round of the parallel loop reads and writes elements of its own in all that is written: those at its variable
    along one axis.  Returns the parallel loop, None where it may not (or where there is no such loop).
    """
    if loop.name != "scf.for" or loop.results or loop.block is None:
        return None
    inner = [op for op in body(loop) if op.name == "scf.parallel"]
    scalars = [op for op in body(loop) if op.name != "scf.parallel" and not op.definition.is_terminator]
    if len(inner) != 1:
        return None
    if not all(is_pure(op) or op.name == "memref.load" for op in scalars) or body(loop).last is not inner[0].next:
        return None
    nest = parallel_nest(inner[0])
    made_inside = [*body(loop).arguments, *(r for op in scalars for r in op.results)]
    if any(depends_on(e, made_inside) for b in nest.bounds for e in (b.start, b.stop, b.step)) or not _apart(loop, nest):
        return None
    outer, inside = inner[0], nest.body
    block, anchor = loop.block, loop.next
    loop.remove()
    outer.remove()
    # the body of the innermost parallel loop goes to the end of the serial one, which becomes that body
    for op in list(inside):
        if not op.definition.is_terminator:
            move_into(op, body(loop), body(loop).terminator)
    inside.insert_before(inside.terminator, loop)
    block.insert_before(anchor, outer)
    return outer


def _apart(loop: Operation, nest: ParallelNest) -> bool:
    """Whether different rounds of a parallel nest in a loop never touch one element that any of them writes."""
    found = all_accesses([loop])
    for written in [a for a in found if a.writes]:
        for other in [a for a in found if alias(a.memory, written.memory) != "never"]:
            if other.indices is None or written.indices is None or other.buffer is not written.buffer:
                return False
            for variable in nest.variables:
                own = value_symbol(variable)
                if not any(a == b == own for a, b in zip(other.indices, written.indices, strict=True)):
                    return False
    return True
