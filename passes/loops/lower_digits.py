"""Pass ``lower-digits``."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from dialects.graph.digits import BLOCK, LARGEST, Format, packed_format
from dialects.memref import from_tensor, to_tensor, view
from ir.attributes import attribute_key
from ir.builder import Builder
from ir.core import Module, Operation, Trivia, Value
from ir.dims import Dim, product
from ir.references import load_time_graphs
from ir.rewriter import walk_graphs
from ir.types import MemRefType, TensorType, i8, is_known
from passes.infra.base import Pass, PassContext
from passes.loops._alike import Alike
from passes.loops._blocks import alloc
from passes.loops._digit_pairs import Pairs, is_paired
from passes.loops._digit_tiles import Terms, fewest_rows, is_wide
from passes.loops._digits import Product, Shape, activations_of
from passes.loops._loops import outermost
from passes.loops._memory import memory_of
from passes.loops._packed import FloatProduct, gather_rows
from passes.loops._split import split_rows
from passes.loops._weights import weights_of

_LOWERED = ("split_digits", "digit_linear", "packed_linear", "packed_embedding")
_FEWEST_PAIRED = 4
"""Rows from which on unpacking a panel is worth it for loops of pairs."""
Kind = Literal["pairs", "terms", "wide"]
"""What loops for many rows read in the place of digits: pairs, or terms, which may be wide."""
_READERS = ("memref.load", "vector.load", "memref.prefetch", "memref.dim", "memref.to_tensor", "builtin.reads")


@dataclass(frozen=True)
class LowerDigits(Pass):
    """Turns products with packed weights, and what feeds them, into loops over n-d vectors.

    These are ``split_digits``, ``digit_linear``, ``packed_linear`` and ``packed_embedding``.

    Before::

        graph @main(%x: f32[1, 64], %p: u8[2, 2, 640]) -> f32[1, 64] {
          %d, %s, %t = split_digits(%x)
          %y = digit_linear(%d, %s, %t, %p, rows=64)
          return %y
        }

    After (what ``digit_linear`` becomes, for one digit of three)::

        scf.parallel(%panel = 0 to 2, tag="panel") {
          %sums = scf.for(%block = 0 to 2, %acc = %zeros) {
            %stored = vector.load(%p.words[%panel, %block, 0, 0:+32]) : vector<i32[32]>
            %lower = arith.andi(%stored, %low) : vector<i32[32]>
            %four = vector.load(%d.words[0:+1, 24*%block]) : vector<i32[1, 1]>
            %exact.0 = arith.dot4(%lower, %four, %nothings) : vector<i32[1, 32]>
            ...

    A product has forms for one row, for some rows and for many, of which the number of rows chooses one, at run time where it is
    open; all give the same bits for a row (:mod:`passes.loops._digits`).  Blocks are ``rows`` rows (for one, two and three digits) by
    ``columns`` rows of weights.  For ``few`` rows or more a panel of weights is unpacked first, ``blocks`` blocks of 32 steps at a time,
    so that it stays in the nearest cache.  Hints for packed weights go ``ahead`` bytes further, for the cache behind the nearest, and ``near``
    bytes further, for the nearest; 0 for none.  With ``tiles``, many rows, which are 16 or more, or 10 with three digits and weights of 4 bits,
    are multiplied by ``vector.dot4``, 16 at a time, for processors with registers for such matrices (:mod:`passes.loops._digit_tiles`):
    ``split_digits`` stores digits as these are read then.  So it does with ``pairs``: by weights of 4 bits, as many rows as it says, and 4 or more,
    are multiplied in pairs of elements, that many at a time, which takes fewer products, and additions of bytes that some processors make
    meanwhile (:mod:`passes.loops._digit_pairs`).

    Lowered are operations whose sizes but for the number of rows are known, in the graph's own block, once ``lower-to-linalg`` has
    left them between ``memref.to_tensor`` and ``memref.from_tensor``; where nothing has written the buffers meanwhile, they are used
    themselves.
    """

    preserves: ClassVar[Literal["bits", "values"]] = "values"
    keeps_types: ClassVar[bool] = True
    leaves_out: ClassVar[bool] = True

    rows: tuple[int, ...] = (6, 4, 3)
    """rows that ``digit_linear`` works on at a time, with one, two and three digits"""
    columns: int = 32
    """rows of weights that are worked on at a time: 4, 8, 16 or 32"""
    floats: int = 8
    """rows that ``packed_linear`` works on at a time"""
    blocks: int = 24
    """blocks of 32 steps that are unpacked at a time"""
    few: int = 16
    """from so many rows on, a panel of weights is unpacked first"""
    ahead: int = 16384
    """bytes that hints for the second cache are ahead of what is read; 0 for none"""
    near: int = 2560
    """bytes that hints for the nearest cache are ahead of what is read; 0 for none"""
    tiles: bool = False
    """whether many rows are multiplied as tiles; takes 32 columns"""
    pairs: tuple[int, ...] = ()
    """rows that ``digit_linear`` works on at a time in pairs, with one, two and three digits; () for no pairs"""

    def __post_init__(self) -> None:
        if len(self.rows) != len(LARGEST) or any(r < 1 for r in (*self.rows, self.floats)):
            raise ValueError("rows: expected three numbers of 1 or more; floats: one")
        if self.columns not in (4, 8, 16, 32):
            raise ValueError("columns: expected 4, 8, 16 or 32")
        if self.tiles and self.columns != 32:
            raise ValueError("tiles: expected 32 columns with it")
        if self.pairs and (self.tiles or len(self.pairs) != len(LARGEST) or any(r < 1 for r in self.pairs)):
            raise ValueError("pairs: expected none, or three numbers of 1 or more and no tiles")
        if self.blocks < 1 or self.few < 1 or min(self.ahead, self.near) < 0:
            raise ValueError("blocks and few: expected 1 or more; ahead and near: 0 or more")

    def run(self, module: Module, context: PassContext) -> bool:
        lowering = _Digits(self, Alike(context.folding))
        changed = False
        at_load_time = load_time_graphs(module)
        for graph in walk_graphs(module):
            for op in list(graph.block) if graph.name not in at_load_time else ():
                if op.definition.text_name in _LOWERED and has_known_sizes(op):
                    lowering.lower(op)
                    context.count(f"{op.definition.text_name} lowered")
                    changed = True
        return changed


class _Digits:
    """Lowers operations.

    ``forms`` are the memory of what ``split_digits`` made for loops of many rows, and from how many on it does, by the buffer of its digits and by
    their kind; ``others`` the buffers of its scales and sums, by that of its digits.
    """

    def __init__(self, options: LowerDigits, alike: Alike) -> None:
        self.options, self.alike = options, alike
        self.forms: dict[tuple[Value, Kind], tuple[Value, int]] = {}
        self.others: dict[Value, list[Value]] = {}

    def lower(self, op: Operation) -> None:
        """Lowers an operation of those that are."""
        name = op.definition.text_name
        if name == "split_digits":
            self._split(op)
        elif name == "digit_linear":
            self._product(op)
        elif name == "packed_linear":
            lower_op(op, self._floats, self.alike)
        else:
            lower_op(op, _embedding, self.alike)

    def _shape(self, rows: int, paired: int = 0) -> Shape:
        o = self.options
        return Shape(rows, o.columns, o.blocks, o.few, o.ahead, o.near, paired)

    def _split(self, op: Operation) -> None:
        *front, blocks, count, _ = _tensor(op.results[0]).shape
        assert isinstance(count, int)
        rows, memory = product(front), {}
        wanted, always, fewest = self._wanted(op, rows, count)
        with Builder.before_op(op):
            for kind in wanted:
                memory[kind] = alloc(f"{op.results[0].name}.{kind}", i8, _bytes(kind, rows, blocks, count))
            results = [new_memory(r) for r in op.results[1:]]
            if memory and not always:  # there are digits or something in their place, in the same memory
                type_ = MemRefType(i8, (*front, blocks, count, BLOCK))
                digits = view(next(iter(memory.values())), offset=0, result_type=type_, name=f"{op.results[0].name}.buffer")
            else:
                digits = new_memory(op.results[0])
        self.forms.update(((digits, kind), (m, fewest)) for kind, m in memory.items())
        self.others[digits] = results

        summed = not all(_is_product(u, op) and not format_of(u).offset for u in op.results[2].users)
        filled = [digits, *(results if summed else results[:1]), *memory.values()]

        def lower(_: Operation, operands: Sequence[Value], filled: Sequence[Value]) -> None:
            digits, scales, *others = filled
            sums = others.pop(0) if summed else None
            forms = [_form(kind, m, rows, blocks, count, fewest) for kind, m in zip(wanted, others, strict=True)]
            split_rows(operands[0], digits, scales, sums, forms, always)

        lower_op(op, lower, self.alike, results=[digits, *results], writes=filled, extra=(*wanted, always, summed))

    def _wanted(self, op: Operation, rows: Dim, count: int) -> tuple[list[Kind], bool, int]:
        """What the readers of digits read in their place, whether some read digits all the same, and from how many rows on."""
        others = op.results[1:]
        kinds = [self._kind(count, format_of(u), u.operands[1:3], others) if _is_product(u, op) else None for u in op.results[0].users]
        wanted = sorted({k for k in kinds if k is not None})
        fewest = max((self._fewest(k, count) for k in wanted), default=0)
        if not wanted or (isinstance(rows, int) and rows < fewest):
            return [], True, 0
        return wanted, None in kinds, fewest

    def _kind(self, digits: int, format_: Format, read: Sequence[Value | None], others: Sequence[Value]) -> Kind | None:
        """What loops for many rows read in the place of digits, if it is something else.

        Pairs hold scales and sums besides, so those that a product has ``read`` must be the ``others`` that were made with the digits.
        """
        if self.options.tiles:
            return "wide" if is_wide(digits, format_) else "terms"
        if not self.options.pairs or not is_paired(format_):
            return None
        scales, sums = (a is b for a, b in zip(read, others, strict=True))
        return "pairs" if scales and (sums or not format_.offset) else None

    def _fewest(self, kind: Kind, digits: int) -> int:
        """From how many rows on: in pairs, as many as are worked on at a time, and 4 at least."""
        return max(_FEWEST_PAIRED, self.options.pairs[digits - 1]) if kind == "pairs" else fewest_rows(kind == "wide")

    def _product(self, op: Operation) -> None:
        digits, scales, sums, packed = op.operands
        format_, source, count = format_of(op), _buffer_behind(digits), _tensor(digits).shape[-2]
        assert isinstance(count, int)
        found = kind = None
        if source is not None and source in self.others:
            kind = self._kind(count, format_, [_buffer_behind(scales), _buffer_behind(sums)], self.others[source])
            found = self.forms.get((source, kind)) if kind is not None else None

        def lower(op: Operation, operands: Sequence[Value], results: Sequence[Value]) -> None:
            digits, scales, packed, *others = operands
            sums = others.pop(0) if format_.offset else None
            x, weights = activations_of(digits, scales, sums), weights_of(packed, format_)
            form = _form(kind, others[0], x.rows, weights.blocks, x.digits, found[1]) if found is not None and kind is not None else None
            paired = self.options.pairs[x.digits - 1] if self.options.pairs else 0
            Product(x, weights, results[0], self._shape(self.options.rows[x.digits - 1], paired), form).build()

        tensors = [digits, scales, packed, *([sums] if format_.offset else [])]
        memory, fewest = ((), 0) if found is None else (found[:1], found[1])
        lower_op(op, lower, self.alike, tensors, extra=fewest, reads=memory)

    def _floats(self, op: Operation, operands: Sequence[Value], results: Sequence[Value]) -> None:
        x, packed = operands
        FloatProduct(x, weights_of(packed, format_of(op)), results[0], self._shape(self.options.floats)).build()


def _bytes(kind: Kind, rows: Dim, blocks: Dim, digits: int) -> Dim:
    """How much memory something takes that is read in the place of digits."""
    return Pairs.bytes(rows, blocks, digits) if kind == "pairs" else Terms.bytes(rows, blocks, digits, kind == "wide")


def _form(kind: Kind, memory: Value, rows: Dim, blocks: Dim, digits: int, fewest: int) -> Terms | Pairs:
    """What is in that memory."""
    return Pairs(memory, rows, blocks, digits, fewest) if kind == "pairs" else Terms(memory, rows, blocks, digits, kind == "wide", fewest)


def _buffer_behind(tensor: Value) -> Value | None:
    """The buffer that a tensor was taken out of, if it was."""
    source = tensor.defining_op
    return source.operands[0] if source is not None and source.definition is to_tensor else None


def _is_product(op: Operation, split: Operation) -> bool:
    """Whether an operation is a product of digits that is lowered as well."""
    return op.definition.text_name == "digit_linear" and op.block is split.block and has_known_sizes(op)


def format_of(op: Operation) -> Format:
    """The format of the weights that an operation reads."""
    packed = op.operand("packed")
    assert packed is not None
    return packed_format(_tensor(packed))


def _embedding(op: Operation, operands: Sequence[Value], results: Sequence[Value]) -> None:
    rows: Any = op.attribute("rows")
    gather_rows(weights_of(operands[0], format_of(op)), operands[1], results[0], int(rows), str(op.attribute("named")))


def has_known_sizes(op: Operation) -> bool:
    """Whether all sizes are known but for those of dimensions in front, and none is 0."""
    for value in (*op.operands, *op.results):
        if not isinstance(value.type, TensorType) or not is_known(value.type):
            return False
    packed, x = op.operand("packed"), op.operand("x")
    sizes = [*(packed.type.shape if packed is not None else ()), *((x.type.shape[-1],) if x is not None else ())]  # type: ignore[union-attr]
    return all(isinstance(size, int) and size > 0 for size in sizes)


Lowering = Callable[[Operation, Sequence[Value], Sequence[Value]], None]


def _tensor(value: Value) -> TensorType:
    assert isinstance(value.type, TensorType)
    return value.type


def new_memory(result: Value) -> Value:
    """Memory for a result of an operation."""
    type_ = _tensor(result)
    return alloc(f"{result.name}.buffer", type_.dtype, *type_.shape)


def lower_op(
    op: Operation, lower: Lowering, alike: Alike, tensors_read: Sequence[Value] | None = None, extra: Hashable = None, *,
    results: Sequence[Value] | None = None, reads: Sequence[Value] = (), writes: Sequence[Value] | None = None,
) -> None:  # fmt: skip
    """Puts loops in the place of an operation: built anew, or those of an operation like it for other buffers.

    ``tensors_read`` are those that the loops read, where they are others than the operands; ``extra`` is what else loops depend on.
    ``results`` is memory for the results, where it is there already; ``reads`` is more that loops read, ``writes`` what they write, where
    that is not the results.
    """
    with Builder.before_op(op) as builder:
        operands = [*(_buffer(op, tensor) for tensor in (op.operands if tensors_read is None else tensors_read)), *reads]
        results = [new_memory(r) for r in op.results] if results is None else results
        filled = results if writes is None else writes
        kind = op.definition, tuple((n, attribute_key(a)) for n, a in sorted(op.attributes.items())), extra
        alike.make(op, builder, kind, operands, filled, lambda: lower(op, operands, filled))
        tensors: list[Value] = [to_tensor(buffer) for buffer in results]
        first = builder.created[0]
    if op.trivia is not None:
        first.trivia = Trivia(op.trivia.blank_before, op.trivia.detached, op.trivia.leading, op.trivia.trailing)
        op.trivia = None
    _replace(op, results, tensors)


def _buffer(op: Operation, tensor: Value) -> Value:
    """The buffer that a tensor was taken out of, when nothing has written it since; else the tensor as a buffer."""
    source = tensor.defining_op
    if source is not None and source.definition is to_tensor and source.block is op.block:
        buffer = source.operands[0]
        memory = memory_of(buffer)
        writers = _writers(memory.base) if memory.kind == "alloc" else None
        at = source.next
        while at is not None and at is not op and writers is not None and at not in writers:
            at = at.next
        if at is op and writers is not None:
            return buffer
    return from_tensor(tensor, name=f"{tensor.name}.buffer")  # type: ignore[no-any-return]


def _writers(memory: Value) -> set[Operation]:
    """The operations of the graph's own block that write new memory, or hold one that does."""
    found: set[Operation] = set()
    names = [memory]
    for name in names:
        for user in name.users:
            if user.definition.full_name in ("memref.reshape", "memref.view"):
                names.append(user.result)
            elif user.definition.full_name not in _READERS:
                found.add(outermost(user))
    return found


def _replace(op: Operation, buffers: Sequence[Value], tensors: Sequence[Value]) -> None:
    """Puts buffers in the place of an operation's results; tensors that nobody reads any more go."""
    operands, names, graph = list(dict.fromkeys(op.operands)), [r.name for r in op.results], op.graph
    assert graph is not None
    for result, buffer, tensor in zip(op.results, buffers, tensors, strict=True):
        for user in list(result.users):
            if user.definition is from_tensor and user.block is op.block:
                user.result.replace_all_uses_with(buffer)
                user.erase()
        result.replace_all_uses_with(tensor)
    op.erase()
    for tensor, name in zip(tensors, names, strict=True):
        graph.rename(tensor, name)
    for value in (*tensors, *operands):
        source = value.defining_op
        if source is not None and source.definition is to_tensor and not value.has_uses:
            source.erase()
