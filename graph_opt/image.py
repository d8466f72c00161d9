"""A compiled program as bytes, and back: all that running it takes besides its weights, so that no pass and no LLVM is needed.

The bytes hold the machine code (object files), the signature, sites of errors, what is run at load time (tensor operations, or
machine code again), the files of weights, and what the passes have seen of these.  They come from a cache that has compared them
with their digest, and from the same version of this package.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, overload

from codegen.llvm.jit import Code, CompileError
from codegen.llvm.native import STORED, Argument, NativeModule, Site
from codegen.runtime.facts import Facts, Sized, Writing
from codegen.runtime.program import NativeProgram
from graph_opt.ahead import Ahead
from graph_opt.executable import NativeExecutable
from graph_opt.kept import WEIGHTS, tell_nobody
from graph_opt.load_time import Stored, has_loops, load_quickly, new_program
from ir.core import Graph, Module, Value, WeightFile
from ir.diagnostics import GraphError, Source
from ir.encoding import (
    MALFORMED,
    NotEncodable,
    decode_dim,
    decode_graph,
    decode_location,
    decode_operation,
    decode_signature,
    decode_type,
    encode_dim,
    encode_graph,
    encode_location,
    encode_operation,
    encode_signature,
    encode_type,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ir.types import DType
    from ir.weights import WeightSource

    Json = Any

_LENGTH = struct.Struct("<Q")


class BadImage(Exception):
    """Bytes that are no image of this version."""


class Observed:
    """A source of weights that notes what is looked at, for finding out later whether another file would give the same."""

    def __init__(self, source: WeightSource) -> None:
        self._source = source
        self.types: dict[str, tuple[str, list[int]]] = {}
        self.digests: dict[str, str] = {}
        self.named: str | None = None

    def names(self) -> list[str]:
        found = self._source.names()
        self.named = _digest_of_names(found)
        return found

    def info(self, name: str) -> tuple[DType, tuple[int, ...]]:
        dtype, shape = self._source.info(name)
        self.types[name] = dtype.name, list(shape)
        return dtype, shape

    def read(self, name: str) -> NDArray[Any]:
        array = self._source.read(name)
        self.digests[name] = _digest(array)
        return array

    def close(self) -> None:
        self._source.close()

    def noted(self) -> Json:
        """All that was looked at, for :meth:`Image.fits`."""
        return [self.named, self.types, self.digests]


def _digest(array: NDArray[Any]) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()


def _digest_of_names(names: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(names).encode()).hexdigest()


def _is_as_noted(source: WeightSource, noted: Json) -> bool:
    named, types, digests = noted
    for name, (dtype, shape) in types.items():
        found, dims = source.info(name)
        if found.name != dtype or list(dims) != shape:
            return False
    if named is not None and _digest_of_names(source.names()) != named:
        return False
    return all(_digest(source.read(name)) == digest for name, digest in digests.items())


# -- writing -----------------------------------------------------------------------------------------------------------


@dataclass
class _Chunks:
    """Pieces of bytes that the description refers to by number."""

    items: list[bytes] = field(default_factory=list)

    def add(self, data: bytes) -> int:
        self.items.append(data)
        return len(self.items) - 1


def write_image(
    module: Module, program: NativeProgram, load_time: Mapping[str, NativeProgram], observed: Mapping[str, Observed], given: str | None
) -> bytes:
    """The image of a program, with the programs that run at load time.  ``given`` is the file of arrays that the caller gave.

    Raises :class:`ir.encoding.NotEncodable` for what can't be kept.
    """
    source, chunks = module.source, _Chunks()
    head = {
        "files": [[f.name, f.path, f.sha256, encode_location(f.loc, source)] for f in module.files.values() if f.name != given],
        "given": given,
        "observed": {name: source_.noted() for name, source_ in observed.items()},
        "program": _encode_program(program, source, chunks),
        "native": {name: _encode_program(p, source, chunks) for name, p in load_time.items()},
        "plain": [encode_graph(g, source) for n, g in module.graphs.items() if n not in load_time and g is not program.graph and not has_loops(g)],
    }
    parts = [json.dumps(head, separators=(",", ":")).encode(), *chunks.items]
    return b"".join([_LENGTH.pack(len(parts)), *(_LENGTH.pack(len(p)) for p in parts), *parts])


def _encode_program(program: NativeProgram, source: Source | None, chunks: _Chunks) -> Json:
    text, graph, code = program.text, program.graph, program.code
    if not isinstance(code, Code):
        raise NotEncodable("code of another kind")
    numbers: dict[Value, int] = {}
    return {
        "graph": encode_signature(graph, source),
        "function": text.function,
        "symbols": text.symbols,
        "arguments": [[a.kind, a.name, encode_type(a.type), a.written] for a in text.arguments],
        "stored": [encode_operation(a.operation, numbers, source) for a in text.arguments if a.kind == "stored" and a.operation is not None],
        "externals": text.externals,
        "parallel": text.parallel,
        "prints": text.prints,
        "sites": [len(text.sites), chunks.add(_encode_sites(text.sites, source))],
        "objects": [chunks.add(data) for data in code.objects],
        "written": [[i, w.name, encode_location(w.loc, source)] for i, w in program.facts.written.items()],
        "sized": [[encode_type(s.type), s.what, encode_location(s.location, source), s.made] for s in program.facts.sized],
    }


def _encode_sites(sites: Sequence[Site], source: Source | None) -> bytes:
    """Many sites differ by their place only, so what they say is written once."""
    said: dict[str, int] = {}
    places = []
    for s in sites:
        type_ = None if s.type is None else encode_type(s.type)
        text = json.dumps([s.kind, s.name, s.template, [encode_dim(d) for d in s.dims], type_, s.label, list(s.given)], separators=(",", ":"))
        places.append([said.setdefault(text, len(said)), encode_location(s.location, source)])
    return f"[[{','.join(said)}],{json.dumps(places, separators=(',', ':'))}]".encode()


# -- reading -----------------------------------------------------------------------------------------------------------


class _Sites(Sequence[Site]):
    """Sites that are read when somebody asks for one."""

    def __init__(self, count: int, data: bytes, source: Source | None) -> None:
        self._count = count
        self._data = data
        self._source = source
        self._sites: list[Site] | None = None

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Site: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Site]: ...

    def __getitem__(self, index: int | slice) -> Site | Sequence[Site]:
        if self._sites is None:
            said, places = json.loads(self._data)
            self._sites = [_decode_site(said[number], loc, self._source) for number, loc in places]
        return self._sites[index]


def _decode_site(said: Json, loc: Json, source: Source | None) -> Site:
    kind, name, template, dims, type_, label, given = said
    tensor: Any = None if type_ is None else decode_type(type_)
    return Site(kind, name, template, tuple(map(decode_dim, dims)), decode_location(loc, source), tensor, label, tuple(given))


@dataclass
class _Part:
    """One program of an image: what it takes to make a :class:`NativeProgram`."""

    graph: Graph
    text: NativeModule
    facts: Facts
    objects: list[bytes]

    def program(self, stored: Sequence[NDArray[Any]], threads: int) -> NativeProgram:
        """Loads the code.  Raises CompileError."""
        return new_program(self.text, Code(*self.objects), self.graph, stored, threads, self.facts)


class Image:
    """A program out of a cache.  ``source`` is the text that it was made from."""

    def __init__(self, data: bytes, source: Source) -> None:
        """Raises BadImage for bytes that :func:`write_image` has not made."""
        try:
            self._read(data, source)
        except (*MALFORMED, struct.error, UnicodeDecodeError, RecursionError) as error:
            raise BadImage(f"{type(error).__name__}: {error}") from error

    def _read(self, data: bytes, source: Source) -> None:
        (count,) = _LENGTH.unpack_from(data)
        if not 0 < count < len(data):
            raise ValueError(count)
        sizes = struct.unpack_from(f"<{count}Q", data, 8)
        parts, at = [], 8 + 8 * count
        for size in sizes:
            parts.append(data[at : at + size])
            at += size
        if at != len(data):
            raise ValueError(at)
        head, self._chunks = json.loads(parts[0]), parts[1:]
        self.module = Module(source)
        """The files of weights, and the graphs that run at load time."""
        for name, path, sha256, loc in head["files"]:
            self.module.files[name] = WeightFile(name, path, sha256, decode_location(loc, source))
        self.given: str | None = head["given"]
        self._observed = head["observed"]
        for plain in head["plain"]:
            self.module.add(decode_graph(plain, source))
        self._native = {name: self._part(item, source) for name, item in head["native"].items()}
        for part in self._native.values():
            self.module.add(part.graph)
        self._main = self._part(head["program"], source)

    def _part(self, data: Json, source: Source) -> _Part:
        graph = decode_signature(data["graph"], source)
        stored = [decode_operation(item, [], source) for item in data["stored"]]
        for op in stored:
            graph.block.insert_before(graph.return_op, op)
        operations = iter(stored)
        arguments = [
            Argument(kind, name, decode_type(type_), written, next(operations) if kind == "stored" else None)  # type: ignore[arg-type]
            for kind, name, type_, written in data["arguments"]
        ]
        count, chunk = data["sites"]
        sites = _Sites(count, self._chunks[chunk], source)
        text = NativeModule("", data["function"], data["symbols"], arguments, sites, data["externals"], data["parallel"], prints=data["prints"])
        written = {i: Writing(name, decode_location(loc, source)) for i, name, loc in data["written"]}
        sized = tuple(Sized(decode_type(t), what, decode_location(loc, source), made) for t, what, loc, made in data["sized"])  # type: ignore[arg-type]
        return _Part(graph, text, Facts(written, sized), [self._chunks[i] for i in data["objects"]])

    @property
    def graph(self) -> Graph:
        """The signature of the program."""
        return self._main.graph

    def fits(self, sources: Mapping[str, WeightSource]) -> bool:
        """Whether passes would see the same in these files as in those that the image was made with."""
        try:
            return all(name in sources and _is_as_noted(sources[name], noted) for name, noted in self._observed.items())
        except GraphError:  # a tensor that is not there, or damaged: whoever compiles will say it
            return False

    def executable(
        self, sources: Mapping[str, WeightSource], threads: int, module: Callable[[], Module], tell: Callable[[str], None]
    ) -> NativeExecutable:
        """Loads weights and code.  ``module`` makes the program after the passes, should somebody ask for it; ``tell`` is told
        WEIGHTS when these are read by another thread, or others: one of ``threads`` is left to whoever is told.

        Raises GraphError for weights that are missing or don't fit, BadImage for code that can't be loaded.
        """
        ready = {name: self._loader(part, sources, threads) for name, part in self._native.items()}
        readers = threads if tell is tell_nobody else max(1, threads - 1)
        stored = Ahead(lambda: Stored(self.module, sources, readers, ready=ready).tensors(self._main.graph))
        try:
            code = Code(*self._main.objects)
            tell(WEIGHTS)
            arrays = stored.result()
        except CompileError as error:
            raise BadImage(str(error)) from error
        finally:
            stored.wait()
        tensors = [arrays[a.operation] for a in self._main.text.arguments if a.kind == "stored" and a.operation is not None]
        program = new_program(self._main.text, code, self._main.graph, tensors, threads, self._main.facts)
        return NativeExecutable(module, self._main.graph, program, load_quickly, self.module.files)

    def _loader(self, part: _Part, sources: Mapping[str, WeightSource], threads: int) -> Callable[[], NativeProgram]:
        def load() -> NativeProgram:
            inner = Stored(self.module, sources, threads, ready={}).tensors(part.graph)
            return part.program([inner[op] for op in part.graph.block if op.definition.full_name in STORED], threads)

        return load
