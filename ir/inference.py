"""Types of all values of a program, from those of the parameters and what is written on the operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ir.attributes import FileRef, GraphRef
from ir.core import Block, Graph, Module, Operation, Value
from ir.diagnostics import Diagnostics, did_you_mean
from ir.dims import Dim, DimensionTooLarge, DimExpr, compatible, substitute, symbols_of
from ir.locate import attribute_location, symbol_location, use_location
from ir.opdef import RegionOpDef, TypeProblem, operand_use_for
from ir.references import INITIAL, first_effect
from ir.types import UNKNOWN, TensorType, Type, UnknownType, is_known, merge_types, substitute_type, type_problem, type_symbols

if TYPE_CHECKING:
    from ir.weights import WeightSource

Types = dict[Value, Type]


class Inference:
    """One run over a module; ``types`` afterwards holds the type of every value, complaints are in ``report``."""

    def __init__(self, module: Module, report: Diagnostics, sources: Mapping[str, WeightSource] | None = None) -> None:
        self.module = module
        self.report = report
        self.sources = sources or {}
        self.types: Types = {}
        self.results: dict[str, list[Type]] = {}
        self._active: list[str] = []
        self._interned: dict[Type, Type] = {}
        self._after_errors = bool(report.items)  # the parser has said what is not defined

    def run(self) -> Types:
        """Infers all graphs."""
        for graph in self.module.graphs.values():
            self.graph(graph)
        return self.types

    def graph(self, graph: Graph) -> list[Type]:
        """Infers one graph (and those it calls) and returns its result types."""
        if graph.name in self.results:
            return self.results[graph.name]
        self._active.append(graph.name)
        for parameter in graph.parameters:
            self.types[parameter] = parameter.type
            problem = type_problem(parameter.type)
            if problem is not None:
                self.report.error(f"%{parameter.name}: {problem}", parameter.loc)
        self._block(graph.block)
        results = [self.types.get(v, v.type) for v in (graph.block.terminator.operands if graph.block.terminator else [])]
        self._check_signature(graph, results)
        self._check_symbols(graph)
        self._active.pop()
        merged = [merge_types(d, r) or d for d, r in zip(graph.result_types, results, strict=False)]
        self.results[graph.name] = merged
        return merged

    def _block(self, block: Block) -> None:
        for op in block:
            self._operation(op)

    def _operation(self, op: Operation) -> None:
        declared = [r.type for r in op.results]
        try:
            inferred = self._infer(op)
        except TypeProblem as problem:
            self._problem(op, problem)
            inferred = None
        except DimensionTooLarge as error:
            self.report.error(f"{op.definition.text_name}: {error}", op.loc)
            inferred = None
        if inferred is not None and len(inferred) != len(declared):
            count = f"{len(inferred)} result{'s' * (len(inferred) != 1)}"
            self.report.error(f"'{op.definition.text_name}' has {count} here, but {len(declared)} are named", op.loc)
            inferred = None
        for i, result in enumerate(op.results):
            type_ = declared[i]
            if inferred is not None:
                merged = merge_types(type_, inferred[i])
                if merged is None:
                    self.report.error(f"%{result.name} is declared {type_}, but '{op.definition.text_name}' gives {inferred[i]}", op.loc)
                    type_ = UNKNOWN  # what follows from it would only repeat this
                elif (wrong := type_problem(merged)) is not None:
                    self.report.error(f"%{result.name} would be {merged}: {wrong}", op.loc)
                    type_ = UNKNOWN
                elif not _fits(merged):
                    self.report.error(f"%{result.name} would be {merged}: a dimension is less than 2**63", op.loc)
                    type_ = UNKNOWN
                else:
                    type_ = merged
            self.types[result] = self._interned.setdefault(type_, type_)

    def _problem(self, op: Operation, problem: TypeProblem) -> None:
        location = op.loc
        use = operand_use_for(op, problem.operand)
        if use is not None:
            location = use_location(use)
        elif problem.attribute is not None:
            location = attribute_location(op, problem.attribute)
        self.report.error(f"{op.definition.text_name}: {problem.message}", location, hint=problem.hint)

    def _infer(self, op: Operation) -> tuple[Type, ...] | None:
        definition = op.definition
        operand_types = [self.types.get(v, v.type) for v in op.operands]
        if isinstance(definition, RegionOpDef):
            return self._infer_region_op(op, definition, operand_types)
        if definition.full_name == "graph.call":
            return self._infer_call(op, operand_types)
        if definition.full_name == "graph.weight":
            return self._infer_weight(op)
        if definition.full_name == INITIAL:
            return self._infer_initial(op)
        definition.verify(op)
        return definition.infer(operand_types, definition.operand_names(op), op.attributes, [r.type for r in op.results])

    def _infer_region_op(self, op: Operation, definition: RegionOpDef, operand_types: list[Type]) -> tuple[Type, ...] | None:
        definition.verify(op)
        yields: list[list[Type]] = []
        if op.regions:
            block = op.regions[0].block
            argument_types = definition.region_argument_types(op, operand_types)
            for argument, type_ in zip(block.arguments, argument_types, strict=False):
                self.types[argument] = type_
        for region in op.regions:
            self._block(region.block)
            terminator = region.block.terminator
            yields.append([self.types.get(v, v.type) for v in terminator.operands] if terminator is not None else [])
        return definition.infer_op(op, operand_types, definition.merge_yielded(op, yields))

    def _infer_weight(self, op: Operation) -> tuple[Type, ...]:
        file, name = op.attributes["file"], op.attributes["name"]
        assert isinstance(file, FileRef) and isinstance(name, str)
        source = self.sources.get(file.name)
        if source is None:
            return (op.results[0].type,)
        if name not in source.names():
            raise TypeProblem(f"file @{file.name} has no tensor '{name}'", hint=did_you_mean(name, source.names()))
        dtype, shape = source.info(name)
        return (TensorType(dtype, tuple(shape)),)

    def _referenced(self, op: Operation, attribute: str, doing: str) -> Graph | None:
        """The graph that an attribute names, if it is defined and does not depend on the one that is being inferred."""
        reference = op.attributes[attribute]
        assert isinstance(reference, GraphRef)
        found = self.module.graphs.get(reference.name)
        if found is None:
            if self._after_errors:
                return None
            raise TypeProblem(f"graph @{reference.name} is not defined", hint=did_you_mean(reference.name, self.module.graphs))
        if found.name in self._active:
            cycle = " -> ".join(f"@{n}" for n in [*self._active[self._active.index(found.name) :], found.name])
            raise TypeProblem(f"graphs can't {doing} themselves: {cycle}")
        return found

    def _infer_initial(self, op: Operation) -> tuple[Type, ...] | None:
        source, number = self._referenced(op, "source", "depend on"), op.attributes["result"]
        if source is None:
            return None
        assert isinstance(number, int)
        results = self.graph(source)
        if source.parameters:
            raise TypeProblem(f"graph @{source.name} has parameters, but nothing is known of them when the program is loaded")
        effect = first_effect(self.module, source)
        if effect is not None:
            raise TypeProblem(f"graph @{source.name} has an effect ('{effect.definition.text_name}'), but it is run only when the program is loaded")
        if not 0 <= number < len(results):
            count = f"{len(results)} result{'s' * (len(results) != 1)}"
            raise TypeProblem(f"graph @{source.name} has {count}, counted from 0; there is no result {number}", attribute="result")
        if not isinstance(results[number], (TensorType, UnknownType)):
            raise TypeProblem(f"result {number} of graph @{source.name} is {results[number]}, not a tensor", attribute="result")
        return (results[number],)

    def _infer_call(self, op: Operation, operand_types: list[Type]) -> tuple[Type, ...] | None:
        callee = self._referenced(op, "callee", "call")
        if callee is None:
            return None
        parameters = callee.parameters
        if len(parameters) != len(operand_types):
            raise TypeProblem(f"graph @{callee.name} takes {len(parameters)} operand{'s' * (len(parameters) != 1)}, found {len(operand_types)}")
        results = self.graph(callee)
        bindings = unify_call(callee, operand_types)
        found = [substitute_type(t, bindings) for t in results]
        found += [operand_types[i] for i, p in enumerate(parameters) if p.inout]
        return tuple(found)

    # -- checks of a whole graph -----------------------------------------------------------------------------------

    def _check_signature(self, graph: Graph, results: list[Type]) -> None:
        terminator = graph.block.terminator
        if terminator is None or len(results) != len(graph.result_types):
            return
        for use, declared, found in zip(terminator.operand_uses, graph.result_types, results, strict=True):
            if merge_types(declared, found) is None:
                self.report.error(f"the signature declares {declared}, but %{use.value.name} is {found}", use_location(use))

    def _check_symbols(self, graph: Graph) -> None:
        """Every symbolic dimension comes from a parameter."""
        if not all(is_known(p.type) for p in graph.parameters):
            return
        bound: dict[str, None] = {}
        for parameter in graph.parameters:
            bound.update(type_symbols(parameter.type))
        reported: set[str] = set()

        def check(names: Mapping[str, None], report: Callable[[str, str | None], None]) -> None:
            for name in names:
                if name not in bound and name not in reported:
                    reported.add(name)
                    report(f"dimension {name} is in no parameter's type", did_you_mean(name, bound))

        for op in graph.walk():
            for result in op.results:
                check(type_symbols(self.types.get(result, UNKNOWN)), lambda m, h, op=op: self.report.error(m, op.loc, hint=h))  # type: ignore[misc]
        for type_ in graph.result_types:
            check(type_symbols(type_), lambda m, h: self.report.error(m, graph.loc, hint=h))
        for constraint in graph.constraints:
            for dim in constraint.dims:
                check(symbols_of(dim), lambda m, h, dim=dim: self.report.error(m, symbol_location(graph, dim, bound), hint=h))  # type: ignore[misc]


def _fits(type_: Type) -> bool:
    """Whether the numbers in a tensor's dimensions fit in 64 bits."""
    return not isinstance(type_, TensorType) or not any(isinstance(d, int) and d >= 2**63 for d in type_.shape)


