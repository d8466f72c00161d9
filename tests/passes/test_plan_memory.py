"""plan-memory: buffers that are needed at different times share memory, and no two that are needed together do."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pass_checks import apply, assert_same_bits, load, optimize, outputs

import graph_opt
from ir.clone import clone_module
from ir.core import Module, Value
from ir.dims import Dim, ceildiv, substitute, symbol
from ir.inputs import choose_sizes, generate_inputs
from ir.parser import parse_module
from ir.printer import print_module
from ir.types import MemRefType, f32
from ir.verifier import verify_module
from passes.infra.verify_exec import same_bits
from passes.memory._lifetimes import Buffer
from passes.memory._packing import Block, pack
from passes.memory._sizes import Sizes
from passes.pipelines import PRESETS
from tests.memory_checker import Overlap, check_plan, poisoned

SIZES = ((3, 4, 2, 5, 8, 16, 1, 0), (1, 2, 8, 0), (7, 9, 16, 5))


def judge(module: Module) -> None:
    """The plan holds for several sizes: every read sees what its own buffer holds, and poison in free memory changes nothing."""
    sick = poisoned(module)
    verify_module(sick)
    graph = module.main
    for sizes in SIZES:
        arrays = generate_inputs(module, graph, choose_sizes(graph, sizes=sizes), "real", 3)
        check_plan(module, graph.name, arrays)
        for a, b in zip(outputs(module, graph.name, arrays, {}), outputs(sick, graph.name, arrays, {}), strict=True):
            assert same_bits(a, b), f"poison shows\n{print_module(sick)}"


def plan(text: str, pipeline: str = "plan-memory") -> Module:
    """The program with a plan that was checked in every way."""
    module = optimize(text, pipeline)
    assert_same_bits(load(text), module, seeds=(0,))
    judge(module)
    return module


def places(module: Module, graph: str = "main") -> dict[str, str]:
    """View -> offset, as written; the arena's size under ``arena``, buffers that stayed under their own name."""
    found: dict[str, str] = {}
    for op in module.graphs[graph].block:
        if op.name == "memref.view":
            found[op.result.name] = str(op.attributes["offset"])
        elif op.name == "memref.alloc":
            assert isinstance(op.result.type, MemRefType)
            found[op.result.name] = str(op.result.type.shape[0]) if op.result.name == "arena" else "alloc"
    return found


def nest(target: str, *sources: str, dims: str = "i < B, j < 8", index: str = "i, j", op: str = "addf") -> str:
    """A nest that adds elements at the same index, and 1."""
    number = next(COUNTER)
    bindings = "".join(f"%a{number}.{k} = {s if '[' in s else f'{s}[{index}]'}, " for k, s in enumerate(sources))
    body = [f"%one{number} = arith.constant(1.0) : f32"]
    last = f"%one{number}"
    for k in range(len(sources)):
        body.append(f"%s{number}.{k} = arith.{op}({last}, %a{number}.{k}) : f32")
        last = f"%s{number}.{k}"
    lines = "".join(f"    {line}\n" for line in body)
    return f"  linalg.generic({dims}, {bindings}%o{number} = {target if '[' in target else f'{target}[{index}]'}) {{\n{lines}    yield {last}\n  }}\n"


COUNTER = itertools.count()


def alloc(*names: str, type_: str = "f32[B, 8]") -> str:
    return "".join(f"  %{n} = memref.alloc() : memref<{type_}>\n" for n in names)


def program(body: str, result: str = "%Y", shape: str = "f32[B, 8]", parameter: str = "f32[B, 8]", where: str = "") -> str:
    tail = f"  %y = memref.to_tensor({result}) : {shape}\n  return %y\n"
    clause = f"\n  where {where}" if where else ""
    return f"graph @main(%x: {parameter}) -> {shape}{clause} {{\n  %X = memref.from_tensor(%x) : memref<{parameter}>\n{body}{tail}}}\n"


# -- which memory is shared --------------------------------------------------------------------------------------------


def test_chain_without_inplace() -> None:
    """a -> b -> c -> y: a and c are never needed together."""
    body = alloc("A", "B1", "C", "Y") + nest("%A", "%X") + nest("%B1", "%A") + nest("%C", "%B1") + nest("%Y", "%C")
    found = places(plan(program(body), "plan-memory{inplace=false}"))
    assert found["A"] == found["C"] == "0" and found["B1"] == "64*((32*B) ceildiv 64)" and found["Y"] == "alloc"


