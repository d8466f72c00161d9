"""The runtime with programs written by hand, on the emulated device: arguments, results, streams, graphs, errors, memory."""

from __future__ import annotations

import copy
import ctypes
import gc
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graph_opt
from codegen.cuda import calls, dlpack
from codegen.cuda.arrays import DeviceArray, empty, to_device
from codegen.cuda.device import Device, open_device
from codegen.cuda.driver import DriverError
from codegen.cuda.module import (
    AssertStep,
    BufferRef,
    Compare,
    CopyStep,
    CudaProgram,
    IfStep,
    Kernel,
    KernelParameter,
    LaunchStep,
    LoopStep,
    PrintStep,
    Step,
)
from codegen.cuda.runtime import Engine
from codegen.llvm.native import Argument, Site
from graph_opt import cuda
from ir.diagnostics import GraphError
from ir.dims import Dim, ceildiv, symbol
from ir.inference import infer_module
from ir.types import TensorType, f32, type_symbols
from tests.cuda.device import DEVICE, needs_device, only_emulated

SOURCE = """#include "graph_opt_device.h"

extern "C" __global__ void __launch_bounds__(32) scale(const float *x, float *y, long long n, long long by)
{
    go_index i = 32 * go_block_x() + go_thread();
    if (i < n) y[i] = x[i] * (float)by;
}

extern "C" __global__ void __launch_bounds__(32) add(const float *x, float *y, long long n)
{
    go_index i = 32 * go_block_x() + go_thread();
    if (i < n) y[i] = y[i] + x[i];
}

extern "C" __global__ void __launch_bounds__(1) check(const float *x, long long n, go_state *state)
{
    for (go_index i = 0; i < n; ++i)
        if (!(x[i] >= 0.0f)) { go_fail(state, 1, i, n); return; }
}
"""
BUFFER, DIM = KernelParameter("buffer", "x"), KernelParameter("dim", "n")
KERNELS = (
    Kernel("scale", "", (BUFFER, BUFFER, DIM, DIM), 32),
    Kernel("add", "", (BUFFER, BUFFER, DIM), 32),
    Kernel("check", "", (BUFFER, DIM, KernelParameter("state", "state")), 1, checks=True),
)


NAME = DEVICE
"""Also "cuda", in a process that test_runtime_drivers.py starts with a fake driver, and on a machine with a GPU."""

pytestmark = needs_device


def device() -> Device:
    return open_device(NAME)


def blocks(n: Dim) -> tuple[Dim, Dim, Dim]:
    return (ceildiv(n, 32), 1, 1)


def parameter(n: int, offset: Dim = 0) -> BufferRef:
    return BufferRef("parameter", n, offset)


def result(n: int, offset: Dim = 0) -> BufferRef:
    return BufferRef("result", n, offset)


def engine(
    text: str, *steps: Step, stored: tuple[np.ndarray[Any, Any], ...] = (), arena: Dim = 0, kernels: tuple[str, ...] = ("scale", "add")
) -> Engine:
    """An engine for a graph whose steps are given; only the signature of the text counts."""
    module = graph_opt.parse(text)
    infer_module(module, {})
    graph = module.graphs["main"]
    arguments = tuple(Argument("parameter", p.name, p.type, written=p.inout) for p in graph.parameters)  # type: ignore[arg-type]
    results = tuple(Argument("result", n, v.type) for n, v in zip(graph.result_names, graph.results, strict=True))  # type: ignore[arg-type]
    kept = tuple(Argument("stored", f"w{n}", TensorType(f32, a.shape)) for n, a in enumerate(stored))
    sites = (
        Site("error", "", "too large"),
        Site("error", "check", "element {0} of {1} is negative, N is {2}", (symbol("N"),), graph.loc, given=(0, 1, 2)),
        Site("error", "", "N = {0} is odd", (), graph.loc, given=(0,)),
        Site("print", "", "", (), graph.loc, TensorType(f32, (symbol("N"),)), "y"),
    )
    names = tuple(dict.fromkeys(n for p in graph.parameters for n in type_symbols(p.type)))
    program = CudaProgram(
        "main", SOURCE, tuple(k for k in KERNELS if k.name in kernels), steps, arguments, results, kept, names, arena, sites
    )
    return Engine(program, graph, stored, device())


