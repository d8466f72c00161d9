"""Products of matrices of bytes: the bits of the reference as tiles, row by row, and cut into dot products."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import numpy as np
import pytest

from codegen.cuda.emit import emit_program
from codegen.llvm import jit
from codegen.llvm.tiles import FEATURE
from dialects._tiles import is_tile
from dialects.vector import dot4
from ir.core import Module
from ir.diagnostics import GraphError
from ir.interpreter import Interpreter
from ir.opdef import TypeProblem
from ir.parser import parse_module
from ir.types import ScalarType, VectorType, i32, i64
from passes.infra.manager import PassManager
from passes.pipelines import load_pipeline, preset_for
from tests.checks import load
from tests.codegen.code_checks import main_program, outputs
from tests.codegen.cuda_graph import CudaGraph, build
from tests.codegen.native_graph import NativeGraph

FEATURES = {"tiles": ("amx-int8", "amx-tile"), "vnni": ("avx512vnni", "avx512vl", "avx512bw", "avx2", "sse2"), "sse2": ("sse2",)}
SHAPES = [(16, 8, 16), (16, 16, 16), (1, 1, 1), (3, 5, 7), (16, 8, 3), (7, 16, 16)]


def program(rows: int, words: int, columns: int) -> Module:
    """The product of parts of two buffers into a part of a third."""
    return main_program(
        f"%A: memref<i32[{rows + 2}, 3, {words + 1}]>, %B: memref<i32[2, {words + 1}, {columns + 5}]>, %C: memref<i32[2, {rows + 1}, {columns + 2}]>",
        f"""scf.for(%n = 0 to 1) {{
        %a = vector.load(%A[1:+{rows}, %n+2, 1:+{words}]) : vector<i32[{rows}, {words}]>
        %b = vector.load(%B[1, 0:+{words}, 2:+{columns}]) : vector<i32[{words}, {columns}]>
        %c = vector.dot4(%a, %b) : vector<i32[{rows}, {columns}]>
        vector.store(%c, %C[1, 1:+{rows}, 1:+{columns}])
        yield
        }}""",
    )


def arrays(rows: int, words: int, columns: int) -> list[np.ndarray]:
    """Bytes of all kinds, extremes among them, and room for the result."""
    rng = np.random.default_rng(rows + 100 * words + columns)
    a = rng.integers(0, 256, (rows + 2, 3, words + 1, 4)).astype(np.uint8)
    b = rng.integers(0, 256, (2, words + 1, columns + 5, 4)).astype(np.uint8)
    a[1], b[1, :, 2] = 128, 255
    return [a.view("<i4")[..., 0], b.view("<i4")[..., 0], np.full((2, rows + 1, columns + 2), 7, np.int32)]


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """What the product is, in integers that hold everything."""
    digits = np.ascontiguousarray(a).view(np.int8).reshape(len(a), -1).astype(np.int64)
    numbers = np.ascontiguousarray(b).view(np.uint8).reshape(*b.shape, 4).astype(np.int64)
    return digits @ numbers.transpose(0, 2, 1).reshape(-1, b.shape[1])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", FEATURES)
def test_same_bits(kind: str, shape: tuple[int, int, int]) -> None:
    missing = set(FEATURES[kind]) - jit.host_features()
    if missing:
        pytest.skip(f"this machine has no {', '.join(sorted(missing))}")
    (rows, words, columns), module = shape, program(*shape)
    native = NativeGraph(module, module.main, features=FEATURES[kind], level=1)
    assert ("tdpbsud" in native.native.text) == (kind == "tiles")
    a, b, c = arrays(*shape)
    expected = c.copy()
    expected[1, 1 : 1 + rows, 1 : 1 + columns] = product(a[1 : 1 + rows, 2, 1 : 1 + words], b[1, :words, 2 : 2 + columns])
    (found,) = outputs(module, native.run, [a, b, c])[-1:]
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("shape", [(3, 5, 7), (17, 3, 20)])
def test_what_is_no_tile_is_cut_into_dot_products(shape: tuple[int, int, int]) -> None:
    """A matrix that is too large, or one that something else reads as well."""
    (rows, words, columns), module = shape, program(*shape)
    if rows <= 16:
        text = str(module).replace(
            "vector.store(%c", f"%twice = arith.addi(%c, %c) : vector<i32[{rows}, {columns}]>\n    vector.store(%twice"
        )
        assert text != str(module)
        module = parse_module(text)
    assert not any(is_tile(op) for op in module.walk())
    PassManager(load_pipeline("unroll-vectors")).run(module)
    names = [op.definition.full_name for op in module.walk()]
    assert "vector.dot4" not in names and names.count("arith.dot4") == rows * words * -(-columns // 16)
    native = NativeGraph(module, module.main, features=jit.host_features(), level=1)
    a, b, c = arrays(*shape)
    expected = c.copy()
    expected[1, 1 : 1 + rows, 1 : 1 + columns] = product(a[1 : 1 + rows, 2, 1 : 1 + words], b[1, :words, 2 : 2 + columns]) * (1 + (rows <= 16))
    (found,) = outputs(module, native.run, [a, b, c])[-1:]
    assert np.array_equal(found, expected)


def test_tiles_stay_whole() -> None:
    module = program(16, 8, 16)
    assert sum(is_tile(op) for op in module.walk()) == 4
    PassManager(load_pipeline("unroll-vectors")).run(module)
    assert sum(is_tile(op) for op in module.walk()) == 4


def loop_of(lines: str) -> Module:
    """Lines in a loop of one round, over buffers that are larger than all tiles."""
    return main_program(
        "%A: memref<i32[32, 32]>, %B: memref<i32[32, 32]>, %C: memref<i32[128, 128]>", f"scf.for(%n = 0 to 1) {{\n{lines}\nyield\n}}"
    )


def one_product(number: int, rows: int, words: int, columns: int) -> str:
    """Loads, a product and a store; the results of different numbers are apart."""
    return f"""%a{number} = vector.load(%A[{number}:+{rows}, 0:+{words}]) : vector<i32[{rows}, {words}]>
        %b{number} = vector.load(%B[0:+{words}, {number}:+{columns}]) : vector<i32[{words}, {columns}]>
        %c{number} = vector.dot4(%a{number}, %b{number}) : vector<i32[{rows}, {columns}]>
        vector.store(%c{number}, %C[{16 * number}:+{rows}, {16 * number}:+{columns}])"""


def run_loop(module: Module) -> tuple[np.ndarray, np.ndarray, np.ndarray, str]:
    """Both factors, and what machine code stores, with its text."""
    rng = np.random.default_rng(5)
    a, b = (rng.integers(-(2**31), 2**31, (32, 32)).astype(np.int32) for _ in range(2))
    native = NativeGraph(module, module.main, features=jit.host_features(), level=2)
    (found,) = outputs(module, native.run, [a, b, np.zeros((128, 128), np.int32)])[-1:]
    return a, b, found, native.native.text


def test_a_function_has_tiles_of_one_shape() -> None:
    """Those of the first product: other ones, of which processors have too few registers, are written row by row."""
    shapes = [(16, 16, 16), (15, 15, 15), (14, 14, 14), (16, 16, 16), (3, 2, 1)]
    module = loop_of("\n".join(one_product(n, *shape) for n, shape in enumerate(shapes)))
    assert sum(is_tile(op) for op in module.walk()) == 4 * len(shapes)
    a, b, found, text = run_loop(module)
    assert text.count("= call x86_amx @llvm.x86.tdpbsud") == (2 if FEATURE in jit.host_features() else 0)
    for n, (rows, words, columns) in enumerate(shapes):
        expected = product(a[n : n + rows, :words], b[:words, n : n + columns]).astype(np.int32)
        assert np.array_equal(found[16 * n : 16 * n + rows, 16 * n : 16 * n + columns], expected), n


def test_a_matrix_times_itself_is_no_tile() -> None:
    """Both factors would be one register, which processors refuse."""
    module = loop_of(one_product(0, 16, 16, 16).replace("vector.dot4(%a0, %b0)", "vector.dot4(%a0, %a0)"))
    assert not any(is_tile(op) for op in module.walk() if op.definition.full_name == "vector.dot4")
    a, _, found, text = run_loop(module)
    assert "tdpbsud" not in text
    assert np.array_equal(found[:16, :16], product(a[:16, :16], a[:16, :16]).astype(np.int32))


@pytest.mark.parametrize(("count", "tiles"), [(64, True), (65, False)])
def test_many_products_that_share_what_they_read(count: int, tiles: bool) -> None:
    lines = [one_product(0, 2, 2, 2).replace("%c0", "%c00")]
    lines += [f"%d{n} = vector.dot4(%a0, %b0) : vector<i32[2, 2]>\nvector.store(%d{n}, %C[{n}:+2, 8:+2])" for n in range(1, count)]
    module = loop_of("\n".join(lines))
    assert any(is_tile(op) for op in module.walk()) == tiles
    a, b, found, _ = run_loop(module)
    assert np.array_equal(found[:2, :2], product(a[:2, :2], b[:2, :2]).astype(np.int32))
    assert np.array_equal(found[count - 1 : count + 1, 8:10], found[:2, :2])


KERNEL = """graph @main(%A: memref<i32[64, 3, 5]>, %B: memref<i32[64, 5, 2]>, %C: memref<i32[64, 3, 2]>) {
  gpu.launch(%x = 0 to 2, threads=32, name="products") {
    %t = gpu.thread_id() : index
    %a = vector.load(%A[32*%x+%t, 0:+3, 0:+5]) : vector<i32[3, 5]>
    %b = vector.load(%B[32*%x+%t, 0:+5, 0:+2]) : vector<i32[5, 2]>
    %c = vector.dot4(%a, %b) : vector<i32[3, 2]>
    vector.store(%c, %C[32*%x+%t, 0:+3, 0:+2])
    yield
  }
  return
}
"""


def test_threads_of_a_kernel_have_their_own() -> None:
    """In the interpreter, and in the kernel built for this machine."""
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-(2**31), 2**31, shape).astype(np.int32) for shape in ((64, 3, 5), (64, 5, 2)))
    expected = np.stack([product(x, y) for x, y in zip(a, b, strict=True)]).astype(np.int32)
    module = load(KERNEL)
    runs: list[Callable[[list[np.ndarray]], object]] = [lambda given: Interpreter(module).run(module.main, given)]
    if shutil.which("g++"):
        program = emit_program(module, module.main)
        runs.append(CudaGraph(program, module.main, build([program])).run)
    for run in runs:
        arrays_ = [a, b, np.zeros_like(expected)]
        run(arrays_)
        assert np.array_equal(arrays_[2], expected)


def test_types() -> None:
    a, b = VectorType(i32, (3, 5)), VectorType(i32, (5, 7))
    assert dot4.infer([a, b], ["a", "b"], {}) == (VectorType(i32, (3, 7)),)
    for wrong in (VectorType(i64, (5, 7)), VectorType(i32, (5,)), VectorType(i32, (4, 7))):
        with pytest.raises(TypeProblem, match="expected"):
            dot4.infer([a, wrong], ["a", "b"], {})
    with pytest.raises(TypeProblem):
        dot4.infer([ScalarType(i32), b], ["a", "b"], {})


def test_sums_wrap_around() -> None:
    """As they do in arith.dot4: 2**31 is reached by 65,800 products of 255 and 128."""
    a, b = np.full((1, 20000), -2139062144, np.int32), np.full((20000, 1), -1, np.int32)
    assert int(dot4(a, b)[0, 0]) == (-80000 * 255 * 128 + 2**31) % 2**32 - 2**31


def test_places_outside_of_the_buffer_are_errors() -> None:
    text = str(program(4, 4, 4)).replace("%B[1, 0:+4", "%B[%n+2, 0:+4")

    module = parse_module(text)
    native = NativeGraph(module, module.main, features=jit.host_features(), level=1)
    with pytest.raises(GraphError, match="outside dimension 0"):
        native.run(arrays(4, 4, 4))


def test_a_process_that_may_not_use_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    real = jit.llvm.get_host_cpu_features()
    had = {**real, "amx-tile": True, "amx-int8": True, "avx512f": True, "sse4a": False}
    monkeypatch.setattr(jit.llvm, "get_host_cpu_features", lambda: type(real)(had))
    for permitted in (True, False):
        monkeypatch.setattr(jit, "_permit_tiles", lambda p=permitted: p)
        jit.host.cache_clear()
        assert preset_for(jit.host_features()) == ("cpu-amx" if permitted else "cpu")
    monkeypatch.undo()
    jit.host.cache_clear()