def test_chain_in_place() -> None:
    body = alloc("A", "B1", "C", "Y") + nest("%A", "%X") + nest("%B1", "%A") + nest("%C", "%B1") + nest("%Y", "%C")
    found = places(plan(program(body)))
    assert found["A"] == found["B1"] == found["C"] == "0" and found["Y"] == "alloc"
    assert found["arena"] == "64*((32*B) ceildiv 64)"


def test_static_sizes() -> None:
    """Two large buffers take turns with three; what is small lies where a large one was."""
    static = {"dims": "i < 16, j < 8"}
    column = {"dims": "i < 8", "index": "i"}
    body = alloc("L", type_="f32[16, 8]") + alloc("A", "Y0", type_="f32[16, 8]") + alloc("S", "T", type_="f32[8]") + alloc("Y", type_="f32[8]")
    body += nest("%L", "%X", **static) + nest("%A", "%L[15-i, j]", **static) + nest("%Y0", "%A[15-i, j]", **static)
    body += nest("%S", "%Y0[0, i]", **column) + nest("%T", "%S[7-i]", **column) + nest("%Y", "%T", "%S", **column)
    module = plan(program(body, shape="f32[8]", parameter="f32[16, 8]"))
    found = places(module)
    assert found["arena"] == "1024" and found["L"] == found["Y0"] and found["A"] != found["L"]
    assert found["S"] not in (found["T"], found["Y0"])


def test_values_live_across_many_operations() -> None:
    chain = "".join(nest(f"%T{i + 1}", f"%T{i}[B-1-i, j]") for i in range(8))
    body = alloc("A", *(f"T{i}" for i in range(9)), "Y") + nest("%A", "%X") + nest("%T0", "%A") + chain + nest("%Y", "%A", "%T8")
    found = places(plan(program(body)))
    others = {found[f"T{i}"] for i in range(9)}
    assert len(others) == 2 and found["A"] not in others  # two take turns, %A stays


def test_returned_only_and_returned_and_used() -> None:
    body = alloc("A", "Y") + nest("%A", "%X") + nest("%Y", "%A")
    assert places(plan(program(body)))["Y"] == "alloc"
    used = program(body).replace("  return %y", "  print(%y)\n  return %y")
    assert places(plan(used))["Y"] != "alloc"
    read_later = program(alloc("A", "Y", "Z") + nest("%A", "%X") + nest("%Y", "%A")).replace("-> f32[B, 8]", "-> (f32[B, 8], f32[B, 8])")
    read_later = read_later.replace("  return %y", nest("%Z", "%Y") + "  %z = memref.to_tensor(%Z) : f32[B, 8]\n  return %y, %z")
    found = places(plan(read_later))
    assert found["Y"] == found["Z"] == "alloc"
    written_later = program(alloc("A", "Y") + nest("%A", "%X") + nest("%Y", "%A")).replace("  return %y", nest("%Y", "%A") + "  return %y")
    assert places(plan(written_later))["Y"] != "alloc"


def test_returned_through_a_reshape() -> None:
    body = alloc("A", "Y") + nest("%A", "%X") + nest("%Y", "%A") + "  %R = memref.reshape(%Y) : memref<f32[8*B]>\n"
    assert places(plan(program(body, "%R", "f32[8*B]")))["Y"] == "alloc"


def test_reshapes_are_the_same_memory() -> None:
    """%A is read through its reshape after %C has been written: they may not share."""
    body = alloc("A", "C", "D", "Y") + nest("%A", "%X") + "  %R = memref.reshape(%A) : memref<f32[8*B]>\n"
    body += nest("%C", "%X") + nest("%D", "%C[B-1-i, j]") + nest("%Y", "%D", "%R[8*i + j]")
    found = places(plan(program(body)))
    assert found["A"] not in (found["C"], found["D"])


def test_regions_count_as_one_operation() -> None:
    """What a loop touches is needed all the time that it runs."""
    body = alloc("A", "C", "D", "Y") + nest("%A", "%X")
    inner = nest("%C", "%A", dims="i < B, j < 8") + nest("%D", "%C[B-1-i, j]") + nest("%A", "%D")
    body += "  scf.for(%k = 0 to 3) {\n" + inner + "    yield\n  }\n" + nest("%Y", "%A")
    found = places(plan(program(body)))
    assert len({found["A"], found["C"], found["D"]}) == 3


def test_branches() -> None:
    body = alloc("A", "C", "D", "Y") + nest("%A", "%X")
    body += "  %t = arith.constant(true) : bool\n  scf.if(%t) {\n" + nest("%C", "%A") + "    yield\n  } {\n" + nest("%C", "%X") + "    yield\n  }\n"
    body += nest("%D", "%C[B-1-i, j]") + nest("%Y", "%D")
    found = places(plan(program(body)))
    assert found["A"] == found["D"] != found["C"]


