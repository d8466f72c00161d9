"""Checks that hold for every program: text, types, numbers before and after a pass.

The table-driven tests apply them to the examples of the operations, the property tests to random programs.  A failed
check raises AssertionError with the program's text.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

import dialects  # noqa: F401
from ir.clone import clone_module
from ir.core import Graph, Module, Operation
from ir.diagnostics import GraphError
from ir.dims import UnknownDim, substitute
from ir.inference import Inference, infer_module
from ir.inputs import CAUTION_LEVELS, GeneratedWeights, Kind, choose_sizes, generate_inputs
from ir.interpreter import Interpreter
from ir.opdef import REGISTRY
from ir.parser import parse_module
from ir.printer import print_module
from ir.types import MemRefType, ScalarType, TensorType, Type, storage_shape, type_symbols
from ir.verifier import verify_module
from passes.infra.base import Pass, PassContext
from passes.infra.pipeline import format_pass
from passes.infra.registry import find_pass, pass_files
from passes.infra.verify_exec import APPROXIMATE_TOLERANCE, DOUBLE_TOLERANCE, close_in_double, describe_difference, entry_graphs, same_bits
from passes.pipelines import PRESETS, load_pipeline

KINDS: tuple[Kind, ...] = ("real", "exact", "special")
USUAL = (3, 4, 2, 5, 8, 16, 1, 6, 12, 32, 64, 0)
ONES = (1, 2, 3, 4, 8, 16, 0)
ZEROS = (0, 1, 2, 4, 8, 16)
LOOPS = "cpu"
"""The preset that ends in loops over elements, which are slow in the interpreter."""
SMALL = 10
"""Programs of at most so many operations are run in the interpreter after every pass of it."""
PERTURBATION = 1e-13
"""Relative noise put on results to find out what a program makes of rounding; about 500 units of float64."""


def load(text: str) -> Module:
    """A verified module with inferred types."""
    module = parse_module(text)
    verify_module(module)
    infer_module(module)
    return module


# -- running -----------------------------------------------------------------------------------------------------------


def generated_sources(module: Module, kind: Kind = "real") -> dict[str, GeneratedWeights]:
    """Stand-ins for the files of weights."""
    return {name: GeneratedWeights(module, name, kind=kind) for name in module.files}


def is_written(parameter: Any) -> bool:
    """Whether a run changes the array of this parameter."""
    return parameter.inout or isinstance(parameter.type, MemRefType)


class Noisy(Interpreter):
    """Puts relative noise on every rounded float64 result, as another way of computing it would."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.noise = np.random.default_rng(7)

    def run_operation(self, op: Operation, environment: Any) -> None:
        super().run_operation(op, environment)
        if op.definition.exact_bits or op.definition.full_name in ("graph.full", "graph.iota", "graph.weight", "graph.call"):
            return
        for result in op.results:
            array = np.asarray(environment.arrays[result])
            if array.dtype == np.float64:
                with np.errstate(all="ignore"):
                    noisy = array * (1 + PERTURBATION * self.noise.uniform(-1, 1, array.shape))
                environment.arrays[result] = np.where(np.isfinite(noisy), noisy, array)


class Wide(Interpreter):
    """Hands tensors of floats to every operation as float64, inputs of the program too."""

    def run_operation(self, op: Operation, environment: Any) -> None:
        for value in op.operands:
            array = environment.arrays[value]
            if environment.dtypes[value].is_float and isinstance(value.type, TensorType) and array.dtype != np.float64:
                environment.arrays[value] = array.astype(np.float64)
        super().run_operation(op, environment)


def execute(
    module: Module, name: str, arrays: Sequence[Any], kind: Kind = "real", interpreter: type[Interpreter] = Interpreter, **options: Any
) -> list[np.ndarray]:
    """Results, and behind them what the arrays of written parameters hold afterwards."""
    graph = module.graphs[name]
    given = [np.array(a) for a in arrays]
    runner = interpreter(module, generated_sources(module, kind), quiet=True, **options)
    results = runner.run(graph, given)
    for parameter, before, after in zip(graph.parameters, arrays, given, strict=True):
        assert is_written(parameter) or same_bits(np.asarray(before), after), f"the array of %{parameter.name} was changed"
    return [*results, *(given[p.index] for p in graph.parameters if is_written(p))]