N = symbol("N")
TIMES = "graph @main(%x: f32[N]) { %y = add(%x, %x) return %y }"
TWICE = LaunchStep("scale", blocks(N), (parameter(0), result(0), N, 2))


def floats(*values: float) -> np.ndarray[Any, Any]:
    return np.array(values, np.float32)


# -- arguments and results ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, 31, 32, 33, 97])
def test_host_arrays(n: int) -> None:
    run = engine(TIMES, TWICE)
    x = np.arange(n, dtype=np.float32)
    for _ in range(4):  # launches, captured, replayed
        (y,) = run.quick([x]) or run.call([x])
        assert type(y) is np.ndarray and y.tolist() == (2 * x).tolist()
        x = x + 1


@pytest.mark.parametrize(
    "change",
    [
        lambda a: np.repeat(a, 2)[::2],
        lambda a: a[::-1].copy()[::-1],
        lambda a: a.astype(">f4"),
        lambda a: np.frombuffer(b"\0" + a.tobytes(), np.uint8)[1:].view(np.float32),
        lambda a: np.broadcast_to(a[:1], a.shape),
    ],
    ids=["gaps", "backwards", "big-endian", "unaligned", "broadcast"],
)
def test_any_layout(change: Callable[[Any], Any]) -> None:
    run = engine(TIMES, TWICE)
    x = change(np.arange(40, dtype=np.float32) + 1)
    for _ in range(3):
        assert run.call([x])[0].tolist() == (2 * np.array(x, np.float32)).tolist()


def test_arrays_of_the_device_are_used_where_they_are() -> None:
    run = engine(TIMES, TWICE)
    x = to_device(device(), np.arange(40, dtype=np.float32))
    outs = [run.call([x])[0] for _ in range(4)]
    assert all(type(y) is DeviceArray for y in outs)
    assert len({y.address for y in outs}) == 4  # results that live share nothing
    for y in outs:
        assert y.numpy().tolist() == (2 * np.arange(40)).tolist()


def test_arrays_of_others_by_the_interface() -> None:
    run = engine(TIMES, TWICE)
    x = to_device(device(), np.arange(8, dtype=np.float32))
    other = Other(x)
    for _ in range(3):
        (y,) = run.call([other])
        assert type(y) is DeviceArray and y.numpy().tolist() == (2 * np.arange(8)).tolist()


class Other:
    """An array of another library, by ``__cuda_array_interface__`` alone."""

    def __init__(self, array: DeviceArray, **changes: Any) -> None:
        self.array = array
        self.__cuda_array_interface__ = {**array.__cuda_array_interface__, **changes}


class Capsule:
    """The same by DLPack alone, which says that it is on a CUDA device."""

    def __init__(self, array: DeviceArray, kind: int = dlpack.CUDA, number: int = 0) -> None:
        self.array, self.kind, self.number, self.streams = array, kind, number, []  # type: ignore[var-annotated]

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.kind, self.number

    def __dlpack__(self, stream: int | None = None) -> Any:
        self.streams.append(stream)
        return self.array.__dlpack__()


def test_arrays_of_others_by_dlpack() -> None:
    run = engine(TIMES, TWICE)
    given = Capsule(to_device(device(), np.arange(8, dtype=np.float32)))
    for _ in range(3):
        assert run.call([given])[0].numpy().tolist() == (2 * np.arange(8)).tolist()
    assert given.streams == [device().stream] * 3


def test_results_go_to_arrays_of_the_caller() -> None:
    run = engine(TIMES, TWICE)
    here, there = np.zeros(8, np.float32), empty(device(), TensorType(f32, (8,)))
    x = to_device(device(), here)
    for n in range(3):
        x.copy_from(np.arange(n, n + 8, dtype=np.float32))
        for given in (x, x.numpy()):
            assert run.call([given], [here])[0] is here and run.call([given], [there])[0] is there
            assert here.tolist() == there.numpy().tolist() == [2 * v for v in range(n, n + 8)]
            here[:] = 0
            there.copy_from(here)


def test_results_on_the_device_may_be_arguments() -> None:
    run = engine(TIMES, TWICE)
    x = to_device(device(), np.arange(8, dtype=np.float32))
    for _ in range(3):
        run.call([x], [x])
    assert x.numpy().tolist() == (8 * np.arange(8)).tolist()


def update() -> Engine:
    module = "graph @main(%x: f32[N], %y: f32[N] inout) { return }"
    return engine(module, LaunchStep("add", blocks(N), (parameter(0), parameter(1), N)))