def unify_call(callee: Graph, operand_types: list[Type]) -> dict[str, Dim]:
    """What the callee's symbolic dimensions are for the given operand types.  Raises TypeProblem at one that doesn't fit."""
    bindings: dict[str, Dim] = {}
    pairs = list(zip(callee.parameters, operand_types, strict=True))
    for position, (parameter, type_) in enumerate(pairs):
        expected = parameter.type
        if not isinstance(expected, TensorType) or not isinstance(type_, TensorType):
            continue
        if expected.dtype != type_.dtype or expected.rank != type_.rank:
            raise TypeProblem(f"@{callee.name} takes {expected} as %{parameter.name}, found {type_}", operand=position)
        for dim, found in zip(expected.shape, type_.shape, strict=True):
            name = plain_symbol(dim)
            if name is not None and name not in bindings:
                bindings[name] = found
    for position, (parameter, type_) in enumerate(pairs):
        if isinstance(parameter.type, TensorType) and isinstance(type_, TensorType):
            wanted = [substitute(d, bindings) for d in parameter.type.shape]
            if not all(map(compatible, wanted, type_.shape)):
                shown = substitute_type(parameter.type, bindings)
                raise TypeProblem(f"@{callee.name} takes {shown} as %{parameter.name} here, found {type_}", operand=position)
    return bindings


def plain_symbol(dim: Dim) -> str | None:
    """The name of a dimension that is nothing but a name."""
    if isinstance(dim, DimExpr) and len(dim.terms) == 1:
        monomial, coefficient = dim.terms[0]
        if coefficient == 1 and len(monomial) == 1 and isinstance(monomial[0], str):
            return monomial[0]
    return None


def infer_module(module: Module, sources: Mapping[str, WeightSource] | None = None) -> int:
    """Writes inferred types into the module; returns how many changed.  Raises GraphError with every problem."""
    report = Diagnostics()
    inference = Inference(module, report, sources)
    types = inference.run()
    report.raise_if_any()
    changed = 0
    for value, type_ in types.items():
        if value.type != type_:
            value.type = type_
            changed += 1
    for graph in module.graphs.values():
        if graph.result_types != inference.results[graph.name]:
            graph.result_types = list(inference.results[graph.name])
            changed += 1
    return changed