def size_choices(graph: Graph) -> list[dict[str, int]]:
    """Sizes of the symbolic dimensions: usual ones, ones, zeros, and each name zero while the others are not."""
    symbols: dict[str, None] = {}
    for parameter in graph.parameters:
        symbols.update(type_symbols(parameter.type))
    tried = [({}, USUAL), ({}, ONES), ({}, ZEROS)] + [({s: 0}, USUAL) for s in symbols if len(symbols) > 1]
    found: list[dict[str, int]] = []
    for given, candidates in tried:
        try:
            sizes = choose_sizes(graph, given, candidates)
        except GraphError:
            continue
        if sizes not in found:
            found.append(sizes)
    return found


@dataclass
class Case:
    """One run of a program that came to an end: its inputs and what it gave."""

    graph: str
    sizes: dict[str, int]
    kind: Kind
    inputs: list[Any]
    outputs: list[np.ndarray]

    def __str__(self) -> str:
        return f"@{self.graph}, {self.kind} inputs, sizes {self.sizes}"


@dataclass
class Baseline:
    """What a program computes, for comparison with other forms of it.  ``failed`` lists runs that raised GraphError."""

    module: Module
    cases: list[Case] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


def baseline(module: Module, seed: int = 0, limit: int | None = None) -> Baseline:
    """Runs every graph that is not called by another for all kinds of inputs and sizes.

    With ``limit`` for so many sizes only; the seed says which, mostly the usual ones.
    """
    found = Baseline(clone_module(module))
    for name in entry_graphs(module):
        choices = size_choices(module.graphs[name])
        first = seed % len(choices) if limit is not None and choices and seed % 5 < 2 else 0
        for sizes in (choices[first:] + choices[:first])[:limit]:
            for kind in KINDS:
                case = first_success(module, name, sizes, kind, seed)
                if isinstance(case, Case):
                    found.cases.append(case)
                else:
                    found.failed.append(f"{kind} inputs, sizes {sizes}: {case}")
    return found


def first_success(module: Module, name: str, sizes: Mapping[str, int], kind: Kind, seed: int) -> Case | GraphError:
    """The run with the least tame inputs that does not fail."""
    problem: GraphError | None = None
    for caution in range(CAUTION_LEVELS):
        inputs = generate_inputs(module, module.graphs[name], sizes, kind, seed, caution)
        if kind == "special" and caution == 0:
            inputs = [more_special(a, seed + i) for i, a in enumerate(inputs)]
        try:
            return Case(name, dict(sizes), kind, inputs, execute(module, name, inputs, kind))
        except GraphError as error:
            problem = error
    assert problem is not None
    return problem


_SPECIAL = (-0.0, 0.0, np.nan, np.inf, -np.inf, -1.0, 1.0, 3e38, 1e-40)


def more_special(array: Any, seed: int) -> Any:
    """Half of the floats replaced by values that rewrites go wrong on: small arrays would rarely have the one that counts."""
    if array.dtype.kind in "biu":
        return array
    generator = np.random.default_rng(seed)
    with np.errstate(all="ignore"):
        special = np.asarray(_SPECIAL)[generator.integers(0, len(_SPECIAL), array.shape)].astype(array.dtype)
    return np.where(generator.random(array.shape) < 0.5, special, array)


# -- text --------------------------------------------------------------------------------------------------------------


def check_text(module: Module) -> None:
    """The text reads back as a program with the same text."""
    text = print_module(module)
    found = _reprinted(text)
    assert found == text, f"printed:\n{text}\nafter parsing and printing again:\n{found}"


@lru_cache(maxsize=64)
def _reprinted(text: str) -> str:
    return print_module(parse_module(text))


# -- types -------------------------------------------------------------------------------------------------------------


def fits(type_: Type, array: Any, dtype: Any, sizes: Mapping[str, int]) -> bool:
    """Whether a value of an execution is what its type says."""
    if np.asarray(array).dtype != dtype.numpy:
        return False
    if isinstance(type_, ScalarType):
        return np.shape(array) == ()
    shape = storage_shape(type_) if isinstance(type_, TensorType) else type_.shape  # type: ignore[union-attr]
    dims = [substitute(d, sizes) for d in shape]
    return len(dims) == np.ndim(array) and all(isinstance(d, UnknownDim) or d == n for d, n in zip(dims, np.shape(array), strict=True))