def test_what_leaves_stays() -> None:
    """A buffer that a loop carries may be any memory afterwards."""
    body = alloc("A", "C", "Y") + nest("%A", "%X") + "  %K = scf.for(%k = 0 to 2, %acc = %A) {\n    yield %acc\n  } : memref<f32[B, 8]>\n"
    body += nest("%C", "%X") + nest("%Y", "%K", "%C")
    found = places(plan(program(body)))
    assert found["A"] == "alloc" and found["C"] == "0"


def test_empty_buffers_and_unused_ones() -> None:
    body = alloc("E", "F", type_="f32[0, 8]") + alloc("A", "Y") + alloc("U") + nest("%E", "%X", dims="i < 0, j < 8")
    body += nest("%F", "%E[0 - i, j]", dims="i < 0, j < 8") + nest("%A", "%X") + nest("%Y", "%A")
    found = places(plan(program(body)))
    assert found["E"] == found["F"] == "0" and "U" not in found
    only = alloc("E", type_="f32[0, 8]") + alloc("Y") + nest("%E", "%X", dims="i < 0, j < 8") + nest("%Y", "%X")
    assert places(plan(program(only)))["arena"] == "0"


def test_arenas_and_buffers_in_regions_are_left_alone() -> None:
    body = "  %M = memref.alloc() : memref<u8[64*B]>\n  %V = memref.view(%M, offset=32*B) : memref<f32[B, 8]>\n" + alloc("Y") + nest("%V", "%X")
    inner = ["%Q = memref.alloc() : memref<f32[8]>", "%z = arith.constant(0.0) : f32", "memref.store(%z, %Q[0])", "yield"]
    body += "  scf.for(%k = 0 to 2) {\n" + "".join(f"    {line}\n" for line in inner) + "  }\n"
    text = program(body + nest("%Y", "%V"))
    module = load(text)
    assert not apply(module, "plan-memory").records[0].changed


def test_other_element_types_share() -> None:
    body = alloc("A", "Y") + "  %I = memref.alloc() : memref<i8[B, 32]>\n  %H = memref.alloc() : memref<bf16[B, 16]>\n" + nest("%A", "%X")
    body += "  linalg.generic(i < B, j < 32, %p = %I[i, j]) {\n    %c = arith.constant(3) : i8\n    yield %c\n  }\n"
    body += "  linalg.generic(i < B, j < 32, %p1 = %I[i, j], %q1 = %H[i, j floordiv 2]) {\n    %c1 = arith.constant(1.0) : bf16\n    yield %c1\n  }\n"
    body += "  linalg.generic(i < B, j < 8, %p2 = %H[i, j], %q2 = %A[i, j], %r2 = %Y[i, j]) {\n    %e = arith.extf(%p2) : f32\n"
    body += "    %f = arith.addf(%e, %q2) : f32\n    yield %f\n  }\n"
    module = plan(program(body))
    assert places(module)["arena"].count("B") >= 1


# -- in place ----------------------------------------------------------------------------------------------------------


def in_place(body: str, read: str = "%C[B-1-i, j]") -> bool:
    """Whether %C, which ``body`` makes from %A, takes over its memory."""
    found = places(plan(program(alloc("A", "C", "Y") + nest("%A", "%X") + body + nest("%Y", read))))
    return found["A"] == found["C"]


def test_same_index_is_in_place() -> None:
    assert in_place(nest("%C", "%A"))
    assert in_place(nest("%C", "%A", "%A", op="mulf"))
    assert in_place(nest("%C[i, 7-j]", "%A[i, 7-j]"))
    assert in_place("  memref.copy(%A, %C)\n")


@pytest.mark.parametrize(
    ("body", "read"),
    [
        (nest("%C", "%A[B-1-i, j]"), "%C"),
        (nest("%C", "%A[i, 7-j]"), "%C"),
        (nest("%C", "%A", "%A[i, 0]"), "%C"),
        (nest("%C[i, 0]", "%A[i, 0]", dims="i < B, reduce j < 8"), "%C[i, 0]"),
        (nest("%C", "%A[i, k]", dims="i < B, j < 8, reduce k < 8"), "%C"),
        (nest("%C[i, j mod 4]", "%A[i, j mod 4]", dims="i < B, reduce j < 8"), "%C[i, j mod 4]"),
        (nest("%C[i, 0]", "%A[i, 0]", dims="i < B") + nest("%C[i, j + 1]", "%X", dims="i < B, j < 7"), "%C"),
    ],
)
def test_other_indices_are_not(body: str, read: str) -> None:
    """The last one is in place: it is the first nest that decides."""
    assert in_place(body, read) == ("j + 1" in body)


