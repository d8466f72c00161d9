"""Our side: a program compiled for the device, with arrays there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import graph_opt
from bench.gpu.peer import Torch
from bench.gpu.work import Array, Input, Work
from codegen.cuda.arrays import DeviceArray, empty
from codegen.cuda.device import Device
from graph_opt.cuda import CudaExecutable
from ir.types import DTYPES, TensorType

L2_BYTES = 64 << 20
"""What is taken for the size of the L2 cache where torch doesn't say it: no card of today has much more."""
SETS = 12
"""Sets of arrays at most: programs keep the calls of 16 patterns."""
_PIECE = 1 << 22


def array(device: Device, given: Input, seed: int, torch: Torch | None) -> DeviceArray:
    """Random numbers on the device; made by torch there, or by numpy, whose numbers then repeat in large arrays."""
    made = empty(device, TensorType(DTYPES[given.dtype], given.shape))
    if torch is not None and not device.driver.emulated:
        torch.fill(made, given.scale, given.mean, seed)
        return made
    size = math.prod(given.shape)
    numbers = np.random.default_rng(seed).standard_normal(min(size, _PIECE), np.float32) * np.float32(given.scale) + np.float32(given.mean)
    made.copy_from(np.resize(numbers, given.shape).astype(made.dtype))
    return made


class Prepared:
    """A work with as many sets of arrays as exceed the L2 cache four times, so that each call finds its data in memory."""

    def __init__(self, work: Work, device: Device, torch: Torch | None) -> None:
        self.work = work
        self.device = device
        program = graph_opt.compile(graph_opt.parse(work.text, f"<{work.name}>"), device=device.name)
        assert isinstance(program, CudaExecutable)
        self.program = program
        cache = 0 if device.driver.emulated else (torch.cache_bytes if torch is not None else 0) or L2_BYTES
        self.sets = max(1, min(SETS, math.ceil(4 * cache / work.nbytes)))
        self.inputs = [[array(device, x, 100 * n + i, torch) for i, x in enumerate(work.inputs)] for n in range(self.sets)]
        types = [a.type for a in program.engine.program.results]
        self.results = [tuple(empty(device, t) for t in types if isinstance(t, TensorType)) for _ in range(self.sets)]

    def call(self, n: int) -> None:
        """Runs on the n-th set."""
        at = n % self.sets
        self.program(*self.inputs[at], out=self.results[at])

    def warm(self) -> None:
        """Three calls on each set: the third one is a replayed graph."""
        for n in range(3 * self.sets):
            self.call(n)

    def computed(self) -> list[Array]:
        """The results on the first set, on the host; bf16 as float."""
        return [np.asarray(r.numpy(), np.float32) for r in self.results[0]]

    def given(self) -> list[Array]:
        """The first set of inputs, in double."""
        return [np.asarray(x.numpy(), np.float64) for x in self.inputs[0]]

    @property
    def launches(self) -> int:
        """Kernels of one call."""
        return len(self.program.engine.profile(self.inputs[0], list(self.results[0])))

    def copying(self) -> tuple[Sequence[DeviceArray], Any]:
        """Arrays to hold, and what copies within the device, by the driver, as many bytes as the work has to move (half are read)."""
        size = int(self.work.nbytes) // 2
        pairs = [[empty(self.device, TensorType(DTYPES["u8"], (size,))) for _ in range(2)] for _ in range(self.sets)]
        driver, stream = self.device.driver, self.device.stream

        def copy(n: int) -> None:
            source, target = pairs[n % len(pairs)]
            driver.copy_on_device(target.address, source.address, size, stream)

        return [a for pair in pairs for a in pair], copy
