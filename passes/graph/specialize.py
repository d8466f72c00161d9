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
from ir.signature import check_constraints
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

    dims: tuple[str, ...] = ()
    """values of symbolic dimensions, as B=4"""
    types: tuple[str, ...] = ()
    """types of parameters, as x=f32[4, 64]"""
    graph: str = ""
    """which graph; @main or the only one when it is empty"""

    def run(self, module: Module, context: PassContext) -> bool:
        try:
            graph = module.graphs[self.graph] if self.graph else module.main
        except KeyError:
            raise GraphError(Diagnostic(f"specialize: there is no graph @{self.graph or 'main'}")) from None
        dims = {}
        for text in self.dims:
            name, _, value = text.partition("=")
            if not value.strip().isdecimal():
                raise GraphError(Diagnostic(f"specialize: expected NAME=INTEGER, found '{text}'"))
            dims[name.strip()] = int(value)
        return specialize_graph(module, graph, dict(map(_named_type, self.types)), dims, context)


def _named_type(text: str) -> tuple[str, TensorType]:
    name, _, type_text = text.partition("=")
    try:
        type_ = parse_type(type_text.strip())
    except LiteralProblem as problem:
        raise GraphError(Diagnostic(f"specialize: {text}: {problem.message}", hint=problem.hint)) from None
    if not isinstance(type_, TensorType):
        raise GraphError(Diagnostic(f"specialize: expected NAME=TENSOR TYPE, found '{text}'"))
    return name.strip().lstrip("%"), type_


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
    for parameter, type_ in wanted.items():
        _bind(parameter, type_, bindings)
    changed = _apply(graph, wanted, bindings)
    return infer_module(module, context.sources if context is not None else None) or changed


def _bind(parameter: Parameter, type_: TensorType, bindings: dict[str, Dim]) -> None:
    """Adds to ``bindings`` what a parameter's wanted type says of its symbolic dimensions."""
    declared = parameter.type
    if isinstance(declared, UnknownType):
        return
    if not isinstance(declared, (TensorType, MemRefType)) or declared.dtype != type_.dtype or len(declared.shape) != type_.rank:
        raise _misfit(parameter, type_)
    for dim, value in zip(declared.shape, type_.shape, strict=True):
        name = plain_symbol(dim)
        if name is None or isinstance(value, UnknownDim):
            continue
        if name in bindings and bindings[name] != value:
            raise GraphError(Diagnostic(f"%{parameter.name} is {declared}, {type_} makes {name} {value}, but it is {bindings[name]}", parameter.loc))
        if plain_symbol(value) != name:
            bindings[name] = value


def _misfit(parameter: Parameter, type_: TensorType) -> GraphError:
    return GraphError(Diagnostic(f"%{parameter.name} is {parameter.type}, it can't be {type_}", parameter.loc))


def _apply(graph: Graph, wanted: Mapping[Parameter, TensorType], bindings: Mapping[str, Dim]) -> bool:
    changed = False
    for parameter in graph.parameters:
        type_: Type = substitute_type(parameter.type, bindings)
        if parameter in wanted:
            type_ = _refined(parameter, type_, wanted[parameter], bindings)
        changed |= type_ != parameter.type
        parameter.type = type_
    if bindings:
        for op in graph.block:
            substitute_operation(op, bindings)
        graph.result_types = [substitute_type(t, bindings) for t in graph.result_types]
        numbers = {n: v for n, v in bindings.items() if isinstance(v, int)}
        check_constraints(graph.constraints, numbers, graph)
        constraints = tuple(substitute_constraint(c, bindings) for c in graph.constraints)
        graph.constraints = tuple(c for c in constraints if not all(isinstance(d, int) for d in c.dims))
    return changed


def _refined(parameter: Parameter, type_: Type, wanted: TensorType, bindings: Mapping[str, Dim]) -> Type:
    """The wanted type where it agrees with what the parameter has become."""
    if isinstance(type_, UnknownType):
        return wanted
    shape = tuple(substitute(d, bindings) for d in wanted.shape)
    assert isinstance(type_, (TensorType, MemRefType))
    if not all(map(compatible, type_.shape, shape)):
        raise _misfit(parameter, wanted)
    merged = tuple(map(merge, type_.shape, shape))
    return TensorType(type_.dtype, merged) if isinstance(type_, TensorType) else MemRefType(type_.dtype, merged, type_.space, type_.align)