def check_inference(module: Module, runs: Baseline) -> None:
    """Every value of every execution has the inferred type, its dimensions substituted."""
    from ir.diagnostics import Diagnostics

    report = Diagnostics()
    types = Inference(module, report).run()
    report.raise_if_any()
    for case in runs.cases:
        seen: list[Operation] = []

        def compare(op: Operation, results: Sequence[Any], case: Case = case, seen: list[Operation] = seen) -> None:
            seen.append(op)
            for value, array in zip(op.results, results, strict=True):
                type_ = types[value]
                found = f"{np.asarray(array).dtype}{list(np.shape(array))}"
                where = f"{case}\n{print_module(module)}"
                assert fits(type_, array, type_.dtype, case.sizes), f"%{value.name} is inferred {type_}, but {found} comes out; {where}"  # type: ignore[union-attr]

        outputs = execute(module, case.graph, case.inputs, case.kind, on_operation=compare)
        assert len(seen) >= sum(not op.definition.is_terminator for op in module.graphs[case.graph].block)
        for value, array in zip(module.graphs[case.graph].results, outputs, strict=False):
            assert fits(types[value], array, types[value].dtype, case.sizes), f"%{value.name}: {types[value]}; {case}"  # type: ignore[union-attr]
        assert_same(outputs, case.outputs, f"a second run of {case}", module)


# -- rounding of a single operation ------------------------------------------------------------------------------------

_FORMATS = {"f64": (53, -1022), "f32": (24, -126), "f16": (11, -14), "bf16": (8, -126)}  # precision, smallest normal exponent


def ulp(values: np.ndarray, dtype_name: str) -> np.ndarray:
    """Distance of neighbouring numbers of a format at float64 values."""
    precision, smallest = _FORMATS[dtype_name]
    _, exponent = np.frexp(np.abs(values))  # |value| = m * 2**exponent, 1/2 <= m < 1
    return np.ldexp(1.0, np.maximum(exponent - 1, smallest) - (precision - 1))


def check_rounded_once(module: Module, runs: Baseline) -> int:
    """A program of one operation: its results are those of the float64 run, rounded.  Returns how many were compared."""
    compared = 0
    for case in runs.cases:
        graph = module.graphs[case.graph]
        exact = execute(module, case.graph, case.inputs, case.kind, Wide, double=True)
        for value, rounded, wide in zip(graph.results, case.outputs, exact, strict=False):
            type_ = value.type
            assert isinstance(type_, TensorType)
            where = f"%{value.name}; {case}\n{print_module(module)}"
            if not type_.dtype.is_float:
                assert same_bits(rounded, wide), f"integers differ in float64 mode: {describe_difference(rounded, wide)}; {where}"
            else:
                assert rounding_is_right(rounded.astype(np.float64), wide, type_.dtype.name), f"{describe_difference(rounded, wide)}; {where}"
            compared += 1
    return compared


def rounding_is_right(rounded: np.ndarray, wide: np.ndarray, dtype_name: str) -> bool:
    """Whether ``rounded`` is within half a unit of the last place of ``wide`` (nearest), with overflow to infinity."""
    precision, _ = _FORMATS[dtype_name]
    largest = {"f64": np.finfo(np.float64).max, "f32": float(np.finfo(np.float32).max), "f16": 65504.0, "bf16": 255 * 2.0**120}[dtype_name]
    with np.errstate(all="ignore"):
        half = ulp(wide, dtype_name) / 2
        near = np.abs(rounded - wide) <= half
        overflow = (np.abs(wide) >= largest + np.ldexp(largest, -precision - 1)) & (rounded == np.copysign(np.inf, wide))
    same = (rounded == wide) | (np.isnan(rounded) & np.isnan(wide))
    signs = np.signbit(rounded) == np.signbit(wide)
    return bool(np.all(same | ((near | overflow) & np.isfinite(wide)))) and bool(np.all(signs | np.isnan(wide)))


# -- passes ------------------------------------------------------------------------------------------------------------


