"""Pass ``lower-attention``."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar, Literal

from dialects.arith.comparison import cmpi
from dialects.graph.attention import scale_factor
from dialects.memref import from_tensor, to_tensor
from ir.builder import Builder
from ir.core import Module, Operation, Value
from ir.dims import Dim, symbols_of
from ir.references import load_time_graphs
from ir.rewriter import move_before, walk_graphs
from ir.types import TensorType, f32
from passes.graph._attention import group_of, is_plain, is_tiled
from passes.infra.base import Pass, PassContext
from passes.linalg._views import View, moved_to
from passes.loops._alike import Alike
from passes.loops._attention import KEYS, LANES, Nests, Problem, Sight, sight_of
from passes.loops._blocks import alloc, choose, index_value
from passes.loops._few_queries import Decode, most_queries
from passes.loops._many_queries import Prefill
from passes.loops._tensors import Sources, buffer_of, of_rank, replace, whole

Form = Literal["of few queries", "in tiles", "of few queries or in tiles"]


@dataclass(frozen=True)
class Known:
    """What the attentions of a graph share: how far queries see, by the length, the numbers of queries and keys, and whether they are
    causal; and constants."""

    sights: dict[tuple[Value | None, Dim, Dim, bool], Sight]
    constants: dict[Hashable, Value]


@dataclass(frozen=True)
class LowerAttention(Pass):
    """Turns attention into loops over tiles of queries and blocks of keys, on n-d vectors: no matrix of scores is ever whole.

    Before::

        graph @main(%q: f32[1, 4, S, 32], %k: f32[1, 2, T, 32], %v: f32[1, 2, T, 32]) -> f32[1, 4, S, 32] {
          %o = attention(%q, %k, %v)
          return %o
        }

    After (what a tile does with a block of keys)::

        scf.for(%block = 0 to T step 128, tag="keys.block") {
          %rows = affine.min(%stop-48*%t, 48) : index
          ...
          scf.for(%p = 0 to 32*((%count+15) floordiv 32) step 32) {
            scf.for(%row = 0 to %rows step 12) {
              %zeros = vector.broadcast(%zero) : vector<f32[12, 32]>
              %score = scf.for(%d = 0 to 32 step 4, %acc = %zeros) {
                %q.1 = vector.load(%q.tile[%row:+12, %d]) : vector<f32[12, 1]>
                %key = vector.load(%keys.panels[%b, %h floordiv 2, (%block+%p) floordiv 32, %d, 0:+32]) : vector<f32[32]>
                %sum = math.fma(%q.1, %key, %acc) : vector<f32[12, 32]>
                ...
                yield %sum.3
              } : vector<f32[12, 32]>
              vector.store(%score, %scores[%row:+12, %p:+32])
              yield
            }
            yield
          }
          ...

    Queries that are few (no more than ``rows`` rows share a key head) are not tiled: every block of keys is worked on by itself, and
    then the blocks are joined.  Where the number of queries is known when the program runs, there are both forms in an ``scf.if``.
    Either way the results have the same bits, which depend neither on ``rows``, ``columns``, ``queries`` and ``values`` nor on threads
    (see docs/attention.md).

    Heads that are only split off, put in front of the sequence, and joined again (nests that just move elements) stay where they are:
    queries, keys and results are read and stored in place; values where queries are known to be few.

    Lowered are attentions of f32 whose heads, widths and ratio of heads are known, in the graph's own block, after ``decompose`` has put
    past keys in front of the others.  The operation stands between ``memref.to_tensor`` and ``memref.from_tensor`` then; where nothing
    has written the buffers meanwhile, they are used themselves.
    """

    preserves: ClassVar[Literal["bits", "values"]] = "values"
    keeps_types: ClassVar[bool] = True
    leaves_out: ClassVar[bool] = True

    rows: int = 12
    """queries that are worked on at a time"""
    columns: int = 32
    """keys or values that are worked on at a time with them, in registers: 16, 32, 64 or 128"""
    queries: int = 48
    """queries of a tile, which goes through the keys"""
    values: int = 64
    """columns of values that are worked on at a time where queries are many, with fewer rows; ``columns`` where these would be too few"""

    ahead: int = 0
    """keys that hints for keys are ahead where queries are few; 0: they are for keys and values of the next block"""
    early: bool = False
    """where queries are few, squares of keys are loaded and turned by half while the ones before are multiplied"""

    def __post_init__(self) -> None:
        if self.ahead < 0 or self.ahead % LANES:
            raise ValueError(f"ahead: expected a multiple of {LANES}")
        if self.rows < 1 or self.queries < 1:
            raise ValueError("rows and queries: expected 1 or more")
        if self.columns < LANES or KEYS % self.columns or self.columns % LANES:
            raise ValueError(f"columns: expected {LANES}, {2 * LANES}, {4 * LANES} or {KEYS}")
        if self.values < LANES or self.values % LANES:
            raise ValueError(f"values: expected a multiple of {LANES}")

    def run(self, module: Module, context: PassContext) -> bool:
        changed = False
        at_load_time = load_time_graphs(module)
        for graph in walk_graphs(module):
            known, alike = Known({}, {}), Alike(context.folding)
            for op in [o for o in graph.block if o.name == "graph.attention" and graph.name not in at_load_time]:
                if is_tiled(op) and is_plain(op):
                    form = self._lower(op, known, alike)
                    context.count(f"attention {form}")
                    changed = True
        return changed

    def _lower(self, op: Operation, known: Known, alike: Alike) -> str:
        result = op.result
        assert isinstance(result.type, TensorType)
        with Builder.before_op(op) as builder:
            form = self._form(op)
            moves = Moves(op)
            made = moves.out.buffer if moves.out is not None else alloc(f"{result.name}.buffer", f32, *result.type.shape)
            problem = problem_of(op, moves.out or whole(made), moves, form == "of few queries", known)
            common = _sight(op, problem, known)
            kind = kind_of(problem)
            nests = self._nests(form, problem, common)  # with constants that all attentions have in common
            alike.make(
                op, builder, kind and (form, common, *kind), read_by(problem), [problem.out.buffer], lambda: self._build(problem, *nests)
            )
            tensor: Value = to_tensor(made)
            first = builder.created[0]
        replace(op, made, tensor, first)
        moves.remove()
        return form

    def _form(self, op: Operation) -> Form:
        """The form for an attention, by how many rows share a key head."""
        result, group = op.result, group_of(op)
        assert isinstance(result.type, TensorType) and group is not None
        steps, most = result.type.shape[-2], most_queries(group, self.rows)
        if isinstance(steps, int):
            return "of few queries" if steps <= most else "in tiles"
        return "of few queries or in tiles" if most else "in tiles"

    def _nests(self, form: Form, problem: Problem, common: Sight | None) -> tuple[Nests | None, Nests | None]:
        """The forms for few queries and for many, of which there is one at least."""
        few = None if form == "in tiles" else Decode(problem, common, self.rows, self.columns, self.ahead, self.early)
        many = None if form == "of few queries" else Prefill(problem, common, self.rows, self.columns, self.queries, self.values)
        return few, many

    def _build(self, problem: Problem, few: Nests | None, many: Nests | None) -> None:
        for nests in (few, many):
            if nests is not None:
                nests.alloc()
        if few is not None and many is not None:
            steps = index_value("apply", problem.queries, name="steps")
            limit = index_value("apply", most_queries(problem.group, self.rows), name="few")
            choose(cmpi(steps, limit, predicate="le", name="is.few"), few.build, many.build)
        else:
            (few or many).build()  # type: ignore[union-attr]  # one of them it is


def _sight(op: Operation, problem: Problem, known: Known) -> Sight | None:
    """How far the queries of all batches see, where that is the same; the layers of a model compute it once."""
    if not problem.has_one_length:
        return None
    key = op.operand("length"), problem.queries, problem.keys, problem.causal
    if key not in known.sights:
        known.sights[key] = sight_of(problem, 0)
    return known.sights[key]


class Moves(Sources):
    """Nests around an attention that only move elements, and needn't run: it reads and stores each element where it belongs."""

    def __init__(self, op: Operation) -> None:
        super().__init__(op)
        self.out = self._take_out()

    def _take_out(self) -> View | None:
        """Where the result goes, if all that is done with it is to move it there."""
        users = self.op.result.users
        if len(users) != 1 or users[0].definition is not from_tensor or users[0].block is not self.op.block:
            return None
        found = moved_to(users[0].result, self.op)
        if found is None:
            return None
        nest, view = found
        made = view.buffer.defining_op
        assert made is not None and self.op.block is not None
        move_before(made, self.op, self.op.block)
        nest.erase()
        return view


def problem_of(op: Operation, out: View, moves: Moves, few: bool, known: Known) -> Problem:
    """What an attention computes from which buffers; with ``few`` the values are read where they come from, too."""
    q, k, v = (op.operand(name) for name in "qkv")
    assert q is not None and k is not None and v is not None and isinstance(q.type, TensorType)
    group, scale, mask, length = group_of(op), op.attribute("scale"), op.operand("mask"), op.operand("length")
    assert group is not None and isinstance(q.type.shape[-1], int)
    factor = scale_factor(scale if isinstance(scale, float) else None, q.type.shape[-1], f32)
    return Problem(
        # values are read again by every tile of queries, so they had better be neighbours
        q=moves.view(buffer_of(op, q)), k=moves.view(buffer_of(op, k)), v=moves.view(buffer_of(op, v)) if few else whole(buffer_of(op, v)), out=out,
        group=group, scale=factor, causal=bool(op.attribute("causal")),
        mask=None if mask is None else of_rank(buffer_of(op, mask), 4), length=None if length is None else of_rank(buffer_of(op, length), 1),
        constants=known.constants,
    )  # fmt: skip


def read_by(problem: Problem) -> list[Value]:
    """The buffers that an attention reads."""
    views = (problem.q, problem.k, problem.v)
    return [v for v in (*(view.buffer for view in views), problem.mask, problem.length) if v is not None]


def kind_of(problem: Problem) -> tuple[Hashable, ...] | None:
    """What the nests of an attention depend on besides its buffers; None where places are those of values that others don't have."""
    views = problem.q, problem.k, problem.v, problem.out
    if any(n.startswith("%") for view in views for d in (*view.shape, *view.indices) for n in symbols_of(d)):
        return None
    numbers = problem.group, problem.scale.hex(), problem.causal, problem.mask is None, problem.length is None
    return (*((view.shape, view.indices) for view in views), *numbers)
