"""The top level of a graph: memory, results, threads, functions that are shared."""

from __future__ import annotations

import numpy as np
import pytest

from codegen.llvm.emit import emit_graph, mangled
from ir.diagnostics import GraphError
from tests.codegen.code_checks import check, main_program
from tests.codegen.native_graph import NativeGraph

F = np.float32
THREADS = (1, 2, 3, 5)
DOUBLED = """
scf.parallel(%i{0} = 0 to N, mapping="threads") {{
  %a{0} = memref.load(%{1}[%i{0}]) : f32
  %b{0} = arith.addf(%a{0}, %a{0}) : f32
  memref.store(%b{0}, %{2}[%i{0}])
  yield
}}
"""
SIZES = (0, 1, 2, 4, 17, 64)


def vector(n: int) -> np.ndarray:
    return np.arange(1, n + 1, dtype=F)


def test_results_need_no_copy() -> None:
    body = "%A = memref.from_tensor(%x)\n%C = memref.alloc() : memref<f32[N]>" + DOUBLED.format("", "A", "C") + "%y = memref.to_tensor(%C)"
    module = main_program("%x: f32[N]", body, "f32[N]")
    native = NativeGraph(module, module.main)
    assert "memmove" not in native.native.text
    for size in SIZES:
        check(module, vector(size), threads=THREADS, native=native)


@pytest.mark.parametrize(
    ("body", "result"),
    [
        ("return %x, %x", "f32[N], f32[N]"),
        ("%A = memref.from_tensor(%x)\n%y = memref.to_tensor(%A)\nreturn %y, %x", "f32[N], f32[N]"),
        ("%c = constant([1.0, 2.0, 3.0]) : f32[3]\nreturn %c, %x, %c", "f32[3], f32[N], f32[3]"),
        ("%C = memref.alloc() : memref<f32[N]>" + DOUBLED.format("", "A", "C") + "%y = memref.to_tensor(%C)\nreturn %y, %y", "f32[N], f32[N]"),
        (  # written after it was taken
            "%C = memref.alloc() : memref<f32[N]>" + DOUBLED.format("1", "A", "C") + "%y = memref.to_tensor(%C)"
            + DOUBLED.format("2", "C", "C") + "%z = memref.to_tensor(%C)\nreturn %y, %z",
            "f32[N], f32[N]",
        ),
        (  # two results of one buffer
            "%C = memref.alloc() : memref<f32[N]>" + DOUBLED.format("", "A", "C")
            + "%y = memref.to_tensor(%C)\n%z = memref.to_tensor(%C)\nreturn %y, %z",
            "f32[N], f32[N]",
        ),
        (  # a tensor that is read again
            "%C = memref.alloc() : memref<f32[N]>" + DOUBLED.format("1", "A", "C") + "%y = memref.to_tensor(%C)\n%D = memref.from_tensor(%y)\n"
            "%E = memref.alloc() : memref<f32[N]>" + DOUBLED.format("2", "D", "E") + "%z = memref.to_tensor(%E)\nreturn %z, %y",
            "f32[N], f32[N]",
        ),
        (  # views of an arena
            "%M = memref.alloc() : memref<u8[8*N]>\n%C = memref.view(%M, offset=0) : memref<f32[N]>\n"
            "%D = memref.view(%M, offset=4*N) : memref<f32[N]>"
            + DOUBLED.format("1", "A", "C") + DOUBLED.format("2", "C", "D") + DOUBLED.format("3", "D", "C")
            + "%y = memref.to_tensor(%C)\n%z = memref.to_tensor(%D)\nreturn %y, %z",
            "f32[N], f32[N]",
        ),
        (  # reshapes
            "%C = memref.alloc() : memref<f32[1, N]>\n%D = memref.reshape(%C) : memref<f32[N]>" + DOUBLED.format("", "A", "D")
            + "%E = memref.reshape(%D) : memref<f32[N, 1]>\n%y = memref.to_tensor(%E)\nreturn %y",
            "f32[N, 1]",
        ),
    ],
)  # fmt: skip
def test_memory(body: str, result: str) -> None:
    first, _, rest = body.partition("\n")
    source = "" if "%A = " in body or "%A" not in body else "%A = memref.from_tensor(%x)\n"
    module = main_program("%x: f32[N]", source + first + "\n" + rest, f"({result})" if "," in result else result)
    native = NativeGraph(module, module.main)
    for size in SIZES:
        check(module, vector(size), threads=THREADS, native=native)


