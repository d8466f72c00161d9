"""What kernels look like: readable C, with nothing of a program's text in it but names and comments."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from codegen.cuda.emit import emit_program
from codegen.cuda.kernels import buffer_alignment, fold
from codegen.cuda.module import BufferRef, CopyStep, CudaProgram, IfStep, LaunchStep, LoopStep
from codegen.cuda.names import comment, identifier, kernel_identifier
from ir.core import Module
from ir.diagnostics import GraphError
from ir.dims import Dim, ceildiv, dim_max, dim_min, product, symbol
from tests import cuda_math_header
from tests.checks import load

EXAMPLES = Path(__file__).parent.parent.parent / "samples"


def emit(text: str, **options: bool) -> CudaProgram:
    module: Module = load(text)
    return emit_program(module, module.graphs["main"], **options)


def code(program: CudaProgram) -> str:
    """The text without comments and indentation."""
    return "\n".join(line.strip() for line in program.source.splitlines() if not line.strip().startswith("//"))


def kernel(parameters: str, body: str, grid: str = "%b = 0 to 1", threads: int = 32, **options: bool) -> CudaProgram:
    return emit(f"graph @main({parameters}) {{\n  gpu.launch({grid}, threads={threads}) {{\n{body}\n    yield\n  }}\n  return\n}}\n", **options)


def has(program: CudaProgram, *lines: str) -> None:
    """The lines are there, in this order."""
    rest = iter(code(program).splitlines())
    for line in lines:
        assert any(line == found for found in rest), f"{line!r} is not in\n{program.source}"


def test_the_header_of_functions_is_what_the_tool_makes() -> None:
    assert cuda_math_header.PATH.read_text(encoding="utf-8") == cuda_math_header.header()


def test_a_kernel() -> None:
    program = kernel("%x: memref<f32[M, 64]>, %y: memref<f32[M, 64]>", """\
    %t = gpu.thread_id() : index
    %zero = arith.constant(0.0) : f32
    %sum = scf.for(%k = 0 to 64, %acc = %zero) {
      %a = memref.load(%x[%b, %k]) : f32
      %f = math.fma(%a, %a, %acc) : f32
      yield %f
    } : f32
    %r = math.rsqrt(%sum) : f32
    %x1 = memref.load(%x[%b, %t]) : f32
    %y1 = arith.mulf(%x1, %r) : f32
    memref.store(%y1, %y[%b, %t])""", "%b = 0 to M")  # fmt: skip
    has(
        program,
        'extern "C" __global__ void __launch_bounds__(32)',
        "k_main_0(const float *x, float *y)",
        "const int b = go_block_x();",
        "const int t = go_thread();",
        "float acc = 0.0f;",
        "for (int k = 0; k < 64; ++k) {",
        "const float a = x[(go_index)b * 64 + k];",
        "acc = fmaf(a, a, acc);",
        "const float x1 = x[(go_index)b * 64 + t];",
        "y[(go_index)b * 64 + t] = x1 * go_rsqrt(acc);",
    )
    assert "// %r = math.rsqrt(%sum) : f32" in program.source
    (step,) = program.steps
    assert isinstance(step, LaunchStep)
    assert step.grid == (symbol("M"), 1, 1) and step.arguments == (BufferRef("parameter", 0), BufferRef("parameter", 1))


def test_places_in_64_bits_unless_32_are_proved_to_be_enough() -> None:
    body = "    %one = arith.constant(1) : i32\n    memref.store(%one, %x[3*%b])"
    has(kernel("%x: memref<i32[N]>", body, "%b = 0 to N"), "x[3LL * b] = 1;")
    has(kernel("%x: memref<i32[3000]>", body, "%b = 0 to 1000"), "x[3 * b] = 1;")


def test_divisions_round_down() -> None:
    body = "    %t = gpu.thread_id() : index\n    %q = affine.apply({}) : index\n    memref.store(%q, %x[%t])"
    has(kernel("%x: memref<index[32]>", body.format("%t floordiv 8")), "x[t] = t / 8;")
    has(kernel("%x: memref<index[32]>", body.format("(%t-5) floordiv 8")), "x[t] = go_floordiv_i32(t - 5, 8);")
    has(kernel("%x: memref<index[32]>", body.format("(%t-5) mod 8")), "x[t] = go_mod_i32(t - 5, 8);")
    has(kernel("%x: memref<index[32]>", body.format("%t ceildiv 8")), "x[t] = (t + 7) / 8;")


def test_neighbours_are_loaded_at_once_where_they_are_aligned() -> None:
    body = """\
    %t = gpu.thread_id() : index
    %v = vector.load(%x[{0}:+4]) : vector<f32[4]>
    vector.store(%v, %x[{0}:+4])"""
    program = kernel("%x: memref<f32[N]>", body.format("4*%t"))
    has(program, "const go_vec<float, 4> v = go_load_aligned<4>(x + 4 * t);", "go_store_aligned(x + 4 * t, v);")
    program = kernel("%x: memref<f32[N]>", body.format("4*%t+1"))
    has(program, "const go_vec<float, 4> v = go_load<4>(x + 4 * t + 1);", "go_store(x + 4 * t + 1, v);")


def test_several_ranges_are_one_axis_where_one_may_be_too_long() -> None:
    body = "    %one = arith.constant(1.0) : f32\n    memref.store(%one, %x[%i, %j])"
    program = kernel("%x: memref<f32[M, N]>", body, "%i = 0 to M, %j = 0 to N")
    has(program, "const int block = go_block_x();", "const int i = block % M;", "const int j = block / M;")
    (step,) = program.steps
    assert isinstance(step, LaunchStep) and step.grid == (symbol("M") * symbol("N"), 1, 1)
    program = kernel("%x: memref<f32[M, 9]>", body, "%i = 0 to M, %j = 0 to 9")
    has(program, "const int i = go_block_x();", "const int j = go_block_y();")


def test_equal_kernels_are_one() -> None:
    launch = """\
  gpu.launch(%b{n} = 0 to N ceildiv 32, threads=32, name="{n}") {{
    %t{n} = gpu.thread_id() : index
    %at{n} = affine.apply(32*%b{n}+%t{n}) : index
    %x{n} = memref.load(%A[%at{n}]) : f32
    %y{n} = arith.addf(%x{n}, %{c}) : f32
    memref.store(%y{n}, %{to}[%at{n}])
    yield
  }}
