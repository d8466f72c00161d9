"""fuse, collapse, transpose-operands, lower-to-loops: fewer nests, the same bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pass_checks import apply, assert_same_bits, load, operations

from ir.clone import clone_module
from ir.core import Module
from ir.printer import print_module
from passes.infra.base import PassContext
from passes.linalg import fuse as fusing
from passes.linalg._fusion import ALIASES
from passes.linalg._nest_index import Nests
from passes.linalg._rows import join_rows
from tests.checks import all_examples, check_text

SAMPLES = Path(__file__).parents[2] / "samples"
LOWER = "inline,decompose,lower-to-linalg"
REST = ("fuse", "transpose-operands", "collapse", "lower-to-loops")


def through(text: str, *pipelines: str) -> Module:
    """The lowered program after some passes: the same bits after each, and each does nothing the second time."""
    module = load(text)
    apply(module, LOWER)
    for pipeline in pipelines:
        before = clone_module(module)
        apply(module, pipeline)
        check_text(module)
        assert_same_bits(before, module, seeds=(0,))
        once = print_module(module)
        again = apply(module, pipeline)
        assert print_module(module) == once and not any(r.changed for r in again.records), pipeline
    return module


def graph(body: str, parameters: str = "%x: f32[B, S, 4]") -> str:
    lines = "".join(f"  {line.strip()}\n" for line in body.strip().split(";"))
    return f"graph @main({parameters}) {{\n{lines}}}\n"


def nests(module: Module) -> int:
    """Nests of the graphs' own blocks."""
    return sum(1 for g in module.graphs.values() for op in g.block if op.name == "linalg.generic")


def allocs(module: Module) -> int:
    return operations(module).count("memref.alloc")