def test_transposed_square() -> None:
    square = {"dims": "i < 8, j < 8"}
    body = alloc("A", "C", "Y", type_="f32[8, 8]") + nest("%A", "%X", **square) + nest("%C", "%A[j, i]", **square) + nest("%Y", "%C[j, i]", **square)
    found = places(plan(program(body, shape="f32[8, 8]", parameter="f32[8, 8]")))
    assert found["A"] != found["C"]


def test_rows_that_are_read_before_they_are_written() -> None:
    """The sum of a row first, then the row: every element is read before its place is written."""

    def rows(order: str) -> str:
        total = "    %z = arith.constant(0.0) : f32\n    %s = linalg.reduce(k < 8, %a = %A[i, k], %acc = %z) {\n"
        total += "      %t = arith.addf(%acc, %a) : f32\n      yield %t\n    } : f32\n"
        write = "    linalg.generic(j < 8, %b = %A[i, j], %c = %C[i, j]) {\n      %q = arith.subf(%b, %SUM) : f32\n      yield %q\n    }\n"
        if order == "right":
            parts = total + write.replace("%SUM", "%s")
        else:  # the row is written before it is read again
            parts = write.replace("%SUM", "%b") + total + "    linalg.generic(j < 8, %d = %C[i, j]) {\n      yield %s\n    }\n"
        return f"  linalg.generic(i < B) {{\n{parts}    yield\n  }}\n"

    assert in_place(rows("right"))
    assert not in_place(rows("wrong"))


def test_another_reader_later_forbids_it() -> None:
    body = alloc("A", "C", "Y") + nest("%A", "%X") + nest("%C", "%A") + nest("%Y", "%C", "%A")
    found = places(plan(program(body)))
    assert found["A"] != found["C"]


def test_one_input_is_taken_once() -> None:
    body = alloc("A", "C", "D", "Y") + nest("%A", "%X")
    body += "  linalg.generic(i < B, j < 8, %a = %A[i, j], %c = %C[i, j], %d = %D[i, j]) {\n    %n = arith.negf(%a) : f32\n    yield %n, %a\n  }\n"
    found = places(plan(program(body + nest("%Y", "%C", "%D"))))
    assert found["C"] != found["D"] and found["A"] in (found["C"], found["D"])


LOOP = """
  scf.parallel(%i = 0 to B) {
    scf.KIND(%j = LOW) {
      %a = memref.load(%A[READ]) : f32
      %n = arith.negf(%a) : f32
      memref.store(%n, %C[%i, %j])
      yield
    }
    yield
  }
"""


@pytest.mark.parametrize(
    ("read", "kind", "low", "legal"),
    [
        ("%i, %j", "parallel", "0 to 8", True),
        ("%i, %j", "for", "0 to 8", True),
        ("%i, %j+1", "for", "0 to 7", True),  # read in the round before the one that writes there
        ("%i, %j+1", "parallel", "0 to 7", False),
        ("%i, %j-1", "for", "1 to 8", False),
        ("%i, -%j+7", "for", "0 to 8", False),
        ("-%i+B-1, %j", "parallel", "0 to 8", False),
    ],
)
def test_loops(read: str, kind: str, low: str, legal: bool) -> None:
    first = "1" if low.startswith("1") else "0"
    body = alloc("A", "C", "Y") + nest("%A", "%X") + LOOP.replace("KIND", kind).replace("LOW", low).replace("READ", read)
    found = places(plan(program(body + nest("%Y", f"%C[B-1-i, {first}]"))))
    assert (found["A"] == found["C"]) == legal


def test_vectors() -> None:
    body = """
  scf.parallel(%i = 0 to B) {
    scf.parallel(%j = 0 to 8 step 4) {
      %a = vector.load(%A[%i, %j:+4]) : vector<f32[1, 4]>
      %n = arith.negf(%a) : vector<f32[1, 4]>
      vector.store(%n, %C[%i, %j:+4])
      yield
    }
    yield
  }
"""
    assert in_place(body)
    assert not in_place(body.replace("%A[%i, %j:+4]", "%A[%i, -%j+4:+4]"))


