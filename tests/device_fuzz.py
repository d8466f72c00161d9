"""Random programs on a device, for ``python -m tests.fuzz --device cuda-emulated``.

Every program runs in the interpreter, on the device by every way of calling it, on the CPU, and for one kind of inputs as kernels in the
interpreter, which looks for races: for small sizes, and for some that are larger than blocks of threads.  Every twentieth runs under
AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer as well, its threads forwards and backwards.
"""

from __future__ import annotations

import os
import random
import traceback
from collections import Counter
from collections.abc import Sequence
from typing import Any

from codegen.cuda.host_build import why_not
from graph_opt.kept import POISON
from ir.clone import clone_module
from ir.core import Graph, Module
from ir.diagnostics import GraphError
from ir.inputs import choose_sizes
from ir.printer import print_module
from ir.types import type_symbols
from passes.graph.specialize import Specialize
from passes.infra.manager import PassManager
from tests.checks import KINDS, Baseline, Case, baseline, first_success
from tests.device_checks import SEPARATE, OnDevice, check_on_device, check_same_as_cpu, check_sanitized, compile_together, wild_cases
from tests.generators import random_module
from tests.native_checks import has_no_code

SANITIZED = 20
"""Every so many programs run under sanitizers, too."""
LONG = (255, 256, 257, 511, 513, 1023, 1025, 2049, 4097, 130, 65, 33)
LARGE = (7, 15, 17, 31, 33, 63, 65, 97, 127, 128, 129, 130)
MIDDLE = (5, 7, 9, 15, 17, 18, 31, 33, 34)
"""Sizes around those of vectors, warps, tiles and blocks, for programs of one, two, and more named dimensions."""


def large_sizes(graph: Graph, seed: int) -> dict[str, int]:
    """Sizes of the symbolic dimensions that go beyond what a thread, a warp or a block does; none for a graph without such dimensions."""
    names = list(dict.fromkeys(s for p in graph.parameters for s in type_symbols(p.type)))
    choose = random.Random(seed)
    sizes = LONG if len(names) < 2 else LARGE if len(names) < 3 else MIDDLE
    for given in ({n: choose.choice(sizes) for n in names}, {}):
        try:
            return choose_sizes(graph, given, choose.sample(sizes, len(sizes)))
        except GraphError:
            continue
    return {}


def enlarged(module: Module, seed: int) -> tuple[Module, dict[str, int]] | None:
    """The program and larger sizes for it: for one of two they are known beforehand."""
    sizes = large_sizes(module.main, seed)
    if not sizes:
        return None
    if seed % 4 in (0, 3):
        return module, sizes
    specialized = clone_module(module)
    try:
        PassManager([Specialize(dims=tuple(f"{n}={size}" for n, size in sizes.items()))]).run(specialized)
    except GraphError:  # of these sizes it is known beforehand that the program fails
        return None
    return specialized, {}


def try_on_device(seeds: Sequence[int], steps: int) -> list[dict[str, Any]]:
    """For every program its counts, or ``error`` and ``report``: what is wrong with it in one line, and everything about it."""
    modules = [random_module(seed, steps) for seed in seeds]
    large = [enlarged(module, seed) for module, seed in zip(modules, seeds, strict=True)]
    distinct = {id(m): m for m in [*modules, *(e[0] for e in large if e is not None)] if not has_no_code(m)}
    programs = dict(zip(distinct, compile_together(list(distinct.values())), strict=True))
    found = []
    for seed, module, more in zip(seeds, modules, large, strict=True):
        try:
            found.append(_check(module, seed, programs, more))
        except Exception as error:
            lines = str(error).splitlines() or [""]
            reason = "".join(f"// {line}\n" for line in "".join(traceback.format_exception(error)).splitlines())
            found.append({"error": f"{type(error).__name__}: {lines[0]}", "report": f"{reason}\n{print_module(module)}"})
    return found


def _check(module: Module, seed: int, programs: dict[int, OnDevice | Exception], more: tuple[Module, dict[str, int]] | None) -> dict[str, Any]:
    os.environ[POISON] = str(int(seed % 4 < 2))
    runs = baseline(module, seed, limit=1)
    counts: Counter[str] = Counter(operations=sum(1 for _ in module.walk()), runs=len(runs.cases))
    counts.update({"runs that failed": len(runs.failed), "programs that never ran": int(not runs.cases)})
    if id(module) in programs:
        _check_program(runs, programs[id(module)], seed, counts)
        if seed % SANITIZED == 0 and why_not("address") is None and why_not("thread") is None:
            (apart,) = compile_together([module], SEPARATE)
            assert isinstance(apart, OnDevice)
            counts["runs under sanitizers"] += check_sanitized(Baseline(module, [*runs.cases[:1], *wild_cases(module, seed)]), apart)
    if more is not None and id(more[0]) in programs:
        cases = [first_success(more[0], more[0].main.name, more[1], kind, seed) for kind in KINDS]
        _check_program(Baseline(more[0], [c for c in cases if isinstance(c, Case)]), programs[id(more[0])], seed, counts)
    return dict(counts)


def _check_program(runs: Baseline, program: OnDevice | Exception, seed: int, counts: Counter[str]) -> None:
    if isinstance(program, Exception):
        raise program
    counts["compared on the device"] += check_on_device(runs, program, {seed % 3} if seed % SANITIZED else None)
    counts["compared with the CPU"] += check_same_as_cpu(runs, program)
