"""``affine`` operations: index expressions, which accesses and loop bounds that use them see through."""

from __future__ import annotations

from codegen.llvm.polynomials import Poly, add, as_number, constant, multiply
from codegen.llvm.writer import Writer, emits
from dialects.affine import expressions_of
from ir.core import Operation


def _arguments(w: Writer, op: Operation) -> tuple[Poly, ...]:
    operands = [u.value for u in op.operand_uses]
    return tuple(w.space.convert(e, operands) for e in expressions_of(op))


def _finish(w: Writer, op: Operation, poly: Poly) -> None:
    """Computes the result here, where it can fail, and tells the index arithmetic what it is."""
    w.names[op.results[0]] = w.integer(poly)
    w.space.describe(op.results[0], poly)


@emits("affine.apply")
def _apply(w: Writer, op: Operation) -> None:
    _finish(w, op, _arguments(w, op)[0])


@emits("affine.min", "affine.max")
def _extremum(w: Writer, op: Operation) -> None:
    arguments = _arguments(w, op)
    for argument in arguments:  # also one that the proofs leave out of the extremum
        w.integer(argument)
    _finish(w, op, w.space.function(op.definition.name, arguments))


@emits("affine.align_down")
def _align_down(w: Writer, op: Operation) -> None:
    value, alignment = _arguments(w, op)
    w.integer(value)
    positive = add(alignment, constant(-1))
    if as_number(alignment) is None and not w.space.prove(positive):
        found = w.integer(alignment)
        w.check(w.set(f"icmp sgt i64 {found}, 0"), "the alignment is {0}, it must be positive", found)
        w.space.hypotheses.append(positive)  # for the rest of the region; its end forgets it
    _finish(w, op, multiply(w.space.function("floordiv", (value, alignment)), alignment))
