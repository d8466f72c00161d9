"""Tying a program's files of weights to real files, and its parameters to arrays."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import dialects
from interop import open_weights
from ir.attributes import Attribute, FileRef
from ir.core import Graph, Module, Operation, Value, WeightFile
from ir.diagnostics import Diagnostic, GraphError, MissingPackage, did_you_mean
from ir.opdef import REGISTRY
from ir.signature import array_type, is_masked
from ir.types import TensorType, UnknownType, merge_types
from ir.weights import ArraySource, WeightSource

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

assert dialects  # defines the operations

Sources = dict[str, WeightSource]


def bind_files(module: Module, files: Mapping[str, str | os.PathLike[str]] | None, folder: Path | None, *, required: bool) -> Sources:
    """Opens the files that the program declares.

    ``files`` binds names explicitly; others are looked up relative to ``folder``, which they may not leave.  A file
    that is not there is an error when ``required``, else it is left out.  Digests that the program states are checked.
    Raises :class:`GraphError`.
    """
    given = dict(files or {})
    for name in given:
        if name not in module.files:
            known = list(module.files)
            hint = did_you_mean(name, known) or (f"it declares {', '.join('@' + k for k in known)}" if known else "it declares none")
            raise GraphError(Diagnostic(f"the program declares no file @{name}", None, hint))
    sources: Sources = {}
    for name, declared in module.files.items():
        try:
            if name in given:
                sources[name] = open_weights(given[name], sha256=declared.sha256)
                continue
            if folder is None and not required:
                continue
            path = _inside(declared, folder)
            if path.exists():
                sources[name] = open_weights(path, sha256=declared.sha256, follow_symlinks=False)
            elif required:
                raise GraphError(Diagnostic(f"no file '{declared.path}' beside the program", declared.loc, _bind_hint(name)))
        except GraphError as error:
            raise at_location(error, declared.loc) from error
    return sources


def _bind_hint(name: str) -> str:
    return f"bind it: --file {name}=PATH, or files={{'{name}': path}}"


def _inside(declared: WeightFile, folder: Path | None) -> Path:
    """The declared path, which must stay inside the program's folder after links are resolved."""
    if folder is None:
        raise GraphError(Diagnostic(f"file @{declared.name} is not bound, and text has no folder", declared.loc, _bind_hint(declared.name)))
    relative = Path(declared.path)
    if relative.is_absolute() or "://" in declared.path or "\0" in declared.path or not declared.path:
        problem = "a path is relative to the program"
    else:
        resolved, root = (folder / relative).resolve(), folder.resolve()
        if resolved.is_relative_to(root):
            return resolved
        problem = "it leads out of the program's folder"
    raise GraphError(Diagnostic(f"file @{declared.name}: '{declared.path}' is refused: {problem}", declared.loc, _bind_hint(declared.name)))


def at_location(error: GraphError, location: Any) -> GraphError:
    """The same complaints; those without a place get ``location``, but for packages that are missing."""
    if isinstance(error, MissingPackage):
        return error
    for diagnostic in error.diagnostics:
        if diagnostic.location is None and diagnostic.kind == "error":
            diagnostic.location = location
    return GraphError(error.diagnostics)


def given_arrays(constants: Mapping[str, ArrayLike], location: Any) -> ArraySource:
    """Arrays of the caller as weights.  Raises :class:`GraphError` for what is no array."""
    return ArraySource({n: plain_array(a, n, location) for n, a in constants.items()}, "the given constants")


def bind_constants(module: Module, graph: Graph, constants: Mapping[str, ArrayLike], sources: Sources) -> str | None:
    """Replaces parameters by weights that hold the given arrays; they are folded like the weights of a file.

    Returns the name of the file that they are said to be in, None when there are none.
    Raises :class:`GraphError` for a name that is no parameter, an ``inout`` one, or an array that doesn't fit.
    """
    if not constants:
        return None
    file = _free_file_name(module)
    arrays = given_arrays(constants, graph.loc)
    by_name = {p.name: p for p in graph.parameters}
    for name in constants:
        parameter = by_name.get(name)
        if parameter is None:
            raise GraphError(Diagnostic(f"graph @{graph.name} has no parameter %{name}", graph.loc, did_you_mean(name, by_name)))
        if parameter.inout:
            raise GraphError(Diagnostic(f"%{name} is inout, it can't be a constant", parameter.loc))
        type_ = array_type(arrays.read(name), parameter)
        merged = merge_types(parameter.type, type_)
        if merged is None and not _may_fit(parameter.type, type_):
            raise GraphError(Diagnostic(f"%{name} is {parameter.type}, but the array is {type_}", parameter.loc))
    module.files[file] = WeightFile(file, "constants given by the caller")
    sources[file] = arrays
    _specialize(module, graph, {n: array_type(arrays.read(n), by_name[n]) for n in constants})
    first = graph.block.first
    kept: list[Value] = []
    for parameter in graph.parameters:
        if parameter.name not in constants:
            parameter.index = len(kept)
            kept.append(parameter)
            continue
        name = parameter.name
        attributes: dict[str, Attribute] = {"file": FileRef(file), "name": name}
        graph.rename(parameter, f"{name}.parameter")
        op = Operation(REGISTRY["graph.weight"], (), attributes, (), (parameter.type,), (name,), parameter.loc)
        graph.block.insert_before(first, op)
        parameter.replace_all_uses_with(op.results[0])
        del graph.names[parameter.name]
    graph.block.arguments = kept
    return file


def plain_array(value: Any, name: str, location: Any) -> NDArray[Any]:
    """An array from what the caller gave.  Raises :class:`GraphError` for a masked one, or what is none."""
    if is_masked(value):
        raise GraphError(Diagnostic(f"%{name} is a masked array", location, "pass the data and the mask as two arrays"))
    try:
        return np.asarray(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise GraphError(Diagnostic(f"%{name}: this is no array: {error}", location)) from error


def _may_fit(declared: object, given: TensorType) -> bool:
    return isinstance(declared, UnknownType) or (isinstance(declared, TensorType) and declared.dtype == given.dtype and declared.rank == given.rank)


def _specialize(module: Module, graph: Graph, types: Mapping[str, TensorType]) -> None:
    from passes.graph.specialize import specialize_graph

    specialize_graph(module, graph, types, {})


def _free_file_name(module: Module) -> str:
    name, number = "constants", 1
    while name in module.files:
        name, number = f"constants.{number}", number + 1
    return name
