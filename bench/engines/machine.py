"""The limits of the machine, sampled among the blocks of the engines."""

from __future__ import annotations

import time

from bench.case import Case
from bench.engines.base import Engine
from graph_opt.limits import Meter


class Machine(Engine):
    """Multiply-adds on registers and reads from every level, by the toolkit's meter."""

    def start(self) -> None:
        """Compiles the loops, and takes the memory."""
        self._meter = Meter(self.threads)

    def prepare(self, case: Case) -> None:
        """It runs no cases."""

    def sample(self, seconds: float) -> dict[str, list[float]]:
        """Operations a second by type and bytes a second by level, again and again for about ``seconds``."""
        self._meter.samples.clear()
        end = time.perf_counter() + seconds
        while True:
            self._meter.sample()
            if time.perf_counter() >= end:
                return dict(self._meter.samples)
