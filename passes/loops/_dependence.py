"""The dependence test: in which rounds of which loops two accesses can mean the same element.

An access is an affine function of loop variables as far as it is one.  Every variable becomes ``start + step * n``, so
that the variable of a tile loop and the one that runs inside the tile are independent numbers from 0 on.  For every
combination of directions of the loops that are asked about (the round of the source comes before, is, or comes after the
one of the sink) the difference of two indices is then a sum of such numbers; it can be 0 only if the greatest common
divisor of the factors divides the rest, and if its extremes enclose 0 (Banerjee).  What is no sum of that kind (products,
remainders, values that are computed) counts as anything, unless both sides have it in equal rounds; so every answer "no"
is a proof, and "yes" means perhaps.  Accesses outside their buffer end a run, so they are not considered.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ir.core import Block, Graph, Operation, Value
from ir.dims import Dim, DimExpr, DimFunction, product, substitute, symbol, symbols_of
from ir.layout import RangeArg
from passes.loops._loops import LOOPS, is_nonnegative, minimum_terms, ranges, upper_bound
from passes.loops._memory import Access, alias

Direction = Literal["<", "=", ">"]
"""The round of the source comes before, is, or comes after that of the sink."""

LoopPair = tuple[Value, Value]
"""A loop that is asked about, by its variable: around the source, and around the sink (mostly the same)."""

_ALL: tuple[Direction, ...] = ("=", "<", ">")
_SINK = "'"
_MOST_LIMITS = 64


@dataclass(frozen=True, slots=True)
class _Number:
    """A number from 0 on in differences: ``step`` times it is at most each of ``spans``.  Deeper ones are estimated first."""

    depth: int
    spans: tuple[Dim, ...]
    step: int

    def most(self, factor: int) -> list[Dim]:
        """Upper limits of ``factor`` times the number, for a factor above 0."""
        found: list[Dim] = []
        for span in self.spans:
            if isinstance(span, int):
                found.append(factor * (span // self.step))
            elif factor % self.step == 0:
                found.append(factor // self.step * span)
        return found


class Dependence:
    """The test for two accesses and some loops, in one run of the block ``scope``, whose own values are the same for both.

    ``loops`` are loops around both from the outside to the inside; other loops inside ``scope`` may be in any rounds.
    """

    def __init__(self, source: Access, sink: Access, loops: Sequence[LoopPair], scope: Block) -> None:
        graph = scope.graph
        assert graph is not None
        self.graph: Graph = graph
        self.scope = scope
        self.loops = loops
        self.source, self.sink = source, sink
        self.numbers: dict[str, _Number] = {}
        self.opaque: dict[str, frozenset[int]] = {}  # unknown values of the sink: loops in whose equal rounds they are the source's
        self.relation = alias(source.memory, sink.memory)
        self.gaps: list[tuple[Dim, int, int]] | None = None  # per dimension: sink minus source, where the two meet
        if self.relation != "never":
            for a, b in loops:
                self._normal_value(a, "")
                self._normal_value(b, _SINK)
        if self.relation == "same" and source.indices is not None and sink.indices is not None:
            self.gaps = self._differences()

    # -- answers ---------------------------------------------------------------------------------------------------

    def directions(self) -> list[tuple[Direction, ...]]:
        """The combinations of directions in which the two may mean the same element."""
        found: list[tuple[Direction, ...]] = []
        if self.relation != "never":
            self._search((), self._private_rounds(), found)
        return found

    def _search(self, chosen: tuple[Direction, ...], private: frozenset[int], found: list[tuple[Direction, ...]]) -> None:
        if not self._feasible(chosen):
            return
        if len(chosen) == len(self.loops):
            found.append(chosen)
            return
        choices: tuple[Direction, ...] = ("=",) if len(chosen) in private else _ALL
        for direction in choices:
            self._search((*chosen, direction), private, found)

    def _private_rounds(self) -> frozenset[int]:
        """Loops that have memory of their own in every round."""
        base = self.source.memory.base
        if base is not self.sink.memory.base or self.source.memory.kind != "alloc":
            return frozenset()
        return frozenset(i for i, (a, b) in enumerate(self.loops) if a is b and is_inside(base, _body_of(a)))

    # -- differences of indices ------------------------------------------------------------------------------------

    def _differences(self) -> list[tuple[Dim, int, int]]:
        source, sink = self.source, self.sink
        assert source.indices is not None and sink.indices is not None
        left = [self.normal(e, "") for e in source.indices]
        right = [self.normal(e, _SINK) for e in sink.indices]
        shapes = source.type.shape, sink.type.shape
        same = 0  # equal leading dimensions are compared one by one, the others as what they are in memory
        while same < min(map(len, shapes)) and shapes[0][same] == shapes[1][same]:
            same += 1
        gaps = [(right[i] - left[i], 1 - sink.sizes[i], source.sizes[i] - 1) for i in range(same)]
        if not len(shapes[0]) == len(shapes[1]) == same:
            ours = _flat(left[same:], source.sizes[same:], shapes[0][same:])
            theirs = _flat(right[same:], sink.sizes[same:], shapes[1][same:])
            if ours is not None and theirs is not None:
                gaps.append((theirs[0] - ours[0], 1 - theirs[1], ours[1] - 1))
        return gaps

    def normal(self, expr: Dim, side: str) -> Dim:
        """An expression with numbers from 0 on in the place of loop variables; those of the sink are marked."""
        bindings: dict[str, Dim] = {}
        for name in symbols_of(expr):
            if name.startswith("%"):
                value = self.graph.names[name[1:]]
                if _is_below(value, self.scope):
                    bindings[name] = self._normal_value(value, side)
        return substitute(expr, bindings) if bindings else expr

    def _normal_value(self, value: Value, side: str) -> Dim:
        bounds = range_of(value)
        if bounds is None or not isinstance(bounds.step, int):
            return self._opaque_value(value, side)
        place = next((i for i, pair in enumerate(self.loops) if pair[side == _SINK] is value), None)
        name = f"#{place}{side}" if place is not None else f"?{value.name}{side}"
        start = self.normal(bounds.start, side)
        if name not in self.numbers:
            lengths = [self.normal(t, side) - start for t in minimum_terms(bounds.stop)]
            spans = tuple(s - (bounds.step if _is_multiple(s, bounds.step) else 1) for s in lengths)
            self.numbers[name] = _Number(2 * _depth(value), spans, bounds.step)
        return start + symbol(name) * bounds.step

    def _opaque_value(self, value: Value, side: str) -> Dim:
        """A value of which is known only that it is the same in the same rounds of all loops around it."""
        name = f"~{value.name}{side}"
        if side:
            around = loop_variables(value, self.scope)
            pairs = {i for i, (a, b) in enumerate(self.loops) if a is b and a in around}
            if all(any(self.loops[i][0] is v for i in pairs) for v in around):
                self.opaque[name] = frozenset(pairs)
        return symbol(name)

    # -- can it be 0? ----------------------------------------------------------------------------------------------

    def _feasible(self, chosen: tuple[Direction, ...]) -> bool:
        bindings, numbers = self._apply(chosen)
        for i, direction in enumerate(chosen):
            number = numbers.get(f"#{i}")
            if direction != "=" and number is not None and any(isinstance(s, int) and s < number.step for s in self.numbers[f"#{i}"].spans):
                return False  # there is only one round
        return all(can_meet(substitute(gap, bindings), low, high, numbers, self.graph) for gap, low, high in self.gaps or ())

    def _apply(self, chosen: tuple[Direction, ...]) -> tuple[dict[str, Dim], dict[str, _Number]]:
        """What directions say: equal numbers are one number, the later of two is the earlier one plus 1 plus a number."""
        bindings: dict[str, Dim] = {}
        numbers = dict(self.numbers)
        for i, direction in enumerate(chosen):
            first, second = f"#{i}", f"#{i}{_SINK}"
            if direction == "=":
                bindings[second] = symbol(first)
                continue
            early, late = (first, second) if direction == "<" else (second, first)
            known = numbers.get(late)
            bindings[late] = symbol(early) + 1 + symbol(f"{late}+")
            if known is not None:
                step = known.step
                numbers[f"{late}+"] = _Number(known.depth + 1, tuple(s - (symbol(early) + 1) * step for s in known.spans), step)
                numbers[early] = _Number(known.depth, tuple(s - step for s in known.spans), step)
        equal = {i for i, d in enumerate(chosen) if d == "="}
        for name, needed in self.opaque.items():
            if needed <= equal:
                bindings[name] = symbol(name.removesuffix(_SINK))
        return bindings, {k: _Number(n.depth, tuple(substitute(s, bindings) for s in n.spans), n.step) for k, n in numbers.items()}


def can_meet(gap: Dim, low: int, high: int, numbers: Mapping[str, _Number], graph: Graph) -> bool:
    """Whether an expression may have a value from ``low`` to ``high``."""
    if not isinstance(gap, DimExpr):
        return not isinstance(gap, int) or low <= gap <= high
    divisor = math.gcd(*(c for m, c in gap.terms if m))
    rest = sum(c for m, c in gap.terms if not m)
    if low + (rest - low) % divisor > high:
        return False
    if any(_proves_positive(low - most, graph) for most in upper_limits(gap, numbers, graph)):
        return False
    return not any(_proves_positive(0 - most - high, graph) for most in upper_limits(-1 * gap, numbers, graph))


def _is_multiple(expr: Dim, size: int) -> bool:
    """Whether an expression is a multiple of a number for what ``peel`` writes: ``N-(N mod 48)`` is one of 48."""
    whole: Dim = 0  # with n - c * (n floordiv c) for n mod c
    for monomial, factor in expr.terms if isinstance(expr, DimExpr) else (((), expr),) if isinstance(expr, int) else ():
        atom = monomial[0] if len(monomial) == 1 else None
        term: Dim = factor if not monomial else DimExpr(((monomial, factor),))
        if isinstance(atom, DimFunction) and atom.kind == "mod" and isinstance(atom.args[1], int):
            term = factor * (atom.args[0] - atom.args[1] * symbol(f"?{atom}"))
        whole = whole + term
    if whole == expr:
        factors = [c for _, c in expr.terms] if isinstance(expr, DimExpr) else [expr]
        return all(isinstance(c, int) and c % size == 0 for c in factors)
    return _is_multiple(whole, size)


def _proves_positive(expr: Dim, graph: Graph) -> bool:
    return not _is_unknown(expr) and is_nonnegative(expr - 1, graph)


def upper_limits(expr: Dim, numbers: Mapping[str, _Number], graph: Graph, *, variables: bool = True) -> list[Dim]:
    """Expressions without numbers and loop variables that are never less than ``expr``; none where none is found.

    Without ``variables`` those of loops stay in it.
    """
    found: dict[Dim, None] = {}
    open_: dict[Dim, None] = {expr: None}
    for _ in range(_MOST_LIMITS):
        if not open_:
            break
        for at in _without_functions(open_.popitem()[0], graph, "%#?~" if variables else "#?~"):
            names = [n for n in symbols_of(at) if n in numbers or (variables and _loop_variable(n, graph) is not None)]
            if not names:
                found[at] = None
                continue
            name = max(names, key=lambda n: _depth_of(n, numbers, graph))  # the limits of inner ones mention outer ones
            factor = _factor(at, name)
            if factor is not None:
                rest = at - symbol(name) * factor
                open_.update(dict.fromkeys(rest + limit for limit in _limits(name, factor, numbers, graph)))
    return list(found)


def _limits(name: str, factor: int, numbers: Mapping[str, _Number], graph: Graph) -> list[Dim]:
    """Upper limits of ``factor`` times a number or a loop variable."""
    if name in numbers:
        return numbers[name].most(factor) if factor > 0 else [0]
    value = _loop_variable(name, graph)
    assert value is not None
    bounds = range_of(value)
    assert bounds is not None
    return [(t - 1) * factor for t in minimum_terms(bounds.stop)] if factor > 0 else [bounds.start * factor]


def _depth_of(name: str, numbers: Mapping[str, _Number], graph: Graph) -> int:
    if name in numbers:
        return numbers[name].depth
    value = _loop_variable(name, graph)
    assert value is not None
    return 2 * _depth(value)


def _loop_variable(name: str, graph: Graph) -> Value | None:
    value = graph.names.get(name[1:]) if name.startswith("%") else None
    return value if value is not None and range_of(value) is not None else None


def _factor(expr: Dim, name: str) -> int | None:
    """The factor of a name in an expression that is linear in it, else None."""
    assert isinstance(expr, DimExpr)
    found = 0
    for monomial, factor in expr.terms:
        if monomial == (name,):
            found = factor
        elif name in symbols_of(DimExpr(((monomial, 1),))):
            return None
    return found


def _without_functions(expr: Dim, graph: Graph, open_names: str) -> list[Dim]:
    """Upper limits of an expression without functions of names that begin with one of ``open_names``.

    Other functions stay in the first one, and are replaced by their limits in the second one.
    """
    if not isinstance(expr, DimExpr) or all(isinstance(a, str) for m, _ in expr.terms for a in m):
        return [expr]
    kept: Dim = 0
    replaced: Dim = 0
    for monomial, factor in expr.terms:
        term = DimExpr(((monomial, factor),))
        names = symbols_of(term)
        limit: Dim | None = None
        if len(monomial) == 1 and isinstance(monomial[0], DimFunction):
            alone = DimExpr(((monomial, 1),))
            if factor < 0:
                limit = 0 if is_nonnegative(alone, graph) and not any(n.startswith("~") for n in names) else None
            elif (most := upper_bound(alone)) is not None:
                limit = factor * most
            if limit is None and any(n[0] in open_names for n in names):
                return []
        kept = kept + (limit if limit is not None and any(n[0] in open_names for n in names) else term)
        replaced = replaced + (limit if limit is not None else term)
    return [kept] if kept == replaced else [kept, replaced]


# -- values and loops --------------------------------------------------------------------------------------------------


def range_of(value: Value) -> RangeArg | None:
    """The range that a loop variable runs through, in value form; None for other values."""
    owner = value.owner
    loop = owner.parent.parent if isinstance(owner, Block) and owner.parent is not None else None
    if loop is None or loop.name not in LOOPS:
        return None
    found = ranges(loop)
    return found[value.index] if value.index < len(found) else None


def loop_variables(value: Value, scope: Block) -> list[Value]:
    """The variables of all loops inside ``scope`` around the place where a value is defined."""
    found: list[Value] = []
    at: Block | None = value.owner if isinstance(value.owner, Block) else value.owner.block
    while at is not None and at is not scope:
        loop = at.parent.parent if at.parent is not None else None
        if loop is None:
            break
        if loop.name in LOOPS:
            found += at.arguments[: len(ranges(loop))]
        at = loop.block
    return found


def variables_of(loop: Operation) -> list[Value]:
    """The variables of a loop."""
    return loop.regions[0].block.arguments[: len(ranges(loop))]


def is_inside(value: Value, block: Block) -> bool:
    """Whether a value is defined in a block or in a region below it."""
    at: Block | None = value.owner if isinstance(value.owner, Block) else value.owner.block
    while at is not None and at is not block:
        at = _around(at)
    return at is not None


def _is_below(value: Value, block: Block) -> bool:
    """Whether a value is defined in a region inside a block, not in the block itself."""
    home = value.owner if isinstance(value.owner, Block) else value.owner.block
    return home is not block and is_inside(value, block)


def mentions_inside(expressions: Iterable[Dim], block: Block) -> bool:
    """Whether expressions mention a value that is defined in a block or below it."""
    graph = block.graph
    assert graph is not None
    names = {n[1:] for e in expressions for n in symbols_of(e) if n.startswith("%")}
    return any(is_inside(graph.names[n], block) for n in names)


def _around(block: Block) -> Block | None:
    op = block.parent.parent if block.parent is not None else None
    return op.block if op is not None else None


def _body_of(variable: Value) -> Block:
    assert isinstance(variable.owner, Block)
    return variable.owner


def _depth(variable: Value) -> int:
    depth = 0
    at: Block | None = _body_of(variable)
    while at is not None:
        at, depth = _around(at), depth + 1
    return depth


def _flat(indices: Sequence[Dim], sizes: Sequence[int], shape: Sequence[Dim]) -> tuple[Dim, int] | None:
    """The place in memory of the first element of an access, and how many from there on it spans."""
    place: Dim = 0
    span: Dim = 1
    for axis, (at, size) in enumerate(zip(indices, sizes, strict=True)):
        stride = product(shape[axis + 1 :])
        place = place + at * stride
        span = span + (size - 1) * stride
    return (place, span) if isinstance(span, int) else None


# -- questions ---------------------------------------------------------------------------------------------------------


def conflicts(first: Iterable[Access], second: Iterable[Access], loops: Sequence[LoopPair], scope: Block) -> set[tuple[Direction, ...]]:
    """All directions in which an access of ``first`` and one of ``second``, at least one of them a write, may meet."""
    found: set[tuple[Direction, ...]] = set()
    later = list(second)
    for a in first:
        for b in later:
            if a.writes or b.writes:
                found.update(Dependence(a, b, loops, scope).directions())
    return found


def may_conflict(first: Iterable[Access], second: Iterable[Access], scope: Block) -> bool:
    """Whether accesses of two groups, at least one of the two a write, may mean the same element in one run of ``scope``."""
    return bool(conflicts(first, second, (), scope))


def is_carried(first: Iterable[Access], second: Iterable[Access], loop: Operation) -> bool:
    """Whether an access of one group may meet one of the other in another round of a loop around both."""
    assert loop.block is not None
    pairs = [(v, v) for v in variables_of(loop)]
    equal = ("=",) * len(pairs)
    return any(d != equal for d in conflicts(first, second, pairs, loop.block))


def limits_in(access: Access, expr: Dim, block: Block) -> tuple[list[Dim], list[Dim]]:
    """Lower and upper limits of an expression of an access in one run of a block, in what is known in front of the block."""
    test = Dependence(access, access, (), block)
    normal = test.normal(expr, "")
    lows = [0 - most for most in upper_limits(0 - normal, test.numbers, test.graph, variables=False)]
    highs = upper_limits(normal, test.numbers, test.graph, variables=False)
    return [e for e in lows if not _is_unknown(e)], [e for e in highs if not _is_unknown(e)]


def _is_unknown(expr: Dim) -> bool:
    return any(n[0] in "#?~" for n in symbols_of(expr))


def is_in_bounds(access: Access) -> bool:
    """Whether the bounds of the loops around an access prove that it is inside its buffer."""
    if access.indices is None:
        return True
    block = access.op.block
    graph = block.graph if block is not None else None
    assert graph is not None
    for index, size, dim in zip(access.indices, access.sizes, access.type.shape, strict=True):
        if not any(_proves_positive(1 - most, graph) for most in upper_limits(-1 * index, {}, graph)):
            return False
        if not any(_proves_positive(dim - size + 1 - most, graph) for most in upper_limits(index, {}, graph)):
            return False
    return True