def test_equal_loops_are_one_function() -> None:
    body = "%A = memref.from_tensor(%x)\n%C0 = memref.alloc() : memref<f32[N]>" + DOUBLED.format("0", "A", "C0")
    for i in range(1, 6):
        body += f"%C{i} = memref.alloc() : memref<f32[N]>" + DOUBLED.format(i, f"C{i - 1}", f"C{i}")
    module = main_program("%x: f32[N]", body + "%y = memref.to_tensor(%C5)", "f32[N]")
    native = NativeGraph(module, module.main)
    assert native.native.text.count("define internal i32 @g_main.nest") == 1
    for size in SIZES:
        check(module, vector(size), threads=THREADS, native=native)


def test_failures_in_shared_functions_name_their_own_place() -> None:
    loop = """
    scf.parallel(%i{0} = 0 to N, mapping="threads") {{
      %a{0} = memref.load(%A[%i{0} + {1}*N]) : f32
      memref.store(%a{0}, %A[%i{0}])
      yield
    }}"""
    module = main_program("%A: memref<f32[2*N]>", loop.format(0, 1) + loop.format(1, 1) + loop.format(2, 2))
    text = emit_graph(module, module.main)
    assert text.text.count("define internal i32 @g_main.nest") == 2
    check(module, np.zeros(8, F))
    with pytest.raises(GraphError, match="is outside dimension 0 of size 8") as found:
        NativeGraph(module, module.main).run([np.zeros(8, F)], 2)  # 8 or 10, whoever comes first
    assert "%a2 = memref.load" in str(found.value)


def test_serial_work_and_shared_loops() -> None:
    body = """
    %A = memref.from_tensor(%x)
    %C = memref.alloc() : memref<f32[N]>
    %S = memref.alloc() : memref<f32[]>
    %zero = arith.constant(0.0) : f32
    memref.store(%zero, %S[])
    scf.for(%r = 0 to 5) {
      %T = memref.alloc() : memref<f32[N]>
      scf.parallel(%i = 0 to N, mapping="threads") {
        %a = memref.load(%A[%i]) : f32
        %s = memref.load(%S[]) : f32
        %b = arith.addf(%a, %s) : f32
        memref.store(%b, %T[%i])
        yield
      }
      %sum = scf.for(%i.1 = 0 to N, %acc = %zero) {
        %t = memref.load(%T[%i.1]) : f32
        %u = arith.addf(%acc, %t) : f32
        yield %u
      } : f32
      memref.store(%sum, %S[])
      scf.for(%i.2 = 0 to N) {
        %v = memref.load(%T[%i.2]) : f32
        memref.store(%v, %C[%i.2])
        yield
      }
      yield
    }
    %y = memref.to_tensor(%C)
    %z = memref.to_tensor(%S)
    return %y, %z"""
    module = main_program("%x: f32[N]", body, "(f32[N], f32[])")
    native = NativeGraph(module, module.main)
    for size in SIZES:
        check(module, vector(size), threads=THREADS * 3, native=native)


def test_results_of_serial_loops_reach_all_threads() -> None:
    body = """
    %A = memref.from_tensor(%x)
    %C = memref.alloc() : memref<f32[N]>
    %zero = arith.constant([0.0, 0.0, 0.0]) : vector<f32[3]>
    %yes = arith.constant(true) : bool
    %sum, %flag = scf.for(%i = 0 to N, %acc = %zero, %f = %yes) {
      %a = memref.load(%A[%i]) : f32
      %b = arith.addf(%acc, %a) : vector<f32[3]>
      memref.store(%a, %C[%i])
      %c = arith.cmpf(%a, %a, predicate="eq") : bool
      %g = arith.andi(%f, %c) : bool
      yield %b, %g
    } : vector<f32[3]>, bool
    scf.parallel(%j = 0 to N, mapping="threads") {
      %d = vector.extract(%sum, position=[1]) : f32
      %z = arith.constant(-1.0) : f32
      %e = arith.select(%flag, %d, %z) : f32
      memref.store(%e, %C[%j])
      yield
    }
    %y = memref.to_tensor(%C)"""
    module = main_program("%x: f32[N]", body, "f32[N]")
    native = NativeGraph(module, module.main)
    for size in SIZES:
        check(module, vector(size), threads=THREADS * 3, native=native)
    check(module, np.array([1, np.nan], F), threads=THREADS, native=native)


