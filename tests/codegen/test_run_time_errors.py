"""Programs that fail: native code ends with the interpreter's message, and touches nothing outside of its buffers."""

from __future__ import annotations

import numpy as np
import pytest

from ir.diagnostics import GraphError
from tests.codegen.code_checks import check, main_program, message_of
from tests.codegen.native_graph import NativeGraph

F, J = np.float32, np.int64


def zeros(*shape: int, dtype: type = F) -> np.ndarray:
    return np.zeros(shape, dtype)


@pytest.mark.parametrize("index", [0, 3, 4, -1, 2**62, -(2**63)])
@pytest.mark.parametrize("op", ["%a = memref.load(%A[1, %j]) : f32", "memref.store(%one, %A[1, %j])"])
def test_single_elements(op: str, index: int) -> None:
    body = f"%one = arith.constant(1.0) : f32\n%j = memref.load(%J[]) : index\n{op}"
    module = main_program("%A: memref<f32[B, 4]>, %J: memref<index[]>", body)
    arrays = (zeros(2, 4), np.array(index, J))
    if 0 <= index < 4:
        check(module, *arrays)
    else:
        assert f"index {index} is outside dimension 1 of size 4" in message_of(module, *arrays)
        assert "index 1 is outside dimension 0 of size 1" in message_of(module, zeros(1, 4), arrays[1])


@pytest.mark.parametrize("start", [-9, -8, -1, 0, 2, 3, 7, 10, 11])
@pytest.mark.parametrize("valid", ["", ", valid=%v"])
@pytest.mark.parametrize("store", [False, True])
def test_runs(start: int, valid: str, store: bool) -> None:
    access = "%A[%k, %j:+8]"
    line = f"%a = vector.load({access}{valid}) : vector<f32[1, 8]>\nvector.store(%a, %C[0:+1, 0:+8])"
    if store:
        line = f"vector.store(%x, {access}{valid})"
    body = f"""
    %k = memref.load(%J[0]) : index
    %j = memref.load(%J[1]) : index
    %v = memref.load(%J[2]) : index
    %x = arith.constant([[1, 2, 3, 4, 5, 6, 7, 8]]) : vector<f32[1, 8]>
    {line}"""
    module = main_program("%A: memref<f32[2, N]>, %C: memref<f32[1, 8]>, %J: memref<index[3]>", body)
    a = np.arange(20, dtype=F).reshape(2, 10)
    native = NativeGraph(module, module.main)
    for row in (0, 1, 2, -1):
        for count in (-3, 0, 1, 5, 8, 9) if valid else (0,):
            check(module, a, zeros(1, 8), np.array([row, start, count], J), native=native)


def test_what_is_provable_is_not_checked() -> None:
    loops = {
        "scf.for(%i = 0 to N) {": "%i",
        "scf.for(%i = 0 to N step 7) {": "%i",
        "scf.for(%i = 0 to N - N mod 8 step 8) {": "%i + 7",
        "scf.for(%i = 0 to N - 7 step 8) {": "%i + 7",
        "scf.for(%t = 0 to N step 48) {\nscf.for(%i = %t to min(%t + 48, N)) {": "%i",
        "scf.for(%t = 0 to N - N mod 48 step 48) {\nscf.for(%i = %t to %t + 48) {": "%i",
        "scf.for(%t = 0 to N - N mod 48 step 48) {\nscf.for(%i = 0 to 48) {": "%t + 47 - %i",
        "scf.for(%t = 0 to N ceildiv 48) {\nscf.for(%i = 0 to min(48, N - 48*%t)) {": "48*%t + %i",
        "scf.for(%i = max(N - 5, 0) to N) {": "%i",
        "scf.for(%i = N floordiv 2 to N) {": "N - 1 - %i",
    }
    for loop, index in loops.items():
        depth = loop.count("{")
        body = f"{loop}\n%a = memref.load(%A[{index}]) : f32\nmemref.store(%a, %C[0])" + "\nyield\n}" * depth
        module = main_program("%A: memref<f32[N]>, %C: memref<f32[1]>", body)
        native = NativeGraph(module, module.main)
        assert len(native.native.sites) == 1, f"{loop}: {native.native.sites}"
        for size in (0, 1, 7, 8, 47, 48, 49, 100):
            check(module, np.arange(size, dtype=F), zeros(1), native=native)