def registered_passes() -> list[str]:
    """Names of all passes."""
    return list(pass_files())


@lru_cache(maxsize=1)
def default_passes() -> dict[str, Pass]:
    """Every pass with its default options."""
    return {name: find_pass(name)() for name in pass_files()}


def assert_same(found: Sequence[np.ndarray], wanted: Sequence[np.ndarray], what: str, module: Module) -> None:
    """Bit by bit; NaN equals NaN."""
    assert len(found) == len(wanted), f"{len(found)} outputs, before {len(wanted)}: {what}\n{print_module(module)}"
    for position, (a, b) in enumerate(zip(wanted, found, strict=True)):
        assert same_bits(a, b), f"output {position}: {describe_difference(a, b)}; {what}\n{print_module(module)}"


def apply_pass(pass_: Pass, module: Module) -> bool:
    """Runs a pass in place and checks what it says; the module verifies and round-trips afterwards."""
    before = print_module(module)
    changed = pass_.run(module, PassContext())
    verify_module(module)
    text = print_module(module)
    assert changed or text == before, f"{format_pass(pass_)} says that it changed nothing:\n{before}\nafter:\n{text}"
    check_text(module)
    return changed


def check_pass(pass_: Pass, before: Baseline, strict: bool = False) -> Module:
    """A pass keeps the numbers, leaves a sound module, and changes nothing the second time.  Returns the module after it.

    ``strict`` makes no allowance for programs that magnify rounding.
    """
    module = clone_module(before.module)
    changed = apply_pass(pass_, module)
    text = print_module(module)
    if pass_.idempotent and changed:
        again = clone_module(module)
        assert not apply_pass(pass_, again) and print_module(again) == text, (
            f"{format_pass(pass_)} run twice:\n{text}\nand then:\n{print_module(again)}"
        )
        reread = parse_module(text)
        infer_module(reread)
        apply_pass(pass_, reread)
        assert print_module(reread) == text, f"{format_pass(pass_)} on its own text:\n{text}\nand then:\n{print_module(reread)}"
    if changed:
        check_numbers(before, module, pass_.preserves, format_pass(pass_), strict)
    return module


def check_numbers(before: Baseline, after: Module, preserves: str, what: str, strict: bool = False) -> None:
    """``after`` computes what was computed before: the bits, or the values up to rounding."""
    for case in before.cases:
        where = f"{what}: {case}\nbefore:\n{print_module(before.module)}\nafter:"
        if preserves == "bits":
            assert_same(execute(after, case.graph, case.inputs, case.kind), case.outputs, where, after)
        elif case.kind == "real":
            compare_in_double(before.module, after, case, where, strict, preserves == "approximate")
        elif case.kind == "exact":
            compare_exact(before.module, after, case, where)


def compare_in_double(before: Module, after: Module, case: Case, where: str, strict: bool, approximate: bool = False) -> None:
    """Floats kept in float64: equal to 1e-9 (1e-6) of the largest element, as far as the program itself is that stable."""
    tolerance = APPROXIMATE_TOLERANCE if approximate else DOUBLE_TOLERANCE
    try:
        old = execute(before, case.graph, case.inputs, case.kind, double=True)
    except GraphError:
        return  # it hangs on a rounding whether the program fails
    try:
        new = execute(after, case.graph, case.inputs, case.kind, double=True)
    except GraphError as error:
        assert not strict and not is_stable(before, case, old), f"fails now: {error}; {where}\n{print_module(after)}"
        return
    assert len(old) == len(new), f"{len(new)} outputs, before {len(old)}: {where}\n{print_module(after)}"
    for position, (a, b) in enumerate(zip(old, new, strict=True)):
        if not close_in_double(a, b, tolerance):
            stable = is_stable(before, case, old, tolerance)
            assert not strict and not stable, f"output {position}: {describe_difference(a, b)}; {where}\n{print_module(after)}"


def is_stable(module: Module, case: Case, outputs: Sequence[np.ndarray], tolerance: float = DOUBLE_TOLERANCE) -> bool:
    """Whether noise on all rounded values leaves the outputs as close as a pass must: no comparison of equals, no cancellation."""
    try:
        noisy = execute(module, case.graph, case.inputs, case.kind, Noisy, double=True)
    except GraphError:
        return False
    return all(close_in_double(a, b, tolerance) for a, b in zip(outputs, noisy, strict=True))


