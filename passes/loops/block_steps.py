"""Pass ``block-steps``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from dialects.vector import extract, transpose
from ir.builder import Builder
from ir.core import Module, Operation, Value
from ir.dims import substitute
from ir.layout import LAYOUT, IndexExpr, RangeArg
from ir.opdef import REGISTRY
from ir.rewriter import is_pure, walk_graphs
from ir.types import VectorType
from passes.infra.base import Pass, PassContext
from passes.loops._loops import (
    Access,
    accesses,
    body,
    change_form,
    clone_before,
    create_loop,
    depends_on,
    end_loop,
    extent,
    has_layout,
    initial_values,
    loops_tagged,
    number_layout,
    plain_uses,
    ranges,
    read_layout,
    remainder,
    set_initial_values,
    set_range,
    single_range,
    upper_bound,
    value_symbol,
    variable,
    write_layout,
)


@dataclass(frozen=True)
class BlockSteps(Pass):
    """Reads what a serial loop meets across the lines of a buffer in blocks, several steps at once.

    Before::

        %s = scf.for(%k = 0 to 64, %acc = %zero, tag="k") {
          %a = memref.load(%A[%k]) : f32
          %b = vector.load(%B[%j:+48, %k]) : vector<f32[48]>
          %t = math.fma(%a, %b, %acc) : vector<f32[48]>
          yield %t
        } : vector<f32[48]>

    After ``block-steps{loop=k, size=16}``::

        %s = scf.for(%kt = 0 to 64 step 16, %acc = %zero, tag="k.tile") {
          %b.block = vector.load(%B[%j:+48, %kt:+16]) : vector<f32[48, 16]>
          %b.lines = vector.transpose(%b.block, perm=[1, 0]) : vector<f32[16, 48]>
          %a = memref.load(%A[%kt]) : f32
          %b = vector.extract(%b.lines, position=[0]) : vector<f32[48]>
          %t = math.fma(%a, %b, %acc) : vector<f32[48]>
          %a.1 = memref.load(%A[%kt+1]) : f32
          %b.1 = vector.extract(%b.lines, position=[1]) : vector<f32[48]>
          %t.1 = math.fma(%a.1, %b.1, %t) : vector<f32[48]>
          ...

    48 elements that are lines apart are 48 accesses; blocks are read line by line, and turned in registers.  Steps run in
    the same order, one after the other; those that fill no block keep the loop that there was.  Loops that store
    something, or hold other loops, stay as they are.
    """

    loop: str = "k"
    """tag of the loops"""
    size: int = 16
    """steps of a block"""

    keeps_types: ClassVar[bool] = True
    local: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.size < 2:
            raise ValueError("a block has two steps or more")

    def run(self, module: Module, context: PassContext) -> bool:
        made = 0
        for graph in walk_graphs(module):
            for loop in loops_tagged(graph, self.loop):
                made += self._block(loop)
        context.count("loops in blocks", made)
        return made > 0

    def _block(self, loop: Operation) -> bool:
        bounds = single_range(loop)
        if loop.name != "scf.for" or bounds is None or bounds.step != 1 or plain_uses(variable(loop)):
            return False
        length = extent(bounds)
        operations = [op for op in body(loop) if not op.definition.is_terminator]
        loads = [op for op in operations if _is_across(op, variable(loop), self.size)]
        most = upper_bound(length)
        if not loads or (most is not None and most < self.size) or not all(map(_may_be_early, operations)):
            return False
        middle = bounds.stop - remainder(length, self.size)
        assert loop.block is not None
        builder = Builder(loop.block, loop, loc=loop.loc)
        tiles = create_loop(
            builder,
            "scf.for",
            RangeArg(bounds.start, middle, self.size),
            name=f"{variable(loop).name}t",
            tag=f"{self.loop}.tile",
            initial=initial_values(loop),
            like=loop,
        )
        end_loop(tiles, self._steps(loop, tiles, operations, loads))
        if middle == bounds.stop:
            for old, new in zip(loop.results, tiles.results, strict=True):
                old.replace_all_uses_with(new)
            loop.erase()
        else:
            set_range(loop, RangeArg(middle, ranges(loop)[0].stop, 1))
            set_initial_values(loop, tiles.results)
        return True

    def _steps(self, loop: Operation, tiles: Operation, operations: Sequence[Operation], loads: Sequence[Operation]) -> list[Value]:
        """The body of the loop over blocks; what its last step hands on."""
        at = variable(tiles)
        lines = {load: self._lines(load, variable(loop), tiles) for load in loads}
        terminator = body(loop).terminator
        assert terminator is not None
        carried: list[Value] = list(body(tiles).arguments[1:])
        for step in range(self.size):
            mapping: dict[Value, Value] = {variable(loop): at, **dict(zip(body(loop).arguments[1:], carried, strict=True))}
            for op in operations:
                if op in lines:
                    with Builder(body(tiles), loc=op.loc):
                        mapping[op.results[0]] = extract(lines[op], position=(step,), name=op.results[0].name)
                    mapping[op.results[0]].auto_named = True
                    continue
                copy = clone_before(op, None, body(tiles), mapping)
                if step and has_layout(copy):
                    later = {f"%{at.name}": value_symbol(at) + step}
                    write_layout(copy, [change_form(f, lambda dim, later=later: substitute(dim, later)) for f in read_layout(copy)])  # type: ignore[misc]
            carried = [mapping.get(v, v) for v in terminator.operands]
        return carried

    def _lines(self, load: Operation, old: Value, tiles: Operation) -> Value:
        """The block that the steps of a tile read, as a matrix with one row for each step."""
        (access,) = accesses(load)
        *outer, last = access.indices
        type_ = load.results[0].type
        graph = tiles.graph
        assert isinstance(type_, VectorType) and graph is not None
        first = substitute(last.expr, {f"%{old.name}": value_symbol(variable(tiles))})
        operands, layout = number_layout([Access(access.buffer, (*outer, IndexExpr(first, self.size)))], graph)
        attributes: Any = {LAYOUT: layout}
        name = load.results[0].name
        with Builder(body(tiles), loc=load.loc) as builder:
            block = builder.create(
                REGISTRY["vector.load"], operands, attributes, result_types=[VectorType(type_.dtype, (*type_.shape, self.size))], name=f"{name}.block"
            ).result
            lines: Value = transpose(block, perm=(1, 0), name=f"{name}.lines")
        return lines


def _is_across(op: Operation, at: Value, size: int) -> bool:
    """Whether an operation reads a vector across lines, along which the loop goes."""
    if op.name != "vector.load" or "valid" in op.definition.operand_names(op):
        return False
    (access,) = accesses(op)
    type_ = op.results[0].type
    *outer, last = access.indices
    runs = [i for i in outer if i.size is not None]
    return (
        isinstance(type_, VectorType)
        and len(type_.shape) == 1
        and type_.shape[0] >= size
        and last.size is None
        and len(runs) == 1
        and not depends_on(last.expr - value_symbol(at), [at])
        and not any(depends_on(i.expr, [at]) for i in outer)
    )


def _may_be_early(op: Operation) -> bool:
    """Whether what reads memory may be read before an operation."""
    return not op.regions and (is_pure(op) or op.name in ("memref.load", "vector.load", "memref.prefetch"))
