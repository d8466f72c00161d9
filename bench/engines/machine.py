"""The limits of the machine, sampled among the blocks of the engines."""

from __future__ import annotations

import time

from bench.case import Case
from bench.engines.base import Engine
from bench.quiet import undisturbed_parts
from graph_opt.limits import LOADS, READ, Meter

WARM, WARM_THREADS = 2, 40
"""Samples at first that don't count: of several threads many, until they begin together."""


class Machine(Engine):
    """Multiply-adds on registers and with loads, and reads from a level of memory, by the toolkit's meter."""

    def start(self) -> None:
        """Compiles the loops, and takes the memory."""
        self._peaks = [Meter(self.threads, levels=(), dtypes=(dtype,)) for dtype in ("f32", LOADS)]
        self._levels = {level: Meter(self.threads, levels=(level,)) for level in READ if level != "L1"}

    def prepare(self, case: Case) -> None:
        """It runs no cases."""

    def sample(self, level: str, seconds: float) -> dict[str, list[float]]:
        """Operations a second, on registers and with loads, then bytes a second from a level, each for about ``seconds``.

        They are not mixed: after loads the clock is slower for a while.
        """
        found = [_samples(meter, seconds) for meter in (*self._peaks, self._levels[level])]
        return {name: rates for part in reversed(found) for name, rates in part.items()}


def _samples(meter: Meter, seconds: float) -> dict[str, list[float]]:
    for _ in range(WARM if meter.threads == 1 else WARM_THREADS):
        meter.sample()
    meter.samples.clear()
    end = time.perf_counter() + seconds
    clean = undisturbed_parts(meter.sample, lambda: time.perf_counter() >= end)
    return {name: [found[i] for i in clean] for name, found in meter.samples.items()}
