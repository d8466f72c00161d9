"""Kernels on the CPU: what the words of graph_opt_host.h do, what is reported, and the driver around them."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from codegen.cuda import host_build
from codegen.cuda.driver import DriverError, Packed
from codegen.cuda.emulation import EmulatedDriver, Kernels, LaunchFailed, load_kernels
from ir.diagnostics import MissingPackage

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

HEADER = '#include "graph_opt_device.h"\n'


def kernel(name: str, parameters: str, body: str, threads: int = 64) -> str:
    return f'extern "C" __global__ void __launch_bounds__({threads}) {name}({parameters})\n{{\n{body}\n}}\n'


# All kernels of this file are one text, built once; line numbers are looked up in it.
PARTS = [
    kernel("barriers", "int *y", "  if (go_thread() < 3) go_barrier(); // here\n  go_barrier(); // there"),
    kernel("leaves", "int *y", "  if (go_thread() == 5) return;\n  go_barrier(); // not all"),
    kernel("warps", "int *y", "  if (go_thread() % 32 < 7) go_shuffle_xor(1, 1); // some lanes"),
    kernel("one_warp", "int *y", "  if (go_thread() < 32) y[go_thread()] = go_shuffle_xor((int)go_thread(), 3);"),
    kernel("apart", "const float *x, float *y", "  go_store_aligned(y, go_load_aligned<4>(x + 1)); // 4 bytes off"),
    kernel("in_flight", "const float *x, float *y", "  go_cp_async<16>(go_shared() + 16 * go_thread(), x); // never waited for"),
    kernel(
        "early",
        "const float *x, float *y",
        """  float *s = (float *)go_shared() + 4 * go_thread();
  go_cp_async<16>(s, x + 4 * go_thread(), 12);
  go_cp_commit();
  go_cp_async<4>(s + 3, x + 1);
  go_cp_commit();
  y[4 * go_thread()] = s[0];
  go_cp_wait<1>();
  y[4 * go_thread() + 1] = s[0];
  y[4 * go_thread() + 2] = s[2];
  go_cp_wait<0>();
  y[4 * go_thread() + 3] = s[3];""",
    ),
    kernel(
        "shuffles",
        "int *y",
        """  const int t = (int)go_thread();
  y[t] = go_shuffle_xor(t, 5, 8);
  y[64 + t] = go_shuffle_down(t, 3, 16);
  y[128 + t] = go_shuffle_up(t, 3, 16);
  y[192 + t] = go_shuffle_index(t, 9, 4);
  y[256 + t] = go_warp_reduce_add(t);
  y[320 + t] = (int)go_warp_reduce_max((float)-t, 16);
  y[384 + t] = go_warp_reduce_or(1 << t % 8, 4);
  go_vec<float, 2> two = {{(float)t, (float)-t}};
  two = go_shuffle_xor(two, 1, 32);
  y[448 + t] = (int)(two[0] * 1000.0f + two[1]);""",
    ),
    kernel(
        "tensor_cores",
        "const go_half *a, const go_half *b, const float *p, const float *q, float *y, float *z",
        """  go_half *A = (go_half *)go_shared(), *B = A + 256;
  const go_index lane = go_thread(), row = lane / 4, column = lane % 4;
  go_store_aligned(A + 8 * lane, go_load_aligned<8>(a + 8 * lane));
  if (lane < 16) go_store_aligned(B + 8 * lane, go_load_aligned<8>(b + 8 * lane));
  go_warp_barrier();
  const go_vec<float, 4> c = go_mma(go_ldmatrix<4, false>(A + lane % 16 * 16 + lane / 16 * 8), go_ldmatrix<2, true>(B + lane % 16 * 8),
                                    go_splat<float, 4>(1.0f));
  const go_vec<float, 4> left = {{p[row * 8 + column], p[(row + 8) * 8 + column], p[row * 8 + column + 4], p[(row + 8) * 8 + column + 4]}};
  const go_vec<float, 2> right = {{q[column * 8 + row], q[(column + 4) * 8 + row]}};
  const go_vec<float, 4> d = go_mma_tf32(left, right, go_splat<float, 4>(0.0f));
  for (int i = 0; i < 4; ++i) {
    y[(row + i / 2 * 8) * 8 + 2 * column + i % 2] = c[i];
    z[(row + i / 2 * 8) * 8 + 2 * column + i % 2] = d[i];
  }""",
        32,
    ),
    kernel(
        "blocks",
        "long long *y",
        """  const go_index x = go_block_x(), row = go_block_y(), plane = go_block_z();
  y[(plane * 3 + row) * 2 + x] = 100 * plane + 10 * row + x;""",
        1,
    ),
    kernel(
        "fails",
        "long long n, go_state *state",
        """  if (go_failed(state)) return;
  if (!(go_thread() < n)) { go_fail(state, 4, go_thread(), n); return; }""",
    ),
    kernel(
        "scale",
        "const float *x, float *y, long long n",
        """  const go_index i = go_block_x() * 64 + go_thread();
  if (i < n) y[i] = 2.0f * x[i];""",
    ),
    kernel("beyond", "float *y, long long n", "  y[n + go_thread()] = 1.0f;", 1),
    kernel(
        "garbage",
        "float *y",
        """  __shared__ float s[4];
  const float *d = (const float *)go_shared();
  y[go_thread()] = s[go_thread()] + d[go_thread()];""",
        4,
    ),
]
SOURCE = HEADER + "".join(PARTS)


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return load_kernels(SOURCE)


def line_of(text: str) -> int:
    return next(n for n, line in enumerate(SOURCE.splitlines(), 1) if text in line)


def complaint(kernels: Kernels, name: str, arguments: Sequence[Any], threads: int = 64, shared: int = 1024) -> str:
    with pytest.raises(LaunchFailed) as error:
        kernels.launch(name, (2,), threads, shared, arguments)
    return str(error.value)


# -- what is reported --------------------------------------------------------------------------------------------------


def test_barriers_in_divergent_code_are_reported_with_threads_and_lines(kernels: Kernels) -> None:
    y = np.zeros(64, np.int32)
    found = complaint(kernels, "barriers", [y])
    assert found == (
        f"kernel barriers, block (0, 0, 0): thread 0 waits at a barrier in line {line_of('// here')}, "
        f"but thread 3 waits at a barrier in line {line_of('// there')}"
    )
    assert f"thread 0 waits at a barrier in line {line_of('// not all')}, but thread 5 has ended" in complaint(kernels, "leaves", [y])
    found = complaint(kernels, "warps", [y])
    assert f"thread 0 waits at a shuffle in line {line_of('// some lanes')}, but thread 7 has ended" in found


def test_a_library_goes_on_after_an_error(kernels: Kernels) -> None:
    y = np.zeros(64, np.int32)
    complaint(kernels, "barriers", [y])
    kernels.launch("one_warp", (1,), 64, 0, [y])
    assert y[:32].tolist() == [t ^ 3 for t in range(32)]


def test_accesses_that_are_not_aligned_and_copies_nobody_waits_for_are_reported(kernels: Kernels) -> None:
    x, y = np.zeros(256, np.float32), np.zeros(256, np.float32)
    assert f"thread 0, line {line_of('// 4 bytes off')}: an access that must be aligned to 16 bytes is not" in complaint(kernels, "apart", [x, y])
    assert f"thread 0 ended with copies in flight, issued in line {line_of('// never waited for')}" in complaint(kernels, "in_flight", [x, y])


def test_lanes_that_do_not_exist_are_reported(kernels: Kernels) -> None:
    found = complaint(kernels, "shuffles", [np.zeros(512, np.int32)], threads=20)
    assert "a value of a lane that doesn't exist" in found


@pytest.mark.parametrize(("threads", "shared"), [(0, 0), (1025, 0), (32, 233 << 10)])
def test_launches_that_no_device_can_do_are_refused(kernels: Kernels, threads: int, shared: int) -> None:
    assert "can't be launched" in complaint(kernels, "scale", [np.zeros(1, np.float32), np.zeros(1, np.float32), 0], threads, shared)


# -- what is computed --------------------------------------------------------------------------------------------------


def test_copies_land_when_they_are_waited_for(kernels: Kernels) -> None:
    x, y = np.arange(1, 257, dtype=np.float32), np.zeros(256, np.float32)
    kernels.launch("early", (1,), 64, 1024, [x, y])
    for t in range(64):
        before, first, third, last = y[4 * t : 4 * t + 4]
        assert np.isnan(before)
        assert (first, third, last) == (x[4 * t], x[4 * t + 2], x[1])


def test_shuffles_and_reductions(kernels: Kernels) -> None:
    y = np.zeros(512, np.int32)
    for backwards in (False, True):
        y[:] = 0
        kernels.reverse(backwards)
        try:
            kernels.launch("shuffles", (1,), 64, 0, [y])
        finally:
            kernels.reverse(False)
        t = np.arange(64)
        first = t // 16 * 16
        assert y[:64].tolist() == (t ^ 5).tolist()
        assert y[64:128].tolist() == np.where(t + 3 < first + 16, t + 3, t).tolist()
        assert y[128:192].tolist() == np.where(t - 3 >= first, t - 3, t).tolist()
        assert y[192:256].tolist() == (t // 4 * 4 + 1).tolist()
        assert y[256:320].tolist() == [sum(range(32))] * 32 + [sum(range(32, 64))] * 32
        assert y[320:384].tolist() == (-first).tolist()
        assert y[384:448].tolist() == np.where(t // 4 % 2, 0xF0, 0x0F).tolist()
        assert y[448:].tolist() == ((t ^ 1) * 999).tolist()


def test_products_of_matrices(kernels: Kernels) -> None:
    rng = np.random.default_rng(7)
    a, b = (rng.integers(-8, 9, s).astype(np.float16) for s in ((16, 16), (16, 8)))
    p, q = (rng.standard_normal(s).astype(np.float32) for s in ((16, 8), (8, 8)))
    y, z = np.zeros((16, 8), np.float32), np.zeros((16, 8), np.float32)
    kernels.launch("tensor_cores", (1,), 32, 1024, [a, b, p, q, y, z])
    assert np.array_equal(y, a.astype(np.float32) @ b.astype(np.float32) + 1)

    def tf32(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return ((x.view(np.uint32) + 0x1000) & ~np.uint32(0x1FFF)).view(np.float32)

    exact = tf32(p).astype(np.float64) @ tf32(q).astype(np.float64)
    assert np.array_equal(z, exact.astype(np.float32))


def test_blocks_count_x_first(kernels: Kernels) -> None:
    y = np.full(24, -1, np.int64)
    kernels.launch("blocks", (2, 3, 4), 1, 0, [y])
    assert y.reshape(4, 3, 2).tolist() == [[[100 * c + 10 * b + a for a in range(2)] for b in range(3)] for c in range(4)]


def test_the_first_failure_is_kept(kernels: Kernels) -> None:
    state = np.zeros(8, np.int64)
    kernels.launch("fails", (3,), 64, 0, [7, state])
    assert state[:3].tolist() == [5, 7, 7]


def test_shared_memory_is_garbage_first(kernels: Kernels) -> None:
    y = np.zeros(4, np.float32)
    kernels.launch("garbage", (2,), 4, 16, [y])
    assert np.isnan(y).all()


def test_fibers_of_the_c_library_do_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_build, "_DEFINE", {"": ("-DGO_UCONTEXT",)})
    monkeypatch.setattr(host_build, "_part", lambda name, sanitize: _other_part(name))
    kernels = load_kernels(HEADER + PARTS[7])
    y = np.zeros(512, np.int32)
    kernels.launch("shuffles", (1,), 64, 0, [y])
    assert y[256:320].tolist() == [sum(range(32))] * 32 + [sum(range(32, 64))] * 32


def _other_part(name: str) -> Any:
    path = host_build._folder() / f"{name}-ucontext.o"
    host_build._call(*host_build._OWN, *host_build._COMMON, "-DGO_UCONTEXT", "-w", "-c", str(host_build.INCLUDE / name), "-o", str(path))
    return path


# -- building ----------------------------------------------------------------------------------------------------------


def test_without_a_compiler_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(MissingPackage, match=r"needs g\+\+, which is not on PATH"):
        load_kernels(HEADER + "// another text\n")


def test_a_text_that_does_not_compile_is_our_fault() -> None:
    with pytest.raises(host_build.BuildFailed, match=r"does not compile the generated kernels: .*error"):
        load_kernels("int f( {")


def test_kernels_are_found_in_a_text() -> None:
    assert host_build.kernel_names(SOURCE)[:3] == ["barriers", "leaves", "warps"]
    assert host_build.kernel_names('extern "C" __global__ void __launch_bounds__(256, 2) a_b1(int *x) {}') == ["a_b1"]
    assert host_build.kernel_names('extern "C" __global__ void plain(int *x) {}') == ["plain"]


# -- the driver --------------------------------------------------------------------------------------------------------


@pytest.fixture
def driver() -> EmulatedDriver:
    return EmulatedDriver()


def address(array: np.ndarray[Any, Any]) -> int:
    return int(array.ctypes.data)


def test_the_driver_runs_kernels_and_replays_graphs(driver: EmulatedDriver) -> None:
    module = driver.load_module(driver.build(SOURCE))
    scale = driver.function(module, "scale")
    stream = driver.new_stream()
    x, y = driver.allocate(400), driver.allocate(400)
    source, result = np.arange(100, dtype=np.float32), np.zeros(100, np.float32)
    arguments = Packed([x, y, 100])
    driver.begin_capture(stream)
    driver.copy_to_device(x, address(source), 400, stream)
    driver.launch(scale, (2, 1, 1), 64, 0, stream, arguments)
    driver.copy_to_host(address(result), y, 400, stream)
    graph = driver.end_capture(stream)
    arguments.values[2] = 0  # the graph has its own
    assert not result.any()
    driver.launch_graph(graph, stream)
    assert np.array_equal(result, 2 * source)
    source += 1
    driver.launch_graph(graph, stream)
    driver.synchronize_stream(stream)
    assert np.array_equal(result, 2 * source)
    for a in (x, y):
        driver.free(a)
    assert driver.memory_free()[0] == driver.memory_free()[1]


def test_the_driver_tells_memory_of_the_device_from_others(driver: EmulatedDriver) -> None:
    x, page = driver.allocate(1000), driver.allocate_host(1000)
    assert x % 256 == 0
    assert (driver.device_of(x), driver.device_of(x + 999), driver.device_of(x + 1000)) == (0, 0, None)
    assert driver.device_of(page) is None
    driver.free(x)
    driver.free_host(page)
    assert driver.device_of(x) is None
    with pytest.raises(DriverError, match="CUDA_ERROR_INVALID_VALUE"):
        driver.free(x)
    with pytest.raises(DriverError, match="CUDA_ERROR_OUT_OF_MEMORY"):
        driver.allocate(1 << 40)


def test_what_is_written_beyond_a_buffer_is_found(driver: EmulatedDriver) -> None:
    function = driver.function(driver.load_module(driver.build(SOURCE)), "beyond")
    x = driver.allocate(40)
    driver.launch(function, (1, 1, 1), 1, 0, 0, Packed([x, 9]))
    driver.synchronize()
    driver.launch(function, (1, 1, 1), 1, 0, 0, Packed([x, 10]))
    with pytest.raises(DriverError, match=r"CUDA_ERROR_ILLEGAL_ADDRESS.*written behind a buffer of 40 bytes"):
        driver.synchronize()
    driver.launch(function, (1, 1, 1), 1, 0, 0, Packed([x, -1]))
    with pytest.raises(DriverError, match="written in front of a buffer"):
        driver.free(x)


def test_errors_of_kernels_are_those_of_the_driver(driver: EmulatedDriver) -> None:
    module = driver.load_module(driver.build(SOURCE))
    with pytest.raises(DriverError, match="CUDA_ERROR_NOT_FOUND"):
        driver.function(module, "nothing")
    with pytest.raises(DriverError, match=r"launching leaves: CUDA_ERROR_LAUNCH_FAILED \(kernel leaves, block"):
        driver.launch(driver.function(module, "leaves"), (1, 1, 1), 64, 0, 0, Packed([driver.allocate(64)]))
    with pytest.raises(DriverError, match="CUDA_ERROR_INVALID_IMAGE"):
        driver.load_module(b"/nowhere")


def test_events_have_times(driver: EmulatedDriver) -> None:
    stream, first, second = driver.new_stream(), driver.new_event(timing=True), driver.new_event(timing=True)
    driver.record(first, stream)
    with pytest.raises(DriverError):
        driver.elapsed(first, second)
    driver.record(second, stream)
    driver.wait(stream, second)
    assert driver.elapsed(first, second) >= 0


def test_fills_and_copies(driver: EmulatedDriver) -> None:
    x, y = driver.allocate(16), driver.allocate(16)
    driver.fill(x, 7, 16, 0)
    driver.copy_on_device(y, x, 8, 0)
    assert ctypes.string_at(y, 8) == b"\7" * 8
    assert np.isnan(np.frombuffer(ctypes.string_at(y + 8, 8), ml_dtypes.bfloat16)).all()
