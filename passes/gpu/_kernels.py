"""What the passes that make kernels share: building launches, places of threads, guards, memory on the chip.

Everything is built with the active builder, and places are expressions in value form, as in :mod:`passes.loops._blocks`, whose
``load``, ``store``, ``loop``, ``number`` and ``index_value`` are used beside these::

    def kernel(block: Dim) -> None:
        at = named("i", 128 * block + thread())
        when(less(at, count), lambda: store(load(source, at), target, at))

    launch([("block", ceildiv(count, 128))], 128, kernel, name="copy")
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dialects.arith.bits import andi
from dialects.arith.comparison import cmpi
from ir.builder import Builder
from ir.builtin import yield_
from ir.core import Block, Operation, Region, Value
from ir.dims import Dim, DimExpr, dim_max, exact_div, floordiv, mod, product
from ir.inference import plain_symbol
from ir.layout import LAYOUT, RangeArg
from ir.opdef import REGISTRY
from ir.types import DType, MemRefType, ScalarType, index
from passes.loops._blocks import active, index_value, number
from passes.loops._loops import Form, number_layout, value_symbol

WARP = 32
"""Threads of a warp."""
LINE = 16
"""Bytes that one thread loads or stores at once, at most."""

Grid = Sequence[tuple[str, Dim]]
"""Names and numbers of the blocks along one to three axes; the first one may be large (2**31), the others have 65535 blocks at most."""


# -- launches ----------------------------------------------------------------------------------------------------------


def launch(
    grid: Grid, threads: int, inside: Callable[..., None], *, name: str = "", tag: str = "", min_blocks: int = 0
) -> Operation:  # fmt: skip
    """A ``gpu.launch``; ``inside`` builds the kernel and gets the block numbers as expressions."""
    region = Region()
    for label, _ in grid:
        region.block.add_argument(label, ScalarType(index))
    attributes: dict[str, Any] = {"threads": threads}
    attributes |= {key: value for key, value in (("name", name), ("tag", tag), ("min_blocks", min_blocks)) if value}
    made = _create("gpu.launch", [RangeArg(0, count, 1) for _, count in grid], regions=[region], attributes=attributes)
    _fill(region.block, lambda: inside(*(value_symbol(a) for a in region.block.arguments)))
    return made


def _fill(block: Block, build: Callable[[], Any]) -> None:
    """Builds the body of a block that yields nothing."""
    outer = active()
    with Builder(block, origin=outer.origin, loc=outer.loc) as inner:
        build()
        inner.create(yield_, [])


def _create(
    name: str, forms: Sequence[Form] = (), *, types: Sequence[Any] = (), regions: Sequence[Region] = (), attributes: dict[str, Any] | None = None,
    label: str | None = None,
) -> Operation:  # fmt: skip
    graph = active().block.graph
    assert graph is not None
    operands, layout = number_layout(forms, graph)
    given: dict[str, Any] = {LAYOUT: layout, **(attributes or {})}
    return active().create(REGISTRY[name], operands, given, regions=regions, result_types=types, name=label)


# -- places ------------------------------------------------------------------------------------------------------------


def thread(name: str = "t") -> Dim:
    """The number of the thread in its block, as an expression."""
    return value_symbol(_create("gpu.thread_id", types=[ScalarType(index)], label=name).result)


def named(name: str, expr: Dim) -> Dim:
    """An expression under a name of its own (``affine.apply``); numbers, dimensions and values as they are."""
    if not isinstance(expr, DimExpr) or plain_symbol(expr) is not None:
        return expr
    return value_symbol(index_value("apply", expr, name=name))


def _plain_value(place: Dim) -> Value | None:
    """The value that an expression is, if it is just one."""
    name = plain_symbol(place) if isinstance(place, DimExpr) else None
    graph = active().block.graph
    assert graph is not None
    return graph.names[name[1:]] if name is not None and name.startswith("%") else None


def warp_of(at: Dim) -> tuple[Dim, Dim]:
    """The number of the warp of a thread, and the thread's number in it (its lane)."""
    return named("warp", floordiv(at, WARP)), named("lane", mod(at, WARP))