def test_parameters_are_updated() -> None:
    run = update()
    x, y = np.arange(8, dtype=np.float32), np.ones(8, np.float32)
    there = to_device(device(), y)
    for _ in range(3):
        assert run.call([x, y]) == []
        run.call([x, there])
    assert y.tolist() == there.numpy().tolist() == (1 + 3 * x).tolist()
    backwards = np.ones(8, np.float32)[::-1]
    run.call([x, backwards])
    assert backwards.tolist() == (1 + x).tolist()


def test_an_argument_that_shares_memory_with_an_update_is_read_as_it_was() -> None:
    run = update()
    x = to_device(device(), np.arange(8, dtype=np.float32))
    run.call([x, x])
    assert x.numpy().tolist() == (2 * np.arange(8)).tolist()


def test_unaligned_arrays_of_the_device_are_copied() -> None:
    run = update()
    whole = to_device(device(), np.arange(9, dtype=np.float32))
    part = Other(whole, shape=(8,), data=(whole.address + 4, False))
    run.call([np.ones(8, np.float32), part])
    run.call([np.ones(8, np.float32), part])
    assert whole.numpy().tolist() == [0, *range(3, 11)]


def test_large_arrays_of_the_host_are_copied_from_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "DIRECT", 16)
    run = engine(TIMES, TWICE)
    updating = update()
    for n in (3, 5, 40, 40, 40):
        x = np.arange(n, dtype=np.float32)
        assert run.call([x])[0].tolist() == run.call([x[::-1].copy()[::-1]])[0].tolist() == (2 * x).tolist()
        for out in (np.zeros(n, np.float32), np.zeros(2 * n, np.float32)[::2], np.zeros(n, ">f4")):
            assert run.call([x], [out])[0] is out and out.tolist() == (2 * x).tolist()
            updating.call([x, out])
            assert out.tolist() == (3 * x).tolist()


def test_poisoned_memory_shows_in_results_that_nobody_writes() -> None:
    whole, part = engine(TIMES, TWICE), engine(TIMES, LaunchStep("scale", (1, 1, 1), (parameter(0), result(0), 1, 2)), arena=64)
    for run in (whole, part):
        run.poison = True
        for given in (np.ones(3, np.float32), to_device(device(), np.ones(3, np.float32))):
            values = [np.asarray(run.call([given])[0]) for _ in range(3)]
            assert all(np.isnan(v).tolist() == ([False] * 3 if run is whole else [False, True, True]) for v in values)


# -- steps -------------------------------------------------------------------------------------------------------------


def test_loops_conditions_copies_and_the_arena() -> None:
    i = symbol("%i")
    run = engine(
        TIMES,
        CopyStep(parameter(0), BufferRef("arena", 0, 256), 4 * N),
        LaunchStep("scale", blocks(N), (parameter(0), result(0), N, 0)),
        LoopStep("%i", 0, 6, 2, (IfStep(Compare("lt", i, 3), (LaunchStep("add", blocks(N), (BufferRef("arena", 0, 256), result(0), N)),)),)),
        arena=256 + 4 * N,
    )
    for n in (5, 50, 500, 5):
        for _ in range(3):
            assert run.call([np.arange(n, dtype=np.float32)])[0].tolist() == (2 * np.arange(n)).tolist()


def test_weights_are_uploaded() -> None:
    w = np.arange(8, dtype=np.float32)[::-1]
    steps = CopyStep(BufferRef("stored", 1), result(0), 32), LaunchStep("add", blocks(8), (parameter(0), result(0), 8))
    run = engine("graph @main(%x: f32[8]) { %y = neg(%x) return %y }", *steps, stored=(floats(1), w))
    assert run.call([np.ones(8, np.float32)])[0].tolist() == (w + 1).tolist()


def test_copies_that_overlap() -> None:
    text = "graph @main(%x: f32[N] inout) { return }"
    run = engine(text, CopyStep(parameter(0), parameter(0, 4), 4 * N - 4, overlaps=True))
    x = np.arange(9, dtype=np.float32)
    run.call([x])
    assert x.tolist() == [0, *range(8)]


CHECK = LaunchStep("check", (1, 1, 1), (parameter(0), N, None))


