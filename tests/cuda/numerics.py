"""Every operation on a device: the examples of the operations' docstrings as kernels, beside the reference interpreter, on all kinds of data.

``python -m tests.cuda.numerics [--device cuda] [--jobs 8] [--match TEXT]``: a line for each example that is wrong or has no kernels, and how
many were compared.  Where nothing rounds the bits have to be the interpreter's; else results may differ by what rounding explains, as those of
machine code may (:mod:`tests.native_checks`).  Processes of their own share the examples.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import multiprocessing
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np

from codegen.cuda.compilers import CompilerFault
from codegen.cuda.device import open_device
from codegen.cuda.drivers import open_driver
from graph_opt.cuda import compile_cuda
from graph_opt.levels import preset_of
from ir.clone import clone_module
from ir.core import Module
from ir.diagnostics import GraphError
from ir.printer import print_module
from passes.infra.manager import PassManager
from passes.infra.verify_exec import same_bits
from passes.pipelines import load_pipeline
from tests.checks import Case, all_examples, baseline, generated_sources, is_written, load
from tests.native_checks import check_outputs, follows_from_lowering, has_no_code, is_exact, is_steady

RIGHT, NO_KERNELS = "ok", "no kernels"
LIMIT = 2
"""Sizes that an example is run for."""


def examples(match: str = "") -> list[str]:
    """Names of examples: the operation, and a number."""
    return [f"{name}-{number}" for name, number, _ in all_examples() if match in name]


def run_example(device: str, key: str) -> str:
    """What came of an example: "ok" and how many runs, "no kernels" and why, or what is wrong."""
    text = next(text for name, number, text in all_examples() if f"{name}-{number}" == key)
    module = load(text.replace("@example(", "@main("))
    runs = baseline(module, limit=LIMIT)
    if has_no_code(runs.module):
        return f"{NO_KERNELS}: sizes or types that are not known"
    lowered = clone_module(runs.module)
    try:
        PassManager(load_pipeline(preset_of("cuda", open_driver(device).properties.capability))).run(lowered)
    except GraphError as error:
        return f"{NO_KERNELS}: {error}"
    compared = 0
    for case in runs.cases:
        try:
            compared += _run_case(runs.module, lowered, case, device)
        except GraphError as error:
            if is_steady(runs.module, case, case.outputs):
                return f"{NO_KERNELS if not compared else 'fails'}: {error}"
        except (AssertionError, CompilerFault) as error:
            return f"{case}: {str(error)[:600]}"
    return f"{RIGHT} {compared}"


def _run_case(module: Module, lowered: Module, case: Case, device: str) -> bool:
    """Compares three calls, the last of which replays a graph where there is one."""
    graph = lowered.graphs[case.graph]
    program = compile_cuda(lowered, graph, generated_sources(lowered, case.kind), open_device(device))
    for _ in range(3):
        given = [np.array(a) for a in case.inputs]
        with contextlib.redirect_stdout(io.StringIO()):
            results: list[Any] = program.run(given)
        found = [*results, *(given[p.index] for p in graph.parameters if is_written(p))]
        for parameter, before, after in zip(graph.parameters, case.inputs, given, strict=True):
            assert is_written(parameter) or same_bits(np.asarray(before), after), f"the array of %{parameter.name} was changed"
        try:
            check_outputs(module, case, found, f"{case}\n{print_module(module)}")
        except AssertionError:
            if is_exact(module, case) or not follows_from_lowering(module, lowered, case, found):
                raise
    return True


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cuda.numerics", description="Every operation on a device beside the interpreter.")
    parser.add_argument("--device", default="cuda", help="default: %(default)s")
    parser.add_argument("--jobs", type=int, default=4, help="processes; default: %(default)s")
    parser.add_argument("--match", default="", help="only operations with this in their names")
    options = parser.parse_args(words)
    start = time.perf_counter()
    keys = examples(options.match)
    context = multiprocessing.get_context("spawn")  # a forked process can't use CUDA
    with ProcessPoolExecutor(options.jobs, mp_context=context) as pool:
        found = dict(zip(keys, pool.map(run_example, [options.device] * len(keys), keys), strict=True))
    for key, what in found.items():
        if not what.startswith(RIGHT):
            print(f"{key}: {what}")
    right = [w for w in found.values() if w.startswith(RIGHT)]
    without = [w for w in found.values() if w.startswith(NO_KERNELS)]
    wrong = len(found) - len(right) - len(without)
    runs = sum(int(w.split()[1]) for w in right)
    print(f"{len(found)} examples, {runs} runs compared, {len(without)} without kernels, {wrong} wrong, {time.perf_counter() - start:.0f} s")
    return 1 if wrong or not right else 0


if __name__ == "__main__":
    sys.exit(main())
