"""Random typed programs over all operations.

A graph grows by stitching: the examples in the operations' docstrings are fragments, a fragment's parameters are bound
to values that are there already (or to fresh parameters and constants) by unifying their types, and its operations are
copied with the symbolic dimensions substituted.  Elementwise operations are also applied directly, with all element
types.  What is drawn comes from a :class:`Chooser`: hypothesis, which shrinks, or a seeded generator, which is fast.

An operation that is added to ``dialects/`` takes part without a change here.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any, Protocol, TypeVar

import numpy as np
from hypothesis import strategies as st

import dialects  # noqa: F401
from ir.attributes import Dense, GraphRef
from ir.builder import Builder
from ir.clone import clone_graph, clone_operation
from ir.core import DROPPED, Constraint, Graph, Module, Operation, Value
from ir.diagnostics import Diagnostics, GraphError
from ir.dims import Dim, compatible, substitute, symbol, symbols_of
from ir.evaluate import round_to
from ir.inference import Inference, infer_module, plain_symbol
from ir.inputs import choose_sizes
from ir.opdef import REGISTRY, OpDef, RegionOpDef, TypeProblem
from ir.parser import parse_module
from ir.signature import constraint_holds
from ir.substitute import substitute_constraint, substitute_operation
from ir.types import DTYPES, UNKNOWN, DType, MemRefType, TensorType, Type, is_known, substitute_type, type_symbols
from ir.updates import final_versions
from ir.verifier import verify_module
from tests.checks import all_examples

T = TypeVar("T")

SYMBOLS = ("B", "S", "N")
DTYPE_NAMES = ("f32", "f64", "f16", "bf16", "i32", "i64", "u8", "bool", "i8", "i16")
NUMBERS = (0.0, 1.0, -0.0, 2.0, -1.0, 0.0, 1.0, -0.0, 0.5, 3.0, float("inf"), float("nan"))
INTEGERS = (0, 1, -1, 2, 0, 1, 3)
NAMES = ("v", "x.1", "return", "w.0.t", "/layer.0/Add 1", "größe", "a\"b", "input", "7")


class Chooser(Protocol):
    """Where decisions come from.  The first choices are the simplest ones."""

    def integer(self, low: int, high: int) -> int: ...


class DrawChooser:
    """Decisions drawn by hypothesis."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw

    def integer(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))


class SeededChooser:
    """Decisions of a seeded generator."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def integer(self, low: int, high: int) -> int:
        return self.random.randint(low, high)


# -- fragments ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Fragment:
    """An example: its graph, the module it stands in, and the parameters that are taken as indices."""

    name: str
    graph: Graph
    module: Module
    indices: frozenset[int]
    traps: bool

    @property
    def symbols(self) -> list[str]:
        found: dict[str, None] = {}
        for parameter in self.graph.parameters:
            found.update(type_symbols(parameter.type))
        return list(found)


@lru_cache(maxsize=1)
def fragments() -> tuple[Fragment, ...]:
    """All examples, by operation and number."""
    found = []
    for name, _, text in all_examples():
        try:
            module = parse_module(text)
            infer_module(module)
        except GraphError:  # the table-driven tests complain about it
            continue
        graph = next(g for n, g in module.graphs.items() if n == "example" or len(module.graphs) == 1)
        indices = set()
        for op in graph.walk():
            for operand in op.definition.index_operands:
                value = op.operand(operand)
                indices.update(p.index for p in graph.parameters if p is value)
        found.append(Fragment(name, graph, module, frozenset(indices), any(op.definition.traps for op in graph.walk())))
    return tuple(found)


@lru_cache(maxsize=1)
def fragments_by_level() -> tuple[list[Fragment], list[Fragment]]:
    """Those of tensors, and those of the lower levels, whose many small operations are of less use here."""
    upper = [f for f in fragments() if f.name.startswith("graph.")]
    return upper, [f for f in fragments() if f not in upper]


@lru_cache(maxsize=1)
def elementwise_ops() -> tuple[OpDef, ...]:
    """Operations that can be applied to tensors of any one shape."""
    return tuple(d for _, d in sorted(REGISTRY.items()) if d.elementwise and d.dialect == "graph" and not isinstance(d, RegionOpDef))


@cache
def binary_ops(dtype: DType) -> tuple[OpDef, ...]:
    """Elementwise operations of two tensors of this element type that never fail."""
    found = []
    for definition in elementwise_ops():
        names = [o.name for o in definition.required_operands]
        if len(names) == 2 and not definition.traps and not any(s.required for s in definition.attribute_specs.values()):
            try:
                definition.infer([TensorType(dtype, ())] * 2, names, {})
            except TypeProblem:
                continue
            found.append(definition)
    return tuple(found)


# -- growing a graph ---------------------------------------------------------------------------------------------------


@dataclass
class Rejected(Exception):
    """A step that doesn't fit what is there; the graph is as it was before."""

    reason: str


