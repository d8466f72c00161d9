"""What a call costs the host, where the kernel does almost nothing: a replayed graph beside an empty kernel and beside torch."""

from __future__ import annotations

import time
from collections.abc import Callable

import graph_opt
from bench.gpu.measure import Bench, compare
from bench.gpu.ours import array
from bench.gpu.row import Row
from bench.gpu.timing import Timing
from bench.gpu.work import EAGER, OURS, Input, Wanted
from codegen.cuda.arrays import empty
from codegen.cuda.driver import Packed
from graph_opt.cuda import CudaExecutable
from ir.types import DTYPES, TensorType

CALLS = 300
SIZE = 1024
EMPTY = '#include "graph_opt_device.h"\n\nextern "C" __global__ void __launch_bounds__(32)\nnothing(float *x)\n{\n}\n'
ADD = f"graph @main(%x: f32[{SIZE}], %y: f32[{SIZE}]) -> f32[{SIZE}] {{\n  %z = add(%x, %y)\n  return %z\n}}\n"
EMPTY_LAUNCH, EMPTY_GRAPH, TORCH_GRAPH = "empty kernel", "graph of an empty kernel", "torch, graph"
WANTED = Wanted("", 10.0)


def launch_rows() -> list[Row]:
    """A row for calls in a row, until all are done; one until the host may go on; one for a call that is waited for."""
    return [
        Row(f"add f32[{SIZE}], calls in a row", "launch", wanted=WANTED),
        Row(f"add f32[{SIZE}], the host alone", "launch", wanted=WANTED),
        Row(f"add f32[{SIZE}], a call and waiting for it", "launch"),
    ]


def measure_launches(bench: Bench, rows: list[Row]) -> None:
    """Fills the three rows."""
    device, driver, torch = bench.device, bench.device.driver, bench.torch
    program = graph_opt.compile(graph_opt.parse(ADD, "<add>"), device=device.name)
    assert isinstance(program, CudaExecutable)
    type_ = TensorType(DTYPES["f32"], (SIZE,))
    x, y, z = array(device, Input((SIZE,)), 1, torch), array(device, Input((SIZE,)), 2, torch), empty(device, type_)
    out = (z,)
    for _ in range(3):
        program(x, y, out=out)
    for row in rows:
        compare(row, [z.numpy()], [x.numpy() + y.numpy()], 0.0, "numpy")
    works: dict[str, Callable[[], object]] = {OURS: lambda: program(x, y, out=out)}
    with device:
        module = driver.load_module(driver.build(EMPTY))
        function, arguments = driver.function(module, "nothing"), Packed([x.address])
        works[EMPTY_LAUNCH] = lambda: driver.launch(function, (1, 1, 1), 32, 0, device.stream, arguments)
        driver.begin_capture(device.capture_stream)
        driver.launch(function, (1, 1, 1), 32, 0, device.capture_stream, arguments)
        graph = driver.end_capture(device.capture_stream)
        works[EMPTY_GRAPH] = lambda: driver.launch_graph(graph, device.stream)
        if torch is not None and not bench.emulated:
            a, b, c = (torch.view(t) for t in (x, y, z))
            works[EAGER] = lambda: torch.torch.add(a, b, out=c)
            calls, _ = torch.prepared(lambda t, a, b: t.add(a, b), [(x, y)], EAGER)
            works[TORCH_GRAPH] = calls[0]
        for work in works.values():
            work()
        driver.synchronize_stream(device.stream)
        if not bench.emulated:
            _time(bench, rows, works)
        driver.destroy_graph(graph)
        driver.unload_module(module)


def _time(bench: Bench, rows: list[Row], works: dict[str, Callable[[], object]]) -> None:
    """By the host's clock, in turns."""
    driver, stream = bench.device.driver, bench.device.stream
    for row in rows:
        row.timings = {name: Timing() for name in works}
    for _ in range(bench.plan.rounds):
        for name, work in works.items():
            start = time.perf_counter()
            for _ in range(CALLS):
                work()
            alone = time.perf_counter() - start
            driver.synchronize_stream(stream)
            rows[0].timings[name].blocks.append((time.perf_counter() - start) / CALLS)
            rows[1].timings[name].blocks.append(alone / CALLS)
            start = time.perf_counter()
            for _ in range(CALLS):
                work()
                driver.synchronize_stream(stream)
            rows[2].timings[name].blocks.append((time.perf_counter() - start) / CALLS)
