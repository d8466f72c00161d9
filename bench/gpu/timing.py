"""Timing by the device's events, in blocks of calls, the takers taking turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from codegen.cuda.device import Device

Calls = Callable[[int], object]
"""Does the work with the n-th set of arrays."""


@dataclass(frozen=True)
class Plan:
    """How long is measured: rounds, and seconds of a block."""

    rounds: int = 9
    seconds: float = 0.02


@dataclass
class Timing:
    """Seconds of a call, one for each block."""

    blocks: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """The median block."""
        return statistics.median(self.blocks)

    @property
    def spread(self) -> float:
        """From the fastest to the slowest block, as a share of the median."""
        return (max(self.blocks) - min(self.blocks)) / self.median


class Clock:
    """Blocks of calls on our stream; ``last_host`` is what the host's clock says of the last block, until all is done."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.last_host = 0.0

    def block(self, work: Calls, calls: int) -> float:
        """Seconds of one call among so many in a row, between events of the device."""
        device, driver = self.device, self.device.driver
        with device:
            first, second = driver.new_event(timing=True), driver.new_event(timing=True)
            driver.synchronize_stream(device.stream)
            start = time.perf_counter()
            driver.record(first, device.stream)
            for n in range(calls):
                work(n)
            driver.record(second, device.stream)
            driver.synchronize_stream(device.stream)
            self.last_host = (time.perf_counter() - start) / calls
            took = driver.elapsed(first, second) / calls
            driver.destroy_event(first)
            driver.destroy_event(second)
        return took

    def fitting(self, work: Calls, seconds: float) -> int:
        """How many calls take about as long as a block should."""
        calls = 1
        while True:
            self.block(work, calls)
            took = self.last_host * calls
            if took >= seconds / 4 or calls >= 100_000:
                return max(2, min(100_000, round(calls * seconds / took)))
            calls *= 2

    def in_turns(self, works: Mapping[str, Calls], plan: Plan) -> dict[str, Timing]:
        """Everybody's blocks: in each round one of each, and another one is first each time."""
        names = list(works)
        counts = {name: self.fitting(works[name], plan.seconds) for name in names}
        found = {name: Timing() for name in names}
        for number in range(plan.rounds):
            for at in range(len(names)):
                name = names[(at + number) % len(names)]
                found[name].blocks.append(self.block(works[name], counts[name]))
        return found
