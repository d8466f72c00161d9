"""What this machine can do: multiply-adds on registers, and reading from caches and memory, measured by code of our own.

A :class:`Meter` takes samples of some milliseconds each, so that a benchmark can put one into each of its rounds: what the clock or a
neighbour takes from the work, it then takes from the limits too.  :func:`measure` is for a single look.

    limits = measure(threads=1)
    seconds, bound = limits.time(flops=2 * 512**3, nbytes=3 * 4 * 512**2)    # a product; bound is "f32", "L2", "L3" or "DRAM"

A piece of work can't be faster than its operations at the peak, nor than its bytes at the bandwidth of the level that holds them:
L2 up to 512 KB, L3 up to 24 MB, else memory ("DRAM").

The peak is that of multiply-adds on registers.  Processors that lower their clock for heavy work may do so earlier where multiply-adds
load what they multiply, as a product must; so there is the rate of a block of a product in the nearest cache too (:data:`LOADS`).
"""

from __future__ import annotations

import ctypes
import os
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from codegen.llvm.clock import tick, tick_function
from codegen.llvm.jit import Code, host, host_attributes
from codegen.runtime.abi import MAIN
from codegen.runtime.pages import aligned_bytes
from codegen.runtime.processors import affinity

LEVELS = {"L2": 512 << 10, "L3": 24 << 20}
"""The largest working set, in bytes, that counts as held by a level; what is larger is in "DRAM"."""

LOADS = "f32_loads"
"""The name of multiply-adds of f32 whose factors come from the nearest cache, as a block of a product reads them."""

_MEMORY = 512 << 20  # samples of DRAM go through it window by window, so that no cache holds what is read next
READ = {"L1": 16 << 10, "L2": 256 << 10, "L3": 8 << 20, "DRAM": 16 << 20}
"""The bytes that a sample of each level reads: of L1 and L2 each thread reads so many, of L3 and DRAM all together do."""

_BEYOND_L2 = 4 << 20  # of L3 each thread reads so many at least

_SECONDS = 1e-3  # of a sample