def test_rows_in_tiles_and_pieces() -> None:
    """A softmax of rows of any length works where its scores lie, also when the loops are in tiles and remainders."""
    text = """graph @main(%x: f32[B, C], %w: f32[C, C]) -> f32[B, C] {
  %a = matmul(%x, %w)
  %m = max(%a, axes=[1], keepdims=true)
  %d = sub(%a, %m)
  %e = exp(%d)
  %s = sum(%e, axes=[1], keepdims=true)
  %q = div(%e, %s)
  %y = matmul(%q, %w)
  return %y
}
"""
    module = parse_module(text)
    apply(module, PRESETS["cpu"].partition("plan-memory,")[0] + "plan-memory")
    found = places(module)
    assert len({found[n] for n in found if n.split(".")[0] in ("a", "e", "q")}) == 1
    arrays = generate_inputs(module, module.main, {"B": 2, "C": 83}, "real", 2)
    check_plan(module, "main", arrays)


def test_what_only_the_nest_of_a_result_needs() -> None:
    """The exponentials of a softmax lie where the result will; not of one that is read again, or of another type."""
    head, tail = "graph @main(%x: f32[B, C]) -> ", "\n}\n"
    programs = {
        head + "f32[B, C] {\n  %y = softmax(%x)\n  return %y" + tail: {"y.buffer": "alloc"},
        head + "f16[B, C] {\n  %h = cast(%x, dtype=f16)\n  %y = softmax(%h)\n  return %y" + tail: {"arena", "y.exp.buffer", "y.buffer"},
        head + "(f32[B, C], f32[B, C]) {\n  %y = softmax(%x)\n  %z = softmax(%y)\n  return %y, %z" + tail: {"y.buffer": "alloc", "z.buffer": "alloc"},
    }
    for text, expected in programs.items():
        module = parse_module(text)
        apply(module, PRESETS["cpu"].partition("plan-memory,")[0] + "plan-memory")
        found = places(module)
        assert (set(found) if isinstance(expected, set) else found) == expected
        for sizes in ({"B": 2, "C": 83}, {"B": 3, "C": 16}, {"B": 1, "C": 1}):
            check_plan(module, "main", generate_inputs(module, module.main, sizes, "real", 2))


# -- sizes -------------------------------------------------------------------------------------------------------------


def test_comparison_of_sizes() -> None:
    text = "graph @main(%x: f32[B, S, T]) -> f32[B, S, T]\n  where 1 <= B, S <= 128, T mod 16 == 0, S <= T {\n  return %x\n}\n"
    sizes = Sizes(load(text).main)
    b, s, t = symbol("B"), symbol("S"), symbol("T")
    assert sizes.at_most(64 * s, 64 * b * s) and not sizes.at_most(64 * b, 64 * b * s)  # B is 1 or more, S may be 0
    assert sizes.at_most(4 * s, 512) and not sizes.at_most(4 * s, 511)
    assert sizes.at_most(s, t) and sizes.at_most(s, b * t) and not sizes.at_most(t, s)
    assert sizes.largest([s, t, 2 * s]) == sizes.largest([t, s, 2 * s])
    assert sizes.aligned(4 * t) == 4 * t and sizes.aligned(4) == 64 and sizes.aligned(0) == 0
    assert sizes.aligned(100 * b, coarse=True) == 128 * b


@given(st.integers(0, 2**32))
def test_comparisons_are_true(seed: int) -> None:
    """Whatever ``at_most`` affirms holds for all small sizes that the clause allows."""
    choose = random.Random(seed)
    low, high = choose.randint(0, 2), choose.randint(2, 4)
    clause = choose.choice([f"{low} <= B, S <= {high}", f"B <= S, S <= {high}", f"{low} <= S <= {high}", "B <= 3"])
    sizes = Sizes(load(f"graph @main(%x: f32[B, S]) -> f32[B, S]\n  where {clause} {{\n  return %x\n}}\n").main)

    def expression() -> Dim:
        total: Dim = choose.randint(-2, 4)
        for _ in range(choose.randint(1, 3)):
            part: Dim = choose.randint(-2, 4)
            for _ in range(choose.randint(1, 2)):
                part = part * symbol(choose.choice(["B", "S"]))
            total = total + part
        return total if choose.random() < 0.7 else sizes.largest([total, choose.randint(0, 5) * symbol("B")])

    a, b = expression(), expression()
    if not sizes.at_most(a, b):
        return
    for values in itertools.product(range(6), repeat=2):
        bound = dict(zip("BS", values, strict=True))
        if all(_holds(condition, bound) for condition in clause.split(",")):
            small, large = substitute(a, bound), substitute(b, bound)
            assert isinstance(small, int) and isinstance(large, int) and small <= large, (clause, a, b, bound)


