"""Which values are the same for all threads of a block, or of a warp: what barriers and operations of warps may depend on.

A value has one of the levels below.  Thread numbers differ, and so does what is computed from them or read from memory at places that
do; block numbers, dimensions and constants are the same.  The number of the warp, ``%t floordiv 32``, is the same within a warp, and so is
``%t < 64``: the latter is found for ``floordiv`` by, and comparison with, multiples of 32.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

from dialects.gpu._places import launch_around
from ir.attributes import Dense
from ir.core import Block, Operation, Value
from ir.dims import Dim, DimExpr, DimFunction, symbols_of
from ir.layout import AccessArg, BindArg, ExpressionArg, OperandArg, RangeArg, layout_of
from ir.opdef import RegionOpDef, TypeProblem
from ir.types import MemRefType, index

WARP = 32


class Level(enum.Enum):
    """How far a value is the same."""

    BLOCK = "block"
    """for all threads of the block"""
    WARP = "warp"
    """for the threads of each warp"""
    LANE = "lane"
    """it is the thread's number in its warp, plus a multiple of 32 that is the same for the warp"""
    THREAD = "thread"
    """another one for each thread"""

    def fits(self, scope: str) -> bool:
        """Whether the value is the same within a ``"block"`` or ``"warp"``."""
        return self is Level.BLOCK or (self is Level.WARP and scope == "warp")


def join(levels: Sequence[Level]) -> Level:
    """The level of what is computed from values of some levels."""
    found = set(levels)
    if found <= {Level.BLOCK}:
        return Level.BLOCK
    return Level.WARP if found <= {Level.BLOCK, Level.WARP} else Level.THREAD


def _either(a: Level | None, b: Level) -> Level:
    """The level of what is one value or the other, in some round or for some choice that is uniform."""
    if a is None or a is b:
        return b
    return join((a, b))