def test_what_is_not_provable_is_checked() -> None:
    for loop, index in [
        ("scf.for(%i = 0 to N + 1) {", "%i"),
        ("scf.for(%i = -1 to N) {", "%i"),
        ("scf.for(%i = 0 to N step 8) {", "%i + 7"),
        ("scf.for(%i = 0 to N) {", "%i + 1"),
        ("scf.for(%i = 0 to S) {", "%i"),
        ("scf.for(%i = 0 to N*N) {", "%i"),
        ("scf.for(%i = 0 to 0 - N*N*N + 100) {", "%i"),
    ]:
        body = f"{loop}\n%a = memref.load(%A[{index}]) : f32\nmemref.store(%a, %C[0])\nyield\n}}"
        module = main_program("%A: memref<f32[N]>, %B: memref<f32[S]>, %C: memref<f32[1]>", body)
        native = NativeGraph(module, module.main)
        assert len(native.native.sites) > 1, loop
        for size in (0, 1, 3, 16, 17):
            check(module, np.arange(size, dtype=F), zeros(5), zeros(1), native=native)


def test_conditions_are_known() -> None:
    body = """
    %n = memref.dim(%A, axis=0) : index
    %zero = arith.constant(0) : index
    scf.for(%i = 0 to S) {
      %j = memref.load(%J[%i]) : index
      %low = arith.cmpi(%j, %zero, predicate="ge") : bool
      %high = arith.cmpi(%j, %n, predicate="lt") : bool
      %both = arith.andi(%low, %high) : bool
      scf.if(%both) {
        %a = memref.load(%A[%j]) : f32
        memref.store(%a, %C[%i])
        yield
      } {
        %b = memref.load(%A[%j + N]) : f32
        memref.store(%b, %C[%i])
        yield
      }
      yield
    }"""
    module = main_program("%A: memref<f32[N]>, %J: memref<index[S]>, %C: memref<f32[S]>", body)
    native = NativeGraph(module, module.main)
    assert len(native.native.sites) == 2
    check(module, np.arange(4, dtype=F), np.array([3, 0, -4, -1], J), zeros(4), native=native)
    for bad in (4, -5, 2**62, -(2**63)):
        check(module, np.arange(4, dtype=F), np.array([3, bad, -4, -1], J), zeros(4), native=native)


def test_asserts() -> None:
    body = """
    %n = memref.dim(%A, axis=0) : index
    %zero = arith.constant(0) : index
    scf.for(%i = 0 to S) {
      %j = memref.load(%J[%i]) : index
      %low = arith.cmpi(%j, %zero, predicate="ge") : bool
      %high = arith.cmpi(%j, %n, predicate="lt") : bool
      %both = arith.andi(%low, %high) : bool
      cf.assert(%both, v0=%j, v1=%i, message="{2}: index {0} at {1} {x}")
      cf.assert(%both, message="{0} stays")
      %a = memref.load(%A[%j]) : f32
      memref.store(%a, %C[%i])
      yield
    }
    %x = memref.load(%A[%n - 1]) : f32"""
    module = main_program("%A: memref<f32[N]>, %J: memref<index[S]>, %C: memref<f32[S]>", body)
    native = NativeGraph(module, module.main)
    assert len(native.native.sites) == 4  # what is asserted is known in the loop, but not behind it
    check(module, np.arange(4, dtype=F), np.array([3, 0], J), zeros(2), native=native)
    check(module, np.arange(4, dtype=F), np.array([3, 4], J), zeros(2), native=native)
    check(module, zeros(0), np.array([], J), zeros(0), native=native)


