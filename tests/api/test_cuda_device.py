"""Kernels behind the public interface, on the emulated device: the answers and the words of machine code; arrays of the device; commands."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import graph_opt
from codegen.cuda.drivers import open_driver
from graph_opt.build import default_pipeline
from graph_opt.cli import main
from graph_opt.cuda import CudaExecutable, DeviceArray, empty, stream_handle, to_device
from tests.cuda.device import DEVICE, needs_device, only_emulated

pytestmark = needs_device
f = np.float32


def both(text: str, **options: Any) -> tuple[graph_opt.Executable, CudaExecutable]:
    """The program as machine code and as kernels."""
    module = graph_opt.parse(text)
    kernels = graph_opt.compile(module, device=DEVICE, **options)
    assert isinstance(kernels, CudaExecutable)
    return graph_opt.compile(module, **options), kernels


def exact(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(f)


LAYER = """graph @main(%x: f32[M, 8], %w: f32[8, 16], %b: f32[16]) -> (y: f32[M, 16], most: f32[M]) where M <= 64 {
  %p = matmul(%x, %w)
  %s = add(%p, %b)
  %y = relu(%s)
  %most = max(%y, axes=[1])
  return %y, %most
}
"""


@pytest.fixture(scope="module")
def layer() -> tuple[graph_opt.Executable, CudaExecutable]:
    return both(LAYER)


def test_the_same_bits_as_machine_code(layer: tuple[graph_opt.Executable, CudaExecutable]) -> None:
    native, kernels = layer
    w, b = exact(8, 16), exact(16)
    for m in (0, 1, 5, 5, 5, 33, 5):
        x = exact(m, 8, seed=m)
        for got, wanted in zip(kernels(x, w, b=b), native(x, w, b), strict=True):
            assert type(got) is np.ndarray and got.tobytes() == wanted.tobytes() and got.shape == wanted.shape


def test_arrays_of_the_device_go_in_and_out(layer: tuple[graph_opt.Executable, CudaExecutable]) -> None:
    native, kernels = layer
    x, w, b = exact(5, 8), exact(8, 16), exact(16)
    wanted = native(x, w, b)
    there = [to_device(a, DEVICE) for a in (x, w, b)]
    results = kernels(*there)
    assert all(isinstance(r, DeviceArray) and r.numpy().tolist() == v.tolist() for r, v in zip(results, wanted, strict=True))
    mixed = kernels(there[0], w, there[2])
    assert isinstance(mixed[0], DeviceArray) and mixed[0].numpy().tolist() == wanted[0].tolist()
    out = empty((5, 16), device=DEVICE), np.zeros(5, f)
    for _ in range(3):
        given = kernels(*there, out=out)
        assert given[0] is out[0] and given[1] is out[1] and out[0].numpy().tolist() == wanted[0].tolist() and out[1].tolist() == wanted[1].tolist()
    assert kernels.to_device(x).numpy().tolist() == x.tolist() and kernels.device.name == DEVICE


def test_the_words_of_machine_code(layer: tuple[graph_opt.Executable, CudaExecutable]) -> None:
    def said(program: graph_opt.Executable, *args: Any, **options: Any) -> str:
        with pytest.raises(graph_opt.GraphError) as caught:
            program(*args, **options)
        return str(caught.value)

    x, w, b = exact(5, 8), exact(8, 16), exact(16)
    for args, options in [
        ((x, w), {}),
        ((x, w, b, b), {}),
        ((x, w, b), {"x": x}),
        ((x, w), {"c": b}),
        ((x, w, exact(15)), {}),
        ((x, w.astype(np.float64), b), {}),
        ((exact(65, 8), w, b), {}),
        ((x, "text", b), {}),
        ((x, w, np.ma.masked_array(b, b > 0)), {}),
        ((x, w, b), {"out": np.zeros(5, f)}),
        ((x, w, b), {"out": (np.zeros((5, 16), f), "text")}),
        ((x, w, b), {"out": (np.zeros((5, 16), f), np.zeros(4, f))}),
    ]:
        native, kernels = (said(p, *args, **options) for p in layer)
        assert native == kernels
    assert "stream: expected a stream, or its handle, found str" in said(layer[1], x, w, b, stream="text")
    assert "stream: -1 is no handle of a stream" in said(layer[1], x, w, b, stream=-1)
    assert "stream: its __cuda_stream__ is not understood" in said(layer[1], x, w, b, stream=SimpleNamespace(__cuda_stream__=()))
    assert "%w is f32[8, 16], but the array is i64[3]" in said(layer[1], to_device(x, DEVICE), to_device(np.arange(3), DEVICE), b)


def test_streams_of_others() -> None:
    class Protocol:
        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, 7

    for stream in (7, Protocol(), SimpleNamespace(cuda_stream=7), SimpleNamespace(ptr=7), SimpleNamespace(handle=7)):
        assert stream_handle(stream) == 7


GATHER = """graph @main(%t: f32[V, 4], %i: i64[N]) {
  %y = gather(%t, %i, axis=0)
  print(%y, label="rows")
  return %y
}
"""


def test_failures_and_prints(capsys: pytest.CaptureFixture[str]) -> None:
    native, kernels = both(GATHER)
    table = exact(3, 4)
    for indices in ([0, 5, -9], [2, -1], [3], []):
        told = []
        for program in (native, kernels):
            try:
                told.append(program(table, np.array(indices, np.int64)).tobytes())
            except graph_opt.GraphError as error:
                told.append(str(error))
            told.append("".join(capsys.readouterr()))
        assert told[:2] == told[2:]


def test_updates_weights_and_constants(tmp_path: Path) -> None:
    np.savez(tmp_path / "w.npz", w=exact(4))
    text = """file @w = "w.npz"
