"""``scf`` operations and ``cf.assert``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from codegen.llvm.integers import facts
from codegen.llvm.polynomials import Poly, as_number, constant
from codegen.llvm.types import llvm_type
from codegen.llvm.writer import Writer, emits
from ir.core import Block, Operation, Value
from ir.diagnostics import Diagnostic, GraphError
from ir.dims import Dim
from ir.layout import BindArg, OperandArg, RangeArg, layout_of
from ir.types import ScalarType, VectorType, index


def bounds_of(w: Writer, op: Operation, bounds: RangeArg) -> tuple[Poly, Poly, Poly]:
    """Start, stop and step; the step is checked where it is not known."""
    operands = [u.value for u in op.operand_uses]
    start, stop, step = (w.space.convert(e, operands) for e in (bounds.start, bounds.stop, bounds.step))
    if as_number(step) is None and not w.space.prove({**step, (): step.get((), 0) - 1}):
        found = w.integer(step)
        w.check(w.set(f"icmp sgt i64 {found}, 0"), "the step is {0}, it must be positive", found)
    return start, stop, step


def _carried_type(value: Value) -> str:
    if not isinstance(value.type, (ScalarType, VectorType)):
        message = f"codegen: %{value.name} of type {value.type} is carried by a loop or chosen, which native code can't"
        raise GraphError(Diagnostic(message, value.location))
    return llvm_type(value.type)


def _has_loop(block: Block) -> bool:
    """Whether there are loops in a block, so that it takes long enough for a look whether the run should end."""
    return any(inner.definition.full_name in ("scf.for", "scf.parallel") for op in block for inner in op.walk())


@emits("scf.for")
def _for(w: Writer, op: Operation) -> None:
    layout = layout_of(op)
    assert isinstance(layout[0], RangeArg)
    block = op.regions[0].block
    inits = [a.source.position for a in layout if isinstance(a, BindArg) and isinstance(a.source, OperandArg)]
    carried = [(arg, _carried_type(arg), w.name(op.operand_uses[p].value)) for arg, p in zip(block.arguments[1:], inits, strict=True)]
    results = w.loop(block.arguments[0], bounds_of(w, op, layout[0]), carried, lambda: w.run(block), watched=_has_loop(block))
    for value, register in zip(op.results, results, strict=True):
        w.names[value] = register


@emits("scf.parallel")
def _parallel(w: Writer, op: Operation) -> None:
    ranges = [a for a in layout_of(op) if isinstance(a, RangeArg)]
    all_bounds = [bounds_of(w, op, r) for r in ranges]
    _nest(w, op, all_bounds, None)


def shared(w: Writer, op: Operation) -> None:
    """A parallel loop of which every thread takes a contiguous piece: of the first range, or of all combinations when there are several."""
    ranges = [a for a in layout_of(op) if isinstance(a, RangeArg)]
    all_bounds = [bounds_of(w, op, r) for r in ranges]
    rounds = [_rounds(w, bounds) for bounds in all_bounds]
    total = rounds[0]
    for count in rounds[1:]:
        total = w.set(f"mul i64 {total}, {count}")
    first, last = _share(w, total)
    if len(ranges) > 1:
        _combinations(w, op, all_bounds, rounds, first, last)
        return
    start, _, step = (w.integer(b) for b in all_bounds[0])
    places = [_as_poly(w, op, w.set(f"add i64 {start}, {w.set(f'mul i64 {r}, {step}')}")) for r in (first, last)]
    _nest(w, op, all_bounds, (places[0], places[1], all_bounds[0][2]))


def _rounds(w: Writer, bounds: tuple[Poly, Poly, Poly]) -> str:
    """max(0, ceil((stop - start) / step)), unsigned since the difference of two i64 may be large."""
    start, stop, step = (w.integer(b) for b in bounds)
    distance = w.set(f"sub i64 {stop}, {start}")
    some = w.set(f"icmp slt i64 {start}, {stop}")
    less = w.set(f"udiv i64 {w.set(f'sub i64 {distance}, 1')}, {step}")
    return w.set(f"select i1 {some}, i64 {w.set(f'add i64 {less}, 1')}, i64 0")


def _share(w: Writer, rounds: str) -> tuple[str, str]:
    """The first of this thread's rounds, and the one behind its last."""
    share = w.set(f"udiv i64 {rounds}, %threads")
    more = w.set(f"urem i64 {rounds}, %threads")
    mine = w.set(f"mul i64 {share}, %thread")
    extra = w.set(f"icmp ult i64 %thread, {more}")
    shift = w.set(f"select i1 {extra}, i64 %thread, i64 {more}")
    first = w.set(f"add i64 {mine}, {shift}")
    count = w.set(f"add i64 {share}, {w.set(f'zext i1 {extra} to i64')}")
    return first, w.set(f"add i64 {first}, {count}")