def test_choices_at_the_top_level() -> None:
    body = """
    %k = memref.load(%K[]) : i32
    %two = arith.constant(2) : i32
    %c = arith.cmpi(%k, %two, predicate="lt") : bool
    %r = scf.if(%c) {""" + DOUBLED.format("1", "A", "A") + """
      %p = memref.load(%A[0]) : f32
      yield %p
    } {
      %q = memref.load(%A[N - 1]) : f32
      yield %q
    } : f32
    scf.if(%c) {
      memref.store(%r, %A[N-1])
      yield
    }
    memref.store(%r, %C[])"""  # fmt: skip
    module = main_program("%A: memref<f32[N]>, %K: memref<i32[]>, %C: memref<f32[]>", body)
    native = NativeGraph(module, module.main)
    for k in (0, 2):
        for size in (0, 1, 17):
            check(module, vector(size), np.array(k, np.int32), np.array(0, F), threads=THREADS, native=native)


def test_shares_of_a_loop() -> None:
    for bounds in ("0 to N", "3 to N", "0 to N step 4", "N to 0", "-3 to N - 3 step 5", "0 to %u step %w"):
        body = f"""
        %u = memref.dim(%C, axis=0) : index
        %w = memref.load(%W[]) : index
        scf.parallel(%i = {bounds}, %j = 0 to 2, mapping="threads") {{
          %a = memref.load(%C[%i + 3, %j]) : index
          %b = arith.addi(%a, %i) : index
          %c = arith.addi(%b, %w) : index
          memref.store(%c, %C[%i + 3, %j])
          yield
        }}"""
        module = main_program("%C: memref<index[N+3, 2]>, %W: memref<index[]>", body.replace("%u step", "N step"))
        native = NativeGraph(module, module.main)
        for size in SIZES:
            check(module, np.zeros((size + 3, 2), np.int64), np.array(3), threads=(1, 2, 3, 40), native=native)


def test_shares_of_several_ranges() -> None:
    """Threads share all combinations, so the first range may be short."""
    few, none = "%i = 0 to 1, %j = 0 to N, %k = 0 to 2", "%i = 0 to 3, %j = N to 0, %k = 1 to 2"
    for ranges in (few, none, "%i = 0 to 3 step 2, %j = 2 to N step 3, %k = 0 to 2"):
        body = f"""
        scf.parallel({ranges}, mapping="threads") {{
          %a = memref.load(%C[%i, %j, %k]) : index
          %b = arith.addi(%a, %j) : index
          memref.store(%b, %C[%i, %j, %k])
          yield
        }}"""
        module = main_program("%C: memref<index[3, N, 2]>", body)
        native = NativeGraph(module, module.main)
        for size in SIZES:
            check(module, np.arange(6 * size).reshape(3, size, 2), threads=(1, 2, 3, 40), native=native)


def test_names_are_mangled() -> None:
    assert mangled("main") == "g_main" and mangled("a.b") != mangled("a_b")
    assert len(mangled("x" * 500)) < 80 and mangled("\u00e9\"") .isascii()


def test_the_text_is_deterministic() -> None:
    body = "%A = memref.from_tensor(%x)\n%C = memref.alloc() : memref<f32[N]>" + DOUBLED.format("", "A", "C") + "%y = memref.to_tensor(%C)"
    texts = {emit_graph(m, m.main).text for m in (main_program("%x: f32[N]", body, "f32[N]") for _ in range(3))}
    assert len(texts) == 1


def test_print_calls_back() -> None:
    body = "print(%x, label=\"here\")\n%A = memref.from_tensor(%x)\n%C = memref.alloc() : memref<f32[N]>" + DOUBLED.format("", "A", "C")
    module = main_program("%x: f32[N]", body + "%y = memref.to_tensor(%C)\nprint(%y)", "f32[N]")
    native = NativeGraph(module, module.main)
    sites = [s for s in native.native.sites if s.kind == "print"]
    assert [s.label for s in sites] == ["here", ""]
    for threads in THREADS:
        native.run([vector(5)], threads)
        assert native.printed == [native.native.sites.index(s) for s in sites]


def test_inout_parameters_are_updated_in_place() -> None:
    body = "%C = memref.of_inout(%c)\n%A = memref.from_tensor(%x)" + DOUBLED.format("", "A", "C") + "return %x"
    module = main_program("%c: f32[N] inout, %x: f32[N]", body, "f32[N]")
    check(module, vector(5), vector(5) * 3, threads=THREADS)
