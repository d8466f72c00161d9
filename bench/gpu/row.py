"""One line of the report: what was measured, what is wanted of it, and whether the results were the same."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bench.gpu.timing import Timing
from bench.gpu.work import OURS, Wanted


@dataclass
class Row:
    """``timings`` are empty on an emulated device, which has no speed.  ``check`` says how far results are apart, ``bad`` that it is too far,
    or that something broke."""

    name: str
    part: str
    nbytes: float = 0.0
    flops: float = 0.0
    wanted: Wanted | None = None
    timings: dict[str, Timing] = field(default_factory=dict)
    check: str = ""
    bad: bool = False
    notes: list[str] = field(default_factory=list)

    def speed(self, peer: str) -> float | None:
        """Our speed beside that of a peer; None where one of them was not measured."""
        if OURS not in self.timings or peer not in self.timings:
            return None
        return self.timings[peer].median / self.timings[OURS].median

    @property
    def met(self) -> bool | None:
        """Whether what is wanted is so; None where nothing is, or it was not measured."""
        if self.wanted is None or OURS not in self.timings:
            return None
        if not self.wanted.peer:
            return self.timings[OURS].median * 1e6 <= self.wanted.least
        speed = self.speed(self.wanted.peer)
        return None if speed is None else speed >= self.wanted.least

    def as_json(self) -> dict[str, Any]:
        """Everything, in seconds, bytes and operations."""
        return {
            "name": self.name, "part": self.part, "bytes": self.nbytes, "flops": self.flops, "check": self.check, "bad": self.bad,
            "seconds": {name: {"median": t.median, "blocks": t.blocks} for name, t in self.timings.items()},
            "wanted": self.wanted.text if self.wanted else None, "met": self.met, "notes": self.notes,
            "beside": {name: self.speed(name) for name in self.timings if name != OURS},
        }  # fmt: skip
