"""One engine in one process: reads requests on standard input, a line of JSON each, and answers likewise.

    python -m bench.worker ENGINE THREADS PROCESSORS

Requests: ``prepare`` (a case; its results are saved to a file), ``time`` (a block of calls), ``drop``; and of the
engine ``machine``, which samples the limits, ``sample``.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.engines import engine
from bench.engines.base import Engine, Prepared, Times
from bench.quiet import keep_to, undisturbed_parts
from bench.workloads import all_cases

GRAIN = 1e-4
"""Calls are timed together until they take so many seconds."""
Answer = dict[str, Any]


def block(run: Times, seconds: float) -> list[float]:
    """Seconds for one call, again and again for about ``seconds``, without those that were cut into."""
    clock = time.perf_counter
    once = 0.0
    for _ in range(2):
        if once < GRAIN:  # the first call finds nothing in the caches
            start = clock()
            run(1)
            once = clock() - start
    together = max(1, int(GRAIN / max(once, 1e-8)))
    found: list[float] = []
    end = clock() + seconds

    def part() -> None:
        start = clock()
        run(together)
        found.append((clock() - start) / together)

    return [found[i] for i in undisturbed_parts(part, lambda: clock() >= end)]


class Worker:
    """Answers requests."""

    def __init__(self, made: Engine, name: str) -> None:
        self._engine, self._name = made, name
        self._cases = all_cases()
        self._ready: dict[str, Prepared] = {}

    def prepare(self, case: str, results: str) -> Answer:
        """Makes a case ready and saves what it computes."""
        start = time.perf_counter()
        engines = self._cases[case].engines
        ready = self._engine.prepare(self._cases[case]) if engines is None or self._name in engines else None
        if ready is None:
            return {"none": True}
        arrays = ready.results()
        seconds = time.perf_counter() - start
        np.savez(results, *arrays)
        self._ready[case] = ready
        return {"seconds": seconds}

    def time(self, case: str, milliseconds: float) -> Answer:
        """A block of calls."""
        found = block(self._ready[case].run, milliseconds / 1e3)
        return {"median": float(np.median(found)), "best": min(found), "count": len(found)}

    def sample(self, level: str, milliseconds: float) -> Answer:
        """Samples of the peak and of a level of memory."""
        from bench.engines.machine import Machine

        assert isinstance(self._engine, Machine)
        return {"rates": self._engine.sample(level, milliseconds / 1e3)}

    def drop(self, case: str) -> Answer:
        """Forgets a case."""
        self._ready.pop(case, None)
        return {}


def main() -> None:
    """Starts the engine and answers until the input ends."""
    name, threads, processors = sys.argv[1], int(sys.argv[2]), [int(p) for p in sys.argv[3].split(",")]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what engines print isn't an answer

    def answer(work: Callable[[], Answer]) -> bool:
        try:
            said = work()
        except ImportError as error:
            said = {"missing": str(error)}
        except Exception as error:
            traceback.print_exc()
            said = {"error": f"{type(error).__name__}: {str(error).strip()[:300]}"}
        print(json.dumps(said), file=answers, flush=True)
        return "missing" not in said and "error" not in said

    keep_to(processors)
    made = engine(name, threads)

    def start() -> Answer:
        made.start()
        return {"versions": made.versions()}

    if not answer(start):
        return
    worker = Worker(made, name)
    for line in sys.stdin:
        request = json.loads(line)
        method = getattr(worker, request.pop("do"))
        answer(lambda: method(**request))  # noqa: B023


if __name__ == "__main__":
    main()