def compare_exact(before: Module, after: Module, case: Case, where: str) -> None:
    """Small integers through exact operations: bit by bit, as long as neither program meets a number that it must round."""
    if not all(op.definition.exact or op.definition.full_name in ("graph.call", "graph.return") for m in (before, after) for op in m.walk()):
        return
    if rounds(before, case) or rounds(after, case):
        return
    assert_same(execute(after, case.graph, case.inputs, case.kind), case.outputs, where, after)


def rounds(module: Module, case: Case) -> bool:
    """Whether some value of an execution differs from that in float64."""
    runs: list[list[np.ndarray]] = []
    for double in (False, True):
        values: list[np.ndarray] = []

        def keep(op: Operation, results: Sequence[Any], values: list[np.ndarray] = values) -> None:
            values.extend(np.asarray(r) for r in results)

        execute(module, case.graph, case.inputs, case.kind, double=double, on_operation=keep)
        runs.append(values)
    with np.errstate(all="ignore"):
        return not all(np.array_equal(a.astype(np.float64), b.astype(np.float64), equal_nan=True) for a, b in zip(*runs, strict=True))


def check_pipeline(passes: Sequence[Pass], before: Baseline, what: str) -> Module:
    """A sequence of passes keeps the numbers after each of them, and changes nothing the second time."""
    module = check_sequence(passes, before, what)
    if all(p.idempotent for p in passes):
        again = clone_module(module)
        for pass_ in passes:
            apply_pass(pass_, again)
        once, twice = print_module(module), print_module(again)
        assert once == twice, f"{what} run twice:\n{print_module(before.module)}\nonce:\n{once}\ntwice:\n{twice}"
    return module


def check_preset(name: str, before: Baseline) -> None:
    """A preset keeps the numbers after each of its passes; those that stay on tensors change nothing the second time.

    A lowering run again finds something to tidy in what it made itself, and a rest of a loop that can be cut up once more.
    """
    passes = load_pipeline(name)
    if all(type(p).__name__ not in ("LowerToLinalg", "LowerToLoops") for p in passes):
        check_pipeline(passes, before, name)
    else:
        check_sequence(passes, before, name)


def check_sequence(passes: Sequence[Pass], before: Baseline, what: str) -> Module:
    """A sequence of passes: each keeps the numbers of the program that it is given."""
    module = clone_module(before.module)
    given = before
    for pass_ in passes:
        changed = apply_pass(pass_, module)
        if not changed:
            continue
        check_numbers(given, module, pass_.preserves, f"{format_pass(pass_)} in {what}")
        given = rerun(module, before) if pass_.preserves != "bits" else Baseline(clone_module(module), given.cases)
    return module


def rerun(module: Module, before: Baseline) -> Baseline:
    """What another form of the program computes for the same inputs, where it does not hang on a rounding whether it fails."""
    found = Baseline(clone_module(module))
    for case in before.cases:
        try:
            outputs = execute(module, case.graph, case.inputs, case.kind)
        except GraphError:
            continue
        found.cases.append(Case(case.graph, case.sizes, case.kind, case.inputs, outputs))
    return found


def check_program(module: Module, seed: int, limit: int | None = 1) -> Baseline:
    """Everything: text, types, and numbers after every pass and preset, and after two passes of the seed's choice."""
    check_text(module)
    runs = baseline(module, seed, limit)
    check_inference(module, runs)
    for pass_ in default_passes().values():
        check_pass(pass_, runs)
    for name in PRESETS:
        if name != LOOPS or sum(1 for _ in module.walk()) <= SMALL:
            check_preset(name, runs)
    shuffled = list(default_passes().values())
    random.Random(seed).shuffle(shuffled)
    check_sequence(shuffled, runs, "passes in random order")
    return runs


def all_examples() -> Iterator[tuple[str, int, str]]:
    """(op, number, text) of every example in a docstring."""
    from ir.docs import example_texts

    for name, definition in sorted(REGISTRY.items()):
        for number, text in enumerate(example_texts(definition.doc)):
            yield name, number, text
