"""Pass ``specialize``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ir.core import Graph, Module, Parameter
from ir.diagnostics import Diagnostic, GraphError, did_you_mean
from ir.dims import Dim, UnknownDim, compatible, merge, substitute
from ir.inference import infer_module, plain_symbol
from ir.literals import LiteralProblem
from ir.parser import parse_type
from ir.references import all_references
from ir.signature import check_constraints, solve_dimension
from ir.substitute import substitute_constraint, substitute_operation
from ir.types import MemRefType, TensorType, Type, UnknownType, substitute_type, type_symbols
from passes.infra.base import Pass, PassContext


@dataclass(frozen=True)
class Specialize(Pass):
    """Gives parameters types and symbolic dimensions values.

    Before (``specialize{dims="B=4"}``, or ``specialize{types="x=f32[4, 64]"}``)::

        graph @main(%x: f32[B, 64]) -> f32[B, 64] {

    After::

        graph @main(%x: f32[4, 64]) -> f32[4, 64] {

    A dimension that a type fixes is fixed in the whole graph, and types are inferred anew.  Conditions of the ``where``
    clause that hold then are dropped; one that does not is an error.
    """

    needs_types: ClassVar[bool] = False
    idempotent: ClassVar[bool] = False  # the second time there is no such dimension, which is an error

    dims: tuple[str, ...] = ()
    """values of symbolic dimensions, as B=4"""
    types: tuple[str, ...] = ()
    """types of parameters, as x=f32[4, 64]"""
    graph: str = ""
    """which graph; @main, the only one, or the only one that no other calls, when it is empty"""

    def __post_init__(self) -> None:
        self._dims()
        self._types()

    def _dims(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for text in self.dims:
            name, _, value = (part.strip() for part in text.partition("="))
            if not name or not (value.isascii() and value.isdecimal()) or len(value) > 18:
                raise ValueError(f"expected NAME=INTEGER, found '{text[:80]}'")
            if found.setdefault(name, int(value)) != int(value):
                raise ValueError(f"{name} is given twice")
        return found

    def _types(self) -> dict[str, TensorType]:
        found: dict[str, TensorType] = {}
        for text in self.types:
            name, type_ = _named_type(text)
            if found.setdefault(name, type_) != type_:
                raise ValueError(f"%{name} is given twice")
        return found

    def run(self, module: Module, context: PassContext) -> bool:
        return specialize_graph(module, self._graph(module), self._types(), self._dims(), context)

    def _graph(self, module: Module) -> Graph:
        name = self.graph.removeprefix("@")
        if name:
            if name not in module.graphs:
                raise GraphError(Diagnostic(f"specialize: there is no graph @{name}", hint=did_you_mean(name, module.graphs)))
            return module.graphs[name]
        if "main" in module.graphs:
            return module.graphs["main"]
        referenced = all_references(module)
        entries = [g for n, g in module.graphs.items() if n not in referenced]
        if len(entries) != 1:
            raise GraphError(Diagnostic("specialize: which graph? there is no @main", hint='name it: specialize{graph="..."}'))
        return entries[0]


def _named_type(text: str) -> tuple[str, TensorType]:
    name, _, type_text = (part.strip() for part in text.partition("="))
    try:
        type_ = parse_type(type_text)
    except LiteralProblem as problem:
        raise ValueError(f"{text[:80]}: {problem.message}" + (f"; {problem.hint}" if problem.hint else "")) from None
    if not isinstance(type_, TensorType) or not name:
        raise ValueError(f"expected NAME=TENSOR TYPE, found '{text[:80]}'")
    return name.removeprefix("%"), type_


def specialize_graph(
    module: Module, graph: Graph, types: Mapping[str, TensorType], dims: Mapping[str, int], context: PassContext | None = None
) -> bool:
    """Fixes parameter types and dimensions of one graph; returns whether anything changed.

    Raises :class:`GraphError` for a name that does not exist, a type that does not fit, or a condition that fails.
    """
    bindings: dict[str, Dim] = {}
    by_name = {p.name: p for p in graph.parameters}
    wanted: dict[Parameter, TensorType] = {}
    for name, type_ in types.items():
        if name not in by_name:
            raise GraphError(Diagnostic(f"graph @{graph.name} has no parameter %{name}", graph.loc, did_you_mean(name, by_name)))
        wanted[by_name[name]] = type_
    known: dict[str, None] = {}
    for parameter in graph.parameters:
        known.update(type_symbols(parameter.type))
    for name, value in dims.items():
        if name not in known:
            raise GraphError(Diagnostic(f"graph @{graph.name} has no dimension {name}", graph.loc, did_you_mean(name, known)))
        bindings[name] = value
    for _ in range(2):  # expressions of several symbols when the plain names are known
        for parameter, type_ in wanted.items():
            _bind(parameter, type_, bindings)
    numbers = {n: v for n, v in bindings.items() if isinstance(v, int)}
    changed = _apply(graph, wanted, {n: substitute(d, numbers) for n, d in bindings.items()})
    return infer_module(module, context.sources if context is not None else None) > 0 or changed


def _bind(parameter: Parameter, type_: TensorType, bindings: dict[str, Dim]) -> None:
    """Adds to ``bindings`` what a parameter's wanted type says of its symbolic dimensions."""
    declared = parameter.type
    if isinstance(declared, UnknownType):
        return
    if not isinstance(declared, (TensorType, MemRefType)) or declared.dtype != type_.dtype or len(declared.shape) != type_.rank:
        raise _misfit(parameter, type_)
    for dim, value in zip(declared.shape, type_.shape, strict=True):
        solved = _solve(substitute(dim, {n: b for n, b in bindings.items() if n != plain_symbol(dim)}), value)
        if solved is None:
            continue
        name, found = solved
        if plain_symbol(found) == name:
            continue
        if bindings.setdefault(name, found) != found:
            message = f"%{parameter.name} is {declared}, {type_} makes {name} {found}, but it is {bindings[name]}"
            raise GraphError(Diagnostic(message, parameter.loc))


def _solve(dim: Dim, value: Dim) -> tuple[str, Dim] | None:
    """The symbol of ``dim`` and what it is when ``dim`` is ``value``; None where that does not say it."""
    name = plain_symbol(dim)
    if isinstance(value, UnknownDim):
        return None
    if name is not None:
        return name, value
    solved = solve_dimension(dim, value) if isinstance(value, int) else None
    return (solved[0], solved[1]) if solved is not None and solved[1] is not None and solved[1] >= 0 else None


def _misfit(parameter: Parameter, wanted: TensorType, become: Type | None = None) -> GraphError:
    here = f", here {become}" if become not in (None, parameter.type) else ""
    return GraphError(Diagnostic(f"%{parameter.name} is {parameter.type}{here}: it can't be {wanted}", parameter.loc))


def _apply(graph: Graph, wanted: Mapping[Parameter, TensorType], bindings: Mapping[str, Dim]) -> bool:
    changed = False
    numbers = {n: v for n, v in bindings.items() if isinstance(v, int)}
    for parameter in graph.parameters:
        type_: Type = substitute_type(parameter.type, bindings)
        if parameter in wanted:
            type_ = _refined(parameter, type_, wanted[parameter], numbers)
        changed |= type_ != parameter.type
        parameter.type = type_
    if bindings:
        for op in graph.block:
            substitute_operation(op, bindings)
        graph.result_types = [substitute_type(t, bindings) for t in graph.result_types]
        check_constraints(graph.constraints, numbers, graph)
        constraints = tuple(substitute_constraint(c, bindings) for c in graph.constraints)
        graph.constraints = tuple(c for c in constraints if not all(isinstance(d, int) for d in c.dims))
    return changed


def _refined(parameter: Parameter, type_: Type, wanted: TensorType, numbers: Mapping[str, int]) -> Type:
    """The wanted type where it agrees with what the parameter has become."""
    if isinstance(type_, UnknownType):
        return wanted
    shape = tuple(substitute(d, numbers) for d in wanted.shape)
    assert isinstance(type_, (TensorType, MemRefType))
    if not all(map(compatible, type_.shape, shape)):
        raise _misfit(parameter, wanted, type_)
    merged = tuple(map(merge, type_.shape, shape))
    return TensorType(type_.dtype, merged) if isinstance(type_, TensorType) else MemRefType(type_.dtype, merged, type_.space, type_.align)
