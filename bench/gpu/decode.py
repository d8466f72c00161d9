"""Generating tokens one by one, the most probable each time: two replayed graphs a token, beside torch.compile with its own graphs."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import graph_opt
from bench.gpu.llama import SMOLLM2, TINY, WIDTHS, Shape, TorchLlama, choosing, tensors, text, weights, write_safetensors
from bench.gpu.measure import Bench, compare, first_line
from bench.gpu.row import Row
from bench.gpu.timing import Timing
from bench.gpu.work import COMPILED, EAGER, OURS, Array, Wanted
from codegen.cuda.arrays import DeviceArray, empty, to_device, zeros
from codegen.cuda.device import Device
from graph_opt.cuda import CudaExecutable
from ir.types import DTYPES, TensorType

TOKENS, START = 128, 256
"""Tokens of a block, and the position that it begins at."""
FIRST = 5
"""The first token."""
WANTED = Wanted(COMPILED, 2.0)
ALLOWED = 1e-4
"""How far logits may be apart, of the largest.  They are compared with those that torch computes in f32 of the same weights; what is timed
computes everything in bf16 where the weights are."""


def span(shape: Shape) -> tuple[int, int]:
    """The position that a block of tokens begins at, and how many they are; fewer where the caches are small."""
    return min(START, shape.capacity // 2), min(TOKENS, shape.capacity // 4)


def decode_rows(tiny: bool) -> list[Row]:
    """A row for each type of weights; times are those of a token."""
    shape = TINY if tiny else SMOLLM2
    name = "tiny" if tiny else "SmolLM2-135M's shape"
    return [Row(f"decode {d}, {name}", "decode", float(shape.parameters * WIDTHS[d]), 2.0 * shape.parameters, WANTED) for d in WIDTHS]


class Decoder:
    """Our two programs with what they keep on the device; positions go from one array to another and back."""

    def __init__(self, device: Device, shape: Shape, dtype: str, file: Path) -> None:
        self.device = device
        model = graph_opt.compile(graph_opt.parse(text(shape, dtype), "<decode>"), "main", device=device.name, files={"model": file})
        chooser = graph_opt.compile(graph_opt.parse(choosing(shape), "<choose>"), device=device.name)
        assert isinstance(model, CudaExecutable) and isinstance(chooser, CudaExecutable)
        self.model, self.chooser = model, chooser
        cache = TensorType(DTYPES["f32"], (shape.kv_heads, shape.capacity, shape.head))
        self.caches = [zeros(device, cache) for _ in range(2 * shape.layers)]
        self.logits = (empty(device, TensorType(DTYPES["f32"], (shape.vocabulary,))),)
        self.ids = to_device(device, np.zeros(1, np.int64))
        self.positions = [to_device(device, np.zeros((), np.int64)) for _ in range(2)]

    def begin(self, token: int, position: int) -> None:
        """The next token that goes in, and where."""
        self.ids.copy_from(np.array([token]))
        self.positions[0].copy_from(np.array(position))

    def forward(self, n: int) -> DeviceArray:
        """The logits of the n-th token since :meth:`begin`."""
        self.model(self.ids, self.positions[n % 2], *self.caches, out=self.logits)
        return self.logits[0]

    def step(self, n: int) -> None:
        """The n-th token since :meth:`begin`, and the choice of the next one."""
        self.forward(n)
        self.chooser(self.logits[0], self.positions[n % 2], out=(self.ids, self.positions[1 - n % 2]))

    def tokens(self, count: int) -> list[int]:
        """The next tokens, looked at one by one."""
        found = []
        for n in range(count):
            self.step(n)
            found.append(int(self.ids.numpy()[0]))
        return found


def measure_decode(bench: Bench, row: Row, dtype: str, tiny: bool) -> None:
    """Compares logits, then times blocks of tokens in turns."""
    shape = TINY if tiny else SMOLLM2
    given = weights(shape, dtype)
    with tempfile.TemporaryDirectory(prefix="graph-opt-bench-") as folder:
        file = Path(folder) / "model.safetensors"
        write_safetensors(file, given)
        ours = Decoder(bench.device, shape, dtype, file)
        if bench.emulated:
            _beside_machine_code(row, ours, shape, dtype, file)
    works: dict[str, Callable[[], object]] = {OURS: lambda: _block(ours, *span(shape))}
    for name in bench.peers(row, (EAGER, COMPILED)):
        assert bench.torch is not None
        try:
            works[name] = _beside_torch(bench, row, ours, shape, dtype, given, name)
        except Exception as error:  # torch's compiler fails in many ways, and is not what is measured here
            row.notes.append(f"{name} is left out: {type(error).__name__}: {first_line(error)}")
    if bench.emulated:
        return
    row.timings = {name: Timing() for name in works}
    for work in works.values():
        work()
    for _ in range(max(3, bench.plan.rounds // 2)):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            row.timings[name].blocks.append((time.perf_counter() - start) / span(shape)[1])
    row.notes.append(", ".join(f"{name} {1 / t.median:.0f} tokens/s" for name, t in row.timings.items()))


def _block(ours: Decoder, start: int, count: int) -> None:
    ours.begin(FIRST, start)
    for n in range(count):
        ours.step(n)
    with ours.device:
        ours.device.driver.synchronize_stream(ours.device.stream)


def _beside_machine_code(row: Row, ours: Decoder, shape: Shape, dtype: str, file: Path) -> None:
    """The same tokens as the CPU's code."""
    native = graph_opt.compile(graph_opt.parse(text(shape, dtype), "<decode>"), "main", files={"model": file})
    caches = [np.zeros((shape.kv_heads, shape.capacity, shape.head), np.float32) for _ in range(2 * shape.layers)]
    wanted: list[int] = []
    token = FIRST
    for position in range(6):
        logits: Array = np.asarray(native(np.array([token]), np.array(position), *caches))
        token = int(logits.argmax())
        wanted.append(token)
    ours.begin(FIRST, 0)
    found = ours.tokens(6)
    compare(row, [ours.logits[0].numpy()], [logits], 1e-5, "machine code")
    if found != wanted:
        row.bad = True
        row.notes.append(f"tokens are {found}, machine code has {wanted}")
    row.notes.append(f"emulated, tokens {found}")