class Uniformity:
    """Levels of the values that some values of one launch depend on."""

    def __init__(self, launch: Operation, wanted: Sequence[Value]) -> None:
        self.launch = launch
        self.levels: dict[Value, Level] = {}
        self._inside: dict[Value, bool] = {}
        order = self._slice(wanted)
        changed = True
        while changed:  # levels only rise, so this ends
            changed = False
            for value in order:
                level = self._level(value)
                if self.levels.get(value) is not level:
                    self.levels[value] = level
                    changed = True

    def _slice(self, wanted: Sequence[Value]) -> list[Value]:
        """The values inside of the launch that the wanted ones depend on, these last."""
        found: dict[Value, None] = {}
        pending = list(wanted)
        while pending:
            value = pending.pop()
            if value not in found:
                found[value] = None
                pending += self.causes(value)
        return list(reversed(found))

    def of(self, value: Value) -> Level:
        """The level of a value; as long as nothing is known, that of the lowest."""
        return self.levels.get(value, Level.BLOCK)

    def causes(self, value: Value) -> list[Value]:
        """The values that a value is computed or chosen from."""
        op, region = value.defining_op, _region_of(value)
        if op is None:
            if region is None or region is self.launch:
                return []
            return [*region.operands, *_yielded(region, value.index - 1)]
        if launch_around(op) is not self.launch:
            return []
        if op.name in ("scf.for", "scf.if"):
            return [*op.operands, *_yielded(op, value.index)]
        return list(op.operands)

    # -- levels --------------------------------------------------------------------------------------------------------

    def _level(self, value: Value) -> Level:
        op, region = value.defining_op, _region_of(value)
        if op is None:
            return Level.BLOCK if region is None or region is self.launch else self._of_argument(region, value.index)
        if launch_around(op) is not self.launch:
            return Level.BLOCK
        if op.name == "gpu.thread_id":
            return Level.LANE
        if op.name == "scf.for":
            return self._of_carried(op, value.index)
        if op.name == "scf.if":
            return self._chosen(self.of(op.operands[0]), [self.of(v) for v in _yielded(op, value.index)])
        rule = _RULES.get(op.name)
        if rule is not None:
            return rule(self, op)  # type: ignore[no-any-return]
        if isinstance(op.definition, RegionOpDef):
            return self._of_expressions(op) if op.definition.takes_expressions else Level.THREAD
        return join([self.of(v) for v in op.operands])

    def _of_argument(self, loop: Operation, number: int) -> Level:
        """The level of a loop's number, or of a value that it carries."""
        if loop.name == "scf.parallel" or number == 0:
            return self.of_bounds(loop)
        return self._of_carried(loop, number - 1)

    def of_bounds(self, loop: Operation) -> Level:
        """The level of where a loop begins and ends."""
        return join([self._of_expression(e, loop) for a in layout_of(loop) if isinstance(a, RangeArg) for e in (a.start, a.stop, a.step)])

    def _of_carried(self, loop: Operation, number: int) -> Level:
        inits = [a.source.position for a in layout_of(loop) if isinstance(a, BindArg) and isinstance(a.source, OperandArg)]
        return self._chosen(self.of_bounds(loop), [self.of(loop.operands[inits[number]]), *map(self.of, _yielded(loop, number))])

    def _chosen(self, choice: Level, levels: Sequence[Level]) -> Level:
        result: Level | None = None
        for level in levels:
            result = _either(result, level)
        assert result is not None
        return result if choice is Level.BLOCK else join((choice, result))

    def _of_expressions(self, op: Operation) -> Level:
        levels = [self._of_expression(a.expr, op) for a in layout_of(op) if isinstance(a, ExpressionArg)]
        return levels[0] if len(levels) == 1 else join(levels)

    def _of_expression(self, expr: Dim, op: Operation) -> Level:
        if not isinstance(expr, DimExpr):
            return Level.BLOCK
        lanes, rest = self._lanes(expr, op)
        if lanes == 0 and rest is not None:  # as in %t - %t mod 32
            return Level.WARP
        if lanes == 1 and rest == 0:
            return Level.LANE
        return join([self._of_atom(atom, op) for monomial, _ in expr.terms for atom in monomial])

    def _of_atom(self, atom: str | DimFunction, op: Operation) -> Level:
        if isinstance(atom, str):
            return self.of(op.operands[int(atom[1:])]) if atom.startswith("%") else Level.BLOCK
        if atom.kind == "floordiv" and _is_multiple(atom.args[1]) and self._is_lane(atom.args[0], op):
            return Level.WARP
        return join([self._of_expression(a, op) for a in atom.args])

    def _lanes(self, expr: DimExpr, op: Operation) -> tuple[int, int | None]:
        """How often the number in the warp is in a sum (-1: not known), and what the rest, the same for the warp, is modulo 32.

        The latter is 0 or another number; None when there is no such sum.
        """
        lanes, rest, found = 0, 0, False
        for monomial, coefficient in expr.terms:
            if len(monomial) == 1 and self._is_lane_atom(monomial[0], op):
                lanes, found = lanes + coefficient, True
            elif not all(self._of_atom(a, op).fits("warp") for a in monomial):
                return -1, None
            elif coefficient % WARP:
                rest = 1
        return (lanes, rest) if found else (-1, None)

    def _is_lane(self, expr: Dim, op: Operation) -> bool:
        """Whether an expression is the number in the warp plus a multiple of 32 that is the same for the warp."""
        return isinstance(expr, DimExpr) and self._lanes(expr, op) == (1, 0)

    def _is_lane_atom(self, atom: str | DimFunction, op: Operation) -> bool:
        if isinstance(atom, str):
            return atom.startswith("%") and self.of(op.operands[int(atom[1:])]) is Level.LANE
        return atom.kind == "mod" and _is_multiple(atom.args[1]) and self._is_lane(atom.args[0], op)

    # -- operations ----------------------------------------------------------------------------------------------------

    def _of_load(self, op: Operation) -> Level:
        access = layout_of(op)[0]
        assert isinstance(access, AccessArg)
        type_ = op.operands[access.position].type
        if isinstance(type_, MemRefType) and type_.space == "local":
            return Level.THREAD
        others = [self.of(v) for v, name in zip(op.operands, op.definition.operand_names(op), strict=True) if name]
        return join([*(self._of_expression(i.expr, op) for i in access.indices), *others])

    def _of_comparison(self, op: Operation) -> Level:
        x, y = op.operands
        predicate = op.attribute("predicate")
        if self.of(y) is Level.LANE:
            x, y, predicate = y, x, {"gt": "lt", "le": "ge"}.get(str(predicate))
        if self.of(x) is Level.LANE and predicate in ("lt", "ge") and _is_multiple(_constant(y)):
            return Level.WARP
        return join([self.of(x), self.of(y)])

    def _of_shuffle(self, op: Operation) -> Level:
        level = join([self.of(op.operands[0])])
        if level.fits("warp"):
            return level
        lane = op.definition.operand_position(op, "lane")
        one = op.attribute("mode") == "index" and op.attribute("width") == WARP and (lane is None or self.of(op.operands[lane]).fits("warp"))
        return Level.WARP if one else Level.THREAD

    def _of_reduction(self, op: Operation) -> Level:
        level = join([self.of(op.operands[0])])
        return level if level.fits("warp") else Level.WARP if op.attribute("width") == WARP else Level.THREAD

    def _uniform(self, op: Operation) -> Level:
        return Level.BLOCK

    def _cast(self, op: Operation) -> Level:
        return self.of(op.operands[0])