def test_failures_are_those_of_the_program() -> None:
    run = engine(TIMES, CHECK, TWICE, kernels=("scale", "check"))
    for given in (np.asarray, lambda a: to_device(device(), a)):
        for _ in range(3):
            with pytest.raises(GraphError, match=r"<string>:1:7: error: check: element 2 of 3 is negative, N is 3"):
                run.call([given(floats(1, 2, -3))])
        for _ in range(3):
            (y,) = run.call([given(floats(1, 2, 3))])
            assert np.asarray(y).tolist() == [2, 4, 6]


def test_failures_of_the_host_come_behind_those_of_kernels() -> None:
    steps = (CHECK, AssertStep(Compare("eq", N, 2), 2, N, 0), TWICE)
    run = engine(TIMES, *steps, kernels=("scale", "check"))
    assert run.call([floats(1, 2)])[0].tolist() == [2, 4]
    with pytest.raises(GraphError, match="N = 3 is odd"):
        run.call([floats(1, 2, 3)])
    with pytest.raises(GraphError, match="element 0 of 3 is negative"):
        run.call([floats(-1, 2, 3)])


def test_prints(capsys: pytest.CaptureFixture[str]) -> None:
    type_ = TensorType(f32, (N,))
    run = engine(TIMES, TWICE, PrintStep(result(0), type_, "y", 3))
    for _ in range(2):
        run.call([floats(1, 2)])
        text = "".join(capsys.readouterr())
        assert "y" in text and "2" in text and "4" in text


# -- errors ------------------------------------------------------------------------------------------------------------


def refused(match: str, run: Engine, args: list[Any], out: list[Any] | None = None) -> None:
    with pytest.raises(GraphError, match=match):
        run.call(args, out)


def test_arguments_that_do_not_fit() -> None:
    run = engine("graph @main(%x: f32[N], %y: f32[N]) where N <= 8 { %z = add(%x, %y) return %z }", TWICE)
    x = np.ones(4, np.float32)
    refused(r"takes 2 inputs \(%x, %y\), found 1", run, [x])
    refused(r"%y is f32\[N\], but the array is f32\[5\]: N is 4 with N=4 \(from %x\), not 5", run, [x, np.ones(5, np.float32)])
    refused(r"%y is f32\[N\], but the array is f64\[4\]", run, [x, np.ones(4)])
    refused(r"graph @main wants N <= 8, but N = 9", run, [np.ones(9, np.float32)] * 2)
    refused(r"%x is f32\[N\], but the array is i32\[4\]", run, [to_device(device(), np.ones(4, np.int32)), x])


def test_arrays_of_the_device_that_do_not_fit() -> None:
    run = engine(TIMES, TWICE)
    x = to_device(device(), np.arange(8, dtype=np.float32))
    refused("row-major without gaps, its strides are", run, [Other(x, shape=(4,), strides=(8,))])
    refused("arrays of <c8 are not supported", run, [Other(x, typestr="<c8")])
    refused("arrays of >f4 are not supported", run, [Other(x, typestr=">f4")])
    refused("not in a CUDA device's memory", run, [Other(x, data=(int(np.ones(8).ctypes.data), False))])
    refused("interface__ is not understood", run, [Other(x, shape=None)])
    refused(r"%x: this .*Capsule is not in a CUDA device's memory \(DLPack's device 1\)\n(.|\n)*x\.cuda\(\)", run, [Capsule(x, dlpack.CPU)])
    refused(f"%x: the array is on device 3, the program on {NAME}", run, [Capsule(x, number=3)])


def test_results_that_do_not_fit() -> None:
    run = engine(TIMES, TWICE)
    x = np.ones(4, np.float32)
    refused(r"out: %y is f32\[4\], but the array is f32\[5\]", run, [x], [np.ones(5, np.float32)])
    refused(r"out: %y is f32\[4\], but the array is f32\[5\]", run, [x], [empty(device(), TensorType(f32, (5,)))])


