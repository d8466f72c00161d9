"""Checks of machine code against the reference interpreter: the same bits where nothing rounds, else within what rounding explains.

How far rounding may move a result is found out by running the program in float64 with noise of about one unit of the last
place put on every value that is rounded: what moves under noise is no fault of the machine code.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ir.clone import clone_module
from ir.core import Module, Operation
from ir.diagnostics import GraphError
from ir.dims import UnknownDim
from ir.inputs import generate_inputs
from ir.interpreter import Interpreter
from ir.printer import print_module
from ir.types import TensorType, bf16, f16, f32, f64
from passes.infra.manager import PassManager
from passes.infra.verify_exec import describe_difference, entry_graphs, same_bits
from passes.pipelines import load_pipeline
from tests.checks import Baseline, Case, execute, generated_sources, is_written, rounds

UNIT = {f64: 2.0**-52, f32: 2.0**-23, f16: 2.0**-10, bf16: 2.0**-7}
"""The distance of neighbouring numbers of a float type, relative to them."""
NOISE_UNITS = 4.0
"""How many units a single operation may be off: 4 are what activations are allowed, and what sums in another order need."""


class Rounding(Interpreter):
    """Float64 runs with noise of a few units of each value's own type on whatever is rounded."""

    seed = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.noise = np.random.default_rng(self.seed)

    def run_operation(self, op: Operation, environment: Any) -> None:
        super().run_operation(op, environment)
        if op.definition.exact_bits or op.definition.full_name in ("graph.full", "graph.iota", "graph.weight", "graph.call"):
            return
        for result in op.results:
            array = np.asarray(environment.arrays[result])
            unit = UNIT.get(environment.dtypes[result])
            if unit is None or array.dtype != np.float64:
                continue
            with np.errstate(all="ignore"):
                noisy = array * (1 + NOISE_UNITS * unit * self.noise.uniform(-1, 1, array.shape))
            environment.arrays[result] = np.where(np.isfinite(noisy), noisy, array)


@dataclass
class Native:
    """A program after the ``cpu`` passes, and its machine code by graph."""

    lowered: Module
    programs: dict[tuple[str, str], Any]

    def run(self, case: Case, threads: int = 1) -> list[np.ndarray]:
        """Results, and behind them what the arrays of written parameters hold afterwards."""
        from graph_opt.native import compile_native

        graph = self.lowered.graphs[case.graph]
        key = (case.graph, case.kind)
        if key not in self.programs:
            self.programs[key] = compile_native(self.lowered, graph, generated_sources(self.lowered, case.kind), threads)
        given = [np.array(a) for a in case.inputs]
        with contextlib.redirect_stdout(io.StringIO()):
            results = self.programs[key].run(given)
        for parameter, before, after in zip(graph.parameters, case.inputs, given, strict=True):
            assert is_written(parameter) or same_bits(np.asarray(before), after), f"the array of %{parameter.name} was changed"
        return [*results, *(given[p.index] for p in graph.parameters if is_written(p))]


def has_no_code(module: Module) -> bool:
    """Whether some value has no type, or a dimension that is not known, or a result is a buffer: no machine code then."""
    if any(not isinstance(t, TensorType) for g in module.graphs.values() for t in g.result_types):
        return True
    for op in module.walk():
        for value in (*op.operands, *op.results):
            type_ = value.type
            if not hasattr(type_, "dtype") or any(isinstance(d, UnknownDim) for d in getattr(type_, "shape", ())):
                return True
    return False


def compile_checked(module: Module, pipeline: str = "cpu") -> Native:
    """The program after the passes, with no machine code yet."""
    lowered = clone_module(module)
    PassManager(load_pipeline(pipeline)).run(lowered)
    return Native(lowered, {})


def check_native(runs: Baseline, *, bits: bool = False, threads: int = 1) -> int:
    """Machine code against the interpreter for every run of a program; returns how many were compared.

    With ``bits`` the lowered program is run in the interpreter too, whose results must be the same bits on any data.
    """
    if has_no_code(runs.module):
        return 0
    native = compile_checked(runs.module)
    compared = 0
    for case in runs.cases:
        where = f"{case}\n{print_module(runs.module)}"
        try:
            found = native.run(case, threads)
        except GraphError as error:
            assert not is_steady(runs.module, case, case.outputs), f"machine code fails: {error}; {where}"
            continue
        compared += 1
        check_outputs(runs.module, case, found, where)
        if bits:
            wanted = execute(native.lowered, case.graph, case.inputs, case.kind)
            for position, (a, b) in enumerate(zip(wanted, found, strict=True)):
                assert same_bits(a, b), (
                    f"output {position} differs from the lowered program's: {describe_difference(a, b)}; {where}\n{print_module(native.lowered)}"
                )
    check_failures(runs.module, native)
    return compared


