"""Types, attributes, places and simple graphs as what JSON knows, and back: what a cache keeps of a program.

Reading is for what :func:`encode_graph` and its kin have written, in the same version of this package; anything else may raise
KeyError, ValueError, TypeError or IndexError (:data:`MALFORMED`).
"""

from __future__ import annotations

import base64
import struct
from typing import TYPE_CHECKING, Any

from ir.attributes import Attribute, Dense, FileRef, GraphRef
from ir.core import Constraint, Graph, Operation, Parameter, Value
from ir.diagnostics import AnyLocation, FusedLocation, Location, NamedLocation, Source
from ir.dims import UNKNOWN_DIM, Atom, Dim, DimExpr, DimFunction, UnknownDim
from ir.opdef import REGISTRY
from ir.types import DTYPES, UNKNOWN, DType, MemRefType, ScalarType, TensorType, Type, UnknownType, VectorType

if TYPE_CHECKING:
    Json = Any

MALFORMED = (KeyError, ValueError, TypeError, IndexError, AttributeError)
"""What reading may raise for what was not written here."""


class NotEncodable(Exception):
    """Something that has no form here: a region, a place in another text."""


# -- dimensions, types, attributes -------------------------------------------------------------------------------------


def encode_dim(dim: Dim) -> Json:
    """A number, ``"?"``, or a list of terms."""
    if isinstance(dim, int):
        return dim
    if isinstance(dim, UnknownDim):
        return "?"
    return [[factor, [a if isinstance(a, str) else [a.kind, [encode_dim(d) for d in a.args]] for a in monomial]] for monomial, factor in dim.terms]


def decode_dim(data: Json) -> Dim:
    """What :func:`encode_dim` was given."""
    if isinstance(data, int):
        return data
    if data == "?":
        return UNKNOWN_DIM
    return DimExpr(tuple((tuple(map(_decode_atom, monomial)), int(factor)) for factor, monomial in data))


def _decode_atom(data: Json) -> Atom:
    return data if isinstance(data, str) else DimFunction(str(data[0]), tuple(map(decode_dim, data[1])))


def encode_type(type_: Type) -> Json:
    """A list that begins with the kind of type."""
    if isinstance(type_, UnknownType):
        return ["?"]
    if isinstance(type_, ScalarType):
        return ["scalar", type_.dtype.name]
    shape = [encode_dim(d) for d in type_.shape]
    if isinstance(type_, MemRefType):
        return ["memref", type_.dtype.name, shape, type_.space, type_.align]
    return ["tensor" if isinstance(type_, TensorType) else "vector", type_.dtype.name, shape]


def decode_type(data: Json) -> Type:
    """What :func:`encode_type` was given."""
    kind = data[0]
    if kind == "?":
        return UNKNOWN
    dtype = DTYPES[data[1]]
    if kind == "scalar":
        return ScalarType(dtype)
    shape = tuple(map(decode_dim, data[2]))
    if kind == "memref":
        return MemRefType(dtype, shape, str(data[3]), int(data[4]))
    if kind == "tensor":
        return TensorType(dtype, shape)
    if kind != "vector":
        raise ValueError(kind)
    return VectorType(dtype, shape)  # type: ignore[arg-type]