graph @main(%x: f32[1, 4], %cache: f32[T, 4] inout, %at: i64[], %bias: f32[4]) {
  %w = weight(@w, "w") : f32[4]
  %p = mul(%x, %w)
  %q = add(%p, %bias)
  %after = cache_update(%cache, %q, %at)
  %s = sum(%after, axes=[0])
  return %s
}
"""
    (tmp_path / "p.graph").write_text(text)
    options: dict[str, Any] = {"constants": {"bias": exact(4, seed=1)}}
    native = graph_opt.compile(tmp_path / "p.graph", **options)
    kernels = graph_opt.compile(tmp_path / "p.graph", device=DEVICE, **options)
    here, host = np.ones((5, 4), f), np.ones((5, 4), f)
    there = to_device(host, DEVICE)
    for n in range(5):
        x = exact(1, 4, seed=n)
        wanted = native(x, here, n).tolist()
        assert kernels(x, host, n).tolist() == wanted and kernels(x, there, np.int64(n)).numpy().tolist() == wanted
        assert here.tolist() == host.tolist() == there.numpy().tolist()
    for cache in (host, there):
        with pytest.raises(graph_opt.GraphError, match=r"cache_update: .*position 5"):
            kernels(x, cache, 5)
        assert np.asarray(cache).tolist() == here.tolist()
    with pytest.raises(graph_opt.GraphError, match="%cache is inout: it takes a numpy array, found list"):
        kernels(x, [[1.0, 2.0, 3.0, 4.0]], 0)


def test_types_of_each_call_and_element_types() -> None:
    module = graph_opt.parse("graph @main(%out, %stream) { %z = add(%out, %stream) return %z }".replace("%out, %stream)", "%out: ?, %stream: ?)", 1))
    kernels = graph_opt.compile(module, device=DEVICE)
    for dtype in (f, np.float64, np.int32, ml_dtypes.bfloat16):
        x = np.arange(6).astype(dtype).reshape(2, 3)
        assert kernels(x, stream=x).tolist() == (x + x).tolist()
        there = kernels(to_device(x, DEVICE), x)
        assert isinstance(there, DeviceArray) and there.dtype == x.dtype and there.numpy().tolist() == (x + x).tolist()


def test_devices_that_are_none() -> None:
    module = graph_opt.parse("graph @main(%x: f32[4]) { %y = neg(%x) return %y }")
    with pytest.raises(graph_opt.GraphError, match="there is no device 'cuda:x'\n  hint: devices: cpu, cuda, reference"):
        graph_opt.compile(module, device="cuda:x")
    with pytest.raises(graph_opt.GraphError, match="threads: expected 0 or 1, found 4: they are threads of device 'cpu'"):
        graph_opt.compile(module, device=DEVICE, threads=4)
    with pytest.raises(graph_opt.GraphError, match="arrays of complex64 are not supported"):
        empty((2,), np.complex64, DEVICE)
    assert empty((2, 3), "bf16", DEVICE).dtype == ml_dtypes.bfloat16


@only_emulated
def test_older_devices_get_other_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    module = graph_opt.parse(LAYER)
    driver = open_driver(DEVICE)
    assert default_pipeline(module, DEVICE) == "cuda"
    monkeypatch.setattr(driver, "properties", replace(driver.properties, capability=(7, 5)))
    assert default_pipeline(module, DEVICE) == "cuda-sm75"


# -- commands ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "p.graph"
    path.write_text(LAYER)
    return path


def test_run(program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for device in (DEVICE, "cpu"):
        assert main(["run", str(program), "--device", device, "--output", f"most={tmp_path / device}.npy"]) == 0
    assert np.load(tmp_path / f"{DEVICE}.npy").tobytes() == np.load(tmp_path / "cpu.npy").tobytes()
    assert main(["run", str(program), "--device", "cuda0"]) == 2
    assert "there is no device 'cuda0' (did you mean 'cuda'?)" in capsys.readouterr().err
    assert main(["run", str(program), "--device", DEVICE, "--threads", "2"]) == 2
    assert "--threads is for --device cpu" in capsys.readouterr().err


@only_emulated
def test_bench_of_an_emulated_device_tells_no_speed(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["bench", str(program), "--device", DEVICE, "--dims", "M=5"]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert "emulated: kernels ran on the CPU" in text and "matmul" in text and "GFLOP/s" not in text and " us" not in text and " ms" not in text
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["label"] == "emulated" and found["launches"] and "seconds" not in json.dumps(found)
    assert sum(row["flops"] for row in found["launches"]) == found["call"]["flops"]
    assert main(["bench", str(program), "--device", "reference"]) == 2
