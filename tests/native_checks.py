"""Checks of machine code against the reference interpreter: the same bits where nothing rounds, else within what rounding explains.

How far rounding may move a result is found out by running the program in float64 with noise of about one unit of the last
place put on every value that is rounded: what moves under noise is no fault of the machine code.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Sequence
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
from passes.infra.verify_exec import APPROXIMATE_TOLERANCE, close_in_double, describe_difference, entry_graphs, same_bits
from passes.pipelines import load_pipeline
from tests.checks import Baseline, Case, execute, generated_sources, is_stable, is_written, rounds

UNIT = {f64: 2.0**-52, f32: 2.0**-23, f16: 2.0**-10, bf16: 2.0**-7}
"""The distance of neighbouring numbers of a float type, relative to them."""
SMALLEST = {f64: 2.0**-1074, f32: 2.0**-149, f16: 2.0**-24, bf16: 2.0**-133}
"""The smallest positive number of a float type."""
NOISE_UNITS = 4.0
"""How many units a single operation may be off: 4 are what activations are allowed, and what sums in another order need."""

UNCOUNTED = ("graph.call", "graph.return", "graph.print", "graph.assert")
"""Operations that compute nothing."""
SAME_BITS = ("fma", "absf", "absi", "copysign", "sqrt", "floor", "ceil", "trunc", "roundeven", "isnan", "ldexp")
"""Functions of ``math`` that are rounded correctly everywhere."""
SUMS = ("graph.matmul", "graph.packed_linear", "graph.sum", "graph.mean", "graph.prod", "graph.cumsum")


class Rounding(Interpreter):
    """Float64 runs with noise of a few units of each value's own type on whatever is rounded."""

    seed = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.noise = np.random.default_rng(self.seed)

    def run_operation(self, op: Operation, environment: Any) -> None:
        name = op.definition.full_name
        if not environment.observed:  # in a kernel, where a value is those of all threads
            super().run_operation(op, environment)
            return
        if name in ("arith.addf", "arith.subf"):
            self._add(op, environment)
        elif name in ("arith.bitcast", "graph.bitcast"):
            self._bitcast(op, environment)
        elif name not in SUMS and not (name == "vector.multi_reduction" and op.attribute("kind") == "add"):
            super().run_operation(op, environment)
        else:  # what rounding does to the terms: a sum may be small where they are not
            kept = {v: environment.arrays[v] for v in op.operands}
            outside = self._leaves_range(op, environment)
            environment.arrays.update({v: self._moved(a, environment.dtypes[v]) for v, a in kept.items()})
            super().run_operation(op, environment)
            environment.arrays.update(kept)
            if outside is not None:
                environment.arrays[op.result] = np.where(outside, self._beyond, environment.arrays[op.result])
        if op.definition.exact_bits or op.definition.full_name in ("graph.full", "graph.iota", "graph.weight", "graph.call"):
            return
        for result in op.results:
            environment.arrays[result] = self._moved(environment.arrays[result], environment.dtypes[result])

    def _add(self, op: Operation, environment: Any) -> None:
        """A step of a sum, which may be taken in another order."""
        a, b = (np.abs(np.asarray(environment.arrays[v], np.float64)) for v in op.operands)
        super().run_operation(op, environment)
        dtype = environment.dtypes[op.result]
        if self.seed % 2 and dtype in UNIT:
            largest, infinite = _largest(dtype) * (1 - 1e-3), np.isinf(a) | np.isinf(b)
            finite = np.where(np.isfinite(a), a, 0) + np.where(np.isfinite(b), b, 0)
            outside = finite > np.where(infinite, largest / 1024, largest)  # other terms may be as large, and meet it first
            environment.arrays[op.result] = np.where(outside, self._beyond, environment.arrays[op.result])

    def _bitcast(self, op: Operation, environment: Any) -> None:
        """The bits of a NaN are not the same everywhere."""
        (value,) = op.operands
        array = environment.arrays[value]
        if environment.dtypes[value].is_float and self.seed % 2:
            environment.arrays[value] = np.where(np.isnan(array), -array, array).astype(array.dtype)
        super().run_operation(op, environment)
        environment.arrays[value] = array

    @property
    def _beyond(self) -> float:
        """What stands for a number out of range: any of these, as the run has it."""
        return (np.nan, np.inf, -np.inf)[self.seed // 2 % 3]

    def _leaves_range(self, op: Operation, environment: Any) -> Any:
        """Where finite terms, or sums (products) of some of them, may leave the range of the type.

        None in every other run; in the others such a result is infinite, or NaN.
        """
        dtype = environment.dtypes[op.operands[0]]
        if not self.seed % 2 or dtype not in UNIT:
            return None
        kept = {v: environment.arrays[v] for v in op.operands}
        largest = _largest(f64 if dtype == f64 else f32) * (1 - 1e-3)

        def of(change: Callable[[np.ndarray], Any]) -> np.ndarray:
            """The operation on absolute values, those that are not finite changed to 0."""
            for value, array in kept.items():
                finite = np.where(np.isfinite(array), np.abs(array), 0)
                environment.arrays[value] = np.asarray(change(finite)).astype(np.asarray(array).dtype)
            super(Rounding, self).run_operation(op, environment)
            environment.arrays.update(kept)
            return np.asarray(environment.arrays[op.result], np.float64)

        with np.errstate(all="ignore"):
            if op.definition.full_name == "graph.prod":
                small = of(lambda a: np.where((a > 0) & (a < 1), a, 1))
                return (of(lambda a: np.maximum(a, 1)) > largest) | (small < (2.0**-1022 if dtype == f64 else 2.0**-126))
            count = max(np.size(kept[op.operands[0]]), 1) if op.definition.full_name == "graph.mean" else 1
            return of(lambda a: a) * count > largest

    def _moved(self, array: Any, dtype: Any) -> Any:
        array = np.asarray(array)
        unit = UNIT.get(dtype)
        if unit is None:
            return array
        array = array.astype(np.float64)
        with np.errstate(all="ignore"):
            amount = np.maximum(np.abs(array) * unit, np.where(array != 0, SMALLEST[dtype], 0))  # few digits are left below the normal numbers
            noisy = array + NOISE_UNITS * amount * self.noise.uniform(-1, 1, array.shape)
        return np.where(np.isfinite(noisy), noisy, array)


@dataclass
class Native:
    """A program after the ``cpu`` passes, and its machine code by graph."""

    lowered: Module
    programs: dict[tuple[str, int, str], Any]
    printed: str = ""
    """what the last run wrote"""

    def run(self, case: Case, threads: int = 1) -> list[np.ndarray]:
        """Results, and behind them what the arrays of written parameters hold afterwards."""
        from graph_opt.native import compile_native

        graph = self.lowered.graphs[case.graph]
        key = (case.graph, threads, case.kind if self.lowered.files else "")  # what weights hold goes by the kind
        if key not in self.programs:
            self.programs[key] = compile_native(self.lowered, graph, generated_sources(self.lowered, case.kind), threads)
        executable = self.programs[key]

        def outputs(call: Callable[[list[np.ndarray]], Sequence[np.ndarray]]) -> list[np.ndarray]:
            given = [np.array(a) for a in case.inputs]
            with contextlib.redirect_stdout(io.StringIO()) as written:
                results = call(given)
            self.printed = written.getvalue()
            for parameter, before, after in zip(graph.parameters, case.inputs, given, strict=True):
                assert is_written(parameter) or same_bits(np.asarray(before), after), f"the array of %{parameter.name} was changed"
            return [*results, *(given[p.index] for p in graph.parameters if is_written(p))]

        found = outputs(executable.run)
        single = len(graph.results) == 1
        called = outputs(lambda given: [executable(*given)] if single else executable(*given))  # by way of compiled code
        for position, (a, b) in enumerate(zip(found, called, strict=True)):
            assert same_bits(a, b), f"output {position} of a second run differs: {describe_difference(a, b)}; {case}\n{print_module(self.lowered)}"
        return found


def has_no_code(module: Module) -> bool:
    """Whether some value has no type, or a dimension that is not known, or a result is a buffer, or there are kernels: no machine code then."""
    if any(not isinstance(t, TensorType) for g in module.graphs.values() for t in g.result_types):
        return True
    for op in module.walk():
        if op.definition.dialect == "gpu":
            return True
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


def compile_prefix(module: Module, count: int) -> Native:
    """The program after so many of the passes from ``lower-to-loops`` on, and those that machine code can't do without."""
    passes = load_pipeline("cpu")
    first = next(i for i, p in enumerate(passes) if type(p).__name__ == "LowerToLoops") + 1
    lowered = clone_module(module)
    PassManager([*passes[: min(first + count, len(passes))], *load_pipeline("hoist-to-init,lower-attention,unroll-vectors")]).run(lowered)
    return Native(lowered, {})


def check_native(runs: Baseline, *, bits: bool = False, threads: int = 1, prefix: int | None = None) -> int:
    """Machine code against the interpreter for every run of a program; returns how many were compared.

    With ``prefix`` after the first so many loop passes alone (see :func:`compile_prefix`).  With ``bits`` the lowered
    program is run in the interpreter too, whose results must be the same bits on any data.
    """
    if has_no_code(runs.module):
        return 0
    native = compile_checked(runs.module) if prefix is None else compile_prefix(runs.module, prefix)
    compared = 0
    for case in runs.cases:
        where = f"{case}\n{print_module(runs.module)}"
        try:
            found = native.run(case, threads)
        except GraphError as error:
            assert not is_steady(runs.module, case, case.outputs), f"machine code fails: {error}; {where}"
            continue
        compared += 1
        try:
            check_outputs(runs.module, case, found, where)
        except AssertionError:
            if is_exact(runs.module, case) or not follows_from_lowering(runs.module, native.lowered, case, found):
                raise
        check_printed(runs.module, case, native.printed)
        if bits and not has_functions(native.lowered):
            wanted = execute(native.lowered, case.graph, case.inputs, case.kind)
            for position, (a, b) in enumerate(zip(wanted, found, strict=True)):
                assert same_bits(a, b), (
                    f"output {position} differs from the lowered program's: {describe_difference(a, b)}; {where}\n{print_module(native.lowered)}"
                )
    check_failures(runs.module, native)
    return compared


def has_functions(module: Module) -> bool:
    """Whether functions are left that another library computes in the interpreter, whose last bits may differ."""
    return any(op.definition.dialect == "math" and op.definition.name not in SAME_BITS for op in module.walk())


_HEAD = re.compile(r"(?m)^(?:.*: )?[a-z]+[0-9]*\[[0-9, ]*\]$")


def check_printed(module: Module, case: Case, found: str) -> None:
    """Machine code prints what the interpreter prints: labels and types, and numbers where nothing is rounded."""
    if not any(op.name == "graph.print" for op in module.walk()):
        return
    with contextlib.redirect_stdout(io.StringIO()) as written:
        Interpreter(module, generated_sources(module, case.kind)).run(module.graphs[case.graph], [np.array(a) for a in case.inputs])
    wanted = written.getvalue()
    if not is_exact(module, case):
        wanted, found = "\n".join(_HEAD.findall(wanted)), "\n".join(_HEAD.findall(found))
    assert wanted == found, f"printed:\n{found}\nexpected:\n{wanted}\n{case}\n{print_module(module)}"


def is_exact(module: Module, case: Case) -> bool:
    """Whether a run rounds nothing."""
    exact = case.kind == "exact" and all(op.definition.exact or op.definition.full_name in UNCOUNTED for op in module.walk())
    return exact and not rounds(module, case)


def check_failures(module: Module, native: Native) -> None:
    """What fails in the interpreter fails as machine code: untamed inputs, for which a run may go wrong.

    Not what fails in an operation whose results nothing uses: it is gone.
    """
    module = clone_module(module)
    PassManager(load_pipeline("O1")).run(module)
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
    if is_exact(module, case):
        a, b = case.outputs[different[0]], found[different[0]]
        raise AssertionError(f"output {different[0]}, nothing is rounded: {describe_difference(a, b)}; {where}")
    if any(op.name in ("linalg.generic", "scf.parallel") for op in module.walk()) and depends_on_order(module, case):
        return
    wrong = unexplained(module, case, found)
    assert not wrong, f"{wrong}; {where}"


def follows_from_lowering(module: Module, lowered: Module, case: Case, found: Sequence[np.ndarray]) -> bool:
    """Whether the lowered program has just these bits in the interpreter, and in float64 computes what the program does.

    Noise of a few units does not show everything that rounding may do: 3e38 - 3e38 + x is 0 in f32, and with noise never
    near it.  Then the machine code is right if it does what the lowered program says, and that says the same, unless the
    order of additions shows in float64 too.
    """
    try:
        single = execute(lowered, case.graph, case.inputs, case.kind)
        double = execute(lowered, case.graph, case.inputs, case.kind, double=True)
        wanted = execute(module, case.graph, case.inputs, case.kind, double=True)
    except GraphError:
        return False
    if not all(same_bits(a, b) for a, b in zip(single, found, strict=True)):
        return False
    near = all(close_in_double(np.asarray(a), np.asarray(b), APPROXIMATE_TOLERANCE) for a, b in zip(wanted, double, strict=True))
    return near or not is_stable(module, case, wanted) or leaves_numbers(module, case)


def leaves_numbers(module: Module, case: Case) -> bool:
    """Whether rounding decides if some result is a number at all: sums of huge numbers that cancel, say."""
    try:
        runs = _noisy_runs(module, case, 8)
    except GraphError:
        return True
    floats = [[r[n] for r in runs] for n in range(len(runs[0])) if np.asarray(runs[0][n]).dtype.kind == "f"]
    return any(np.any(np.isfinite(a) != np.isfinite(results[0])) for results in floats for a in results)


def depends_on_order(module: Module, case: Case) -> bool:
    """Whether rounds of a parallel nest read what others of it write: then its results are any of several."""
    module = clone_module(module)
    PassManager(load_pipeline("lower-to-loops")).run(module)
    forwards, backwards = (execute(module, case.graph, case.inputs, case.kind, reverse_parallel=r) for r in (False, True))
    return not all(map(same_bits, forwards, backwards))


def is_steady(module: Module, case: Case, outputs: Sequence[np.ndarray]) -> bool:
    """Whether a program runs to its end whatever its roundings."""
    module = clone_module(module)
    PassManager(load_pipeline("inline,decompose")).run(module)
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
    module = clone_module(module)
    PassManager(load_pipeline("inline,decompose")).run(module)
    clean = execute(module, case.graph, case.inputs, case.kind, double=True)
    try:
        single = execute(module, case.graph, case.inputs, case.kind)
    except GraphError:
        single = case.outputs
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
            if case.kind == "special":  # a step of a composite may leave the range of f32, which float64 does not show
                explained |= _is_near(single[position], have)
            if not np.all(explained):
                message = f"output {position}: {describe_difference(np.asarray(narrow), np.asarray(have))}"
                break
        if not message:
            return ""
    return message


def _explained(clean: np.ndarray, noisy: Sequence[np.ndarray], narrow: np.ndarray, found: np.ndarray) -> Any:
    """Elementwise: whether a result is within what noise does to it."""
    clean, narrow, found = np.asarray(clean), np.asarray(narrow), np.asarray(found)
    dtype = _dtype_of(narrow)
    if dtype not in UNIT:
        moved = np.any([n != clean for n in noisy], axis=0)
        return moved | (found == narrow) | (found == clean)
    with np.errstate(all="ignore"):
        have, center = found.astype(np.float64), clean.astype(np.float64)  # memory of parameters keeps its type in float64 runs
        noisy = [n.astype(np.float64) for n in noisy]
        spread = np.max([np.abs(n - center) for n in noisy], axis=0)
        near = np.abs(have - center) <= 4 * spread + 2 * np.abs(center) * UNIT[dtype] + 16 * SMALLEST[dtype]
        steps = np.any([(np.isfinite(n) != np.isfinite(center)) | (np.isnan(n) != np.isnan(center)) for n in noisy], axis=0)
        large = np.abs(center) * (1 + 1e-3) > _largest(dtype)
        same = (have == narrow.astype(np.float64)) | (np.isnan(have) & np.isnan(narrow.astype(np.float64)))
        same |= (have == center) | (np.isnan(have) & np.isnan(center))
        overflow = np.isinf(have) & large
    return near | same | steps | overflow


def _is_near(wanted: np.ndarray, found: np.ndarray) -> Any:
    """Elementwise: whether two results are a few units apart, or both NaN."""
    wanted, found = np.asarray(wanted), np.asarray(found)
    if _dtype_of(wanted) not in UNIT:
        return wanted == found
    with np.errstate(all="ignore"):
        a, b = wanted.astype(np.float64), found.astype(np.float64)
        return (np.abs(a - b) <= 16 * UNIT[_dtype_of(wanted)] * np.abs(a)) | (a == b) | (np.isnan(a) & np.isnan(b))


def _dtype_of(array: np.ndarray) -> Any:
    from ir.types import dtype_from_numpy

    return dtype_from_numpy(array.dtype)


def _largest(dtype: Any) -> float:
    return {f64: 1.7976931348623157e308, f32: 3.4028234663852886e38, f16: 65504.0, bf16: 3.3895313892515355e38}[dtype]
