"""Building asynchronous copies and products of small matrices: what kernels that go through shared memory in stages share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ir.builder import Builder
from ir.core import Operation, Value
from ir.layout import LAYOUT, IndexExpr
from ir.opdef import REGISTRY
from ir.types import VectorType, f32
from passes.loops._blocks import Place, active, buffer_type
from passes.loops._loops import Access, Form, number_layout


def _create(
    name: str, forms: Sequence[Form], types: Sequence[Any], label: str | None = None, valid: Value | None = None, **attributes: Any
) -> Operation:
    builder: Builder = active()
    graph = builder.block.graph
    assert graph is not None
    operands, layout = number_layout(forms, graph)
    given: dict[str, Any] = {LAYOUT: layout, **attributes}
    optional = {} if valid is None else {"valid": valid}
    return builder.create(REGISTRY[name], operands, given, optional=optional, result_types=types, name=label)


def _access(buffer: Value, places: Sequence[Place]) -> Access:
    return Access(buffer, tuple(IndexExpr(*p) if isinstance(p, tuple) else IndexExpr(p) for p in places))


def cp_async(source: Value, places: Sequence[Place], target: Value, goal: Sequence[Place], valid: Value | None = None) -> None:
    """Starts a copy of a run (the last place of each is one) to shared memory; elements from ``valid`` on become 0."""
    _create("gpu.cp_async", [_access(source, places), _access(target, goal)], (), valid=valid)


def cp_commit() -> None:
    """Closes a group of copies."""
    _create("gpu.cp_commit", [], ())


def cp_wait(pending: int) -> None:
    """Waits until at most so many groups of this thread are open."""
    _create("gpu.cp_wait", [], (), pending=pending)


def ldmatrix(source: Value, *places: Place, count: int, transposed: bool = False, name: str | None = None) -> Value:
    """8x8 matrices from shared memory as the warp holds them; the last place is a run of 8."""
    attributes: dict[str, Any] = {"transposed": True} if transposed else {}
    type_ = VectorType(buffer_type(source).dtype, (2 * count,))
    return _create("gpu.ldmatrix", [_access(source, places)], [type_], name, count=count, **attributes).result


def mma(a: Value, b: Value, c: Value, *, precision: str = "", name: str | None = None) -> Value:
    """``a @ b + c`` of fragments."""
    attributes: dict[str, Any] = {"precision": precision} if precision else {}
    return _create("gpu.mma", [a, b, c], [VectorType(f32, (4,))], name, **attributes).result
