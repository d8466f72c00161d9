"""Checking a pass by running the program before and after it in the reference interpreter.

Two programs are compared on generated inputs, in up to four ways:

* on ordinary, special (NaN, infinities, signed zeros, denormals) and exact (small integer) inputs, bit by bit, when the
  pass promises to keep the bits;
* on exact inputs bit by bit, when all operations are exact on integers, whatever the pass promises;
* with floats kept in float64 throughout, to 1e-9 of the result's largest element: rounding can't hide a wrong rewrite (1e-6
  when the pass puts approximations for f32 in the place of functions, or what the pass says);
* against that float64 run: the error may not grow beyond ``ERROR_GROWTH`` times what it was, plus a few roundings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ir.attributes import GraphRef
from ir.blocks import dequantize
from ir.core import Block, Graph, Module, Operation, Parameter
from ir.diagnostics import Diagnostics, GraphError
from ir.dims import Dim, product, substitute, symbols_of
from ir.inference import Inference, unify_call
from ir.inputs import CAUTION_LEVELS, GeneratedWeights, Kind, choose_sizes, generate_inputs
from ir.interpreter import Interpreter
from ir.layout import LAYOUT, LoopDim, RangeArg, layout_of
from ir.printer import print_module, print_operation
from ir.references import INITIAL, all_references
from ir.types import DType, MemRefType, TensorType, f64, is_known

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ir.weights import WeightSource

DOUBLE_TOLERANCE = 1e-9  # of the largest element; float64 rounding of a few thousand operations stays far below
APPROXIMATE_TOLERANCE = 1e-6  # the same for approximations that are good for f32
ERROR_GROWTH = 8.0
STEP_COST = 10000.0  # elementary operations in the time of one operation inside of a loop, which runs on its own
DEFAULT_BUDGET = 4e9  # elementary operations of one run; a 2-core machine does about 1e9 a second
_ROUNDINGS = 64.0

Bits = Literal["bits", "values", "approximate"]


@dataclass
class Mismatch:
    """How two programs differ: the operation of the later one where they part, and what was seen."""

    operation: Operation | None
    message: str

    def describe(self) -> str:
        """One or two lines of text."""
        if self.operation is None:
            return self.message
        return f"{self.message}\n  at {print_operation(self.operation).splitlines()[0]}"


@dataclass
class Outcome:
    """What a comparison came to: a mismatch, or why (a part of) it could not be made, or neither."""

    mismatch: Mismatch | None = None
    skipped: str | None = None


@dataclass
class _Run:
    results: list[NDArray[Any]]
    values: dict[str, tuple[Operation, Sequence[Any]]]
    inout: list[NDArray[Any]]


class KeptRuns:
    """The runs of the last comparison's later program, which is the earlier one of the next comparison."""

    _MOST = 1 << 28  # bytes of the values of a run

    def __init__(self) -> None:
        self._before: dict[tuple[Any, ...], _Run] = {}
        self._after: dict[tuple[Any, ...], _Run] = {}

    def next(self) -> None:
        """A comparison begins: what ran after the last pass is there before this one."""
        self._before, self._after = self._after, {}

    def find(self, key: tuple[Any, ...]) -> _Run | None:
        """What the earlier program gave when it was the later one."""
        return self._before.get(key)

    def keep(self, key: tuple[Any, ...], run: _Run) -> None:
        """Keeps a run of the later program, unless its values are large."""
        if sum(np.asarray(array).nbytes for _, array in run.values.values()) <= self._MOST:
            self._after[key] = run


def compare_modules(
    before: Module,
    after: Module,
    preserves: Bits = "bits",
    *,
    tolerance: float | None = None,
    sources: Mapping[str, WeightSource] | None = None,
    seed: int = 0,
    budget: float = DEFAULT_BUDGET,
    generated: dict[tuple[str, Kind], WeightSource] | None = None,
    kept: KeptRuns | None = None,
) -> Outcome:
    """Runs every graph that both modules have and nothing else calls, and compares the results.

    ``tolerance`` is how far ``approximate`` values may be off, as a part of the largest element (default: 1e-6).  Weights of files
    that ``sources`` lacks are generated, and kept in ``generated`` for the next comparison; runs
    of ``after`` are in ``kept``, so that a program doesn't run twice between two passes.
    """
    outcome = Outcome()
    generated = generated if generated is not None else {}
    kept = kept if kept is not None else KeptRuns()
    kept.next()
    for name in entry_graphs(after):
        if name not in before.graphs:
            return Outcome(Mismatch(None, f"graph @{name} was not there before"))
        found = _Comparison(before, after, name, preserves, tolerance, sources or {}, generated, kept, seed, budget).run()
        if found.mismatch is not None:
            return found
        outcome.skipped = outcome.skipped or found.skipped
    return outcome


