"""Index expressions as operations, and prefetches, in native code: the interpreter's numbers and errors; what proofs see."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
from code_checks import check, main_program, message_of

from codegen.llvm.emit import emit_graph
from ir.core import Module

PARAMETERS = "%J: memref<index[2]>, %A: memref<f32[M, N]>, %C: memref<index[8]>"
START = "%i = memref.load(%J[0]) : index\n%j = memref.load(%J[1]) : index\n"
NUMBERS = [0, 1, -1, 3, 7, -48, 100, 2**40, 2**63 - 1, -(2**63), -(2**63) + 1]


def text_of(module: Module) -> str:
    return emit_graph(module, module.graphs["main"]).text


def expression(rng: random.Random, depth: int) -> str:
    if depth == 0 or rng.random() < 0.2:
        return rng.choice(["%i", "%j", "M", "N", str(rng.randrange(9))])
    a, b = expression(rng, depth - 1), expression(rng, depth - 1)
    divisor = rng.choice(["4", "3", "48", "%j", "(%j-1)"])
    return rng.choice([f"({a} + {b})", f"({a} - {b})", f"{rng.choice([-3, 2, 7])}*{a}", f"min({a}, {b})", f"max({a}, {b})",
                       f"({a} floordiv {divisor})", f"({a} ceildiv {divisor})", f"({a} mod {divisor})"])  # fmt: skip


@pytest.mark.parametrize("seed", range(20))
def test_random_expressions(seed: int) -> None:
    rng = random.Random(seed)
    lines = []
    for number in range(8):
        a, b, c = (expression(rng, 3) for _ in range(3))
        code = [f"apply({a})", f"min({a}, {b}, {c})", f"max({a}, {b})", f"align_down({a}, {rng.choice(['8', '48', '%j', '%i'])})"][number % 4]
        lines += [f"%n{number} = affine.{code} : index", f"memref.store(%n{number}, %C[{number}])"]
    module = main_program(PARAMETERS, START + "\n".join(lines))
    for _ in range(12):
        i, j = rng.choice(NUMBERS), rng.choice(NUMBERS)
        check(module, np.int64([i, j]), np.zeros((rng.randrange(4), 3), np.float32), np.zeros(8, np.int64), threads=(1, 2))


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("affine.apply(%i floordiv %j)", "affine.apply: division by zero in an index"),
        ("affine.max(3, %i mod %j)", "affine.max: division by zero in an index"),
        ("affine.align_down(%i, %j)", "affine.align_down: the alignment is 0, it must be positive"),
        ("affine.align_down(%i mod %j, 4)", "affine.align_down: division by zero in an index"),
    ],
)
@pytest.mark.parametrize("used", [True, False])
def test_failures(code: str, message: str, used: bool) -> None:
    module = main_program(PARAMETERS, f"{START}%n = {code} : index\n" + ("memref.store(%n, %C[0])" if used else ""))
    assert message in message_of(module, np.int64([5, 0]), np.zeros((1, 1), np.float32), np.zeros(8, np.int64))


LOOPS = """
%e = affine.align_down(N, 8) : index
scf.for(%it = 0 to N step 8) {
  %end = affine.min(%it + 8, N) : index
  scf.for(%i = %it to %end) {
    %p = affine.max(%i - 1, %it) : index
    %q = affine.apply(%i - %it) : index
    %a = memref.load(%A[%p, %q]) : f32
    memref.store(%a, %C[%i])
    yield
  }
  yield
}
scf.for(%l = 0 to %e) {
  %b = memref.load(%A[%l, 7]) : f32
  memref.store(%b, %C[%l])
  yield
}
"""


def test_proofs_see_through() -> None:
    module = main_program("%A: memref<f32[N, 8]>, %C: memref<f32[N]>", LOOPS)
    assert "is outside dimension" not in str(emit_graph(module, module.graphs["main"]).sites)
    rng = np.random.default_rng(0)
    for n in (0, 1, 7, 8, 9, 24, 30):
        check(module, rng.standard_normal((n, 8)).astype(np.float32), np.zeros(n, np.float32), threads=(1, 2))


def test_what_is_not_known_is_checked() -> None:
    module = main_program("%A: memref<f32[N, 8]>, %C: memref<f32[N]>", LOOPS.replace("affine.max(%i - 1, %it)", "affine.apply(%i - 1)"))
    sites = str(emit_graph(module, module.graphs["main"]).sites)
    assert "is outside dimension 0" in sites and "is outside dimension 1" not in sites
    assert "index -1 is outside" in message_of(module, np.zeros((3, 8), np.float32), np.zeros(3, np.float32))


PREFETCH = START + "scf.for(%k = 0 to M) {\nmemref.prefetch(%A[%i floordiv %j + %k, %j])\nyield\n}"


def test_prefetch() -> None:
    module = main_program(PARAMETERS, PREFETCH)
    text = text_of(module)
    assert re.search(r"call void @llvm.prefetch.p0\(ptr %\w+, i32 0, i32 3, i32 1\)", text)
    assert "division" not in str(emit_graph(module, module.graphs["main"]).sites)
    for i in NUMBERS:
        for j in NUMBERS:
            check(module, np.int64([i, j]), np.ones((2, 3), np.float32), np.zeros(8, np.int64), threads=(1, 2))


def test_prefetch_to_write() -> None:
    """Asks for a line to be had alone; the memory around the end of an array is no matter."""
    body = START + "scf.for(%k = 0 to M) {\nmemref.prefetch(%A[%i, %k + 4096], write=true, locality=2)\nmemref.store(%j, %C[0])\nyield\n}"
    module = main_program(PARAMETERS, body)
    assert re.search(r"call void @llvm.prefetch.p0\(ptr %\w+, i32 1, i32 2, i32 1\)", text_of(module))
    check(module, np.int64([1, 2]), np.ones((2, 3), np.float32), np.zeros(8, np.int64))


def test_a_division_behind_a_prefetch_is_checked() -> None:
    load = "%a = memref.load(%A[%i floordiv %j, 0]) : f32\nmemref.store(%i, %C[0])"
    module = main_program(PARAMETERS, f"{START}memref.prefetch(%A[%i floordiv %j, 0])\n{load}")
    assert "memref.load: division by zero" in message_of(module, np.int64([0, 0]), np.zeros((1, 1), np.float32), np.zeros(8, np.int64))


def test_what_holds_in_a_branch_is_not_kept_for_others() -> None:
    store = "memref.store(%f, %D[max(%x, 0) - %x])"
    body = f"""
%n = memref.load(%J[0]) : index
%m = affine.apply(%n mod 1000) : index
%x = affine.apply(%m - 500) : index
%zero = arith.constant(0) : index
%f = arith.constant(1.0) : f32
%c = arith.cmpi(%x, %zero, predicate="ge")
scf.if(%c) {{
  {store}
}}
{store}
"""
    module = main_program("%J: memref<index[1]>, %D: memref<f32[1]>", body)
    check(module, np.int64([600]), np.zeros(1, np.float32))
    assert "index 497 is outside dimension 0 of size 1" in message_of(module, np.int64([3]), np.zeros(1, np.float32))