def test_products_of_what_is_rounded_up() -> None:
    """Where sizes have to be compared, a bit more memory, and a polynomial."""
    sizes = Sizes(load("graph @main(%x: f32[K, N]) -> f32[K, N] {\n  return %x\n}\n").main)
    k, n = symbol("K"), symbol("N")
    panels = 4 * 48 * k * ceildiv(n, 48)
    assert sizes.aligned(64 * panels) == 64 * panels and sizes.aligned(64 * panels, coarse=True) == 64 * (4 * k * n + 188 * k)
    for a, b in itertools.product(range(4), (0, 1, 47, 48, 49, 100)):
        small, large = (substitute(d, {"K": a, "N": b}) for d in (panels, sizes.aligned(panels, coarse=True)))
        assert isinstance(small, int) and isinstance(large, int) and small <= large and large % 64 == 0


def test_what_is_rounded_up_is_compared() -> None:
    sizes = Sizes(load("graph @main(%x: f32[B]) -> f32[B] {\n  return %x\n}\n").main)
    small = 64 * ceildiv(symbol("B"), 64)
    for large in (64 * symbol("B"), 64 * ceildiv(2 * symbol("B"), 64)):
        assert sizes.at_most(small, large) and not sizes.at_most(large, small)


def _holds(condition: str, bound: dict[str, int]) -> bool:
    numbers = [int(part) if part.strip().isdigit() else bound[part.strip()] for part in condition.split("<=")]
    return all(x <= y for x, y in itertools.pairwise(numbers))


def test_incomparable_sizes_share() -> None:
    """[B, S] and [S, S] are needed at different times: one place that is as large as the larger one."""
    text = f"""graph @main(%x: f32[B, S]) -> f32[B, S] {{
  %X = memref.from_tensor(%x) : memref<f32[B, S]>
{alloc("P", type_="f32[B, S, 16]")}{alloc("Q", type_="f32[S, S, 16]")}{alloc("R", type_="f32[B, S]")}{alloc("Y", type_="f32[B, S]")}"""
    text += nest("%P", "%X[i, j]", dims="i < B, j < S, k < 16", index="i, j, k") + nest("%R", "%P[i, j, 3]", dims="i < B, j < S")
    text += nest("%Q", "%X[0, j]", dims="i < S, j < S, k < 16", index="i, j, k")
    text += nest("%Y", "%R", dims="i < B, j < S") + "  %y = memref.to_tensor(%Y) : f32[B, S]\n  return %y\n}\n"
    module = load(text)
    apply(module, "plan-memory")
    found = places(module)
    assert found["P"] == found["Q"] == "0" and "max(64*B*S, 64*S*S)" in found["arena"]
    for shape in ((2, 3), (5, 2), (1, 1)):
        check_plan(module, "main", [np.ones(shape, np.float32)])