_RULES: dict[str, Any] = {
    "memref.load": Uniformity._of_load,
    "vector.load": Uniformity._of_load,
    "memref.dim": Uniformity._uniform,
    "arith.cmpi": Uniformity._of_comparison,
    "arith.index_cast": Uniformity._cast,
    "gpu.shuffle": Uniformity._of_shuffle,
    "gpu.warp_reduce": Uniformity._of_reduction,
}


def _is_multiple(number: Any) -> bool:
    return isinstance(number, int) and number > 0 and number % WARP == 0


def _constant(value: Value) -> int | None:
    """The number that a constant of type index is."""
    op = value.defining_op
    dense = op.attribute("value") if op is not None and op.name == "arith.constant" else None
    return int(dense.array) if isinstance(dense, Dense) and dense.array.ndim == 0 and dense.dtype == index else None


def _region_of(value: Value) -> Operation | None:
    """The operation whose region has the value as an argument."""
    block = value.owner
    return block.parent.parent if isinstance(block, Block) and block.parent is not None else None


def _yielded(op: Operation, number: int) -> list[Value]:
    """What the regions of an operation yield for one of its results."""
    terminators = [region.block.terminator for region in op.regions]
    return [t.operands[number] for t in terminators if t is not None and 0 <= number < len(t.operand_uses)]


# -- the check ---------------------------------------------------------------------------------------------------------


def check_together(op: Operation, scope: str) -> None:
    """Raises TypeProblem when only some threads of a ``"block"`` or ``"warp"`` may come to an operation."""
    launch = launch_around(op)
    choices = _choices_around(op, launch) if launch is not None else []
    if launch is None or not choices:
        return
    found = Uniformity(launch, [v for _, values in choices for v in values])
    for choice, values in choices:
        level = found.of(values[0]) if choice.name == "scf.if" else found.of_bounds(choice)
        if level.fits(scope):
            continue
        value = next((v for v in values if not found.of(v).fits(scope)), values[0])
        what = "" if choice.name == "scf.if" else f"the rounds of the loop over %{choice.regions[0].block.arguments[0].name} depend on it and "
        raise TypeProblem(
            f"all threads of the {scope} must come here, but %{value.name} decides about it: {what}it may differ between them",
            hint=f"it comes from {_origin(found, value, scope)}; what threads do together stands in front of the choice or behind it",
        )


def _choices_around(op: Operation, launch: Operation) -> list[tuple[Operation, list[Value]]]:
    """The loops and choices between a launch and an operation in it that depend on values, and these values."""
    found: list[tuple[Operation, list[Value]]] = []
    while op.block is not None and op.block.parent is not None and op.block.parent.parent is not None:
        op = op.block.parent.parent
        if op is launch:
            break
        values = [op.operands[0]] if op.name == "scf.if" else _bounds_of(op)
        if values:
            found.append((op, values))
    return found


def _bounds_of(loop: Operation) -> list[Value]:
    """The values that the bounds of a loop are made of."""
    expressions = [e for a in layout_of(loop) if isinstance(a, RangeArg) for e in (a.start, a.stop, a.step)]
    numbers = {name for e in expressions for name in symbols_of(e) if name.startswith("%")}
    return [loop.operands[int(n[1:])] for n in sorted(numbers)]


def _origin(found: Uniformity, value: Value, scope: str) -> str:
    """What makes a value differ between threads, in words."""
    pending, seen = [value], {value}
    for at in pending:
        op = at.defining_op
        differing = [v for v in found.causes(at) if not found.of(v).fits(scope)]
        if op is not None and not differing:
            return f"%{at.name}, {op.name}"
        pending += [v for v in differing if v not in seen]
        seen.update(differing)
    return f"%{value.name}"
