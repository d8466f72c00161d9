"""Who works when: loops that are too small to share, barriers that nobody needs, and how much there is to do.

The first thread does by itself what is not shared, and what is too little to share at the sizes of the run.  Between two such
pieces of work nobody has to wait.  "Alone" is an i1 here: ``true``, ``false``, or a register where it depends on the sizes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable

from codegen.llvm.writer import Unit, Writer
from dialects.affine import expressions_of
from ir.attributes import Dense
from ir.core import Block, Graph, Operation, Value
from ir.dims import Dim, DimExpr, DimFunction, ceildiv, symbols_of
from ir.layout import RangeArg, layout_of
from ir.structure import Copies
from ir.types import MemRefType, ScalarType, index

SHARED_WORK = 4096
"""Simple operations from which on a loop is shared when the threads are at work anyway: less costs more to hand out than it saves."""

SHARING_COST = 8192
"""What handing out a loop costs, and bringing what one thread has written to another: so many simple operations."""

_INFINITE = "0x7FF0000000000000"


def is_shared(op: Operation) -> bool:
    """Whether the threads share the rounds of a loop."""
    return op.definition.full_name == "scf.parallel" and op.attribute("mapping") == "threads"


class Turns:
    """What was done since all threads have last waited for each other."""

    def __init__(self, writer: Writer, barrier: Callable[[], None]) -> None:
        self._w = writer
        self._barrier = barrier
        self._last: str | None = None  # whether the last work was done by the first thread alone; None: nothing was done
        self.reading = False  # whether other threads may still be reading memory, so that who writes must wait

    def is_alone(self, op: Operation) -> str:
        """Whether the first thread should run a shared loop alone."""
        work = op.attribute("work")
        if isinstance(work, int):
            return "true" if work < SHARED_WORK else "false"
        if not isinstance(work, DimExpr):
            return "false"
        return self._w.pure(0, f"fcmp olt double {estimate(self._w, work)}, {_double(SHARED_WORK)}")

    def begin(self, alone: str) -> bool:
        """Waits where work that is done ``alone`` or by all needs that; whether a failure before it may have been passed by."""
        passed_by = self._wait_before(alone)
        self._last = alone
        return passed_by

    def _wait_before(self, alone: str) -> bool:
        w, last = self._w, self._last
        if last is None and not self.reading:
            return False
        if self.reading or last is None or "false" in (last, alone):
            self._barrier()
            return False
        if last == alone == "true":
            return True
        both = alone if last == "true" else last if alone == "true" else w.set(f"and i1 {last}, {alone}")
        wait, go = w.label("wait"), w.label("go")
        w.line(f"br i1 {both}, label %{go}, label %{wait}")
        w.place(wait)
        self._barrier()
        w.line(f"br label %{go}")
        w.place(go)
        return True

    def waited(self) -> None:
        """A barrier was passed."""
        self._last = None
        self.reading = False

    def settle(self) -> None:
        """Waits until all that was begun is done, so that all threads may read it."""
        if self._last is not None:
            self._barrier()

    def do(self, alone: str, unless_failed: bool, work: Callable[[], object]) -> None:
        """Code for all threads, or for the first one; ``unless_failed`` when a failure before it may have been passed by."""
        w = self._w
        conditions = []
        if alone != "false":
            conditions.append("%first" if alone == "true" else w.set(f"or i1 %first, {w.set(f'xor i1 {alone}, true')}"))
        if unless_failed:
            failed = w.set("load atomic i32, ptr %state acquire, align 4")
            conditions.append(w.set(f"icmp eq i32 {failed}, 0"))
        if not conditions:
            work()
            return
        mine = conditions[0] if len(conditions) == 1 else w.set(f"and i1 {conditions[0]}, {conditions[1]}")
        run, join = w.label("run"), w.label("join")
        w.line(f"br i1 {mine}, label %{run}, label %{join}")
        w.place(run)
        level = w.levels[-1]
        known = dict(level.cache)
        work()
        level.cache = known  # what was computed here is not known to the other threads
        w.line(f"br label %{join}")
        w.place(join)


# -- how much there is to do ------------------------------------------------------------------------------------------------


def total_work(w: Writer, graph: Graph, copies: Copies) -> str:
    """About how many simple operations the shared loops of a graph are, less what sharing costs, as a double of the named dimensions;
    infinite when unknown."""
    total = "0.0"
    for op in _shared_loops(graph.block, copies):
        work = op.attribute("work")
        if not isinstance(work, int | DimExpr):
            return _INFINITE
        rest = _sum(w, [estimate(w, work), _double(-SHARING_COST)])
        some = _all(w, [w.pure(0, f"fcmp ogt double {rest}, 0.0"), *_conditions_around(w, op)])
        gain = w.pure(0, f"select i1 {some}, double {rest}, double 0.0")
        total = _sum(w, [total, _product(w, [gain, *(estimate(w, r) for r in _rounds_around(op))])])
    return total


def _shared_loops(block: Block, copies: Copies) -> Iterable[Operation]:
    for op in block:
        if op.regions:
            if is_shared(op):
                yield op
            copy = copies.get(op)
            if copy is None or copy.locations is None:  # no loop inside of a stand-in is shared
                for region in op.regions:
                    for inner in region.blocks:
                        yield from _shared_loops(inner, copies)


def _conditions_around(w: Writer, op: Operation) -> Iterable[str]:
    """What must hold for the choices around an operation to lead to it, as far as that only depends on named dimensions."""
    inner, around = op, _around(op)
    while around is not None:
        if around.definition.full_name == "scf.if":
            condition = _condition(w, around.operand_uses[0].value)
            if condition is not None:
                yield condition if inner.block is around.regions[0].block else w.pure(0, f"xor i1 {condition}, true")
        inner, around = around, _around(around)


def _condition(w: Writer, value: Value) -> str | None:
    """An i1 for a comparison of named dimensions, or for several joined by ``andi``; None for others."""
    op = value.defining_op
    name = op.definition.full_name if op is not None else ""
    if op is None or name not in _CONDITIONS:
        return None
    if name == "arith.andi":
        parts = [_condition(w, u.value) for u in op.operand_uses]
        return None if None in parts else _all(w, [p for p in parts if p is not None])
    sizes = [_size(u.value) for u in op.operand_uses]
    if None in sizes:
        return None
    left, right = (estimate(w, s) for s in sizes if s is not None)
    return w.pure(0, f"fcmp o{op.attributes['predicate']} double {left}, {right}")


_CONDITIONS = ("arith.andi", "arith.cmpi")
_SUMS: dict[str, Callable[[Dim, Dim], Dim]] = {"arith.addi": lambda a, b: a + b, "arith.subi": lambda a, b: a - b, "arith.muli": lambda a, b: a * b}


def _size(value: Value) -> Dim | None:
    """An index value as an expression of named dimensions; None when it is none."""
    op = value.defining_op
    if op is None or value.type != ScalarType(index):
        return None
    name = op.definition.full_name
    if name == "arith.constant":
        given = op.attributes["value"]
        return int(given.array) if isinstance(given, Dense) else given if isinstance(given, int) else None
    if name == "memref.dim":
        type_, axis = op.operand_uses[0].value.type, op.attribute("axis")
        return type_.shape[axis] if isinstance(type_, MemRefType) and isinstance(axis, int) else None
    if name == "affine.apply":
        (found,) = expressions_of(op)
        return None if any(n.startswith("%") for n in symbols_of(found)) else found
    if name in _SUMS:
        left, right = (_size(u.value) for u in op.operand_uses)
        return None if left is None or right is None else _SUMS[name](left, right)
    return None


def _all(w: Writer, conditions: list[str]) -> str:
    found = conditions[0]
    for condition in conditions[1:]:
        found = w.pure(0, f"and i1 {found}, {condition}")
    return found


def _rounds_around(op: Operation) -> Iterable[Dim]:
    """How often the loops around an operation run, as far as that only depends on named dimensions."""
    around = _around(op)
    while around is not None:
        if around.definition.full_name in ("scf.for", "scf.parallel"):
            for bounds in layout_of(around):
                if isinstance(bounds, RangeArg):
                    count = ceildiv(bounds.stop - bounds.start, bounds.step)
                    if not any(n.startswith("%") for n in symbols_of(count)):
                        yield count
        around = _around(around)


def _around(op: Operation) -> Operation | None:
    block = op.block
    return block.parent.parent if block is not None and block.parent is not None else None


def estimate(w: Writer, dim: Dim) -> str:
    """A double about as large as an expression of named dimensions; written once.  It never overflows, however large they are."""
    if isinstance(dim, int):
        return _double(dim)
    assert isinstance(dim, DimExpr)
    terms = [_product(w, [_double(c), *(_atom(w, a) for a in monomial)]) for monomial, c in dim.terms]
    return _sum(w, terms)


def _atom(w: Writer, atom: str | DimFunction) -> str:
    if isinstance(atom, str):
        ((number,),) = w.space.symbol(atom)
        return w.pure(0, f"sitofp i64 {w.symbol(number)} to double")
    values = [estimate(w, a) for a in atom.args]
    if atom.kind in ("min", "max"):
        total = values[0]
        for value in values[1:]:
            less = w.pure(0, f"fcmp {'olt' if atom.kind == 'min' else 'ogt'} double {total}, {value}")
            total = w.pure(0, f"select i1 {less}, double {total}, double {value}")
        return total
    quotient = w.pure(0, f"fdiv double {values[0]}, {values[1]}")
    rounding = w.unit.declare("double", f"llvm.{'ceil' if atom.kind == 'ceildiv' else 'floor'}.f64", "double")
    whole = w.pure(0, f"call double {rounding}(double {quotient})")
    if atom.kind == "mod":
        return w.pure(0, f"fsub double {values[0]}, {w.pure(0, f'fmul double {values[1]}, {whole}')}")
    return whole


def _sum(w: Writer, terms: list[str]) -> str:
    total = terms[0]
    for term in terms[1:]:
        total = term if total == "0.0" else w.pure(0, f"fadd double {total}, {term}")
    return total


def _product(w: Writer, factors: list[str]) -> str:
    total = factors[0]
    for factor in factors[1:]:
        total = factor if total == _double(1) else w.pure(0, f"fmul double {total}, {factor}")
    return total


def _double(number: float) -> str:
    return f"0x{struct.pack('>d', number).hex().upper()}" if number else "0.0"


def work_function(unit: Unit, graph: Graph, load: Callable[[Writer], None], copies: Copies) -> str:
    """``double @NAME_work(ptr dims)``: see :func:`total_work`."""
    w = Writer(unit)
    load(w)
    w.line(f"ret double {total_work(w, graph, copies)}")
    return f"define double @{unit.name}_work(ptr %dims) #0 {{\n{w.body()}\n}}\n"