def entry_graphs(module: Module) -> list[str]:
    """Graphs that no other graph calls or has run at load time."""
    referenced = all_references(module)
    return [n for n in module.graphs if n not in referenced]


class _Remembered:
    """A source whose tensors are read once, however often the program runs."""

    def __init__(self, source: WeightSource) -> None:
        self._source = source
        self._read: dict[str, NDArray[Any]] = {}

    def names(self) -> list[str]:
        return self._source.names()

    def info(self, name: str) -> tuple[DType, tuple[int, ...]]:
        return self._source.info(name)

    def read(self, name: str) -> NDArray[Any]:
        if name not in self._read:
            self._read[name] = self._source.read(name)
        return self._read[name]

    def close(self) -> None:
        self._source.close()


class _Comparison:
    def __init__(
        self,
        before: Module,
        after: Module,
        name: str,
        preserves: Bits,
        tolerance: float | None,
        sources: Mapping[str, WeightSource],
        generated: dict[tuple[str, Kind], WeightSource],
        kept: KeptRuns,
        seed: int,
        budget: float,
    ) -> None:
        self.before, self.after, self.name = before, after, name
        self.preserves = preserves
        self.wide = 0.0 if tolerance is None else tolerance
        self.tolerance = tolerance or (APPROXIMATE_TOLERANCE if preserves == "approximate" else DOUBLE_TOLERANCE)
        self.sources = {f: _Remembered(s) for f, s in sources.items()}
        self.generated = generated
        self.kept = kept
        self.texts = {id(m): print_module(m) for m in (before, after)}
        self.seed = seed
        self.budget = budget

    def run(self) -> Outcome:
        graph = self.after.graphs[self.name]
        unknown = next((p for p in graph.parameters if not is_known(p.type)), None)
        if unknown is not None:
            return Outcome(skipped=f"@{self.name} not verified: %{unknown.name} has no known type")
        sizes = self._affordable_sizes(graph)
        if sizes is None:
            return Outcome(skipped=f"@{self.name} not verified: budget")
        exact = all(op.definition.exact for m in (self.before, self.after) for op in m.walk())
        kinds: list[Kind] = ["real", "special", "exact"] if self.preserves == "bits" else ["real", "exact"]
        skipped = None
        for kind in kinds:
            bitwise = self.preserves == "bits" or (exact and kind == "exact")
            found = self._compare_kind(kind, sizes, bitwise)
            if found.mismatch is not None:
                return found
            skipped = skipped or found.skipped
        return Outcome(skipped=skipped)

    def _affordable_sizes(self, graph: Graph) -> dict[str, int] | None:
        """Sizes for the symbolic dimensions whose run fits the budget; small ones are tried when the usual don't."""
        for candidates in ((3, 4, 2, 5, 8, 16, 1, 32, 64, 128, 256, 512, 1024, 0), (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 0)):
            try:
                sizes = choose_sizes(graph, sizes=candidates)
            except GraphError:
                continue
            if max(estimate_cost(self.before, self.name, sizes), estimate_cost(self.after, self.name, sizes)) <= self.budget:
                return sizes
        return None

    def _compare_kind(self, kind: Kind, sizes: Mapping[str, int], bitwise: bool) -> Outcome:
        graph = self.after.graphs[self.name]
        problem: GraphError | None = None
        for caution in range(CAUTION_LEVELS):
            inputs = generate_inputs(self.after, graph, sizes, kind, self.seed, caution)
            try:
                old = self._execute(self.before, inputs, kind)
            except GraphError as error:  # this program fails on such inputs; try tamer ones
                problem = error
                continue
            try:
                new = self._execute(self.after, inputs, kind)
            except GraphError as error:
                return Outcome(Mismatch(None, f"the program ran before, but now fails: {error}"))
            if bitwise:
                return Outcome(self._differ_bitwise(old, new))
            return Outcome(self._differ_in_values(old, new, inputs, kind))
        return Outcome(skipped=f"@{self.name} not verified on {kind} inputs: it fails on every generated input ({problem})")

    def _execute(self, module: Module, inputs: Sequence[NDArray[Any]], kind: Kind, double: bool = False) -> _Run:
        key = (self.texts[id(module)], self.name, kind, double, *((a.dtype.str, a.shape, sha256(a.tobytes()).digest()) for a in inputs))
        known = self.kept.find(key) if module is self.before else None
        if known is not None:
            return known
        values: dict[str, tuple[Operation, Sequence[Any]]] = {}

        def record(op: Operation, results: Sequence[Any]) -> None:
            for result, array in zip(op.results, results, strict=True):
                values[result.name] = (op, array)

        graph = module.graphs[self.name]
        sources = {f: self._source(module, f, kind) for f in module.files}
        arrays = [a.copy() for a in inputs]
        interpreter = Interpreter(module, sources, double=double, on_operation=record, quiet=True)
        results = interpreter.run(graph, arrays)
        run = _Run(results, values, [arrays[p.index] for p in written_parameters(graph)])
        if module is self.after:
            self.kept.keep(key, run)
        return run

    def _source(self, module: Module, file: str, kind: Kind) -> WeightSource:
        """The bound weights, else generated ones: small integers for exact runs, ordinary numbers for the others."""
        if file in self.sources:
            return self.sources[file]
        key: tuple[str, Kind] = (file, "exact" if kind == "exact" else "real")
        if key not in self.generated:
            self.generated[key] = _Remembered(GeneratedWeights(self.before, file, kind=key[1]))
        return self.generated[key]

    # -- comparing -------------------------------------------------------------------------------------------------

    def _pairs(self, old: _Run, new: _Run) -> list[tuple[str, NDArray[Any], NDArray[Any]]]:
        graph = self.after.graphs[self.name]
        names = [f"result '{n}'" for n in graph.result_names] + [f"%{p.name} after the call" for p in written_parameters(graph)]
        return list(zip(names, [*old.results, *old.inout], [*new.results, *new.inout], strict=False))

    def _differ_bitwise(self, old: _Run, new: _Run) -> Mismatch | None:
        if len(old.results) != len(new.results):
            return Mismatch(None, f"{len(new.results)} results, before {len(old.results)}")
        for name, before, after in self._pairs(old, new):
            if not same_bits(before, after):
                return Mismatch(self._culprit(old, new, lambda a, b: same_bits(a, b)), f"{name} changed: {describe_difference(before, after)}")
        return None

    def _differ_in_values(self, old: _Run, new: _Run, inputs: Sequence[NDArray[Any]], kind: Kind) -> Mismatch | None:
        if len(old.results) != len(new.results):
            return Mismatch(None, f"{len(new.results)} results, before {len(old.results)}")

        def close(a: NDArray[Any], b: NDArray[Any]) -> bool:
            return close_in_double(a, b, self.tolerance)

        old_double = self._execute(self.before, inputs, kind, double=True)
        new_double = self._execute(self.after, inputs, kind, double=True)
        for name, before, after in self._pairs(old_double, new_double):
            if not close(before, after):
                culprit = self._culprit(old_double, new_double, close)
                return Mismatch(culprit, f"{name} changed: {describe_difference(before, after)}, computed in float64")
        declared = zip(self._pairs(old, new), self._pairs(old_double, new_double), strict=True)
        for (name, before, after), (_, exact, _) in declared:
            if not error_is_bounded(before, after, exact, self.wide):
                return Mismatch(None, f"{name} lost accuracy: {describe_difference(before, after)}")
        return None

    def _culprit(self, old: _Run, new: _Run, same: Any) -> Operation | None:
        """The first operation whose result has a name of before, but other numbers; else the one that returns them."""
        for name, (op, array) in new.values.items():
            known = old.values.get(name)
            if known is not None and np.shape(known[1]) == np.shape(array) and not same(np.asarray(known[1]), np.asarray(array)):
                return op
        for value in self.after.graphs[self.name].results:
            if value.defining_op is not None:
                return value.defining_op
        return None