@dataclass
class Growth:
    """A module under construction."""

    chooser: Chooser
    module: Module = field(default_factory=Module)
    graph: Graph = field(default_factory=lambda: Graph("main"))
    pool: list[Value] = field(default_factory=list)
    symbols: dict[str, None] = field(default_factory=dict)  # those that a parameter binds
    algebra: bool = False  # a program of elementwise operations and constants, the food of rewrite rules
    rejections: int = 0

    # -- decisions -------------------------------------------------------------------------------------------------

    def pick(self, options: Sequence[T]) -> T:
        return options[self.chooser.integer(0, len(options) - 1)]

    def recent(self, options: Sequence[T]) -> T:
        """One of the options, rather a late one, so that programs become deep."""
        last = len(options) - 1
        return options[last - min(self.chooser.integer(0, last), self.chooser.integer(0, last))]

    def chance(self, percent: int) -> bool:
        """True in so many percent of the cases; the simplest choice is False."""
        return self.chooser.integer(0, 99) >= 100 - percent

    # -- values ----------------------------------------------------------------------------------------------------

    def parameter(self, type_: Type, *, inout: bool = False) -> Value:
        """A new parameter."""
        base = self.pick(NAMES) if self.chance(5) else "cache" if inout else "p"
        value = self.graph.add_parameter(base, type_, inout=inout)
        self.symbols.update(dict.fromkeys(n for d in getattr(type_, "shape", ()) if (n := plain_symbol(d)) is not None))
        return value

    def dimension(self) -> Dim:
        """A small size, or a symbol (of which there are few, so that types unify)."""
        choice = self.chooser.integer(0, 9)
        return choice if 1 <= choice <= 4 else 0 if choice == 9 and self.chance(30) else symbol(self.pick(SYMBOLS))

    def fresh(self, type_: Type, index: bool = False) -> Value:
        """A value of this type: a parameter, or sometimes a constant where it is small."""
        if isinstance(type_, TensorType) and type_.is_static and not type_.dtype.is_block:
            if isinstance(type_.elements, int) and type_.elements <= 8 and self.chance(40):
                return self.constant(type_, index)
        value = self.parameter(type_)
        self.pool.append(value)
        return value

    def constant(self, type_: TensorType, index: bool = False) -> Value:
        """A constant with elements that rewrites like: zeros, ones, infinities."""
        shape = [int(d) for d in type_.shape]  # type: ignore[arg-type]
        same = self.chance(60)
        count = int(np.prod(shape, dtype=np.int64))
        elements = [self.element(type_.dtype, index) for _ in range(min(1, count) if same else count)]
        if same:
            elements *= count
        array = round_to(np.array(elements, np.float64), type_.dtype) if type_.dtype.is_float else np.array(elements).astype(type_.dtype.numpy)
        builder = Builder(self.graph.block)
        op = builder.create(REGISTRY["graph.constant"], [], {"value": Dense(array.reshape(shape), type_.dtype)})
        op.result.auto_named = False
        self.pool.append(op.result)
        return op.result

    def element(self, dtype: DType, index: bool) -> Any:
        if index:
            return 0
        if dtype.kind == "bool":
            return self.chance(50)
        return self.pick(NUMBERS) if dtype.is_float else self.pick(INTEGERS)

    # -- steps -----------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Adds something, or nothing when it doesn't fit."""
        choice = self.chooser.integer(35 if self.algebra else 0, 99)
        try:
            if self.algebra and choice < 75:
                self.with_constant()
            elif choice < 50:
                upper, lower = fragments_by_level()
                self.stitch(self.pick(lower if self.chance(12) else upper))
            elif choice < 60:
                self.with_constant()
            elif choice < 92:
                self.elementwise(self.pick(elementwise_ops()))
            else:
                self.repeat()
        except Rejected:
            self.rejections += 1

    def stitch(self, fragment: Fragment) -> None:
        """Copies a fragment's operations, its parameters bound to values."""
        if fragment.traps and not self.chance(50):
            raise Rejected("operations that may fail are taken less often")
        bindings: dict[str, Dim] = {}
        bound: list[Value | None] = [self._bind(fragment, i, bindings) for i in range(len(fragment.graph.parameters))]
        new_symbols: dict[str, None] = {}
        for name in fragment.symbols:
            if name not in bindings:
                bindings[name] = self.dimension()
                new_symbols.update(dict.fromkeys(symbols_of(bindings[name])))
        constraints = self._constraints(fragment, bindings)
        self._try(fragment, bound, bindings, new_symbols)
        mapping: dict[Value, Value] = {}
        for parameter, value in zip(fragment.graph.parameters, bound, strict=True):
            if value is None:
                type_ = substitute_type(parameter.type, bindings)
                value = self.parameter(type_, inout=True) if parameter.inout else self.fresh(type_, parameter.index in fragment.indices)
            mapping[parameter] = value
        self._copy(fragment, mapping, bindings)
        self.graph.constraints += tuple(c for c in constraints if c not in self.graph.constraints)

    def _bind(self, fragment: Fragment, position: int, bindings: dict[str, Dim]) -> Value | None:
        """A value of the pool that can stand for a parameter (the symbols it fixes are added), or None for a fresh one."""
        parameter = fragment.graph.parameters[position]
        if parameter.inout:
            candidates = [v for p, v in final_versions(self.graph, self.module).items() if p.inout]
        else:
            careful = position in fragment.indices or fragment.traps
            if self.chance(90 if careful else 15):
                return None
            candidates = self.pool
        fitting = [(v, found) for v in candidates if (found := unify(parameter.type, v.type, bindings)) is not None]
        if not fitting:
            return None
        value, found = self.recent(fitting)
        bindings.update(found)
        return value

    def _constraints(self, fragment: Fragment, bindings: dict[str, Dim]) -> list[Constraint]:
        """The fragment's conditions for the bound dimensions; those that hold anyway are left out."""
        kept = []
        for constraint in fragment.graph.constraints:
            found = substitute_constraint(constraint, bindings)
            if not constraint_holds(found, {}):
                raise Rejected("a condition does not hold")
            if any(symbols_of(d) for d in found.dims):
                kept.append(found)
        return kept

    def _try(self, fragment: Fragment, bound: Sequence[Value | None], bindings: dict[str, Dim], new_symbols: dict[str, None]) -> None:
        """Raises Rejected unless the fragment's types work out for these dimensions."""
        fresh_types = [substitute_type(p.type, bindings) for p, v in zip(fragment.graph.parameters, bound, strict=True) if v is None]
        if not all(is_known(t) for t in fresh_types):
            raise Rejected("a parameter would have an unknown dimension")
        binds = {n for t in fresh_types for d in getattr(t, "shape", ()) if (n := plain_symbol(d)) is not None}
        if any(n not in self.symbols and n not in binds for n in new_symbols):
            raise Rejected("no parameter would bind a symbol")
        trial = clone_graph(fragment.graph)
        for parameter, value in zip(trial.parameters, bound, strict=True):
            parameter.type = value.type if value is not None else substitute_type(parameter.type, bindings)
        for op in trial.block:
            substitute_operation(op, bindings)
            for nested in op.walk():  # what is inferred for the fragment's dimensions may be known better here
                for result in nested.results:
                    result.type = result.type if nested.definition.declared_result or nested.name == "graph.weight" else UNKNOWN
        trial.result_types = [UNKNOWN] * len(trial.result_types)
        module = Module()
        module.graphs = {n: g for n, g in fragment.module.graphs.items() if g is not fragment.graph}
        module.graphs[trial.name] = trial
        report = Diagnostics()
        inference = Inference(module, report)
        try:
            inference.graph(trial)
        except TypeProblem as problem:
            raise Rejected(str(problem)) from None
        problems = [d for d in report.items if "is in no parameter's type" not in d.message]
        if problems:
            raise Rejected(problems[0].message)

    def _copy(self, fragment: Fragment, mapping: dict[Value, Value], bindings: dict[str, Dim]) -> None:
        callees: dict[str, str] = {}
        for name, graph in fragment.module.graphs.items():
            if graph is not fragment.graph:
                callees[name] = self._add_graph(graph)
        self.module.files.update(fragment.module.files)
        for op in fragment.graph.block:
            if op.definition.is_terminator:
                break
            clone = clone_operation(op, mapping, self._name)
            substitute_operation(clone, bindings)
            clone.attributes = {n: GraphRef(callees[v.name]) if isinstance(v, GraphRef) else v for n, v in clone.attributes.items()}
            self.graph.block.append(clone)
            self._infer(clone)
            self.pool.extend(r for r in clone.results if isinstance(r.type, TensorType))

    def _add_graph(self, graph: Graph) -> str:
        """A copy of a graph that is called, under a name of its own."""
        name = graph.name if graph.name not in self.module.graphs else f"{graph.name}_{len(self.module.graphs)}"
        copy = clone_graph(graph)
        copy.name = name
        copy.trivia = None
        self.module.graphs[name] = copy
        return name

    def _name(self, name: str) -> str:
        if name != DROPPED and self.chance(4):
            return self.pick(NAMES)
        return name

    def _infer(self, op: Operation) -> None:
        """The types of an operation that was just added."""
        for nested in op.walk():
            for result in nested.results:
                if not nested.definition.declared_result and nested.name != "graph.weight":
                    result.type = UNKNOWN
        part = Inference(self.module, Diagnostics())
        part._operation(op)
        for value, type_ in part.types.items():
            value.type = type_

    def elementwise(self, definition: OpDef) -> None:
        """Applies an operation to values of one shape, or shapes that broadcast."""
        count = len(definition.required_operands)
        attributes = {s.name: self._attribute(s.annotation) for s in definition.attribute_specs.values() if s.required}
        first = self.recent([v for v in self.pool if isinstance(v.type, TensorType)] or [self.seed_value()])
        operands = [first]
        type_ = first.type
        assert isinstance(type_, TensorType)
        if type_.dtype.is_block:
            raise Rejected("nothing is computed in blocks")
        if count == 3:  # where(cond, a, b): the operand kinds differ
            operands[0] = self._of_type(TensorType(DTYPES["bool"], type_.shape))
            operands.append(first)
        while len(operands) < count:
            operands.append(self._other(type_))
        try:
            definition_types = [v.type for v in operands]
            names = [o.name for o in definition.required_operands]
            found = definition.infer(definition_types, names, attributes)
        except TypeProblem as problem:
            raise Rejected(problem.message) from None
        if found is None:
            raise Rejected("types are not known")
        if definition.traps and not self.chance(30):
            raise Rejected("operations that may fail are taken less often")
        try:
            op = Builder(self.graph.block).create(definition, operands, attributes)
        except GraphError as error:
            raise Rejected(str(error)) from None
        for result in op.results:
            result.auto_named = False
        self.pool.extend(op.results)

    def with_constant(self) -> None:
        """Applies an operation to a value and a constant on either side: what algebraic rules look for."""
        value = self.recent([v for v in self.pool if isinstance(v.type, TensorType)] or [self.seed_value()])
        assert isinstance(value.type, TensorType)
        dtype = value.type.dtype
        if dtype.is_block:
            raise Rejected("nothing is computed in blocks")
        left = self.chance(40)
        definition = self.pick(binary_ops(dtype))
        number = self.element(dtype, index=False)
        array = round_to(np.array(number, np.float64), dtype) if dtype.is_float else np.array(number).astype(dtype.numpy)
        whole = value.type.is_static and self.chance(40)
        shape = [int(d) for d in value.type.shape] if whole else []  # type: ignore[arg-type]
        builder = Builder(self.graph.block)
        constant = builder.create(REGISTRY["graph.constant"], [], {"value": Dense(np.full(shape, array), dtype)}).result
        op = builder.create(definition, [constant, value] if left else [value, constant])
        for made in builder.created:
            made.results[0].auto_named = False
        self.pool.append(op.result)

    def _attribute(self, annotation: Any) -> Any:
        if annotation is DType:
            return DTYPES[self.pick(DTYPE_NAMES)]
        if annotation in (int, float):
            return annotation(self.pick(INTEGERS))
        raise Rejected("an attribute that can't be drawn")

    def _other(self, type_: TensorType) -> Value:
        """A second operand: of the same type, or one that broadcasts against it."""
        shape = type_.shape
        form = self.chooser.integer(0, 5)
        if form == 1:
            shape = shape[1:]
        elif form == 2:
            shape = tuple(1 if self.chance(50) else d for d in shape)
        elif form == 3:
            shape = ()
        return self._of_type(TensorType(type_.dtype, shape))

    def _of_type(self, type_: TensorType) -> Value:
        there = [v for v in self.pool if v.type == type_]
        return self.pick(there) if there and not self.chance(40) else self.fresh(type_)

    def repeat(self) -> None:
        """An operation once more, as it stands or with another order of operands: work for common subexpression elimination."""
        candidates = [op for op in self.graph.block if op.definition.pure and op.results and not op.definition.traps]
        if not candidates:
            raise Rejected("nothing to repeat")
        clone = clone_operation(self.pick(candidates), {})
        if clone.definition.commutative and self.chance(50):
            operands = clone.operands
            clone.set_operands([operands[1], operands[0], *operands[2:]])
        self.graph.block.append(clone)
        self.pool.extend(r for r in clone.results if isinstance(r.type, TensorType))

    def seed_value(self) -> Value:
        """A parameter of a small rank."""
        rank = self.chooser.integer(0, 3)
        type_ = TensorType(DTYPES[self.pick(DTYPE_NAMES)], tuple(self.dimension() for _ in range(rank)))
        value = self.parameter(type_)
        self.pool.append(value)
        return value

    # -- the end ---------------------------------------------------------------------------------------------------

    def finish(self) -> Module:
        """Returns some of the values; the others are dead code."""
        graph = self.graph
        pool = list(dict.fromkeys(self.pool))
        returned = [self.pick(pool) for _ in range(self.chooser.integer(1, min(4, len(pool))))]
        if self.chance(50):
            returned = [v for v in pool if not v.has_uses] or returned
        elif not self.chance(20):
            returned = list(dict.fromkeys([pool[-1], *returned]))
        graph.block.append(Operation(REGISTRY["graph.return"], returned))
        names: list[str] = []
        for value in returned:
            name, number = result_name(value.name), 1
            base = name
            while name in names:
                name, number = f"{base}.{number}", number + 1
            names.append(name)
        graph.result_names = names
        graph.result_types = [v.type for v in returned]
        self.module.add(graph)
        try:
            choose_sizes(graph)
        except GraphError:
            graph.constraints = ()  # conditions of different fragments that exclude each other
        return self.module


