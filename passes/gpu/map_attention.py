"""Pass ``map-attention``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from dialects.arith.comparison import cmpi
from dialects.memref import to_tensor
from ir.builder import Builder
from ir.core import Module, Operation, Value
from ir.rewriter import walk_graphs
from ir.types import TensorType, f32
from passes.gpu._attention import Blocks, Join, Tiling, tiling_of_few, tiling_of_many
from passes.graph._attention import is_plain, is_tiled
from passes.infra.base import Pass, PassContext
from passes.loops._alike import Alike
from passes.loops._attention import Problem
from passes.loops._blocks import alloc, choose, index_value
from passes.loops._tensors import replace, whole
from passes.loops.lower_attention import Known, Moves, kind_of, problem_of, read_by


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
            alike = Alike()
            for op in [o for o in graph.block if o.name == "graph.attention"]:
                if is_tiled(op) and is_plain(op):
                    context.count(f"attention {self._map(op, alike)}")
                    changed = True
        return changed

    def _map(self, op: Operation, alike: Alike) -> str:
        result = op.result
        assert isinstance(result.type, TensorType)
        with Builder.before_op(op) as builder:
            moves = Moves(op)
            made = moves.out.buffer if moves.out is not None else alloc(f"{result.name}.buffer", f32, *result.type.shape)
            form = self._launches(op, problem_of(op, moves.out or whole(made), moves, True, Known({}, {})), builder, alike)
            tensor: Value = to_tensor(made)
            first = builder.created[0]
        replace(op, made, tensor, first)
        moves.remove()
        return form

    def _launches(self, op: Operation, problem: Problem, builder: Builder, alike: Alike) -> str:
        """The launches: built anew, or those of an attention like it for other buffers; says in which form."""
        name, (few, many) = op.result.name, self._tilings(problem)

        def build() -> None:
            self._build(problem, name, few, many)

        known, copies = alike.make(op, builder, kind_of(problem), read_by(problem), [problem.out.buffer], build)
        for inner in (o for copy in copies for o in copy.walk()):
            if inner.name == "gpu.launch":
                inner.set_attribute("name", name + str(inner.attribute("name")).removeprefix(known.name))
        if few is None:
            return "in tiles"
        return "of few queries" if many is None else "of few queries or in tiles"

    def _tilings(self, problem: Problem) -> tuple[Tiling | None, Tiling | None]:
        """How few queries are tiled, and how many are; there is one of both at least."""
        p, steps = problem, problem.queries
        rows = p.group * (steps if isinstance(steps, int) else 1)
        few = tiling_of_few(p.width, p.value_width, rows, self.shared) if rows <= self.few else None
        if few is not None and isinstance(steps, int):
            return few, None
        return few, tiling_of_many(p.width, p.value_width, min(rows, self.rows) if isinstance(steps, int) else self.rows, self.shared)

    def _build(self, problem: Problem, name: str, few: Tiling | None, many: Tiling | None) -> None:
        blocks = None if few is None else Blocks(problem, few, split=True)
        whole = None if many is None else Blocks(problem, many, split=False)

        def split() -> None:
            assert blocks is not None
            blocks.build(f"{name}.blocks")
            Join(blocks).build(f"{name}.join")

        if whole is None:
            split()
        elif blocks is None:
            whole.build(name)
        else:
            limit = index_value("apply", min(self.few // problem.group, blocks.t.rows // problem.group), name="few")
            is_few = cmpi(index_value("apply", problem.queries, name="steps"), limit, predicate="le", name="is.few")
            choose(is_few, split, lambda: whole.build(name))