def written_parameters(graph: Graph) -> list[Parameter]:
    """Parameters whose arrays a run may change: ``inout`` tensors, and buffers."""
    return [p for p in graph.parameters if p.inout or isinstance(p.type, MemRefType)]


def same_bits(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Whether two arrays agree in dtype, shape and every bit; all NaNs count as the same."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype.names is not None:  # blocks
        return a.tobytes() == b.tobytes()
    raw = f"u{a.dtype.itemsize}"
    equal = np.ascontiguousarray(a).view(raw) == np.ascontiguousarray(b).view(raw) if a.dtype.itemsize in (1, 2, 4, 8) else a == b
    if _is_float(a):
        equal = equal.reshape(a.shape) | (np.isnan(a.astype(np.float64)) & np.isnan(b.astype(np.float64)))
    return bool(np.all(equal))


def _is_float(array: NDArray[Any]) -> bool:
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def close_in_double(a: NDArray[Any], b: NDArray[Any], tolerance: float = DOUBLE_TOLERANCE) -> bool:
    """Whether two results of float64 runs agree to rounding; integers and bools exactly.

    A narrow float is an input that is returned as it came: no operation has widened it.
    """
    if a.shape != b.shape or _is_float(a) != _is_float(b):
        return False
    if not _is_float(a):
        return same_bits(a, b)
    a, b = a.astype(np.float64), b.astype(np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return False
    scale = float(np.max(np.abs(a[finite]), initial=0.0))
    with np.errstate(over="ignore"):
        return bool(np.all(np.abs(a[finite] - b[finite]) <= tolerance * scale))


_UNIT = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def error_is_bounded(before: NDArray[Any], after: NDArray[Any], exact: NDArray[Any], tolerance: float = 0.0) -> bool:
    """Whether the error of ``after`` against the float64 run is of the kind that ``before`` has, beside a part of the largest element."""
    if before.shape != after.shape or before.dtype != after.dtype:
        return False
    if not _is_float(before):
        return True  # a comparison or a rounding of floats may go either way; the float64 runs agreed
    unit = _UNIT[before.dtype.name]
    old, new = before.astype(np.float64), after.astype(np.float64)
    finite = np.isfinite(old) & np.isfinite(new) & np.isfinite(exact)
    scale = float(np.max(np.abs(exact[finite]), initial=0.0))
    old_error = float(np.max(np.abs(old[finite] - exact[finite]), initial=0.0))
    new_error = float(np.max(np.abs(new[finite] - exact[finite]), initial=0.0))
    return new_error <= ERROR_GROWTH * old_error + (_ROUNDINGS * unit + tolerance) * scale


def describe_difference(before: NDArray[Any], after: NDArray[Any]) -> str:
    """Where two arrays differ most, in words."""
    if before.dtype != after.dtype or before.shape != after.shape:
        return f"{after.dtype}{list(after.shape)}, before {before.dtype}{list(before.shape)}"
    a, b = (dequantize(x, f64) if x.dtype.names is not None else x.astype(np.float64) for x in (before, after))
    with np.errstate(all="ignore"):
        distance = np.where(np.isnan(a) & np.isnan(b), 0.0, np.abs(a - b))
    distance = np.where(np.isnan(distance), np.inf, distance)
    if not np.any(distance):
        distance = np.where(np.signbit(a) != np.signbit(b), 1.0, 0.0)
    place = np.unravel_index(int(np.argmax(distance)), distance.shape) if distance.shape else ()
    where = f" at [{', '.join(str(int(i)) for i in place)}]"
    return f"{after[place]!s}{where}, before {before[place]!s} ({int(np.count_nonzero(distance))} of {distance.size} elements differ)"


def _rounds(op: Operation, bound: Mapping[str, Dim]) -> float:
    """How often the regions of an operation run; of bounds that depend on other loops those of the first round."""

    def number(dim: Dim) -> int:
        first = {name: 0 for name in symbols_of(dim) if name not in bound}
        value = substitute(dim, {**first, **bound})
        return value if isinstance(value, int) else 1

    total = 1.0
    for argument in layout_of(op) if LAYOUT in op.attributes else ():
        if isinstance(argument, LoopDim):
            total *= max(number(argument.bound), 0)
        elif isinstance(argument, RangeArg):
            total *= max(-(-number(argument.stop - argument.start) // max(number(argument.step), 1)), 0)
    return total


def estimate_cost(module: Module, name: str, sizes: Mapping[str, int]) -> float:
    """About how many elementary operations one run takes: elements touched, multiplications of matrix products, steps in loops."""
    types = Inference(module, Diagnostics()).run()

    def elements(type_: Any, bound: Mapping[str, Dim]) -> float:
        if not isinstance(type_, TensorType):
            return 0.0
        count = product(substitute(d, bound) for d in type_.shape)
        return float(count) if isinstance(count, int) else 0.0

    def graph_cost(graph: Graph, bound: Mapping[str, Dim]) -> float:
        return block_cost(graph.block, bound, 1.0)

    def block_cost(block: Block, bound: Mapping[str, Dim], rounds: float) -> float:
        total = 0.0
        for op in block:
            if block.parent is not None:
                total += STEP_COST * rounds
            total += rounds * op_cost(op, bound)
            for region in op.regions:
                total += block_cost(region.block, bound, rounds * _rounds(op, bound))
        return total

    def op_cost(op: Operation, bound: Mapping[str, Dim]) -> float:
        operand_types = [types.get(v, v.type) for v in op.operands]
        out = sum(elements(types.get(r, r.type), bound) for r in op.results)
        total = out + sum(elements(t, bound) for t in operand_types)
        if op.definition.full_name == "graph.call":
            reference = op.attributes["callee"]
            assert isinstance(reference, GraphRef)
            callee = module.graphs[reference.name]
            inner = {n: substitute(d, bound) for n, d in unify_call(callee, operand_types).items()}
            total += graph_cost(callee, inner)
        elif op.definition.full_name == INITIAL:
            source = op.attributes["source"]
            assert isinstance(source, GraphRef)
            total += graph_cost(module.graphs[source.name], {})
        elif op.definition.name in ("matmul", "linear") and operand_types and isinstance(operand_types[0], TensorType):
            inner_dim = substitute(operand_types[0].shape[-1], bound) if operand_types[0].rank else 1
            total += out * (inner_dim if isinstance(inner_dim, int) else 1)
        return total

    return graph_cost(module.graphs[name], dict(sizes))