def test_arrays_of_others_that_lie() -> None:
    run = engine(TIMES, TWICE)
    x = to_device(device(), np.arange(8, dtype=np.float32))
    for wrong in ({"strides": (4, 4)}, {"strides": "x"}, {"stream": "x"}, {"data": None}, {"typestr": "zz"}):
        refused("%x: its __cuda_array_interface__ is not understood", run, [Other(x, **wrong)])
    refused("%x: a dimension of its shape is negative", run, [Other(x, shape=(-1,))])
    for rows in (1 << 40, 1 << 62, 1 << 80):
        refused("goes on behind the device's memory", run, [Other(x, shape=(rows,))])

    class Wrong(Capsule):
        def __dlpack_device__(self) -> Any:
            return None

        def __dlpack__(self, stream: int | None = None) -> Any:
            raise KeyError("of theirs")

    refused("%x: its __dlpack_device__ is not understood", run, [Wrong(x)])
    Wrong.__dlpack_device__ = Capsule.__dlpack_device__  # type: ignore[method-assign]
    refused("%x: the array isn't handed over: 'of theirs'", run, [Wrong(x, dlpack.CUDA)])


def test_arrays_of_others_that_nobody_may_write() -> None:
    x = to_device(device(), np.arange(8, dtype=np.float32))
    run = engine(TIMES, TWICE)
    shown = Other(x, data=(x.address, True))
    for _ in range(2):
        run.call([shown], [Other(x)])
        refused("out: the array for %y is read-only", run, [shown], [shown])
        refused("out: the array for %y is read-only", run, [np.ones(8, np.float32)], [shown])
    run = engine("graph @main(%x: f32[N] inout, %y: f32[N]) { return }", LaunchStep("add", blocks(N), (parameter(0), parameter(1), N)))
    run.call([Other(x), np.ones(8, np.float32)])
    refused("%x is inout, but the array is read-only", run, [shown, np.ones(8, np.float32)])


def test_updates_that_share_memory() -> None:
    run = engine("graph @main(%x: f32[N] inout, %y: f32[N] inout) { return }", LaunchStep("add", blocks(N), (parameter(0), parameter(1), N)))
    x = to_device(device(), np.arange(8, dtype=np.float32))
    h = np.ones(8, np.float32)
    for _ in range(2):
        refused("%y and %x are inout, but their arrays share memory", run, [x, x])
        refused("%y and %x are inout, but their arrays share memory", run, [h, h])
        run.call([h, np.ones(8, np.float32)])
    h.flags.writeable = False
    refused("%x is inout, but the array is read-only", run, [h, np.ones(8, np.float32)])


def test_not_enough_memory() -> None:
    run = engine(TIMES, TWICE, arena=1 << 39)
    refused("needs a workspace of 549755813888 bytes, the limit is", run, [floats(1)])
    with pytest.raises(GraphError, match=r"not enough memory on .*: 35184372088832 bytes are needed"), device() as here:
        here.allocate(1 << 45)


def test_a_kernel_that_is_not_there() -> None:
    with pytest.raises(DriverError, match="CUDA_ERROR_NOT_FOUND"):
        engine_with(Kernel("nothing", "", (), 1))


def test_too_much_shared_memory() -> None:
    with pytest.raises(GraphError, match=r"kernel scale needs 240000 bytes of shared memory, a block of .* has \d+"):
        engine_with(Kernel("scale", "", (), 1, shared_bytes=240000))


def test_a_grid_that_is_too_large() -> None:
    run = engine(TIMES, LaunchStep("scale", (N * (1 << 30), 1, 1), (parameter(0), result(0), N, 2)), kernels=("scale",))
    refused("kernel scale: a grid of 4294967296 x 1 x 1 blocks is too large, the limit is 2147483647 x 65535 x 65535", run, [floats(1, 2, 3, 4)])


def engine_with(kernel: Kernel) -> Engine:
    graph = graph_opt.parse("graph @main() { return }").graphs["main"]
    return Engine(CudaProgram("main", SOURCE, (kernel,), (), (), (), (), (), 0, ()), graph, (), device())


# -- graphs, threads, lifetimes ----------------------------------------------------------------------------------------


def test_the_third_call_is_one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    run = engine(TIMES, TWICE)
    driver, seen = device().driver, []
    for name in ("launch", "launch_graph", "begin_capture", "copy_to_device", "copy_to_host"):
        original = getattr(driver, name)
        monkeypatch.setattr(driver, name, lambda *a, n=name, f=original: (seen.append(n), f(*a))[1])
    x, out = to_device(device(), floats(1, 2)), empty(device(), TensorType(f32, (2,)))
    seen.clear()
    for _ in range(2):
        run.call([x], [out])
    assert seen == ["launch", "begin_capture", "launch", "launch_graph"]
    seen.clear()
    assert run.quick([x], [out]) == [out]
    assert seen == ["launch_graph"]
    seen.clear()
    h = floats(1, 2)
    for _ in range(3):
        run.call([h])
    assert seen[-1] == "launch_graph" and seen.count("launch_graph") == 2  # copies of small arrays are part of the graph