"""
    head = "graph @main(%A: memref<f32[N]>, %B: memref<f32[N]>, %C: memref<f32[N]>) {\n"
    constants = "  %one = arith.constant(1.0) : f32\n  %two = arith.constant(2.0) : f32\n"
    launches = "".join(launch.format(n=n, c=c, to=to) for n, c, to in ((1, "one", "B"), (2, "one", "C"), (3, "two", "C")))
    text = f"{head}{constants}{launches}  return\n}}\n"
    program = emit(text)
    first, second, third = program.steps
    assert isinstance(first, LaunchStep) and isinstance(second, LaunchStep) and isinstance(third, LaunchStep)
    assert first.kernel == second.kernel == "k_main_1" and third.kernel == "k_main_3" and len(program.kernels) == 2
    assert [s.arguments[1] for s in (first, second)] == [BufferRef("parameter", 1), BufferRef("parameter", 2)]
    assert program.source == emit(text).source


def test_what_is_computed_before_a_launch_is_computed_again_in_it() -> None:
    program = emit("""\
graph @main(%A: memref<f32[N]>, %given: f32[]) {
  %S = memref.from_tensor(%given) : memref<f32[]>
  %s = memref.load(%S[]) : f32
  %two = arith.constant(2.0) : f32
  %twice = arith.mulf(%s, %two) : f32
  gpu.launch(%b = 0 to N, threads=1) {
    memref.store(%twice, %A[%b])
    yield
  }
  return
}
""")
    has(program, "const float s = S[0];", "const float twice = s * 2.0f;", "A[b] = twice;")
    assert "const float *__restrict__ S" in program.source
    with pytest.raises(GraphError, match="read in front of it from memory that is written since"):
        emit("""\