def check_failures(module: Module, native: Native) -> None:
    """What fails in the interpreter fails as machine code: untamed inputs, for which a run may go wrong."""
    for name in entry_graphs(module):
        graph = module.graphs[name]
        from tests.checks import size_choices

        for sizes in size_choices(graph)[:1]:
            case = Case(name, sizes, "special", generate_inputs(module, graph, sizes, "special", 0, 0), [])
            try:
                case.outputs = execute(module, name, case.inputs, case.kind)
                continue
            except GraphError as error:
                wanted = error
            try:
                execute(module, name, case.inputs, case.kind, double=True)
                continue  # it hangs on a rounding
            except GraphError:
                pass
            try:
                native.run(case)
            except GraphError:
                continue
            raise AssertionError(f"machine code does not fail: {wanted}; {case}\n{print_module(module)}")


def check_outputs(module: Module, case: Case, found: Sequence[np.ndarray], where: str) -> None:
    """The bits of the interpreter where it rounds nothing, else what rounding explains."""
    assert len(found) == len(case.outputs), f"{len(found)} outputs, expected {len(case.outputs)}; {where}"
    different = [p for p, (a, b) in enumerate(zip(case.outputs, found, strict=True)) if not same_bits(a, b)]
    if not different:
        return
    exact = case.kind == "exact" and all(
        op.definition.exact or op.definition.full_name in ("graph.call", "graph.return") for op in module.walk()
    )
    if exact and not rounds(module, case):
        a, b = case.outputs[different[0]], found[different[0]]
        raise AssertionError(f"output {different[0]}, nothing is rounded: {describe_difference(a, b)}; {where}")
    wrong = unexplained(module, case, found)
    assert not wrong, f"{wrong}; {where}"


def is_steady(module: Module, case: Case, outputs: Sequence[np.ndarray]) -> bool:
    """Whether a program runs to its end whatever its roundings."""
    try:
        _noisy_runs(module, case, 8)
    except GraphError:
        return False
    return True


def _noisy_runs(module: Module, case: Case, count: int, first: int = 0) -> list[list[np.ndarray]]:
    found = []
    for seed in range(first, first + count):
        interpreter = type("SeededRounding", (Rounding,), {"seed": seed})
        found.append(execute(module, case.graph, case.inputs, case.kind, interpreter, double=True))
    return found


def unexplained(module: Module, case: Case, found: Sequence[np.ndarray]) -> str:
    """What of the results rounding does not explain, in words; empty for nothing."""
    clean = execute(module, case.graph, case.inputs, case.kind, double=True)
    noisy: list[list[np.ndarray]] = []
    message = ""
    for count in (4, 12, 48):  # rarely a few runs miss what more show
        try:
            noisy += _noisy_runs(module, case, count, len(noisy))
        except GraphError:
            return ""  # it hangs on a rounding whether the program fails
        message = ""
        for position, (want, narrow, have) in enumerate(zip(clean, case.outputs, found, strict=True)):
            explained = _explained(want, [n[position] for n in noisy], narrow, have)
            if not np.all(explained):
                message = f"output {position}: {describe_difference(np.asarray(narrow), np.asarray(have))}"
                break
        if not message:
            return ""
    return message


def _explained(clean: np.ndarray, noisy: Sequence[np.ndarray], narrow: np.ndarray, found: np.ndarray) -> Any:
    """Elementwise: whether a result is within what noise does to it."""
    clean, narrow, found = np.asarray(clean), np.asarray(narrow), np.asarray(found)
    if clean.dtype != np.float64:
        moved = np.any([n != clean for n in noisy], axis=0)
        return moved | (found == narrow) | (found == clean)
    dtype = _dtype_of(narrow)
    with np.errstate(all="ignore"):
        have, center = found.astype(np.float64), clean
        spread = np.max([np.abs(n - center) for n in noisy], axis=0)
        smallest = {"float64": 5e-324, "float32": 2.0**-149, "float16": 2.0**-24, "bfloat16": 2.0**-133}[narrow.dtype.name]
        near = np.abs(have - center) <= 4 * spread + 2 * np.abs(center) * UNIT[dtype] + 16 * smallest
        steps = np.any([np.isfinite(n) != np.isfinite(center) for n in noisy], axis=0)
        large = np.abs(center) * (1 + 1e-3) > _largest(dtype)
        same = (have == narrow.astype(np.float64)) | (np.isnan(have) & np.isnan(narrow.astype(np.float64)))
        same |= (have == center) | (np.isnan(have) & np.isnan(center))
        overflow = np.isinf(have) & large
    return near | same | steps | overflow


def _dtype_of(array: np.ndarray) -> Any:
    from ir.types import dtype_from_numpy

    return dtype_from_numpy(array.dtype)


def _largest(dtype: Any) -> float:
    return {f64: 1.7976931348623157e308, f32: 3.4028234663852886e38, f16: 65504.0, bf16: 3.3895313892515355e38}[dtype]