MATMUL = "%x: f32[B, 5], %w: f32[5, 6], %b: f32[6]"
SOFTMAX = "%y = softmax(%x, axis=-1); return %y"
CASES = {
    # name: (program, nests left, buffers left)
    "chain": (graph("%a = neg(%x); %b = exp(%a); %c = sqrt(%b); return %c"), 1, 1),
    "diamond": (graph("%a = exp(%x); %b = sin(%a); %c = cos(%a); %d = mul(%b, %c); return %d"), 1, 1),
    "returned too": (graph("%a = exp(%x); %b = sin(%a); return %a, %b"), 1, 2),
    "twice": (graph("%a = exp(%x); %b = mul(%a, %a); return %b"), 1, 1),
    "bias and silu": (graph("%h = matmul(%x, %w); %s = add(%h, %b); %y = silu(%s); return %y", MATMUL), 1, 1),
    "bias returned": (graph("%h = matmul(%x, %w); %s = add(%h, %b); %y = silu(%s); return %y, %s", MATMUL), 1, 2),
    "bias column": (graph("%h = matmul(%x, %w); %s = add(%h, %c); return %s", MATMUL + ", %c: f32[B, 1]"), 1, 1),
    "product of a costly value": (graph("%e = exp(%x); %h = matmul(%e, %w); return %h", MATMUL), 2, 2),
    "two products": (graph("%h = matmul(%x, %w); %y = matmul(%h, %v); return %y", MATMUL + ", %v: f32[6, 3]"), 2, 2),
    "two products added": (graph("%h = matmul(%x, %w); %g = matmul(%x, %v); %y = add(%h, %g); return %y", MATMUL + ", %v: f32[5, 6]"), 1, 1),
    "transposed": (graph("%h = matmul(%x, %w); %t = transpose(%h); %y = exp(%t); return %y", MATMUL), 1, 1),
    "transposed, read twice": (graph("%a = exp(%x); %t = transpose(%a); %y = add(%a, %t); return %y", "%x: f32[S, S]"), 2, 2),
    "moves": (graph("%a = flip(%x, axes=[1]); %b = transpose(%a); %c = slice(%b, starts=[1], ends=[3]); return %c"), 1, 1),
    "split heads": (
        graph("%a = reshape(%x, shape=[B, S, 2, 2]); %b = transpose(%a, perm=[0, 2, 1, 3]); %c = exp(%b); return %c"), 1, 1
    ),
    "joined heads": (
        graph("%a = exp(%x); %b = transpose(%a); %c = reshape(%b, shape=[6, B]); %d = sin(%c); return %d", "%x: f32[B, 2, 3]"), 2, 2
    ),
    "softmax": (graph(SOFTMAX), 1, 2),
    "softmax, symbolic": (graph(SOFTMAX, "%x: f32[B, S]"), 1, 2),
    "softmax of columns of a square": (graph("%y = softmax(%x, axis=0); return %y", "%x: f32[3, 3]"), 4, 4),
    "norm of columns of a square": (graph("%y = l2_normalize(%x, axis=1); return %y", "%x: f32[B, S, S]"), 2, 2),
    "log softmax": (graph("%y = log_softmax(%x, axis=-1); return %y"), 1, 1),
    "layernorm": (graph("%y = layernorm(%x); return %y"), 1, 1),
    "layernorm of a sum": (graph("%s = add(%x, %r); %y = layernorm(%s); return %y, %s", "%x: f32[B, 4], %r: f32[B, 4]"), 1, 2),
    "rmsnorm": (graph("%y = rmsnorm(%x, weight=%w); return %y", "%x: f32[B, 4], %w: f32[4]"), 1, 1),
    "rmsnorm, symbolic": (graph("%y = rmsnorm(%x, weight=%w); return %y", "%x: f32[B, S], %w: f32[S]"), 1, 1),
    "rmsnorm of a sum, symbolic": (graph("%s = add(%x, %r); %y = rmsnorm(%s); return %y, %s", "%x: f32[B, S], %r: f32[B, S]"), 1, 2),
    "layernorm of a product, symbolic": (graph("%s = mul(%x, %r); %y = layernorm(%s); return %y", "%x: f32[B, S], %r: f32[B, S]"), 1, 1),
    "mean of exponentials, symbolic": (graph("%e = exp(%x); %m = mean(%e, axes=[-1]); return %m", "%x: f32[B, S]"), 1, 1),
    "norm of the other axis": (graph("%m = max(%x, axes=[0], initial=0.0); %y = sub(%x, %m); return %y", "%x: f32[B, 4]"), 2, 2),
    "sum of squares": (graph("%q = square(%x); %e = exp(%q); %s = sum(%e, axes=[-1]); return %s"), 1, 1),
    "sum of everything": (graph("%e = exp(%x); %s = sum(%e); %y = div(%e, %s); return %y"), 3, 3),
    "concat": (graph("%a = exp(%x); %b = sin(%x); %c = concat(%a, %b, axis=1); %d = neg(%c); return %d"), 3, 2),
    "pad": (graph("%a = exp(%x); %b = pad(%a, low=[0, 1, 0], high=[0, 0, 2]); %c = neg(%b); return %c"), 3, 2),
    "numbers": (
        graph("%i = iota(shape=[B, 4], axis=1, dtype=i32); %t = transpose(%i); %c = add(%t, %y); return %c", "%x: f32[B], %y: i32[4, B]"), 1, 1
    ),
    "triangle": (graph("%t = tril(%x); %s = slice(%t, starts=[1], ends=[3], axes=[0]); return %s", "%x: f32[4, S]"), 1, 1),
    "halves": (graph("%a = mul(%x, %x); %b = add(%a, %x); %c = sum(%b, axes=[1]); return %c", "%x: f16[B, 4]"), 1, 1),
    "gather": (graph("%g = gather(%x, %i); %y = exp(%g); return %y", "%x: f32[5, 4], %i: i64[B]"), 2, 1),
    "attention": (
        graph("%y = attention(%q, %k, %v, mask=%m); return %y", "%q: f32[B, 2, S, 3], %k: f32[B, 2, T, 3], %v: f32[B, 2, T, 5], %m: bool[S, T]"),
        3, 4,
    ),
    "size one": (graph("%m = mean(%x, axes=[-1], keepdims=true); %y = sub(%x, %m); %z = sum(%y, axes=[1]); return %z", "%x: f32[B, 1, 3]"), 1, 1),
    "print between": (graph('%a = exp(%x); print(%a); %b = sin(%a); return %b'), 2, 2),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_fused(name: str) -> None:
    text, nest_count, buffer_count = CASES[name]
    module = through(text, "fuse")
    assert (nests(module), allocs(module)) == (nest_count, buffer_count), print_module(module)
    for pipeline in REST[1:]:
        before = clone_module(module)
        apply(module, pipeline)
        check_text(module)
        assert_same_bits(before, module, seeds=(0,))
    assert "linalg" not in print_module(module)


EXAMPLES = {
    f"{name}-{number}": text.replace("@example(", "@main(")
    for name, number, text in all_examples()
    if name.startswith("graph.") and name not in ("graph.attention", "graph.call", "graph.initial")
}


@pytest.mark.parametrize("key", EXAMPLES)
def test_examples(key: str) -> None:
    """Every operation, with one before and one behind it that may be joined."""
    module = load(EXAMPLES[key])
    apply(module, LOWER)
    before = clone_module(module)
    apply(module, ",".join(REST))
    check_text(module)
    assert_same_bits(before, module, seeds=(0,))


def test_the_tutorial_has_one_nest_for_its_first_layer() -> None:
    text = (SAMPLES / "mlp.graph").read_text(encoding="utf-8").replace("256", "6").replace("64", "4")
    module = through(text, "fuse")
    assert nests(module) == 2
    assert [op.results[0].name for op in module.walk() if op.name == "memref.alloc"] == ["h2.buffer", "out.buffer"]
    assert "// result types may be left out" in print_module(module)
    both = text.replace("return %out", "return %out, %h1").replace("-> f32[B, 4]", "-> (f32[B, 4], f32[B, 6])")
    module = through(both, "fuse")
    assert nests(module) == 2
    assert [op.results[0].name for op in module.walk() if op.name == "memref.alloc"] == ["h1.buffer", "h2.buffer", "out.buffer"]


def test_a_nest_that_changes_what_was_read_stays_behind() -> None:
    """A buffer of the caller is written between the nests: they may not change places."""
    text = """\
graph @main(%A: memref<f32[B]>, %C: memref<f32[B]>) {
  %T = memref.alloc() : memref<f32[B]>
  linalg.generic(i < B, %a = %A[i], %t = %T[i]) {
    %r = math.exp(%a) : f32
    yield %r
  }
  linalg.generic(i < B, %a1 = %A[i], %a2 = %A[i]) {
    %n = arith.negf(%a1) : f32
    yield %n
  }
  linalg.generic(i < B, %t1 = %T[i], %c = %C[i]) {
    %s = math.sin(%t1) : f32
    yield %s
  }
  return
}
"""
    module = load(text)
    apply(module, "fuse")
    assert nests(module) == 3


def test_parameters_may_be_the_same_array() -> None:
    """%C may be %A: its nest may not be repeated after %A is written."""
    text = """\
graph @main(%A: memref<f32[B]>, %C: memref<f32[B]>) {
  %T = memref.alloc() : memref<f32[B]>
  linalg.generic(i < B, %a = %A[i], %t = %T[i]) {
    yield %a
  }
  linalg.generic(i < B, %c1 = %C[B - 1 - i], %c = %C[i]) {
    yield %c1
  }
  linalg.generic(i < B, %t1 = %T[i], %c2 = %C[i]) {
    yield %t1
  }
  return
}
"""
    module = load(text)
    apply(module, "fuse")
    assert nests(module) == 3


def test_what_nothing_reads_holds_no_tensor_back() -> None:
    text = """graph @main(%x: f32[B], %A: memref<f32[B]>, %C: memref<f32[B]>) -> (f32[B], f32[B]) {
  linalg.generic(i < B, %a = %A[i], %c = %C[i]) {
    yield %a
  }
  %t = memref.to_tensor(%A) : f32[B]
  %unused = exp(%t)
  %y = neg(%x)
  %z = sin(%t)
  return %y, %z
}"""
    module = load(text)
    apply(module, "fuse")
    assert operations(module) == ["linalg.generic", "neg", "memref.to_tensor", "sin"]
    assert not any(r.changed for r in apply(module, "fuse").records)


def test_views_of_an_arena_may_be_the_same_memory() -> None:
    text = """\
graph @main(%x: f32[B]) -> f32[B] {
  %X = memref.from_tensor(%x) : memref<f32[B]>
  %M = memref.alloc() : memref<u8[4*B]>
  %A = memref.view(%M, offset=0) : memref<f32[B]>
  %C = memref.view(%M, offset=0) : memref<f32[B]>
  linalg.generic(i < B, %x1 = %X[i], %a = %A[i]) {
    yield %x1
  }
  %T = memref.alloc() : memref<f32[B]>
  linalg.generic(i < B, %a1 = %A[i], %t = %T[i]) {
    yield %a1
  }
  linalg.generic(i < B, %x2 = %X[i], %c = %C[i]) {
    %n = math.exp(%x2) : f32
    yield %n
  }
  %R = memref.alloc() : memref<f32[B]>
  linalg.generic(i < B, %t1 = %T[i], %r = %R[i]) {
    yield %t1
  }
  %y = memref.to_tensor(%R) : f32[B]
  return %y
}
"""
    module = load(text)
    before = clone_module(module)
    apply(module, "fuse")
    assert_same_bits(before, module, seeds=(0,))


def test_tags() -> None:
    text = graph("%h = matmul(%x, %w); %s = softmax(%h); return %s", "%x: f32[B, S, 5], %w: f32[5, 6]")
    module = through(text, *REST)
    tags = [str(op.attribute("tag")) for op in module.walk() if op.definition.dialect == "scf"]
    assert tags == ["m", "n", "k", "row", "reduce", "col", "reduce", "col"]


def test_columns_are_innermost() -> None:
    text = graph("%t = transpose(%x); %y = exp(%t); return %y", "%x: f32[B, S]")
    module = through(text, *REST)
    store = next(op for op in module.walk() if op.name == "memref.store")
    loop = store.block.parent.parent  # type: ignore[union-attr]
    assert loop.attribute("tag") == "col" and store.operands[-1] is loop.regions[0].block.arguments[0]


def test_columns_of_a_crosswise_factor_are_copied() -> None:
    text = graph("%h = matmul(%x, %w, transpose_b=true); return %h", "%x: f32[B, 3, 5], %w: f32[B, S, 5]")
    module = through(text, "fuse", "transpose-operands")
    assert "memref<f32[B, 5, S]>" in print_module(module)
    stored = graph("%h = matmul(%x, %w, transpose_b=true); return %h", "%x: f32[B, 2]").replace(
        "  %h", "  %w = constant([[1, 2], [3, 4]]) : f32[2, 2]\n  %h"
    )
    module = through(stored, "fuse", "transpose-operands")
    assert allocs(module) == 1


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_a_product_widens_the_factor_of_its_columns(dtype: str) -> None:
    """Vector by vector in its own loops; rows, which are read number by number for every block of columns, are widened before."""
    body = "%a = cast(%x, dtype=f32); %b = cast(%w, dtype=f32); %y = matmul(%a, %b); %z = relu(%y); return %z, %b"
    module = through(graph(body, f"%x: {dtype}[B, 5], %w: {dtype}[5, 6]"), "fuse")
    (product,) = [op for op in module.walk() if op.name == "linalg.reduce"]
    read = [op.operand_uses[i].value.name for op in (product,) for i in range(2)]
    assert read == ["a.buffer", "w.buffer"] and any(op.name == "arith.extf" for op in product.walk())
    assert nests(module) == 3, "what is returned is stored as well"
    crosswise = through(graph("%b = cast(%w, dtype=f32); %y = matmul(%b, %x); return %y", f"%x: f32[5], %w: {dtype}[6, 5]"), "fuse")
    assert nests(crosswise) == 1


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_rows_of_a_narrow_product(dtype: str) -> None:
    """They are widened once for all products that read them, which then share a nest."""
    text = graph("%g = matmul(%x, %w); %u = matmul(%x, %v); %y = mul(%g, %u); return %y", f"%x: {dtype}[B, 5], %w: {dtype}[5, 6], %v: {dtype}[5, 6]")
    module = through(text, "fuse")
    assert (nests(module), allocs(module)) == (2, 2)
    assert_same_bits(through(text, "lower-to-linalg"), module, seeds=(0,))


def test_one_read_of_an_element_is_enough() -> None:
    lines = "".join(f"  %v{i} = add({f'%v{i - 1}' if i else '%x'}, %x)\n" for i in range(40))
    module = load(f"graph @main(%x: f32[N]) -> f32[N] {{\n{lines}  return %v39\n}}\n")
    apply(module, "lower-to-linalg")
    before = clone_module(module)
    apply(module, "fuse")
    nests = [op for op in module.main.block if op.name == "linalg.generic"]
    assert [len(op.operands) for op in nests] == [2]
    assert_same_bits(before, module)


@pytest.mark.parametrize("name", CASES)
def test_the_index_stays_true(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fuse keeps in mind about nests is what a new look at the program finds."""
    kept: list[Nests] = []

    def noted(nests: Nests) -> None:
        kept.append(nests)
        ops = [op for op in nests.graph.block if op.name not in ALIASES]
        fresh = Nests(nests.graph)
        for op in ops:
            mine, new = nests.facts(op), fresh.facts(op)
            assert mine.accessing == new.accessing and set(mine.reads) == set(new.reads) and set(mine.touched) == set(new.touched)
            assert sorted(m.name for m in mine.writes) == sorted(m.name for m in new.writes)
            assert replace(mine, accessing=[], reads={}, writes=[], touched={}) == replace(new, accessing=[], reads={}, writes=[], touched={})
        for index in ("users", "writers"):
            mine_of, new_of = getattr(nests, index), getattr(fresh, index)
            assert {m: set(u) for m, u in mine_of.items() if u} == {m: set(u) for m, u in new_of.items() if u}
        assert sorted(ops, key=nests.position.__getitem__) == ops

    def watched(nests: Nests, context: PassContext) -> None:
        noted(nests)
        join_rows(nests, context)
        noted(nests)

    monkeypatch.setattr(fusing, "join_rows", watched)
    module = load(CASES[name][0])
    apply(module, f"{LOWER},fuse")
    assert len(kept) in (0, 2)


def test_long_chains_take_no_longer_for_each_operation() -> None:
    """Two hundred values that are added up: joined in place, so nothing is copied."""
    lines = [f"  %a{i} = exp(%x)\n" for i in range(200)] + [f"  %s{i} = add(%{'a0' if i == 1 else f's{i - 1}'}, %a{i})\n" for i in range(1, 200)]
    module = load(f"graph @main(%x: f32[N]) -> f32[N] {{\n{''.join(lines)}  return %s199\n}}\n")
    apply(module, "lower-to-linalg")
    records = apply(module, "fuse").records
    assert nests(module) == 1 and records[0].statistics["nests joined"] == 398 and "nests repeated where they are read" not in records[0].statistics
    assert operations(module).count("math.exp") == 200
