"""Thousands of random programs through all checks: ``python -m tests.fuzz --count 5000 --seed 0``.

Every program is written in another way and read back, run in the interpreter, compiled for the CPU, and its machine code
compared with the interpreter, for small sizes and for some that are larger than tiles.  Every twentieth goes through all
passes one by one as well, and the bits of its machine code are compared with those of the lowered program in the
interpreter, for one thread and for two; one more time it becomes machine code after fewer passes.

With ``--device cuda-emulated`` (or ``cuda``) they run there instead: see :mod:`tests.device_fuzz`.

The programs run in processes of their own, so that one that dies is noticed and the others go on.  Prints how many programs
were tried, how many mismatches and deaths there were; the text of a program that fails is written to
``fuzz-failure-SEED.graph`` together with what is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from graph_opt.kept import POISON
from ir.clone import clone_module
from ir.core import Graph, Module
from ir.diagnostics import GraphError
from ir.inputs import choose_sizes
from ir.parser import parse_module
from ir.printer import print_module
from ir.types import type_symbols
from passes.graph.specialize import Specialize
from passes.infra.manager import PassManager
from passes.pipelines import load_pipeline
from tests.checks import KINDS, Baseline, Case, baseline, check_inference, check_program, first_success, generated_sources
from tests.generators import random_module
from tests.memory_checker import Overlap, check_plan
from tests.native_checks import check_native
from tests.texts import forget_comments, rewrite_text

ROOT = Path(__file__).parents[1]
THOROUGH = 20
"""Every so many programs go through all passes, too."""
LARGE = (7, 9, 15, 17, 33, 47, 49, 50, 63, 65, 66, 97, 100, 130)
MIDDLE = (5, 7, 9, 15, 17, 18, 33, 50)
"""Sizes around those of tiles."""
RENEWED = 250
"""A process ends after so many programs, and another one takes its place: loaded code adds up."""
TOGETHER = 12
"""So many programs are built together for a device."""
PATIENCE = 300.0
"""After so many seconds a program counts as one that hangs."""


# -- one program -------------------------------------------------------------------------------------------------------


def check_rewritten(module: Module, seed: int) -> None:
    """The program written in another way is the same program; its comments stay, and its text is a fixpoint too."""
    text = print_module(module)
    rewritten, comments = rewrite_text(text, seed)
    again = parse_module(rewritten)
    printed = print_module(again)
    assert print_module(parse_module(printed)) == printed, f"written as:\n{rewritten}\nprinted:\n{printed}"
    for comment in comments:
        assert printed.count(comment) == 1, f"'{comment}' is printed {printed.count(comment)} times:\n{rewritten}\nprinted:\n{printed}"
    forget_comments(again)
    assert print_module(again) == text, f"written as:\n{rewritten}\nis another program:\n{print_module(again)}"


def check_memory(runs: Baseline) -> None:
    """The memory plans of a program: what a buffer reads, it has written itself."""
    for pipeline in ("O2,plan-memory", "O2,collapse,lower-to-loops,plan-memory"):
        planned = clone_module(runs.module)
        PassManager(load_pipeline(pipeline)).run(planned)
        for case in runs.cases:
            try:
                check_plan(planned, case.graph, case.inputs, generated_sources(planned, case.kind))
            except GraphError:
                continue  # for these values it hangs on a rounding whether the program fails
            except Overlap as error:
                raise AssertionError(f"{pipeline}: {error}; {case}\n{print_module(planned)}") from error


def large_sizes(graph: Graph, seed: int) -> dict[str, int]:
    """Sizes of the symbolic dimensions that go beyond the tiles of loops; none for a graph without such dimensions."""
    names = list(dict.fromkeys(s for p in graph.parameters for s in type_symbols(p.type)))
    choose = random.Random(seed)
    sizes = LARGE if len(names) < 3 else MIDDLE
    for given in ({n: choose.choice(sizes) for n in names}, {}):
        with contextlib.suppress(GraphError):
            return choose_sizes(graph, given, choose.sample(sizes, len(sizes)))
    return {}


def check_large(module: Module, seed: int) -> int:
    """Machine code for larger sizes: of one program of two for sizes that are known beforehand, else for any."""
    graph = module.main
    sizes = large_sizes(graph, seed)
    if not sizes:
        return 0
    if seed % 4 in (1, 2):
        specialized = clone_module(module)
        try:
            PassManager([Specialize(dims=tuple(f"{n}={size}" for n, size in sizes.items()))]).run(specialized)
        except GraphError:  # of these sizes it is known beforehand that the program fails
            assert isinstance(first_success(module, graph.name, sizes, "exact", seed), GraphError)
            return 0
        module, sizes = specialized, {}
    cases = [first_success(module, module.main.name, sizes, kind, seed) for kind in KINDS]
    return check_native(Baseline(module, [c for c in cases if isinstance(c, Case)]), threads=1 + seed % 2)


def check_seed(module: Module, seed: int) -> tuple[Baseline, int]:
    """All checks of one program; returns its runs, and how many of them were compared with machine code.

    For one program of two, machine code finds NaN in its workspace, so that reads of what was never written show.
    """
    os.environ[POISON] = str(int(seed % 4 < 2))
    check_rewritten(module, seed)
    if seed % THOROUGH:
        runs = baseline(module, seed, limit=1)
        check_inference(module, runs)
        return runs, check_native(runs, threads=1 + seed % 2) + check_large(module, seed)
    runs = check_program(module, seed)
    check_memory(runs)
    prefix = random.Random(seed).randrange(20)
    compared = [check_native(runs, bits=True, threads=1), check_native(runs, bits=True, threads=2), check_native(runs, prefix=prefix)]
    return runs, sum(compared)


def try_seed(seed: int, steps: int) -> dict[str, Any]:
    """The counts of a program, or ``error`` and ``report``: what is wrong with it in one line, and everything about it."""
    module: Module | None = None
    try:
        module = random_module(seed, steps)
        runs, compared = check_seed(module, seed)
    except Exception as error:
        lines = str(error).splitlines() or [""]
        reason = "".join(f"// {line}\n" for line in "".join(traceback.format_exception(error)).splitlines())
        text = print_module(module) if module is not None else ""
        return {"error": f"{type(error).__name__}: {lines[0]}", "report": f"{reason}\n{text}"}
    return {
        "operations": sum(1 for _ in module.walk()),
        "runs": len(runs.cases),
        "compared with machine code": compared,
        "runs that failed": len(runs.failed),
        "programs that never ran": int(not runs.cases),
    }


def try_seeds(seeds: Sequence[int], steps: int, device: str) -> list[dict[str, Any]]:
    """The same for several programs, on a device, or on the CPU as machine code."""
    if device == "cpu":
        return [try_seed(seed, steps) for seed in seeds]
    os.environ["GRAPH_OPT_TEST_DEVICE"] = device
    from tests.device_fuzz import try_on_device

    return try_on_device(seeds, steps)


def work(steps: int, device: str) -> None:
    """What a process does: seeds a line come in, a line of JSON for each goes out.  Whatever programs print goes to nowhere."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    for line in sys.stdin:
        for found in try_seeds([int(seed) for seed in line.split()], steps, device):
            channel.write(json.dumps(found) + "\n")
        channel.flush()