graph @main(%A: memref<f32[N]>) {
  %s = memref.load(%A[0]) : f32
  gpu.launch(%b = 0 to N, threads=1) {
    memref.store(%s, %A[%b])
    yield
  }
  return
}
""")


def test_steps_of_the_host() -> None:
    program = emit("""\
graph @main(%x: f32[N, 4]) -> (f32[N, 4], f32[N, 4]) {
  %A = memref.from_tensor(%x) : memref<f32[N, 4]>
  %C = memref.alloc() : memref<f32[N, 4]>
  scf.for(%i = 0 to N step 2) {
    gpu.launch(%b = 0 to 1, threads=4) {
      %t = gpu.thread_id() : index
      %a = memref.load(%A[%i, %t]) : f32
      memref.store(%a, %C[%i, %t])
      yield
    }
    yield
  }
  %n = memref.dim(%C, axis=0) : index
  %ten = arith.constant(10) : index
  %more = arith.cmpi(%n, %ten, predicate="gt") : bool
  scf.if(%more) {
    gpu.launch(%b1 = 0 to N ceildiv 32, threads=32) {
      yield
    }
    yield
  }
  %y = memref.to_tensor(%C) : f32[N, 4]
  return %y, %y
}
""")
    loop, choice, copy = program.steps
    assert isinstance(loop, LoopStep) and loop.variable == "%i" and (loop.start, loop.stop, loop.step) == (0, symbol("N"), 2)
    (launch,) = loop.body
    assert isinstance(launch, LaunchStep) and launch.arguments == (BufferRef("parameter", 0), BufferRef("result", 0), symbol("%i"))
    assert isinstance(choice, IfStep) and isinstance(choice.then[0], LaunchStep) and choice.then[0].grid[0] == ceildiv(symbol("N"), 32)
    assert isinstance(copy, CopyStep) and (copy.source, copy.target) == (BufferRef("result", 0), BufferRef("result", 1))
    assert "const float *__restrict__ A" in program.source and program.arena_bytes == 0


def test_ranges_that_are_empty_make_no_blocks() -> None:
    n, m = symbol("N"), symbol("M")
    for sizes in ((n - 4, m - 3), (n, ceildiv(m - 9, 8)), (-1, m - 3)):
        assert fold(sizes) == (product([dim_max(0, s) if s != n else s for s in sizes]), 1, 1)
    assert fold((n, ceildiv(m, 8))) == (n * ceildiv(m, 8), 1, 1)
    assert fold((-1, -1)) == (-1, -1, 1)


def test_checks_end_a_thread() -> None:
    program = kernel("%J: memref<i64[N]>, %A: memref<f32[N]>", """\
    %j = memref.load(%J[%b]) : i64
    %k = arith.index_cast(%j) : index
    %n = memref.dim(%A, axis=0) : index
    %less = arith.cmpi(%k, %n, predicate="lt") : bool
    cf.assert(%less, v0=%k, message="index {0} is outside")
    %one = arith.constant(1.0) : f32
    memref.store(%one, %A[%k])""", "%b = 0 to N")  # fmt: skip
    has(program, "if (go_failed(state)) return;", "if (!(k < N)) { go_fail(state, site + 0, k, 0); return; }")
    assert program.kernels[0].checks and [s.template for s in program.sites[1:]] == ["index {0} is outside"]
    (step,) = program.steps
    assert isinstance(step, LaunchStep) and step.arguments[-2:] == (1, None)
    with pytest.raises(GraphError, match="a check in a kernel whose threads wait for each other"):
        kernel("%A: memref<bool[32]>", '    %ok = memref.load(%A[%b]) : bool\n    gpu.barrier()\n    cf.assert(%ok, message="no")')


def test_marks_number_what_a_test_may_leave_out() -> None:
    text = """\
    %t = gpu.thread_id() : index
    %s = gpu.alloc() : memref<f32[128], shared>
    %left = affine.apply(-128*%b-4*%t+N) : index
    gpu.cp_async(%x[128*%b+4*%t:+4], %s[4*%t:+4], valid=%left)
    gpu.cp_commit()
    gpu.cp_wait(pending=0)
    gpu.barrier()
    %n = memref.dim(%x, axis=0) : index
    %less = arith.cmpi(%t, %n, predicate="lt") : bool
    scf.if(%less) {
      %a = memref.load(%s[%t]) : f32
      memref.store(%a, %x[%t])
      yield
    }"""
    program = kernel("%x: memref<f32[N]>", text, "%b = 0 to 1", marks=True)
    assert [(m.number, m.kind) for m in program.marks] == [(0, "valid"), (1, "sync"), (2, "sync"), (3, "sync"), (4, "bound")]
    has(program, "GO_MARK_SYNC(1, go_cp_commit());", "GO_MARK_SYNC(2, go_cp_wait<0>());", "GO_MARK_SYNC(3, go_barrier());")
    has(program, "if (GO_MARK_BOUND(4, (less))) {")
    assert "GO_MARK_VALID(0, N - 128 * b - 4 * t, 4)" in program.source
    assert "GO_MARK" not in kernel("%x: memref<f32[N]>", text, "%b = 0 to 1").source


# -- text that comes from outside --------------------------------------------------------------------------------------


NAMES = ("float", "x.y", "a-b", "__x", "9", "go_load", "GO_X", "threadIdx", "NULL", "x" * 500, "état", "int", "a..b", "assert")


@pytest.mark.parametrize("name", NAMES)
def test_names_are_plain_identifiers(name: str) -> None:
    found = identifier(name)
    assert re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", found) and len(found) < 80 and found not in ("float", "int", "NULL", "assert", "threadIdx")
    assert not found.lower().startswith("go_") or found.endswith("_")
    assert kernel_identifier("main", name).startswith("k_main_")


@pytest.mark.parametrize("text", ["*/ evil();", "ends with \\", "trigraph ??/", "line\nbreak", "\r\v\f\x85\u2028", "/* open", "?" * 9, "x" * 999])
def test_comments_stay_comments(text: str) -> None:
    found = comment(text)
    assert not any(bad in found for bad in ("\n", "\\", "*/", "/*", "??"))
    assert found.isascii() and found.isprintable() and len(found) <= 120


def test_text_of_the_program_is_only_in_comments_and_names() -> None:
    program = emit("""\