@pytest.mark.parametrize("name", ["divsi", "remsi", "floordivsi", "modsi", "shli", "shrsi", "shrui"])
@pytest.mark.parametrize("dtype", ["i32", "i8", "i64", "index"])
def test_operands_that_are_refused(name: str, dtype: str) -> None:
    numpy = {"i32": np.int32, "i8": np.int8}.get(dtype, np.int64)
    scalar = f"%x = memref.load(%A[3]) : {dtype}\n%y = memref.load(%B[3]) : {dtype}\n%r = arith.{name}(%x, %y) : {dtype}\nmemref.store(%r, %C[0])"
    vector = (
        f"%x = vector.load(%A[0:+4]) : vector<{dtype}[4]>\n%y = vector.load(%B[0:+4]) : vector<{dtype}[4]>\n"
        f"%z = vector.reshape(%y) : vector<{dtype}[2, 2]>\n%w = vector.reshape(%x) : vector<{dtype}[2, 2]>\n"
        f"%r = arith.{name}(%w, %z) : vector<{dtype}[2, 2]>\n%s = vector.reshape(%r) : vector<{dtype}[4]>\nvector.store(%s, %C[0:+4])"
    )
    bad = 0 if name[:2] != "sh" else -1
    for body in (scalar, vector):
        module = main_program(f"%A: memref<{dtype}[4]>, %B: memref<{dtype}[4]>, %C: memref<{dtype}[4]>", body)
        x = np.array([-5, 6, 7, -8], numpy)
        check(module, x, np.array([1, 2, 3, 3], numpy), np.zeros(4, numpy))
        assert "x is -8, y is " in message_of(module, x, np.array([1, 2, 3, bad], numpy), np.zeros(4, numpy))
    assert " at [1, 0]: x is 7" in message_of(module, x, np.array([1, 2, bad, bad], numpy), np.zeros(4, numpy))


@pytest.mark.parametrize("name", ["divui", "remui", "shrui", "shli"])
def test_unsigned_operands_are_shown_as_such(name: str) -> None:
    body = f"%x = memref.load(%A[0]) : u8\n%y = memref.load(%B[0]) : u8\n%r = arith.{name}(%x, %y) : u8\nmemref.store(%r, %C[0])"
    module = main_program("%A: memref<u8[1]>, %B: memref<u8[1]>, %C: memref<u8[1]>", body)
    bad = 0 if name[0] != "s" else 200
    assert f"x is 255, y is {bad}" in message_of(module, *(np.array([v], np.uint8) for v in (255, bad, 0)))


def test_smallest_by_minus_one_wraps() -> None:
    for name in ("divsi", "remsi", "floordivsi", "modsi"):
        for dtype, numpy in (("i8", np.int8), ("i32", np.int32), ("i64", np.int64)):
            body = f"%x = vector.load(%A[0:+3]) : vector<{dtype}[3]>\n%y = vector.load(%B[0:+3]) : vector<{dtype}[3]>\n"
            body += f"%r = arith.{name}(%x, %y) : vector<{dtype}[3]>\nvector.store(%r, %C[0:+3])"
            module = main_program(f"%A: memref<{dtype}[3]>, %B: memref<{dtype}[3]>, %C: memref<{dtype}[3]>", body)
            low = np.iinfo(numpy).min
            check(module, np.array([low, low, 7], numpy), np.array([-1, 1, -1], numpy), np.zeros(3, numpy))


def test_steps() -> None:
    body = "%s = memref.load(%J[0]) : index\nscf.for(%i = 0 to 10 step %s) {\nmemref.store(%s, %C[%i])\nyield\n}"
    module = main_program("%J: memref<index[1]>, %C: memref<index[10]>", body)
    native = NativeGraph(module, module.main)
    for step in (1, 3, 10, 11, 2**62, 2**63 - 1, 0, -1, -(2**63)):
        check(module, np.array([step], J), zeros(10, dtype=J), native=native)


