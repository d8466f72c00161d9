"""Pass ``map-attention``."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from dialects.arith.comparison import cmpi
from dialects.memref import to_tensor
from ir.builder import Builder
from ir.core import Module, Operation, Value
from ir.dims import symbols_of
from ir.rewriter import walk_graphs
from ir.types import TensorType, f32
from passes.gpu._attention import Blocks, Join, tiling_of_few, tiling_of_many
from passes.graph._attention import is_plain, is_tiled
from passes.infra.base import Pass, PassContext
from passes.linalg._views import View
from passes.loops._attention import Problem
from passes.loops._blocks import alloc, choose, index_value
from passes.loops._loops import clone_before
from passes.loops._tensors import replace, whole
from passes.loops.lower_attention import Known, Moves, problem_of


@dataclass(frozen=True)
class MapAttention(Pass):
    """Turns attention into kernels: tiles of rows go through blocks of keys in shared memory, with an online softmax.

    Before::

        graph @main(%q: f32[1, 9, S, 64], %k: f32[1, 3, T, 64], %v: f32[1, 3, T, 64]) -> f32[1, 9, S, 64] {
          %o = attention(%q, %k, %v, causal=true)
          return %o
        }

    After (what a thread does for the scores of the keys that are near)::

        gpu.launch(%x = 0 to (3*S) ceildiv 64, %h = 0 to 3, %b = 0 to 1, threads=128, min_blocks=1, name="o", tag="attention") {
          ...
          %values = scf.for(%block = 0 to %end step 128, ..., tag="keys.block") {
            scf.for(%step = 0 to 4) {
              gpu.cp_wait(pending=0)
              gpu.barrier()
              ...
              %score = scf.for(%d = 0 to 64 step 4, %total = %zeros) {
                %q.1 = vector.load(%q.tile[%row.lane, %d:+4]) : vector<f32[4]>
                ...
                %score.1 = math.fma(%q.5, %k.5, %total) : vector<f32[4, 4]>

    All query heads that share a key head are rows of one tile, so keys and values are brought to shared memory once for them, in copies that
    run while scores or values of the keys before are computed.  A causal tile ends with the keys that its last query sees.

    Queries that are few (no more than ``few`` rows share a key head) have a launch in which every block of keys is worked on by a block of
    threads of its own, and a second one that joins the blocks in order.  Where the number of queries is known when the program runs, there
    are both forms in an ``scf.if``.  Either way results have the same bits, which are those of machine code on the CPU: the order in which
    anything is added is that of docs/attention.md.

    Heads that are only split off, put in front of the sequence, and joined again stay where they are, as for ``lower-attention``; keys and
    values of a cache are read in place.  Mapped are the same attentions: of f32, widths up to 512 that are known, a known ratio of heads,
    in the graph's own block, after ``decompose`` has put past keys in front of the others.
    """

    preserves: ClassVar[Literal["bits", "values"]] = "values"
    keeps_types: ClassVar[bool] = True

    rows: int = 64
    """rows of a tile: 16, 32 or 64; wide values take fewer"""
    few: int = 64
    """rows sharing a key head that are few; 0 for tiles alone"""
    shared: int = 166912
    """bytes of shared memory that a block of threads has: rows and keys that are worked on at a time are fewer where more would not fit"""

    def __post_init__(self) -> None:
        if self.rows not in (16, 32, 64):
            raise ValueError("rows: expected 16, 32 or 64")
        if not 0 <= self.few <= 64:
            raise ValueError("few: expected 0 to 64")
        if self.shared < 32768:
            raise ValueError("shared: expected 32768 or more")

    def run(self, module: Module, context: PassContext) -> bool:
        changed = False
        for graph in walk_graphs(module):
            known: _Known = {}
            for op in [o for o in graph.block if o.name == "graph.attention"]:
                if is_tiled(op) and is_plain(op):
                    context.count(f"attention {self._map(op, known)}")
                    changed = True
        return changed

    def _map(self, op: Operation, known: _Known) -> str:
        result = op.result
        assert isinstance(result.type, TensorType)
        with Builder.before_op(op) as builder:
            moves = Moves(op)
            made = moves.out.buffer if moves.out is not None else alloc(f"{result.name}.buffer", f32, *result.type.shape)
            form = self._launches(op, problem_of(op, moves.out or whole(made), moves, True, Known({}, {})), builder, known)
            tensor: Value = to_tensor(made)
            first = builder.created[0]
        replace(op, made, tensor, first)
        moves.remove()
        return form

    def _launches(self, op: Operation, problem: Problem, builder: Builder, known: _Known) -> str:
        """The launches: built anew, or those of an attention like it for other buffers; says in which form."""
        kind, buffers, name = _kind(problem), _buffers(problem), op.result.name
        found = known.get(kind)
        if found is None:
            begin = len(builder.created)
            form = self._build(problem, name)
            ops = builder.created[begin:]
            if kind is not None and _use_only(ops, buffers):
                known[kind] = _Built(form, name, ops, buffers)
            return form
        mapping = dict(zip(found.buffers, buffers, strict=True))
        assert op.block is not None
        for made in found.ops:
            for inner in clone_before(made, op, op.block, mapping).walk():
                inner.loc = op.loc
                if inner.name == "gpu.launch":
                    inner.set_attribute("name", name + str(inner.attribute("name")).removeprefix(found.name))
        return found.form

    def _build(self, problem: Problem, name: str) -> str:
        """The launches; says in which form."""
        steps, group = problem.queries, problem.group
        most = self.few // group
        rows = group * (steps if isinstance(steps, int) else 1)
        tiling = tiling_of_few(problem.width, problem.value_width, rows, self.shared) if rows <= self.few else None
        few = None if tiling is None else Blocks(problem, tiling, split=True)
        tile_rows = min(rows, self.rows) if isinstance(steps, int) else self.rows
        many = Blocks(problem, tiling_of_many(problem.width, problem.value_width, tile_rows, self.shared), split=False)

        def split() -> None:
            assert few is not None
            few.build(f"{name}.blocks")
            Join(few).build(f"{name}.join")

        if few is None:
            many.build(name)
            return "in tiles"
        if isinstance(steps, int):
            split()
            return "of few queries"
        limit = index_value("apply", min(most, few.t.rows // group), name="few")
        choose(cmpi(index_value("apply", steps, name="steps"), limit, predicate="le", name="is.few"), split, lambda: many.build(name))
        return "of few queries or in tiles"


@dataclass(frozen=True)
class _Built:
    """Launches that were built for an attention: in which form, for which result, and its buffers."""

    form: str
    name: str
    ops: list[Operation]
    buffers: list[Value]


_Known = dict[Hashable, _Built]


def _buffers(problem: Problem) -> list[Value]:
    """The buffers that an attention reads and writes."""
    return [v for v in (*(view.buffer for view in _views(problem)), problem.mask, problem.length) if v is not None]


def _views(problem: Problem) -> tuple[View, ...]:
    return problem.q, problem.k, problem.v, problem.out


def _use_only(ops: Sequence[Operation], buffers: Sequence[Value]) -> bool:
    """Whether operations use nothing from outside but these buffers."""
    inside = [inner for op in ops for inner in op.walk()]
    made = {v for op in inside for v in (*op.results, *(a for region in op.regions for block in region.blocks for a in block.arguments))}
    return all(use.value in made or use.value in buffers for op in inside for use in op.operand_uses)


def _kind(problem: Problem) -> Hashable:
    """What launches depend on besides which buffers they are for; None where places are those of other values."""
    dims = [d for view in _views(problem) for d in (*view.shape, *view.indices)]
    if any(n.startswith("%") for d in dims for n in symbols_of(d)):
        return None
    buffers = _buffers(problem)
    alike = tuple((b.type, buffers.index(b)) for b in buffers)
    numbers = problem.group, problem.scale.hex(), problem.causal, problem.mask is None, problem.length is None
    return tuple((view.shape, view.indices) for view in _views(problem)), alike, numbers