graph @main(%A: memref<f32[N]>) {
  gpu.launch(%b = 0 to N, threads=1, name="x(); } evil\\\\") {  // \\ */ ??/
    %while = arith.constant(1.0) : f32
    memref.store(%while, %A[%b])
    yield
  }
  return
}
""")
    assert "evil" not in code(program) or re.search(r"k_main_x_evil(_[0-9a-f]+)?\(", code(program))
    assert "while" not in code(program).replace("while_", "")
    for line in program.source.splitlines():
        assert not line.endswith("\\")


@pytest.mark.parametrize(
    ("offset", "alignment"),
    [
        (0, 256), (96, 32), ("4096*S", 256), ("4096*S+64", 64), ("max(4096*S, 2048*S+64*B)", 64),
        ("8*max(S, B)+4*B", 4), ("64*min(8*S, 16)", 256), ("3*S", 1),
    ],
)
def test_alignment_of_offsets(offset: int | str, alignment: int) -> None:
    """Of sizes that are not known: maxima, which plans of memory have, too."""
    size, batch = symbol("S"), symbol("B")
    made: dict[str, Dim] = {
        "4096*S": 4096 * size, "4096*S+64": 4096 * size + 64, "max(4096*S, 2048*S+64*B)": dim_max(4096 * size, 2048 * size + 64 * batch),
        "8*max(S, B)+4*B": 8 * dim_max(size, batch) + 4 * batch, "64*min(8*S, 16)": 64 * dim_min(8 * size, 16), "3*S": 3 * size,
    }  # fmt: skip
    assert buffer_alignment(made[offset] if isinstance(offset, str) else offset, 256) == alignment