def test_loops_near_the_largest_number() -> None:
    body = """
    %n = memref.load(%J[0]) : index
    %c = arith.constant(0) : index
    %one = arith.constant(1) : index
    %r = scf.for(%i = %n - 5 to %n step 3, %a = %c) {
      %b = arith.addi(%a, %one) : index
      yield %b
    } : index
    memref.store(%r, %C[0])"""
    module = main_program("%J: memref<index[1]>, %C: memref<index[1]>", body)
    for last in (2**63 - 1, 2**63 - 2, 100, -(2**63) + 5):
        check(module, np.array([last], J), zeros(1, dtype=J))


def test_divisors_in_indices() -> None:
    for expression in ("%j floordiv %k", "%j mod %k", "%j ceildiv %k", "-(%j floordiv %k)"):
        body = f"%j = memref.load(%J[0]) : index\n%k = memref.load(%J[1]) : index\n%a = memref.load(%A[{expression}]) : f32\nmemref.store(%a, %C[0])"
        module = main_program("%A: memref<f32[8]>, %J: memref<index[2]>, %C: memref<f32[1]>", body)
        native = NativeGraph(module, module.main)
        for j, k in [(7, 2), (-7, 2), (7, -2), (-7, -2), (6, 3), (0, 5), (5, 1), (5, -1), (3, 0), (-8, 3)]:
            check(module, np.arange(8, dtype=F), np.array([j, k], J), zeros(1), native=native)


def test_read_only() -> None:
    body = "%A = memref.from_tensor(%x)\n%c = arith.constant(1.0) : f32\n"
    x = zeros(8)
    for store in ["memref.store(%c, %A[0])", "memref.copy(%A, %A)", "%v = vector.broadcast(%c) : vector<f32[8]>\nvector.store(%v, %A[0:+8])"]:
        assert "read-only" in message_of(main_program("%x: f32[8]", body + store), x)
    inside = "memref.store(%c, %A[9])"
    assert "outside" in message_of(main_program("%x: f32[8]", body + inside), x)


def test_first_failure_wins_and_all_threads_come_back() -> None:
    body = """
    scf.parallel(%i = 0 to N, mapping="threads") {
      %j = memref.load(%J[%i]) : index
      %a = memref.load(%A[%j]) : f32
      memref.store(%a, %C[%i])
      yield
    }
    scf.parallel(%i.1 = 0 to N, mapping="threads") {
      %b = memref.load(%C[%i.1]) : f32
      memref.store(%b, %A[%i.1 + N])
      yield
    }"""
    module = main_program("%A: memref<f32[4]>, %J: memref<index[N]>, %C: memref<f32[N]>", body)
    native = NativeGraph(module, module.main)
    indices = np.zeros(50, J)
    indices[31] = 77
    for threads in (1, 2, 3, 7):
        with pytest.raises(GraphError, match="index 77 is outside dimension 0 of size 4"):
            native.run([zeros(4), indices, zeros(50)], threads)


def test_large_dimensions_are_refused() -> None:
    body = "%r = memref.alloc() : memref<f32[N*N*N*N, 64]>\n%z = arith.constant(0.0) : f32\nmemref.store(%z, %r[0, 0])"
    module = main_program("%A: memref<i8[N]>", body)
    native = NativeGraph(module, module.main)
    with pytest.raises(GraphError, match="do not fit in memory"):
        native.run([np.zeros(1 << 16, np.int8)])
    native.run([np.zeros(3, np.int8)])


def test_what_has_no_native_code() -> None:
    for body in ["%y = exp(%x) : f32[8]", "%A = memref.from_tensor(%x)\nlinalg.generic(i < 8, %a = %A[i]) {\nyield %a\n}"]:
        module = main_program("%x: f32[8]", body)
        with pytest.raises(GraphError, match=r":\d+:\d+: error: codegen: no native code for '"):
            NativeGraph(module, module.main)