def _beside_torch(bench: Bench, row: Row, ours: Decoder, shape: Shape, dtype: str, given: dict[str, Array], how: str) -> Callable[[], object]:
    """A block of torch's tokens, after its logits were compared with ours."""
    assert bench.torch is not None
    torch = bench.torch.torch
    where = "cpu" if bench.emulated else f"cuda:{bench.device.driver.number}"
    model = TorchLlama(torch, shape, dtype, tensors(torch, given, where), where)
    if how == EAGER:
        exact = TorchLlama(torch, shape, "f32", tensors(torch, given, where), where)
        ids, position = torch.tensor([FIRST], device=where), torch.tensor([0], device=where)
        ours.begin(FIRST, 0)
        for n in range(4):
            expected = bench.torch.numpy(exact.logits(ids, position))
            compare(row, [ours.forward(n).numpy()], [expected], ALLOWED, "torch")
            ours.step(n)
            ids, position = torch.tensor([int(ours.ids.numpy()[0])], device=where), position + 1
    step = model.step if how == EAGER else torch.compile(model.step, mode="reduce-overhead", dynamic=False, fullgraph=True)
    start, count = span(shape)

    def block() -> Any:
        ids, position = torch.tensor([FIRST], device=where), torch.tensor([start], device=where)
        for _ in range(count):
            torch.compiler.cudagraph_mark_step_begin()
            ids, position = step(ids, position)
            if how == COMPILED and not bench.emulated:  # what a graph gives is overwritten when it is replayed
                ids, position = ids.clone(), position.clone()
        return ids.tolist()

    block()
    skipped = torch._dynamo.utils.counters["inductor"]["cudagraph_skips"]
    if how == COMPILED and not bench.emulated and skipped:
        row.notes.append(f"torch.compile left out {skipped} CUDA graphs")
    return block