def encode_attribute(value: Attribute) -> Json:
    """None, booleans, integers and texts as they are, all else as a list that begins with its kind."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return ["float", struct.pack("<d", value).hex()]
    if isinstance(value, tuple):
        return ["tuple", *map(encode_attribute, value)]
    if isinstance(value, DType):
        return ["dtype", value.name]
    if isinstance(value, (DimExpr, UnknownDim)):
        return ["dim", encode_dim(value)]
    if isinstance(value, GraphRef):
        return ["graph", value.name]
    if isinstance(value, FileRef):
        return ["file", value.name]
    if isinstance(value, Dense):
        return ["dense", value.dtype.name, list(value.array.shape), base64.b85encode(value.array.tobytes()).decode()]
    return ["type", encode_type(value)]


def decode_attribute(data: Json) -> Attribute:
    """What :func:`encode_attribute` was given."""
    if not isinstance(data, list):
        return data  # type: ignore[no-any-return]
    kind, *rest = data
    if kind == "float":
        return float(struct.unpack("<d", bytes.fromhex(rest[0]))[0])
    if kind == "tuple":
        return tuple(map(decode_attribute, rest))
    if kind == "dtype":
        return DTYPES[rest[0]]
    if kind == "dim":
        dim = decode_dim(rest[0])
        if isinstance(dim, int):
            raise ValueError(dim)
        return dim
    if kind in ("graph", "file"):
        return GraphRef(rest[0]) if kind == "graph" else FileRef(rest[0])
    if kind == "dense":
        import numpy as np

        dtype = DTYPES[rest[0]]
        return Dense(np.frombuffer(base64.b85decode(rest[2]), dtype.numpy).reshape(rest[1]), dtype)
    if kind != "type":
        raise ValueError(kind)
    return decode_type(rest[0])


# -- places ------------------------------------------------------------------------------------------------------------


def encode_location(location: AnyLocation | None, source: Source | None) -> Json:
    """A place in ``source`` is its offset, so that the text may have another name when it is read."""
    if location is None:
        return None
    if isinstance(location, Location):
        if location.source is not source:
            raise NotEncodable("a place in another text")
        return location.offset
    if isinstance(location, NamedLocation):
        return [location.file, location.line, location.col]
    return [[encode_location(p, source) for p in location.parts]]


def decode_location(data: Json, source: Source | None) -> AnyLocation | None:
    """What :func:`encode_location` was given, in a text that may have another name."""
    if data is None:
        return None
    if isinstance(data, int):
        if source is None:
            raise ValueError("there is no text")
        return Location(source, data)
    if len(data) == 1:
        parts = [decode_location(p, source) for p in data[0]]
        return FusedLocation([p for p in parts if p is not None])
    return NamedLocation(str(data[0]), int(data[1]), int(data[2]))


# -- graphs ------------------------------------------------------------------------------------------------------------


def encode_signature(graph: Graph, source: Source | None) -> dict[str, Json]:
    """What a caller of a graph has to know: parameters, results, conditions."""
    return {
        "name": graph.name,
        "loc": encode_location(graph.loc, source),
        "parameters": [[p.name, encode_type(p.type), p.inout, encode_location(p.loc, source)] for p in graph.parameters],
        "names": list(graph.result_names),
        "types": [encode_type(t) for t in graph.result_types],
        "results": [[v.name, encode_type(v.type), encode_location(v.location, source)] for v in graph.results],
        "where": [[[encode_dim(d) for d in c.dims], list(c.comparisons)] for c in graph.constraints],
    }


def decode_signature(data: dict[str, Json], source: Source | None) -> Graph:
    """A graph that has this signature; what computes its results is not there."""
    graph = _decode_head(data, source)
    values = [
        Parameter(name, decode_type(type_), graph.block, i, loc=decode_location(loc, source)) for i, (name, type_, loc) in enumerate(data["results"])
    ]
    graph.block.append(Operation(REGISTRY["graph.return"], values, loc=graph.loc))
    return graph


def _decode_head(data: dict[str, Json], source: Source | None) -> Graph:
    graph = Graph(str(data["name"]), loc=decode_location(data["loc"], source))
    for name, type_, inout, loc in data["parameters"]:
        graph.add_parameter(str(name), decode_type(type_), inout=bool(inout), loc=decode_location(loc, source))
    graph.result_names = [str(n) for n in data["names"]]
    graph.result_types = [decode_type(t) for t in data["types"]]
    graph.constraints = tuple(Constraint(tuple(map(decode_dim, dims)), tuple(map(str, comparisons))) for dims, comparisons in data["where"])
    return graph


def encode_operation(op: Operation, numbers: dict[Value, int], source: Source | None) -> Json:
    """``numbers`` says which operand is which.  Raises NotEncodable for an operation with regions."""
    if op.regions:
        raise NotEncodable(op.name)
    return [
        op.name,
        [numbers[v] for v in op.operands],
        {k: encode_attribute(v) for k, v in op.attributes.items()},
        [[r.name, encode_type(r.type)] for r in op.results],
        encode_location(op.loc, source),
    ]


def decode_operation(data: Json, values: list[Value], source: Source | None) -> Operation:
    """The operation, in no block; ``values`` are its operands by number."""
    name, operands, attributes, results, loc = data
    return Operation(
        REGISTRY[name],
        [values[i] for i in operands],
        {str(k): decode_attribute(v) for k, v in attributes.items()},
        (),
        [decode_type(t) for _, t in results],
        [str(n) for n, _ in results],
        decode_location(loc, source),
    )


def encode_graph(graph: Graph, source: Source | None) -> dict[str, Json]:
    """A graph without regions.  Raises NotEncodable for another one."""
    numbers: dict[Value, int] = {p: i for i, p in enumerate(graph.parameters)}
    operations = []
    for op in graph.block:
        operations.append(encode_operation(op, numbers, source))
        for result in op.results:
            numbers[result] = len(numbers)
    return {**encode_signature(graph, source), "operations": operations}


def decode_graph(data: dict[str, Json], source: Source | None) -> Graph:
    """The graph that :func:`encode_graph` was given."""
    graph = _decode_head(data, source)
    values: list[Value] = list(graph.parameters)
    for item in data["operations"]:
        op = graph.block.append(decode_operation(item, values, source))
        values += op.results
    return graph