def test_large_buffers_in_loops_are_refused() -> None:
    body = """
    scf.parallel(%i = 0 to 2, mapping="threads") {
      %T = memref.alloc() : memref<f32[SIZE]>
      %z = arith.constant(0.0) : f32
      memref.store(%z, %T[3])
      yield
    }"""
    module = main_program("%A: memref<f32[N]>", body.replace("SIZE", "65536"))
    NativeGraph(module, module.main).run([zeros(2)], 2)
    for size, message in ((4096 * 80, "stack"), ("N", "static size")):
        module = main_program("%A: memref<f32[N]>", body.replace("SIZE", str(size)))
        with pytest.raises(GraphError, match=message):
            NativeGraph(module, module.main)


def test_negative_dimensions() -> None:
    stores = {
        "%M = memref.alloc() : memref<u8[64]>\n%V = memref.view(%M, offset=0) : memref<f32[N-4, N-4]>": "memref.store(%z, %V[%j, %j])",
        "%V = memref.alloc() : memref<f32[N-4]>": "memref.store(%z, %V[%j])",
        "%W = memref.alloc() : memref<f32[N*N-8*N+16]>\n%V = memref.reshape(%W) : memref<f32[4-N, 4-N]>": "memref.store(%z, %V[%j, %j])",
    }
    for make, store in stores.items():
        body = f"%z = arith.constant(0.0) : f32\n%j = memref.load(%J[]) : index\n{make}\n{store}"
        module = main_program("%A: memref<f32[N]>, %J: memref<index[]>", body)
        native = NativeGraph(module, module.main)
        for size in (0, 2, 3, 4, 5, 6, 40):
            for at in (0, 1, -1, -(10**6), 10**6):
                arrays = [zeros(size), np.array(at, J)]
                inside = 0 <= at < (4 - size if "4-N" in make else size - 4)
                fits = "view" not in make or (size - 4) ** 2 * 4 <= 64
                if inside and fits:
                    native.run(arrays)
                else:
                    with pytest.raises(GraphError):
                        native.run(arrays)


def test_sizes_that_wrap_around_are_refused() -> None:
    for shape in ("N*N*N*N, 16", "N, 1099511627776, 67108864"):
        body = f"%z = arith.constant(0.0) : f32\n%M = memref.alloc() : memref<u8[64]>\n%V = memref.view(%M, offset=0) : memref<f32[{shape}]>\n"
        module = main_program("%A: memref<i8[N]>", body + f"memref.store(%z, %V[{', '.join(['3'] * (shape.count(',') + 1))}])")
        with pytest.raises(GraphError, match=r"larger than|do not fit"):
            NativeGraph(module, module.main).run([np.zeros(1 << 16, np.int8)])


def test_functions_of_what_may_wrap_prove_nothing() -> None:
    large = "*".join(["N"] * 3)
    body = f"%a = memref.load(%A[min({large}*1152921504606846976, 3)]) : f32\nmemref.store(%a, %C[0])"
    module = main_program("%A: memref<f32[4]>, %B: memref<i8[N]>, %C: memref<f32[1]>", body)
    native = NativeGraph(module, module.main)
    assert len(native.native.sites) > 1
    for size in (2, 3, 5):
        try:
            native.run([zeros(4), np.zeros(size, np.int8), zeros(1)])
        except GraphError as error:
            assert "outside" in str(error)


def test_vectors_have_limits() -> None:
    body = """
    %v = arith.constant(1.0) : vector<f32[100, 100]>
    %s = vector.multi_reduction(%v, kind="add", axes=[0, 1]) : f32
    memref.store(%s, %C[0])"""
    module = main_program("%C: memref<f32[1]>", body)
    with pytest.raises(GraphError, match="has 10000 elements"):
        NativeGraph(module, module.main)