# -- all programs ------------------------------------------------------------------------------------------------------


@dataclass
class Tally:
    """What was found so far."""

    options: argparse.Namespace
    seen: Counter[str] = field(default_factory=Counter)
    seconds: dict[int, float] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, seed: int, found: dict[str, Any], seconds: float) -> None:
        """Counts a program; writes a file when something is wrong with it."""
        with self.lock:
            self.seen["programs"] += 1
            self.seconds[seed] = seconds
            if self.seen["programs"] % (250 if self.options.device == "cpu" else 5 * TOGETHER) == 0:
                print(f"{self.seen['programs']} programs, {self.failures} failures, at seed {seed}", file=sys.stderr, flush=True)
            if "error" not in found:
                self.seen.update(found)
                return
            self.seen[found.get("kind", "mismatches")] += 1
            path = self.options.out / f"fuzz-failure-{seed}.graph"
            path.write_text(found["report"], encoding="utf-8")
            print(f"seed {seed}: {found['error']}  -> {path}", file=sys.stderr, flush=True)

    @property
    def failures(self) -> int:
        return self.seen["mismatches"] + self.seen["deaths"] + self.seen["hangs"]


class Worker:
    """A process that checks programs, and its replacement when it dies."""

    def __init__(self, steps: int, device: str = "cpu") -> None:
        self.steps = steps
        self.device = device
        self.process: subprocess.Popen[str] | None = None
        self.used = 0

    def check(self, *seeds: int) -> list[dict[str, Any]]:
        """The counts of programs that go together, or what is wrong with each; a death is, and whose it was is found out one by one."""
        found = self._answers(seeds)
        if isinstance(found, list):
            return found
        if len(seeds) > 1:
            return [each for seed in seeds for each in self.check(seed)]
        code, late = found
        how = f"no end after {PATIENCE:.0f} s" if late else f"died: {signal.Signals(-code).name if code < 0 else f'exit status {code}'}"
        said = "".join(f"// {line.rstrip()}\n" for line in self.errors[-60:])
        report = f"// {how}\n{said}\n{_text_of(seeds[0], self.steps)}"
        return [{"error": how, "kind": "hangs" if late else "deaths", "report": report}]

    def _answers(self, seeds: Sequence[int]) -> list[dict[str, Any]] | tuple[int, bool]:
        """What the process says about programs, or, when it has ended, its exit status and whether that was for taking too long."""
        if self.process is None or self.used >= RENEWED:
            self.close()
            options = ["--work", "--steps", str(self.steps), "--device", self.device]
            command = [sys.executable, "-X", "faulthandler", "-m", "tests.fuzz", *options]
            self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            self.used = 0
            self.errors: list[str] = []
            threading.Thread(target=_drain, args=(self.process.stderr, self.errors), daemon=True).start()
        self.used += len(seeds)
        process = self.process
        assert process.stdin is not None and process.stdout is not None
        late = threading.Event()
        timer = threading.Timer(PATIENCE * len(seeds), lambda: (late.set(), process.kill()))
        timer.start()
        answers = []
        try:
            process.stdin.write(" ".join(map(str, seeds)) + "\n")
            process.stdin.flush()
            answers = [line for _ in seeds if (line := process.stdout.readline())]
        except OSError:
            pass
        finally:
            timer.cancel()
        if len(answers) == len(seeds):
            return [json.loads(answer) for answer in answers]
        code = process.wait()
        self.process = None
        return code, late.is_set()

    def close(self) -> None:
        """Ends the process."""
        if self.process is not None and self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
            self.process.wait()
            self.process = None