def split_index(flat: Dim, sizes: Sequence[Dim]) -> list[Dim]:
    """The row-major places in a space of such sizes that a number stands for; the first one isn't limited.

    Where a size is 0 there is no number to ask for; written as ``max(N, 1)`` the division needs no check.
    """
    places: list[Dim] = []
    for size in reversed([size if isinstance(size, int) else dim_max(size, 1) for size in sizes[1:]]):
        places.append(mod(flat, size))
        flat = floordiv(flat, size)
    return [flat, *reversed(places)] if sizes else []


def value_of(place: Dim, name: str = "at") -> Value:
    """An expression as a value of type ``index``: the value itself where it is one."""
    if isinstance(place, int):
        return number(place, index, name)
    known = _plain_value(place)
    return known if known is not None else index_value("apply", place, name=name)


# -- choices -----------------------------------------------------------------------------------------------------------


def less(place: Dim, bound: Dim, name: str = "inside") -> Value:
    """Whether a place is below a bound, as a bool."""
    return cmpi(value_of(place), value_of(bound, "bound"), predicate="lt", name=name)  # type: ignore[no-any-return]


def equal(place: Dim, other: Dim, name: str = "is") -> Value:
    """Whether two places are the same, as a bool."""
    return cmpi(value_of(place), value_of(other, "other"), predicate="eq", name=name)  # type: ignore[no-any-return]


def both(*conditions: Value) -> Value:
    """Whether all conditions hold."""
    found = conditions[0]
    for condition in conditions[1:]:
        found = andi(found, condition, name="inside")
    return found


def when(condition: Value, yes: Callable[[], Any], no: Callable[[], Any] | None = None) -> Operation:
    """An ``scf.if`` without results; the second region only where it is given."""
    regions = [Region()] if no is None else [Region(), Region()]
    made = _create("scf.if", [condition], regions=regions)
    for region, build in zip(regions, (yes, no), strict=False):
        assert build is not None
        _fill(region.block, build)
    return made


def results_when(condition: Value, yes: Callable[[], Sequence[Value]], no: Sequence[Value]) -> list[Value]:
    """An ``scf.if`` that results in what ``yes`` builds, or in values that are there."""
    outer = active()
    regions = [Region(), Region()]
    made = _create("scf.if", [condition], types=[v.type for v in no], regions=regions)
    with Builder(regions[0].block, origin=outer.origin, loc=outer.loc) as inner:
        inner.create(yield_, list(yes()))
    with Builder(regions[1].block, origin=outer.origin, loc=outer.loc) as inner:
        inner.create(yield_, list(no))
    return list(made.results)


# -- memory on the chip, and what threads do together ------------------------------------------------------------------


def shared(name: str, dtype: DType, *shape: int) -> Value:
    """A buffer that the threads of the block share; it must stand at the top of the launch."""
    return _create("gpu.alloc", types=[MemRefType(dtype, shape, "shared")], label=name).result


def local(name: str, dtype: DType, *shape: int) -> Value:
    """A buffer of each thread; registers where the loops over it are unrolled."""
    return _create("gpu.alloc", types=[MemRefType(dtype, shape, "local")], label=name).result


def barrier(scope: str = "block") -> None:
    """Waits for the threads of the block, or of the warp (``scope="warp"``)."""
    _create("gpu.barrier", attributes={} if scope == "block" else {"scope": scope})


def warp_reduce(x: Value, kind: str, width: int = WARP, name: str | None = None) -> Value:
    """x of ``width`` neighbouring threads combined by halves; every one of them gets the result."""
    return _create("gpu.warp_reduce", [x], types=[x.type], attributes={"kind": kind, "width": width}, label=name).result


def shuffle(x: Value, *, mode: str = "xor", by: int = 1, width: int = WARP, name: str | None = None) -> Value:
    """x of another thread of the warp (see ``gpu.shuffle``)."""
    return _create("gpu.shuffle", [x], types=[x.type], attributes={"mode": mode, "by": by, "width": width}, label=name).result


# -- alignment ---------------------------------------------------------------------------------------------------------


def is_multiple(dim: Dim, size: int) -> bool:
    """Whether an expression is provably a multiple of a number."""
    return exact_div(dim, size) is not None


def count(sizes: Sequence[Dim]) -> Dim:
    """How many places there are in a space of such sizes."""
    return product(sizes)
