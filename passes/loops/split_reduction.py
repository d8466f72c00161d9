"""Pass ``split-reduction``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from dialects.arith.comparison import cmpf, cmpi, select
from dialects.arith.constant import constant
from dialects.vector import extract, shuffle, step
from ir.attributes import Dense
from ir.builtin import yield_
from ir.core import Block, Module, Operation, Region, Trivia, Value
from ir.dims import Dim, DimExpr, dim_max, mod
from ir.layout import LAYOUT, AccessArg, BindArg, OperandArg, RangeArg, layout_of
from ir.opdef import REGISTRY, OpDef
from ir.rewriter import walk_graphs
from ir.types import DType, ScalarType, VectorType, boolean, index
from passes.infra.base import Pass, PassContext
from passes.loops._indices import Dimensions, Index, Operands, combine, compute, difference, find_dimensions, index_of, number, of_value
from passes.loops._vectorizer import Analysis, Axis, CannotVectorize, Emitter, initial_values


@dataclass(frozen=True)
class SplitReduction(Pass):
    """Sums up (multiplies, takes the extreme of) in lanes instead of one after the other.

    Before::

        %s = scf.for(%k = 0 to N, %acc = %zero, tag="reduce") {
          %a = memref.load(%A[%i, %k]) : f32
          %t = arith.addf(%acc, %a) : f32
          yield %t
        } : f32

    After ``split-reduction{lanes=4}``::

        %s.none = arith.constant(-0.0) : vector<f32[4]>
        %s.lanes = scf.for(%k = 0 to N-(N mod 4) step 4, %acc = %s.none, tag="reduce") {
          %a = vector.load(%A[%i, %k:+4]) : vector<f32[4]>
          %t = arith.addf(%acc, %a) : vector<f32[4]>
          yield %t
        } : vector<f32[4]>
        %s.lanes.1 = scf.for(%k.1 = N-(N mod 4) to N step 4, %acc.1 = %s.lanes) {
          %k.dim = memref.dim(%A, axis=1) : index
          %k.subi = arith.subi(%k.dim, %k.1) : index
          %a.1 = vector.load(%A[%i, %k.1:+4], valid=%k.subi) : vector<f32[4]>
          %t.1 = arith.addf(%acc.1, %a.1) : vector<f32[4]>
          %k.step = vector.step() : vector<index[4]>
          %k.used = arith.cmpi(%k.step, %k.subi, predicate="lt") : vector<bool[4]>
          %t.used = arith.select(%k.used, %t.1, %acc.1) : vector<f32[4]>
          yield %t.used
        } : vector<f32[4]>
        %s.low = vector.shuffle(%s.lanes.1, %s.lanes.1, mask=[0, 1]) : vector<f32[2]>
        %s.high = vector.shuffle(%s.lanes.1, %s.lanes.1, mask=[2, 3]) : vector<f32[2]>
        %s.halves = arith.addf(%s.low, %s.high) : vector<f32[2]>
        %s.low.1 = vector.extract(%s.halves, position=[0]) : f32
        %s.high.1 = vector.extract(%s.halves, position=[1]) : f32
        %s.halves.1 = arith.addf(%s.low.1, %s.high.1) : f32
        %s = arith.addf(%zero, %s.halves.1) : f32

    A loop with tag ``loop`` and step 1 may carry several values, each one chain of one associative operation (``addf``
    with ``math.fma``, ``mulf``, ``maximumf``, ``addi``, ``andi``, ...) that nothing else looks at, or of choices of the larger or
    smaller number (``select`` by ``cmpf``; of two zeros any).  Lane l takes the rounds l, l + lanes, ...; the last round may be
    partial, and the lanes are combined by halves: an order that depends on the number of rounds alone.  Fewer known rounds than
    lanes take the next power of two, which gives the same bits; so do four times the lanes for extremes and integers, where the
    order does not matter.

    A loop stays as it is, and the statistics say why, when it carries something else, or reads memory other than element
    by element along the last axis (see ``vectorize``).
    """

    preserves: ClassVar[Literal["bits", "values"]] = "values"
    keeps_types: ClassVar[bool] = True
    local: ClassVar[bool] = True

    loop: str = "reduce"
    lanes: int = 16

    def __post_init__(self) -> None:
        if self.lanes < 2 or self.lanes & (self.lanes - 1):
            raise ValueError("lanes: expected a power of two, 2 or more")

    def run(self, module: Module, context: PassContext) -> bool:
        changed = False
        for graph in walk_graphs(module):
            for op in reversed(list(graph.walk())):  # inner loops first
                if op.definition.full_name != "scf.for" or op.attribute("tag") != self.loop or not op.results:
                    continue
                bounds = layout_of(op)[0]
                assert isinstance(bounds, RangeArg)
                if bounds.step != 1:
                    continue
                try:
                    _Split(op, bounds, self.lanes).run()
                except CannotVectorize as problem:
                    context.count(f"left: {problem.reason}")
                else:
                    context.count("loops split")
                    changed = True
        return changed


def combiners(op: Operation, lanes: int = 16) -> list[str] | None:
    """The operations that would combine the lanes of a loop, one for each carried value; None where it stays as it is.

    ``"gt"`` and ``"lt"`` stand for the choice of the larger and of the smaller number.
    """
    bounds = layout_of(op)[0]
    assert isinstance(bounds, RangeArg)
    try:
        split = _Split(op, bounds, lanes)
        split.check()
    except CannotVectorize:
        return None
    return split.combiners


def is_rounded(combiner: str) -> bool:
    """Whether what is combined depends on the order."""
    return combiner in _ROUNDED


_FAMILIES = {
    "arith.addf": "arith.addf",
    "math.fma": "arith.addf",
    **{n: n for n in ("arith.mulf", "arith.maximumf", "arith.minimumf", "arith.addi", "arith.muli", "arith.andi", "arith.ori", "arith.xori")},
    **{n: n for n in ("arith.maxsi", "arith.minsi", "arith.maxui", "arith.minui")},
}
"""The operations of chains, and the one that combines two partial results."""


_ROUNDED = ("arith.addf", "arith.mulf")
"""Combiners whose result depends on the order."""

_CHAINS = 4
"""How many machine vectors work side by side where the order does not matter: one would wait for itself."""


_CHOICES = {"gt": -np.inf, "lt": np.inf}
"""Predicates by which the larger, or the smaller, of two numbers is chosen, in the place of the name of a combiner; what they never choose."""


def identity_of(combiner: str, dtype: DType) -> Any:
    """What changes nothing: x combined with it is x, bit by bit."""
    if combiner in _CHOICES:
        return _CHOICES[combiner]
    if dtype.is_float:
        return {"arith.addf": -0.0, "arith.mulf": 1.0, "arith.maximumf": -np.inf, "arith.minimumf": np.inf}[combiner]
    if combiner == "arith.andi":
        return True if dtype == boolean else dtype.max_value if dtype.kind == "uint" else -1
    extremes = {"arith.maxsi": dtype.min_value, "arith.maxui": dtype.min_value, "arith.minsi": dtype.max_value, "arith.minui": dtype.max_value}
    return extremes.get(combiner, 1 if combiner == "arith.muli" else 0)


class _Split:
    """One loop.  Raises CannotVectorize before anything has changed."""

    def __init__(self, op: Operation, bounds: RangeArg, lanes: int) -> None:
        self.op = op
        self.body = op.regions[0].block
        self.variable, *self.accumulators = self.body.arguments
        self.combiners = [_combiner(op, n) for n in range(len(op.results))]
        self.start, self.stop = index_of(op, bounds.start), index_of(op, bounds.stop)
        count = difference(self.stop, self.start).dim
        if isinstance(count, int) and count < 2:
            raise CannotVectorize("fewer than two rounds")
        if not any(c in _ROUNDED for c in self.combiners) and (not isinstance(count, int) or count >= 2 * _CHAINS * lanes):
            lanes *= _CHAINS
        self.width = lanes if not isinstance(count, int) or count >= lanes else 1 << (count - 1).bit_length()
        self.rest: Dim = mod(count, self.width)
        self.count = count

    def _analyse(self, masked: bool) -> Analysis:
        analysis = Analysis([Axis(self.variable, self.width, masked)])
        for value in self.accumulators:
            analysis.masks[value] = 1
        analysis.block(self.body)
        for op in self.body:
            if op.definition.full_name in ("memref.load", "memref.store"):
                axes = [n for a in layout_of(op) if isinstance(a, AccessArg) for n in analysis.access(op, a)]
                if any(n is not None for n in axes[:-1]):
                    raise CannotVectorize("a loop variable that is not the last index")
        return analysis

    def check(self) -> tuple[Analysis, Analysis | None, Dimensions]:
        """What whole rounds and the partial one are like, and where dimensions are read.  Raises CannotVectorize."""
        _check_memory(self.body)
        full, partial = self._analyse(False), self._analyse(True) if self.rest != 0 else None
        dimensions = find_dimensions([self.start, self.stop], self.op) if partial is not None or full.used else {}
        if isinstance(dimensions, str):
            raise CannotVectorize(f"no buffer around has dimension {dimensions}")
        return full, partial, dimensions

    def run(self) -> None:
        """Replaces the loop."""
        full, partial, self.dimensions = self.check()
        op, block, anchor = self.op, self.op.block, self.op.next
        assert block is not None
        previous = op.prev
        op.remove()  # so that its names are free
        place = Emitter(full, block, anchor, {})
        place.loc, place.origin = op.loc, f"{self.variable.name}."
        lanes = [self._identities(place, n) for n in range(len(op.results))]
        middle = combine(lambda stop, start: _full_end(stop, start, self.width), self.stop, self.start)
        if not isinstance(self.count, int) or self.count >= 2 * self.width:
            lanes = self._loop(place, full, self.start, middle, lanes, str(op.attribute("tag")))
        elif self.count >= self.width:
            lanes = self._round(full, block, anchor, self.start, lanes, None)
        if partial is not None and isinstance(self.rest, int):
            lanes = self._round(partial, block, anchor, middle, lanes, number(self.rest, place.make_index))
        elif partial is not None:
            lanes = self._loop(place, partial, middle, self.stop, lanes, "")
        for n, (init, value) in enumerate(zip(initial_values(op), lanes, strict=True)):
            self._finish(place, n, init, value)
        first = previous.next if previous is not None else block.first
        if op.trivia is not None and first is not None:
            trivia, op.trivia = op.trivia, None
            first.trivia = Trivia(trivia.blank_before, trivia.detached, trivia.leading, trivia.trailing)
        op.erase()

    def _dtype(self, n: int) -> DType:
        type_ = self.op.results[n].type
        assert isinstance(type_, ScalarType)
        return type_.dtype

    def _type(self, n: int) -> VectorType:
        return VectorType(self._dtype(n), (self.width,))

    def _identities(self, place: Emitter, n: int) -> Value:
        dtype = self._dtype(n)
        array = np.full(self.width, identity_of(self.combiners[n], dtype), np.float64 if dtype.is_float else dtype.numpy)
        name = f"{self.op.results[n].name}.none"
        return place.make(constant, [], {"value": Dense(array, dtype)}, [self._type(n)], [name]).results[0]

    def _loop(self, place: Emitter, analysis: Analysis, start: Index, stop: Index, lanes: Sequence[Value], tag: str) -> list[Value]:
        """A loop over whole rounds, or over the one that is partial."""
        region = Region()
        variable = region.block.add_argument(self.variable.name, self.variable.type)
        carried = [region.block.add_argument(a.name, v.type) for a, v in zip(self.accumulators, lanes, strict=True)]
        at = of_value(variable)
        valid: Value | None = None
        if analysis.partial:
            emitter = Emitter(analysis, region.block, None, {})
            emitter.origin, emitter.loc = f"{self.variable.name}.", self.op.loc
            valid = compute(difference(stop, at), self.dimensions, emitter.make_index)
        yielded = self._round(analysis, region.block, None, at, carried, valid)
        region.block.append(Operation(yield_, yielded, loc=self.op.loc))
        operands = Operands()
        bounds = RangeArg(operands.put(start), operands.put(stop), self.width)
        values = [*operands.values, *lanes]
        layout = (bounds, *(BindArg(OperandArg(len(operands.values) + n)) for n in range(len(lanes))))
        attributes: dict[str, Any] = {LAYOUT: layout, **({"tag": tag} if tag else {})}
        names = [f"{r.name}.lanes" for r in self.op.results]
        return list(place.make(self.op.definition, values, attributes, [v.type for v in lanes], names, [region]).results)

    def _round(
        self, analysis: Analysis, block: Block, anchor: Operation | None, at: Index, lanes: Sequence[Value], valid: Value | None
    ) -> list[Value]:
        """One round of all lanes, from ``at`` on; lanes that are not valid keep what they had."""
        emitter = Emitter(analysis, block, anchor, {self.variable: at}, valid)
        emitter.origin, emitter.loc = f"{self.variable.name}.", self.op.loc
        emitter.mapping.update(zip(self.accumulators, lanes, strict=True))
        emitter.begin(self.dimensions)
        emitter.body(self.body)
        assert self.body.terminator is not None
        results = [emitter.value(v) for v in self.body.terminator.operands]
        if valid is None:
            return results
        emitter.loc = self.op.loc
        used = self._used(emitter, valid)
        chosen = []
        for old, new in zip(lanes, results, strict=True):
            chosen.append(emitter.make(select, [used, new, old], {}, [old.type], [f"{new.name}.used"]).results[0])
        return chosen

    def _used(self, emitter: Emitter, valid: Value) -> Value:
        """Which lanes of the partial round are used."""
        type_, name = VectorType(boolean, (self.width,)), f"{self.variable.name}.used"
        if isinstance(self.rest, int):
            return emitter.make(constant, [], {"value": Dense(np.arange(self.width) < self.rest)}, [type_], [name]).results[0]
        lanes = emitter.make(step, [], {}, [VectorType(index, (self.width,))], [f"{self.variable.name}.step"]).results[0]
        return emitter.make(cmpi, [lanes, valid], {"predicate": "lt"}, [type_], [name]).results[0]

    def _finish(self, place: Emitter, n: int, init: Value, value: Value) -> None:
        """Combines the lanes by halves, and the initial value last."""
        result, dtype, width = self.op.results[n], self._dtype(n), self.width
        while width > 1:
            half = width // 2
            type_ = VectorType(dtype, (half,)) if half > 1 else ScalarType(dtype)
            halves = []
            for name, lanes in (("low", range(half)), ("high", range(half, width))):
                definition: OpDef = shuffle if half > 1 else extract
                attributes: dict[str, Any] = {"mask": tuple(lanes)} if half > 1 else {"position": (lanes[0],)}
                operands = [value, value] if half > 1 else [value]
                halves.append(place.make(definition, operands, attributes, [type_], [f"{result.name}.{name}"]).results[0])
            value = self._combine(place, n, halves[0], halves[1], f"{result.name}.halves")
            width = half
        new = self._combine(place, n, init, value, result.name)
        new.auto_named = result.auto_named
        result.replace_all_uses_with(new)


    def _combine(self, place: Emitter, n: int, x: Value, y: Value, name: str) -> Value:
        """One of two partial results."""
        combiner = self.combiners[n]
        if combiner not in _CHOICES:
            return place.make(REGISTRY[combiner], [x, y], {}, [x.type], [name]).results[0]
        flags = VectorType(boolean, x.type.shape) if isinstance(x.type, VectorType) else ScalarType(boolean)
        better = place.make(cmpf, [y, x], {"predicate": combiner}, [flags], [f"{name}.cmpf"]).results[0]
        return place.make(select, [better, y, x], {}, [x.type], [name]).results[0]


def _combiner(op: Operation, n: int) -> str:
    """The operation that a carried value is a chain of, or the predicate that it is chosen by."""
    if not isinstance(op.results[n].type, ScalarType):
        raise CannotVectorize("it carries vectors")
    block = op.regions[0].block
    at, found = block.arguments[1 + n], ""
    while True:
        uses = list(at.uses)
        chosen = _choice(at, [u.owner for u in uses])
        if chosen is not None and found in ("", chosen[0]):
            found, at = chosen
            continue
        if len(uses) != 1:
            raise CannotVectorize("a carried value that is used more than once")
        user, position = uses[0].owner, uses[0].index
        if user is block.terminator:
            if not found or position != n:
                raise CannotVectorize("a carried value that is no reduction")
            return found
        family = _FAMILIES.get(user.definition.full_name)
        if family is None or user.block is not block or (found and family != found) or (user.definition.name == "fma" and position != 2):
            raise CannotVectorize("a carried value that is no chain of one associative operation")
        found, at = family, user.results[0]


def _choice(at: Value, users: Sequence[Operation]) -> tuple[str, Value] | None:
    """For ``select(cmpf(x, at), x, at)``: the predicate and the result."""
    compare, choose = (next((u for u in users if u.definition is d), None) for d in (cmpf, select))
    if len(users) != 2 or compare is None or choose is None or compare.block is not choose.block:
        return None
    x, _ = compare.operands
    if x is at or compare.operands[1] is not at or choose.operands != [compare.result, x, at] or len(list(compare.result.uses)) != 1:
        return None
    predicate = str(compare.attributes["predicate"])
    return (predicate, choose.result) if predicate in _CHOICES else None


def _full_end(stop: Dim, start: Dim, width: int) -> Dim:
    """Where the rounds of all lanes end."""
    rest = mod(stop - start, width)
    if isinstance(rest, int) or (start == 0 and _is_size(stop)):
        return stop - rest
    return dim_max(stop - rest, start)  # where there is no round, there is no partial one either


def _is_size(dim: Dim) -> bool:
    """Whether an expression is a sum of products of dimensions, which is never negative."""
    return isinstance(dim, DimExpr) and all(c > 0 and all(isinstance(a, str) and a[0] != "%" for a in m) for m, c in dim.terms)


def _check_memory(body: Block) -> None:
    """Raises CannotVectorize when a round may read or write what another one writes."""
    reads: list[tuple[Value, tuple[Index, ...]]] = []
    writes: list[tuple[Value, tuple[Index, ...]]] = []
    for op in body:
        for nested in op.walk():
            if nested.definition.full_name in ("memref.load", "memref.store"):
                (access,) = (a for a in layout_of(nested) if isinstance(a, AccessArg))
                place = tuple(index_of(nested, i.expr) for i in access.indices)
                found = nested.operand_uses[access.position].value, place
                (writes if nested.definition.name == "store" else reads).append(found)
    for buffer, place in writes:
        for other, elsewhere in (*reads, *writes):
            if _root(other) is _root(buffer) and (other is not buffer or place != elsewhere):
                raise CannotVectorize("rounds that may depend on each other through memory")


def _root(buffer: Value) -> Value:
    """The memory that a buffer lies in."""
    while buffer.defining_op is not None and buffer.defining_op.definition.full_name in ("memref.reshape", "memref.view"):
        buffer = buffer.defining_op.operands[0]
    return buffer
