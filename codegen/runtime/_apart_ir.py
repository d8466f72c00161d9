"""Whether arrays share memory, as LLVM IR: one that is written has to be apart from all others."""

from __future__ import annotations

from codegen.runtime._dims_ir import Lines

_STARTS, _ENDS = "%starts", "%ends"


def reserve(out: Lines, count: int) -> None:
    """The memory that :func:`compare_in_loops` uses; where a function begins."""
    for name in (_STARTS, _ENDS):
        out.add(f"{name} = alloca i64, i64 {max(1, count)}, align 16")


def compare(out: Lines, written: list[int], starts: list[str], ends: list[str]) -> list[str]:
    """Conditions under which the arrays that are written are apart from the others; registers hold where each starts and ends."""
    conditions = []
    for i in written:
        for j in range(len(starts)):
            if j != i and (j not in written or j > i):
                before = out.let(f"icmp ule i64 {ends[i]}, {starts[j]}")
                behind = out.let(f"icmp ule i64 {ends[j]}, {starts[i]}")
                conditions.append(out.let(f"or i1 {before}, {behind}"))
    return conditions


def compare_in_loops(out: Lines, written: int, order: list[int], starts: list[str], ends: list[str], otherwise: str) -> None:
    """The same by loops over pairs, short code for many arrays: goes to ``otherwise`` when two are not apart.

    The arrays that are written come first in ``order``; there are two or more arrays.
    """
    count = len(order)
    for name, values in ((_STARTS, starts), (_ENDS, ends)):
        for place, i in enumerate(order):
            out.add(f"store i64 {values[i]}, ptr {out.let(f'getelementptr i64, ptr {name}, i64 {place}')}")
    before = next(line for line in reversed(out.lines) if line.endswith(":")).removesuffix(":")
    out.add("br label %rows")
    out.label("rows")
    out.add(f"%row = phi i64 [ 0, %{before} ], [ %row_next, %row_end ]")
    first_start, first_end = (out.let(f"load i64, ptr {out.let(f'getelementptr i64, ptr {name}, i64 %row')}") for name in (_STARTS, _ENDS))
    out.add("%row_next = add i64 %row, 1")
    out.add(f"br i1 {out.let(f'icmp ult i64 %row_next, {count}')}, label %pairs, label %apart")
    out.label("pairs")
    out.add("%column = phi i64 [ %row_next, %rows ], [ %column_next, %pair_fine ]")
    start, end = (out.let(f"load i64, ptr {out.let(f'getelementptr i64, ptr {name}, i64 %column')}") for name in (_STARTS, _ENDS))
    behind = out.let(f"icmp ule i64 {first_end}, {start}")
    fine = out.let(f"or i1 {behind}, {out.let(f'icmp ule i64 {end}, {first_start}')}")
    out.add(f"br i1 {fine}, label %pair_fine, label %{otherwise}")
    out.label("pair_fine")
    out.add("%column_next = add i64 %column, 1")
    out.add(f"br i1 {out.let(f'icmp ult i64 %column_next, {count}')}, label %pairs, label %row_end")
    out.label("row_end")
    out.add(f"br i1 {out.let(f'icmp ult i64 %row_next, {written}')}, label %rows, label %apart")
    out.label("apart")