def level_of(nbytes: float) -> str:
    """The level that holds so many bytes."""
    return next((level for level, size in LEVELS.items() if nbytes <= size), "DRAM")


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of this machine for a number of threads, together.

    ``peak`` are operations per second (a multiply-add is two) by element type, ``read`` bytes per second by level.
    """

    threads: int
    peak: dict[str, float]
    read: dict[str, float]

    def time(self, flops: float, nbytes: float, dtype: str = "f32", dots: Mapping[int, float] | None = None) -> tuple[float, str]:
        """The least seconds that so many operations on so many bytes take, and what bounds them: a type or a level.

        ``dots`` are those of the operations that are done with digits, by the number of digits: they take so many times as many at the
        peak of "i8", where that has been measured; else they count as the others.
        """
        level = level_of(nbytes)
        times = {dtype: flops / self.peak[dtype]}
        if dots and "i8" in self.peak:
            times[dtype] = (flops - sum(dots.values())) / self.peak[dtype]
            times["i8"] = sum(digits * part for digits, part in dots.items()) / self.peak["i8"]
        slowest = max(times, key=lambda name: times[name])
        return max((sum(times.values()), slowest), (nbytes / self.read[level], level))


def measure(threads: int = 1, rounds: int = 15) -> Limits:
    """All limits, as the medians of ``rounds`` samples."""
    meter = Meter(threads, dtypes=(*host_dtypes(), LOADS))
    for _ in range(rounds):
        meter.sample()
    return meter.limits()


@dataclass(frozen=True, slots=True)
class _Probe:
    """One quantity: ``work`` is what one step of ``kernel`` does on each thread, in operations or bytes; ``nbytes`` what each thread reads."""

    name: str
    kernel: str
    work: int
    nbytes: int


@dataclass
class Meter:
    """Samples the limits for ``threads`` threads.

    ``levels`` are the levels to read from, all unless said: without "DRAM" no large memory is taken.  ``dtypes`` are the types of
    multiply-adds, among those that :func:`host_dtypes` gives, and :data:`LOADS`.  With ``stream`` so many bytes of memory are read from
    the first to the last, again in every sample, with prefetches (the sample "stream"): what a program could reach that reads its weights
    once.  That is the limit of "DRAM" then, where it is more.
    """

    threads: int = 1
    levels: Sequence[str] = tuple(READ)
    dtypes: Sequence[str] = ("f32",)
    stream: int = 0
    samples: dict[str, list[float]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        size, self._code = _kernels()
        shape = _Shape.of_host()
        peaks = {"f32": shape.flops, LOADS: shape.flops, **{dot.dtype: dot.flops for dot in _dots()}}
        reads = {LOADS: READ["L1"] // shape.block_bytes * shape.block_bytes}
        self._probes = [_Probe(dtype, f"peak_{dtype}", peaks[dtype], reads.get(dtype, size)) for dtype in self.dtypes]
        for level in self.levels:
            share = READ[level] // (self.threads if level in ("L3", "DRAM") else 1)
            nbytes = max(share, _BEYOND_L2) if level == "L3" else share
            self._probes.append(_Probe(level, "read", size, nbytes // size * size))
        if self.stream:
            self._probes += [_Probe("stream", kernel, size, max(self.stream // self.threads // size, 1) * size) for kernel in _STREAMS]
        self._memory = _filled(_MEMORY if "DRAM" in self.levels else max(p.nbytes for p in self._probes) * self.threads)
        self._job = np.zeros(2, np.int64)
        self._state = aligned_bytes(64 * (self.threads + 1))
        self._window = 0
        self._ticks = ctypes.CFUNCTYPE(ctypes.c_int64)(self._code.address("ticks"))
        self._born: tuple[float, int] = time.perf_counter(), self._ticks()
        self._others = self._threads() if self.threads > 1 else None
        self._keep_fastest("stream")
        self._steps = {p.name: self._calibrated(p) for p in self._probes}

    def _threads(self) -> ThreadPoolExecutor:
        """The other threads, each on a processor of its own where there are enough."""
        processors = affinity()
        free = processors[1 : self.threads] if len(processors) >= self.threads else []
        return ThreadPoolExecutor(self.threads - 1, "limits", _stay, (free,))

    def _keep_fastest(self, name: str) -> None:
        """Of the kernels that could measure one quantity keeps the one that is fastest here."""
        forms = [p for p in self._probes if p.name == name]
        times = {p: min(self._seconds(p, self._once(p)) for _ in range(4)) for p in forms}
        best = min(forms, default=None, key=lambda p: times[p])
        self._probes = [p for p in self._probes if p.name != name or p is best]

    def sample(self) -> None:
        """Measures every limit once, for about a millisecond each."""
        processors = affinity()
        if self._others and len(processors) >= self.threads:
            os.sched_setaffinity(0, processors[:1])
        try:
            self._sample()
        finally:
            if self._others and processors:
                os.sched_setaffinity(0, processors)

    def _sample(self) -> None:
        for probe in self._probes:
            if probe.name not in ("DRAM", "stream"):
                self._seconds(probe, self._once(probe))  # fills the caches
            steps = self._steps[probe.name]
            seconds = self._seconds(probe, steps)
            self.samples.setdefault(probe.name, []).append(probe.work * steps * self.threads / seconds)

    def limits(self, choose: Callable[[list[float]], float] = statistics.median) -> Limits:
        """The limits that the samples give: their medians, or what else ``choose`` makes of a list (``max`` for the best)."""
        rates = {name: choose(found) for name, found in self.samples.items()}
        read = {level: rates[level] for level in self.levels}
        if "DRAM" in read:
            read["DRAM"] = max(read["DRAM"], rates.get("stream", 0.0))
        return Limits(self.threads, {dtype: rates[dtype] for dtype in self.dtypes}, read)

    def _once(self, probe: _Probe) -> int:
        """Steps that go through everything once."""
        return probe.nbytes // probe.work if probe.kernel in ("read", *_STREAMS) else 1024

    def _calibrated(self, probe: _Probe) -> int:
        """Steps that take long enough; a sample of memory is one window, which nobody has read lately."""
        once = self._once(probe)
        if probe.name in ("DRAM", "stream"):
            return once
        self._seconds(probe, once)
        times = 1
        while (seconds := self._seconds(probe, once * times)) < _SECONDS / 4:
            times *= 2
        return once * max(1, round(times * _SECONDS / seconds))

    def _next_window(self, nbytes: int) -> int:
        self._window = (self._window + nbytes) % (_MEMORY - nbytes)
        return self._window

    def _seconds(self, probe: _Probe, steps: int) -> float:
        """How long all threads take for so many steps each, from the first one's start to the last one's end."""
        start = self._next_window(probe.nbytes * self.threads) if probe.name == "DRAM" else 0
        self._job[:] = steps, probe.nbytes
        self._state.fill(0)
        main = MAIN(self._code.address(probe.kernel))
        arguments = (self._memory.ctypes.data + start, self._job.ctypes.data, 0, self._state.ctypes.data)
        others = [self._others.submit(main, *arguments, thread, self.threads) for thread in range(1, self.threads)] if self._others else []
        main(*arguments, 0, self.threads)
        for other in others:
            other.result()
        times = self._state[64 : 64 * (self.threads + 1)].view(np.int64).reshape(self.threads, 8)
        return float(times[:, 1].max() - times[:, 0].min()) * self._tick()

    def _tick(self) -> float:
        """Seconds of a tick of the processor's clock, the more exact the older the meter is."""
        ticks: int = self._ticks() - self._born[1]
        return (time.perf_counter() - self._born[0]) / ticks