def result_name(name: str) -> str:
    """A name that a signature can hold, where names are not quoted."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "_.") else "_" for c in name)
    return plain if plain[:1].isalpha() and plain not in RESERVED else f"r_{plain}"


RESERVED = (
    *("file", "graph", "where", "to", "step", "return", "yield", "reduce"),
    *("loc", "mod", "floordiv", "ceildiv", "inout", "vector", "memref", "sha256"),
)


def unify(expected: Type, found: Type, bindings: dict[str, Dim]) -> dict[str, Dim] | None:
    """The symbols that must be bound besides ``bindings`` for ``found`` to be ``expected``; None when it can't be."""
    if type(expected) is not type(found) or not isinstance(found, (TensorType, MemRefType)) or not is_known(found):
        return None
    assert isinstance(expected, (TensorType, MemRefType))
    if expected.dtype != found.dtype or len(expected.shape) != len(found.shape):
        return None
    new: dict[str, Dim] = {}
    for dim, have in zip(expected.shape, found.shape, strict=True):
        name = plain_symbol(dim)
        if name is not None and name not in bindings and name not in new:
            new[name] = have
    known = {**bindings, **new}
    return new if all(compatible(substitute(d, known), h) for d, h in zip(expected.shape, found.shape, strict=True)) else None


def grow(chooser: Chooser, max_steps: int = 12) -> Module:
    """A verified module with inferred types; ``@main`` is the graph that grew."""
    growth = Growth(chooser)
    growth.algebra = growth.chance(30)
    growth.seed_value()
    for _ in range(chooser.integer(1, max_steps)):
        growth.step()
    module = growth.finish()
    verify_module(module)
    infer_module(module)
    return module


@st.composite
def modules(draw: st.DrawFn, max_steps: int = 12) -> Module:
    """Random modules, which shrink to short ones."""
    return grow(DrawChooser(draw), max_steps)


def random_module(seed: int, max_steps: int = 12) -> Module:
    """The random module of a seed."""
    return grow(SeededChooser(seed), max_steps)