def test_calls_that_are_used_are_kept() -> None:
    run = engine(TIMES, TWICE)
    x, out = to_device(device(), floats(1, 2)), empty(device(), TensorType(f32, (2,)))
    run.call([np.ones(200, np.float32)])  # memory for copies doesn't grow any more
    run.call([x], [out])
    for n in range(40):
        assert run.quick([x], [out]) == [out]
        run.call([np.ones(n, np.float32)])
    assert len(run._calls) == 16


def test_a_driver_that_captures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    run = engine(TIMES, TWICE)

    def refuse(stream: int) -> int:
        raise DriverError("cuStreamEndCapture", "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "no")

    monkeypatch.setattr(device().driver, "end_capture", refuse)
    run.call([floats(1)])
    with pytest.warns(UserWarning, match="can't be captured as a CUDA graph"):
        assert run.call([floats(2)])[0].tolist() == [4]
    assert run.call([floats(3)])[0].tolist() == [6]


def test_arrays_at_the_same_address_are_the_same_to_a_graph() -> None:
    """Of programs that follow each other the results of one are the arguments of the next: memory that is used again makes no new calls."""
    first, second = engine(TIMES, TWICE), engine(TIMES, TWICE)
    x = to_device(device(), floats(1, 2))
    for n in range(8):
        h = first.call([x])[0]
        y = second.quick([h]) or second.call([h])
        assert y[0].numpy().tolist() == [4, 8]
        if n > 4:
            assert second.quick([h]) is not None
    for value in range(30):
        fresh = to_device(device(), floats(value, 1))
        assert [y.numpy().tolist() for y in (first.call([fresh])[0], first.call([fresh])[0])] == [[2 * value, 2]] * 2
        other = to_device(device(), np.array([value, 1], np.int32))
        with pytest.raises(GraphError, match="the array is i32"):
            first.call([other])
        del fresh, other
    assert len(first._calls) <= 16


def test_results_outlive_the_engine() -> None:
    run = engine(TIMES, TWICE)
    y = run.call([to_device(device(), floats(1, 2))])[0]
    del run
    gc.collect()
    with device() as here:
        here.tidy()
    assert y.numpy().tolist() == [2, 4]


def test_memory_is_used_again() -> None:
    run = engine(TIMES, TWICE)
    x = to_device(device(), np.ones(5000, np.float32))
    for _ in range(3):
        run.call([x])
    before = device().reserved
    for _ in range(50):
        run.call([x])
    assert device().reserved == before


def test_memory_that_is_kept_is_given_back_when_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    here = device()
    kept = to_device(here, np.ones(123_457, np.float32))
    del kept
    driver, freed = here.driver, []
    original, free = driver.allocate, driver.free

    def scarce(size: int) -> int:
        if not freed:
            raise DriverError("cuMemAlloc", "CUDA_ERROR_OUT_OF_MEMORY", "out of memory")
        return original(size)

    monkeypatch.setattr(driver, "allocate", scarce)
    monkeypatch.setattr(driver, "free", lambda address: (freed.append(address), free(address)))
    assert to_device(here, np.ones(3_456_789, np.float32)).numpy().sum() == 3_456_789 and freed


def test_memory_that_others_have_seen_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = []
    original = device().driver.synchronize
    monkeypatch.setattr(device().driver, "synchronize", lambda: (waits.append(1), original())[1])
    size = 777_216
    block = to_device(device(), np.ones(size // 4, np.float32))
    address = block.address
    assert block.__cuda_array_interface__["data"] == (address, False)
    del block
    waits.clear()
    again = to_device(device(), np.ones(size // 4, np.float32))
    assert again.address == address and waits


def test_threads() -> None:
    run = engine(TIMES, CHECK, TWICE, kernels=("scale", "check"))
    wrong: list[Any] = []

    def work(value: int) -> None:
        for n in range(20):
            x = np.full(value + n, value, np.float32)
            y = run.call([x if n % 2 else to_device(device(), x)])[0]
            if np.asarray(y).tolist() != [2 * value] * (value + n):
                wrong.append((value, n))

    threads = [threading.Thread(target=work, args=(v,)) for v in range(1, 6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_an_interrupted_run_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    run = engine(TIMES, TWICE)
    run.call([floats(1)])

    def interrupt(stream: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(device().driver, "synchronize_stream", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run.call([floats(2)])
    assert run.call([floats(3)])[0].tolist() == [6]


def test_other_streams() -> None:
    run = engine(TIMES, TWICE)
    with device() as here:
        stream = here.driver.new_stream()
    x = to_device(device(), floats(1, 2))
    for s in (stream, None, stream, stream, None):
        y = run.call([x], None, s)[0]
        x = to_device(device(), y.numpy())
    assert x.numpy().tolist() == [32, 64]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_told() -> None:
    run = engine(TIMES, TWICE)
    x = to_device(device(), floats(1))
    read, write = os.pipe()
    held, done = threading.Event(), threading.Event()

    def call_in_another_thread() -> None:
        with run._lock:
            held.set()
            done.wait()

    other = threading.Thread(target=call_in_another_thread)
    other.start()
    held.wait()
    child = os.fork()
    if not child:
        signal.alarm(30)
        text = ""
        for attempt in (lambda: run.call([floats(1)]), lambda: run.quick([x]), x.numpy, lambda: open_device(NAME)):
            try:
                attempt()
            except GraphError as error:
                text += str(error) + "\n"
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    done.set()
    other.join()
    with os.fdopen(read) as file:
        text = file.read()
    assert text.count("CUDA was used before this process was forked") == 4 and "spawn" in text


# -- for other libraries -----------------------------------------------------------------------------------------------


@only_emulated
def test_dlpack_gives_the_memory_itself() -> None:
    x = to_device(device(), np.arange(6, dtype=np.float32).reshape(2, 3))
    seen = np.from_dlpack(x)  # type: ignore[arg-type]  # the emulated device's memory is the host's
    assert seen.shape == (2, 3) and seen.ctypes.data == x.address
    del x
    gc.collect()
    assert seen.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_capsule_that_nobody_takes() -> None:
    x = to_device(device(), np.ones(4, np.float32))
    before = len(dlpack._exported)
    capsule = x.__dlpack__()
    assert len(dlpack._exported) == before + 1
    del capsule
    assert len(dlpack._exported) == before
    taken = dlpack.Imported(x.__dlpack__())
    assert (taken.address, taken.shape, taken.strides, taken.dtype) == (x.address, (4,), (1,), f32)
    with pytest.raises(ValueError, match="no capsule"):
        dlpack.Imported(object())
    del taken
    assert len(dlpack._exported) == before


def test_element_types_that_others_do_not_know() -> None:
    import ml_dtypes

    x = to_device(device(), np.ones(4, ml_dtypes.bfloat16))
    assert not hasattr(x, "__cuda_array_interface__")
    assert dlpack.Imported(x.__dlpack__()).dtype_text == "DLPack's type 4 of 16 bits"
    with pytest.raises(BufferError, match="without a copy"):
        x.__dlpack__(copy=True)


def test_device_arrays() -> None:
    x = to_device(device(), np.arange(6).reshape(2, 3))
    assert (x.shape, x.dtype, x.ndim, x.size, x.nbytes, len(x)) == ((2, 3), np.dtype(np.int64), 2, 6, 48, 2)
    assert repr(x) == f"DeviceArray(i64[2, 3], {NAME})" and np.asarray(x, np.float32).dtype == np.float32
    x.copy_from(np.zeros((2, 3), np.int64))
    assert x.numpy().sum() == 0
    with pytest.raises(GraphError, match="is i64"):
        x.copy_from(np.zeros((3, 2), np.int64))
    with pytest.raises(GraphError, match="not supported"):
        to_device(device(), np.array("x"))
    with pytest.raises(GraphError, match="this is no array"):
        to_device(device(), [[1], [1, 2]])
    with pytest.raises(TypeError, match="can't be pickled"):
        copy.deepcopy(x)
    for shape, dtype, message in (("ab", "f32", "expected integers"), (3, "f32", "expected integers"), ((3,), "junk", "dtype: data type 'junk'")):
        with pytest.raises(GraphError, match=message):
            cuda.empty(shape, dtype, NAME)  # type: ignore[arg-type]
    for name in (None, 5, "cudax"):
        with pytest.raises(GraphError, match="there is no device"):
            open_device(name)  # type: ignore[arg-type]
    assert ctypes.sizeof(ctypes.c_void_p) == 8