def _as_poly(w: Writer, op: Operation, register: str) -> Poly:
    """A register as a value of the index arithmetic."""
    value = Value("", ScalarType(index), op, 0)
    w.names[value] = register
    return w.space.value(value)


def _combinations(w: Writer, op: Operation, all_bounds: Sequence[tuple[Poly, Poly, Poly]], rounds: Sequence[str], first: str, last: str) -> None:
    """The combinations ``first`` to ``last`` of several ranges, the last one fastest, in one loop."""
    block = op.regions[0].block
    number = Value("", ScalarType(index), op, 0)

    def body() -> Sequence[str]:
        left = w.name(number)
        for variable, bounds, count in reversed(list(zip(block.arguments, all_bounds, rounds, strict=True))):
            start, _, step = (w.integer(b) for b in bounds)
            at = w.set(f"urem i64 {left}, {count}")
            left = w.set(f"udiv i64 {left}, {count}")
            w.space.counter(variable, *bounds)
            w.names[variable] = w.set(f"add i64 {start}, {w.set(f'mul i64 {at}, {step}')}")
        w.run(block)
        return []

    w.loop(number, (_as_poly(w, op, first), _as_poly(w, op, last), constant(1)), [], body, watched=True)


def _nest(w: Writer, op: Operation, all_bounds: Sequence[tuple[Poly, Poly, Poly]], first: tuple[Poly, Poly, Poly] | None) -> None:
    block = op.regions[0].block
    inner_loops = _has_loop(block)

    def level(at: int) -> Sequence[str]:
        if at == len(all_bounds):
            w.run(block)
            return []
        bounds = first if at == 0 and first is not None else all_bounds[at]
        watched = inner_loops or at + 1 < len(all_bounds)
        w.loop(block.arguments[at], bounds, [], lambda: level(at + 1), all_bounds[at], watched)
        return []

    level(0)


@emits("scf.if")
def _if(w: Writer, op: Operation) -> None:
    condition = op.operand_uses[0].value

    def branch(number: int) -> Callable[[], Sequence[str]]:
        def run() -> Sequence[str]:
            return w.run(op.regions[number].block, facts(w, condition, number == 0))

        return run

    branches = [branch(n) for n in range(len(op.regions))]
    results = w.choice(w.name(condition), branches, [_carried_type(r) for r in op.results])
    for value, register in zip(op.results, results, strict=True):
        w.names[value] = register


@emits("cf.assert")
def _assert(w: Writer, op: Operation) -> None:
    condition = op.operand_uses[0].value
    numbers, given = ["0", "0"], []
    for place, name in enumerate(("v0", "v1")):
        value = op.operand(name)
        if value is not None:
            numbers[place] = w.name(value)
            given.append(place)
    dims = cast("tuple[Dim, ...]", op.attribute("dims"))
    site = w.site(str(op.attributes["message"]), dims, name="", given=(*given, *range(2, 2 + len(dims))))
    w.check_site(w.name(condition), str(site), numbers[0], numbers[1])
    w.space.hypotheses += facts(w, condition, True)  # for the rest of the region; its end forgets them