def _drain(stream: IO[str] | None, lines: list[str]) -> None:
    """Reads what a process says on its standard error, so that it is never stopped by that; keeps the end of it."""
    assert stream is not None
    for line in stream:
        lines.append(line)
        del lines[:-200]


def _text_of(seed: int, steps: int) -> str:
    try:
        return print_module(random_module(seed, steps))
    except Exception as error:
        return f"// the program can't be made: {error}\n"


def run_all(tally: Tally) -> None:
    """Shares the seeds out to as many processes as are asked for."""
    options = tally.options
    groups: queue.SimpleQueue[range] = queue.SimpleQueue()
    seeds = range(options.seed, options.seed + options.count)
    size = 1 if options.device == "cpu" else TOGETHER
    for first in range(0, len(seeds), size):
        groups.put(seeds[first : first + size])

    stopped = threading.Event()

    def serve() -> None:
        worker = Worker(options.steps, options.device)
        try:
            for group in _taken(groups):
                if tally.failures >= options.stop or stopped.is_set():
                    break
                start = time.perf_counter()
                answers = worker.check(*group)
                seconds = (time.perf_counter() - start) / len(group)
                for seed, found in zip(group, answers, strict=True):
                    if not stopped.is_set():  # Ctrl-C ends the processes, too
                        tally.add(seed, found, seconds)
        finally:
            worker.close()

    threads = [threading.Thread(target=serve) for _ in range(options.jobs)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        try:
            for thread in threads:
                thread.join()
        except KeyboardInterrupt:
            stopped.set()


def _taken(groups: queue.SimpleQueue[range]) -> Iterator[range]:
    with contextlib.suppress(queue.Empty):
        while True:
            yield groups.get_nowait()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tests.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1000, help="how many programs")
    parser.add_argument("--seed", type=int, default=0, help="the first seed; the others follow")
    parser.add_argument("--steps", type=int, default=12, help="the most steps that a program is grown by")
    parser.add_argument("--out", type=Path, default=Path("."), help="folder for programs that fail")
    parser.add_argument("--stop", type=int, default=20, help="stop after so many programs that fail")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many processes")
    parser.add_argument("--device", default="cpu", help="where they run: cpu, cuda-emulated, cuda")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.work:
        work(options.steps, options.device)
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    tally = Tally(options)
    run_all(tally)
    seconds = time.perf_counter() - start
    seen = tally.seen
    print(
        f"{seen['programs']} programs, {seen['mismatches']} mismatches, {seen['deaths']} deaths, {seen['hangs']} hangs, "
        f"{seconds:.1f} s, {seen['programs'] / seconds:.1f} programs/s"
    )
    told = ("programs", "mismatches", "deaths", "hangs")
    counted = dict.fromkeys(("operations", "runs", "runs that failed", "programs that never ran", *(k for k in seen if k not in told)))
    print(", ".join(f"{seen[k]} {k}" for k in counted))
    slowest = sorted(tally.seconds, key=lambda s: -tally.seconds[s])[:5]
    print("slowest: " + ", ".join(f"seed {s} {tally.seconds[s]:.1f} s" for s in slowest))
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