def _stay(processors: list[int]) -> None:
    """Binds the calling thread to the last processor of the list, and takes that out."""
    if processors:
        os.sched_setaffinity(threading.get_native_id(), {processors.pop()})


def _filled(size: int) -> Any:
    memory = aligned_bytes(size)
    memory[:size].view(np.float32).fill(1.0)
    return memory


# -- the code ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Shape:
    """The vectors of a machine, and how many chains of multiply-adds keep its units busy within its registers."""

    lanes: int
    chains: int
    fused: bool

    @property
    def flops(self) -> int:
        """Operations of one step."""
        return 2 * self.lanes * self.chains

    @property
    def vectors(self) -> int:
        """Vectors of a row of a block of a product; a block has as many rows as there are chains for."""
        return 3 if self.chains >= 24 else 2

    @property
    def block_bytes(self) -> int:
        """What a block reads in a step: a vector for each of its columns, an element for each of its rows, and what aligns the next one."""
        width, rows = 4 * self.lanes, self.chains // self.vectors
        return (self.vectors - -4 * rows // width) * width

    def block(self, step: str) -> list[str]:
        """A step of a block of a product: ``step`` is a multiply-add of %x and %y, one for each chain."""
        vector, width = f"<{self.lanes} x float>", 4 * self.lanes
        lines = []
        for n in range(self.vectors):
            lines.append(f"  %p{n} = getelementptr i8, ptr %place, i64 {n * width}\n  %w{n} = load {vector}, ptr %p{n}, align {width}")
        for row in range(self.chains // self.vectors):
            at = self.vectors * width + 4 * row
            lines.append(
                f"  %q{row} = getelementptr i8, ptr %place, i64 {at}\n  %e{row} = load float, ptr %q{row}, align 4\n"
                f"  %i{row} = insertelement {vector} poison, float %e{row}, i32 0\n"
                f"  %r{row} = shufflevector {vector} %i{row}, {vector} poison, <{self.lanes} x i32> zeroinitializer"
            )
            for n in range(self.vectors):
                chain = row * self.vectors + n
                lines.append(step.format(i=chain, x=f"%r{row}", y=f"%w{n}", vector=vector, suffix=f"v{self.lanes}f32"))
        return lines

    @classmethod
    def of_host(cls) -> _Shape:
        """Those of this machine."""
        features = host()[1].split(",")
        if "+avx512f" in features:
            return cls(16, 24, True)
        if "+fma" in features:
            return cls(8, 12, True)
        return cls(4, 24, True) if "+neon" in features else cls(4, 12, False)


@dataclass(frozen=True, slots=True)
class _Dot:
    """An instruction that adds sums of ``products`` products of a narrow type to each lane of its accumulator."""

    dtype: str
    feature: str
    intrinsic: str
    lanes: int
    products: int
    sums: str
    factors: str

    @property
    def flops(self) -> int:
        """Operations of one step."""
        return 2 * self.lanes * self.products * _Shape.of_host().chains

    def line(self, chain: int) -> str:
        """One step of a chain; what is carried are vectors of f32, whatever the bits mean."""
        floats = f"<{self.lanes} x float>"
        return (
            f"  %c{chain} = bitcast {floats} %a{chain} to {self.sums}\n  %f{chain} = bitcast {floats} %x to {self.factors}\n"
            f"  %d{chain} = call {self.sums} @{self.intrinsic}({self.sums} %c{chain}, {self.factors} %f{chain}, {self.factors} %f{chain})\n"
            f"  %b{chain} = bitcast {self.sums} %d{chain} to {floats}"
        )

    def declaration(self) -> str:
        """That of the intrinsic."""
        return f"declare {self.sums} @{self.intrinsic}({self.sums}, {self.factors}, {self.factors})"


_DOTS = (
    _Dot("bf16", "avx512bf16", "llvm.x86.avx512bf16.dpbf16ps.512", 16, 2, "<16 x float>", "<32 x bfloat>"),
    _Dot("i8", "avx512vnni", "llvm.x86.avx512.vpdpbusd.512", 16, 4, "<16 x i32>", "<16 x i32>"),
    _Dot("i8", "avxvnni", "llvm.x86.avx512.vpdpbusd.256", 8, 4, "<8 x i32>", "<8 x i32>"),
    _Dot("bf16", "bf16", "llvm.aarch64.neon.bfdot.v4f32.v8bf16", 4, 2, "<4 x float>", "<8 x bfloat>"),
    _Dot("i8", "dotprod", "llvm.aarch64.neon.sdot.v4i32.v16i8", 4, 4, "<4 x i32>", "<16 x i8>"),
)


def _dots() -> list[_Dot]:
    """Those that this machine has, for vectors of its width."""
    features = host()[1].split(",")
    lanes = _Shape.of_host().lanes
    return [dot for dot in _DOTS if f"+{dot.feature}" in features and dot.lanes == lanes]


def host_dtypes() -> tuple[str, ...]:
    """Types whose multiply-adds can be measured here: f32, and "bf16" and "i8" where there are instructions for them."""
    return ("f32", *(dot.dtype for dot in _dots()))


_STREAMS = {"stream_near": (8 << 10, 3), "stream_far": (4 << 10, 2)}
"""Kernels that read with prefetches, how many bytes these run ahead, and their locality: what is best differs between processors."""

_READERS = 8  # sums that a reading loop keeps: enough for two loads in each cycle
_LINE = 64


@lru_cache(maxsize=1)
def _kernels() -> tuple[int, Code]:
    """The bytes that a step reads, and the code of all loops.

    They are functions as those of programs (``MAIN``): ``args`` is the memory, ``dims`` the number of steps and the bytes of each
    thread; ``state`` counts the threads that are there, all begin together, and each leaves the ticks when it began and ended.
    """
    shape = _Shape.of_host()
    vector, width = f"<{shape.lanes} x float>", 4 * shape.lanes
    suffix = f"v{shape.lanes}f32"
    if shape.fused:
        step = "  %b{i} = call {vector} @llvm.fma.{suffix}({vector} {x}, {vector} {y}, {vector} %a{i})"
    else:
        step = "  %m{i} = fmul {vector} {x}, {y}\n  %b{i} = fadd {vector} %m{i}, %a{i}"
    multiply = [step.format(i=i, x="%x", y="%y", vector=vector, suffix=suffix) for i in range(shape.chains)]
    read = [
        f"  %p{i} = getelementptr i8, ptr %place, i64 {i * width}\n  %v{i} = load {vector}, ptr %p{i}, align {width}\n"
        f"  %b{i} = fadd {vector} %a{i}, %v{i}"
        for i in range(_READERS)
    ]
    size = _READERS * width
    streams = {
        name: [
            f"  %f{i} = getelementptr i8, ptr %place, i64 {ahead + i}\n  call void @llvm.prefetch.p0(ptr %f{i}, i32 0, i32 {locality}, i32 1)"
            for i in range(0, size, _LINE)
        ]
        for name, (ahead, locality) in _STREAMS.items()
    }
    attributes = " ".join(f'"{k}"="{v}"' for k, v in host_attributes().items())
    text = [
        _loop("peak_f32", vector, multiply, 0, shape.chains),
        _loop(f"peak_{LOADS}", vector, shape.block(step), shape.block_bytes, shape.chains),
        _loop("read", vector, read, size, _READERS),
        *(_loop(name, vector, [*read, *hints], size, _READERS) for name, hints in streams.items()),
        *(_loop(f"peak_{dot.dtype}", vector, [dot.line(i) for i in range(shape.chains)], 0, shape.chains) for dot in _dots()),
        *(dot.declaration() for dot in _dots()),
        tick_function("ticks"),
        f"declare {vector} @llvm.fma.{suffix}({vector}, {vector}, {vector})",
        "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)",
        f"attributes #0 = {{ nounwind {attributes} }}",
    ]
    return size, Code.from_text("\n".join(text))


def _loop(name: str, vector: str, body: list[str], step: int, accumulators: int) -> str:
    """A loop in which ``body`` makes %b0, %b1, ... of %a0, %a1, ..., over the bytes of a thread again and again, ``step`` at a time."""
    chains = range(accumulators)
    carried = "\n".join(f"  %a{i} = phi {vector} [ %start, %begin ], [ %b{i}, %loop ]" for i in chains)
    sums = "\n".join(f"  %s{i + 1} = fadd {vector} {f'%s{i}' if i else 'zeroinitializer'}, %b{i}" for i in chains)
    work = "\n".join(body)
    return f"""
define i32 @{name}(ptr %args, ptr %dims, ptr %workspace, ptr %state, i64 %thread, i64 %threads) #0 {{
entry:
  %steps = load i64, ptr %dims, align 8
  %second = getelementptr i8, ptr %dims, i64 8
  %size = load i64, ptr %second, align 8
  %mine = mul i64 %size, %thread
  %base = getelementptr i8, ptr %args, i64 %mine
  %start = load {vector}, ptr %base, align 64
  %x = fmul {vector} %start, splat (float 0.5)
  %y = fmul {vector} %start, splat (float 0.25)
  %before = atomicrmw add ptr %state, i64 1 seq_cst
  br label %wait
wait:
  %there = load atomic i64, ptr %state seq_cst, align 8
  %all = icmp sge i64 %there, %threads
  br i1 %all, label %begin, label %wait
begin:
  %began = call i64 @{tick()}()
  br label %loop
loop:
  %i = phi i64 [ 0, %begin ], [ %next, %loop ]
  %at = phi i64 [ 0, %begin ], [ %wrapped, %loop ]
{carried}
  %place = getelementptr i8, ptr %base, i64 %at
{work}
  %on = add i64 %at, {step}
  %more = icmp ult i64 %on, %size
  %wrapped = select i1 %more, i64 %on, i64 0
  %next = add i64 %i, 1
  %again = icmp ult i64 %next, %steps
  br i1 %again, label %loop, label %end
end:
{sums}
  %ended = call i64 @{tick()}()
  %number = add i64 %thread, 1
  %to = shl i64 %number, 6
  %times = getelementptr i8, ptr %state, i64 %to
  store i64 %began, ptr %times, align 8
  %second_time = getelementptr i8, ptr %times, i64 8
  store i64 %ended, ptr %second_time, align 8
  %last = extractelement {vector} %s{accumulators}, i64 0
  %place_of_last = getelementptr i8, ptr %times, i64 16
  store float %last, ptr %place_of_last, align 4
  ret i32 0
}}
"""
