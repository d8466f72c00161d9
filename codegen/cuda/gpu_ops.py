"""``gpu`` operations: what threads of a block, and lanes of a warp, do together."""

from __future__ import annotations

from codegen.cuda.expressions import PRIMARY, Expr
from codegen.cuda.memory import address, check_inside, place, valid_count
from codegen.cuda.types import C_TYPES
from codegen.cuda.writer import Writer, element_type, emits
from ir.core import Operation
from ir.layout import AccessArg, layout_of

COLLECTIVE = ("gpu.barrier", "gpu.shuffle", "gpu.warp_reduce", "gpu.ldmatrix", "gpu.mma")
"""Operations at which threads wait for each other."""


def _sync(w: Writer, call: str) -> None:
    """What orders threads or copies; a mark where they are marked."""
    w.line(f"GO_MARK_SYNC({w.mark('sync')}, {call});" if w.marked else f"{call};")


@emits("gpu.thread_id")
def _thread_id(w: Writer, op: Operation) -> None:
    if op.results[0].has_uses:
        w.declare(op.results[0], w.thread(op.results[0]))


@emits("gpu.barrier")
def _barrier(w: Writer, op: Operation) -> None:
    _sync(w, "go_warp_barrier()" if op.attribute("scope") == "warp" else "go_barrier()")


@emits("gpu.shuffle")
def _shuffle(w: Writer, op: Operation) -> None:
    mode, by, width = (op.attribute(n) for n in ("mode", "by", "width"))
    lane = op.operand("lane")
    distance = str(by) if lane is None else f"(int){w.value(lane).at(PRIMARY)}"
    value = f"({element_type(op.operands[0])}){w.value(op.operands[0]).at(PRIMARY)}"
    if element_type(op.operands[0]) in ("go_half", "go_bf16"):
        value = w.value(op.operands[0]).text
    w.declare(op.results[0], Expr(f"go_shuffle_{mode}({value}, {distance}, {width})"))


@emits("gpu.warp_reduce")
def _warp_reduce(w: Writer, op: Operation) -> None:
    x = op.operands[0]
    call = f"go_warp_reduce_{op.attribute('kind')}<{C_TYPES[x.type.dtype.name]}>"  # type: ignore[union-attr]
    w.declare(op.results[0], Expr(f"{call}({w.value(x).text}, {op.attribute('width')})"))


@emits("gpu.cp_async")
def _cp_async(w: Writer, op: Operation) -> None:
    source, target = layout_of(op)
    assert isinstance(source, AccessArg) and isinstance(target, AccessArg)
    read, written = (w.buffer(op.operands[a.position]) for a in (source, target))
    run = source.indices[-1].size
    assert run is not None
    item = read.type.dtype.itemsize
    start, _ = place(w, op, source, read)
    goal, _ = place(w, op, target, written)
    valid = op.operand("valid")
    more = ""
    if valid is not None:
        count = valid_count(w, valid, run)
        more = f", {count}" if item == 1 else f", {item} * {w.value(valid).left(2)}" if count == w.value(valid).text else f", {item} * {count}"
    inside = " && ".join(t for t in (check_inside(w, op, source, read, valid), check_inside(w, op, target, written)) if t)
    w.line(f"{f'if ({inside}) ' if inside else ''}go_cp_async<{run * item}>({address(written, goal)}, {address(read, start)}{more});")


@emits("gpu.cp_commit")
def _cp_commit(w: Writer, op: Operation) -> None:
    _sync(w, "go_cp_commit()")


@emits("gpu.cp_wait")
def _cp_wait(w: Writer, op: Operation) -> None:
    _sync(w, f"go_cp_wait<{op.attribute('pending')}>()")


@emits("gpu.ldmatrix")
def _ldmatrix(w: Writer, op: Operation) -> None:
    count = op.attribute("count")
    assert isinstance(count, int)
    access = layout_of(op)[0]
    assert isinstance(access, AccessArg)
    buffer = w.buffer(op.operands[access.position])
    at, _ = place(w, op, access, buffer)
    inside = check_inside(w, op, access, buffer, unless=f"go_thread() % 32 >= {8 * count}")  # other rows are not looked at
    row = f"{inside} ? {address(buffer, at)} : {buffer.pointer}" if inside else address(buffer, at)
    transposed = "true" if op.attribute("transposed") else "false"
    w.declare(op.results[0], Expr(f"go_ldmatrix<{count}, {transposed}>({row})"))


@emits("gpu.mma")
def _mma(w: Writer, op: Operation) -> None:
    name = "go_mma_tf32" if op.attribute("precision") == "tf32" else "go_mma"
    w.declare(op.results[0], Expr(f"{name}({', '.join(w.value(v).text for v in op.operands)})"))