def test_packing_of_intervals() -> None:
    """Live together at the peak: 320 bytes; a plan may need no more here, and is never above the sum."""
    sizes = Sizes(load("graph @main(%x: f32[2]) -> f32[2] {\n  return %x\n}\n").main)

    def block(size: int, first: int, last: int) -> Block:
        value = Value("v", MemRefType(f32, (size // 4,)), None, 0)  # type: ignore[arg-type]
        return Block([Buffer(value, size, [first, last])])

    blocks = [block(128, 0, 2), block(64, 1, 5), block(128, 3, 6), block(128, 2, 4), block(64, 5, 7), block(320, 8, 9)]
    assert pack(blocks, sizes).total == 320
    generator = random.Random(5)
    for _ in range(200):
        starts = [generator.randint(0, 20) for _ in range(generator.randint(1, 12))]
        blocks = [block(64 * generator.randint(0, 6), s, s + generator.randint(0, 6)) for s in starts]
        found = pack(blocks, sizes)
        for a, b in itertools.combinations(blocks, 2):
            if a.first <= b.last and b.first <= a.last and a.size and b.size:
                x, y = found.offsets[a], found.offsets[b]
                assert x + a.size <= y or y + b.size <= x  # type: ignore[operator]
        assert all(found.offsets[b] + b.size <= found.total for b in blocks)  # type: ignore[operator]


# -- statistics, whole programs, random ones ---------------------------------------------------------------------------


def test_statistics() -> None:
    body = alloc("A", "C", "Y") + nest("%A", "%X") + nest("%C", "%A") + nest("%Y", "%C")
    static = load(program(body).replace("B", "16"))
    (record,) = apply(static, "plan-memory").records
    assert record.statistics["bytes in the arena"] == 512 and record.statistics["bytes without sharing"] == 1024
    assert record.statistics["buffers that took over the memory of an input"] == 1
    symbolic = load(program(body.replace("8]", "16]").replace("j < 8", "j < 16"), shape="f32[B, 16]", parameter="f32[B, 16]"))
    (record,) = apply(symbolic, "plan-memory").records
    assert record.statistics["bytes in the arena (64*B), for B=128"] == record.statistics["bytes needed at once (64*B), for B=128"] == 64 * 128
    assert record.statistics["bytes without sharing (128*B), for B=128"] == 128 * 128


MODEL = """
graph @main(%x: f32[B, S, 16], %w: f32[16, 32], %v: f32[32, 16]) -> f32[B, S, 16] {
  %s = softmax(%x, axis=-1)
  %h = matmul(%s, %w)
  %g = silu(%h)
  %o = matmul(%g, %v)
  %r = add(%o, %x)
  %t = transpose(%x, perm=[0, 2, 1])
  %p = matmul(%r, %t)
  %q = softmax(%p, axis=-1)
  %y = matmul(%q, %r)
  return %y
}
"""


def test_a_model() -> None:
    module = optimize(MODEL, "inline,decompose,lower-to-linalg,plan-memory")
    verify_module(module)
    arrays = generate_inputs(module, module.main, {"B": 2, "S": 3}, "real", 1)
    check_plan(module, "main", arrays)
    before = load(MODEL)
    apply(before, "inline,decompose,lower-to-linalg")
    for a, b in zip(outputs(before, "main", arrays, {}), outputs(poisoned(module), "main", arrays, {}), strict=True):
        assert same_bits(a, b)


def test_native_code_runs_on_a_plan() -> None:
    """The same bits with a plan, with poison in what is free, and without a plan."""
    until, _, rest = PRESETS["cpu"].partition("plan-memory,")
    unplanned, planned = parse_module(MODEL), parse_module(MODEL)
    apply(unplanned, until.rstrip(", "))
    apply(planned, until + "plan-memory")
    assert sum(op.name == "memref.view" for op in planned.walk()) >= 5
    for sizes in ({"B": 2, "S": 5}, {"B": 1, "S": 1}, {"B": 0, "S": 3}):
        arrays = generate_inputs(planned, planned.main, sizes, "real", 2)
        wanted = graph_opt.compile(unplanned, pipeline=rest, device="cpu")(*arrays)
        for module in (planned, poisoned(planned)):
            assert same_bits(wanted, graph_opt.compile(module, pipeline=rest, device="cpu")(*arrays))


def random_program(seed: int) -> str:
    """Buffers of a few shapes, static and symbolic, filled from others in several ways, read at any later time."""
    choose = random.Random(seed)
    shapes = choose.sample(["B, 8", "5, 7", "B, B", "8, B", "3, 16", "B, 1", "0, 4", "9, 9"], 4)
    body, have = "", [("X", "B, 8")]
    for number in range(choose.randint(3, 9)):
        shape = choose.choice([choose.choice(shapes), have[-1][1]])
        name = f"T{number}"
        body += alloc(name, type_=f"f32[{shape}]")
        sources = choose.sample(have, min(len(have), choose.randint(1, 2)))
        rows, columns = shape.split(", ")
        reads = [_read(choose, s, f, shape) for s, f in sources]
        made = nest(f"%{name}", *[r for r in reads if r], dims=f"i < {rows}, j < {columns}")
        if choose.random() < 0.15:
            made = f"  scf.for(%k{number} = 0 to 2) {{\n{made}    yield\n  }}\n"
        body += made
        if choose.random() < 0.2:
            flat = f"R{number}"
            body += f"  %{flat} = memref.reshape(%{name}) : memref<f32[{columns}, {rows}]>\n"
            have.append((flat, f"{columns}, {rows}"))
        have.append((name, shape))
    last = have[-1]
    body += alloc("Y") + nest("%Y", "%X", *[r for r in [_read(choose, *last, "B, 8")] if r])
    return program(body, where="1 <= B <= 16")


def _read(choose: random.Random, name: str, shape: str, target: str) -> str:
    """An access inside the bounds for every B from 1 on; nothing when there is none."""
    if shape == target:
        rows, columns = shape.split(", ")
        return choose.choice([f"%{name}[i, j]"] * 3 + [f"%{name}[{rows}-1-i, j]", f"%{name}[i, {columns}-1-j]"])
    if "0, 4" in (shape, target) or "4, 0" in (shape, target):
        return ""
    return f"%{name}[i mod ({shape.split(', ')[0]}), j mod ({shape.split(', ')[1]})]".replace("mod (B)", "mod B")


@given(st.integers(0, 2**32))
def test_random_programs(seed: int) -> None:
    text = random_program(seed)
    before = load(text)
    for pipeline in ("plan-memory", "plan-memory{inplace=false}"):
        module = clone_module(before)
        apply(module, pipeline)
        sick = poisoned(module)
        arrays = generate_inputs(module, module.main, {"B": 1 + seed % 4}, "real", seed % 1000)
        check_plan(module, "main", arrays)
        (wanted,), (found,) = outputs(before, "main", arrays, {}), outputs(sick, "main", arrays, {})
        assert same_bits(wanted, found), text


def test_float64_runs_work_on_a_plan() -> None:
    body = alloc("A", "C", "Y") + nest("%A", "%X") + nest("%C", "%A[B-1-i, j]") + nest("%Y", "%C")
    before, after = load(program(body)), load(program(body))
    apply(after, "plan-memory")
    assert_same_bits(before, after)
    arrays = generate_inputs(before, before.main, {"B": 3}, "real")
    for a, b in zip(outputs(before, "main", arrays, {}, True), outputs(after, "main", arrays, {}, True), strict=True):
        assert same_bits(a, b)


# -- the checker sees what is wrong ------------------------------------------------------------------------------------


def planned() -> str:
    body = alloc("A", "C", "Y") + nest("%A", "%X") + nest("%C", "%A[B-1-i, j]") + nest("%Y", "%C", "%A")
    module = load(program(body.replace("8]", "16]").replace("j < 8", "j < 16"), shape="f32[B, 16]", parameter="f32[B, 16]"))
    apply(module, "plan-memory")
    return print_module(module)


def test_the_checker_sees_buffers_in_the_same_place() -> None:
    text = planned()
    arrays = [np.ones((3, 16), np.float32)]
    check_plan(load(text), "main", arrays)
    assert "offset=64*B" in text
    with pytest.raises(Overlap, match="has written last"):
        check_plan(load(text.replace("offset=64*B", "offset=0")), "main", arrays)
    with pytest.raises(Overlap, match="has written last"):
        check_plan(load(text.replace("offset=64*B", "offset=32*B")), "main", arrays)


def test_the_checker_sees_reads_of_nothing() -> None:
    body = alloc("A", "Y") + nest("%Y", "%A")
    with pytest.raises(Overlap, match="nothing has written"):
        check_plan(load(program(body)), "main", [np.ones((3, 8), np.float32)])


def test_poison_shows() -> None:
    """Memory that is freed too early: poison behind the wrong last use changes the result."""
    text = planned()
    wrong = load(text.replace("offset=64*B", "offset=0"))
    arrays = generate_inputs(wrong, wrong.main, {"B": 3}, "real")
    right = outputs(load(text), "main", arrays, {})
    assert all(same_bits(a, b) for a, b in zip(right, outputs(poisoned(load(text)), "main", arrays, {}), strict=True))
    assert not all(same_bits(a, b) for a, b in zip(right, outputs(poisoned(wrong), "main", arrays, {}), strict=True))


def test_buffers_that_are_viewed() -> None:
    """Bytes that are written as such and read as words are a buffer until the last view is read; nothing takes over their memory."""
    nest = "linalg.generic(i < N, j < 4, %a{0} = %{1}[i, j], {4}%c{0} = %{2}[i, j]) {{\n%b{0} = {3}\nyield %{5}{0}\n}}\n"
    text = (
        "graph @main(%x: f32[N, 4]) -> f32[N, 4] {\n%A = memref.from_tensor(%x)\n%D = memref.alloc() : memref<i8[N, 4]>\n"
        + nest.format(0, "A", "D", "arith.fptosi(%a0) : i8", "", "b")
        + "%W = memref.view(%D, offset=0) : memref<i32[N, 1]>\n%E = memref.alloc() : memref<i32[N, 4]>\n"
        + nest.format(1, "A", "E", "arith.fptosi(%a1) : i32\n%e1 = arith.addi(%b1, %d1) : i32", "%d1 = %W[i, 0], ", "e")
        + "%F = memref.alloc() : memref<f32[N, 4]>\n"
        + nest.format(2, "E", "F", "arith.sitofp(%a2) : f32", "", "b")
        + "%G = memref.alloc() : memref<f32[N, 4]>\n"
        + nest.format(3, "F", "G", "arith.negf(%a3) : f32", "", "b")
        + "%y = memref.to_tensor(%G) : f32[N, 4]\nreturn %y\n}\n"
    )
    found = places(plan(text))
    assert {"D", "W", "E"} <= set(found) and found["W"] == "0"
    assert found["D"] != found["E"]
