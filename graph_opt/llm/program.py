"""The compiled program of a model, and what its file says about it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from codegen.cuda.drivers import is_cuda
from graph_opt.api import Device, check_device, compile, compile_text, load, near_file, parse
from graph_opt.binding import at_location, bind_files
from graph_opt.kept import READING, WEIGHTS
from graph_opt.llm.cache import KeyValueCache
from graph_opt.llm.tokenizer import Tokenizer
from interop._files import RegularFile
from interop.gguf import GgufFile
from ir.core import Graph, Module, WeightFile
from ir.diagnostics import Diagnostic, GraphError, NamedLocation
from ir.signature import check_constraints, constraint_holds
from ir.types import TensorType, f32, type_symbols

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from codegen.cuda.device import Device as CudaDevice
    from graph_opt.executable import Executable

Files = Mapping[str, str | os.PathLike[str]]
Progress = Callable[[str], None]

DEFAULT_CAPACITY = 2048


class Program:
    """A graph that takes ids, a position and caches, and gives logits; what ``graph-opt import`` writes.

    Raises GraphError for a graph of another form.
    """

    def __init__(self, executable: Executable, tokenizer: Tokenizer, device: Device) -> None:
        self.tokenizer = tokenizer
        self.graph = executable.graph
        self._run = executable
        self._device = device
        self.vocabulary, self._dimension = _form_of(self.graph)

    def checked_capacity(self, capacity: int | None) -> int:
        """A number of tokens that the caches may hold.  Raises GraphError when the model was not made for so many."""
        metadata = self.tokenizer.metadata
        context = metadata.integer(f"{metadata.text('general.architecture')}.context_length", DEFAULT_CAPACITY, low=1)
        conditions = self.graph.constraints
        if capacity is None:
            for size in range(min(context, DEFAULT_CAPACITY), 0, -1):
                if all(constraint_holds(c, {self._dimension: size}) for c in conditions):
                    return size
            raise GraphError(Diagnostic(f"no capacity up to {DEFAULT_CAPACITY} fits the conditions of graph @{self.graph.name}", self.graph.loc))
        if capacity > context:
            raise GraphError(Diagnostic(f"capacity: {capacity} tokens, the model was made for {context}"))
        check_constraints(conditions, {self._dimension: int(capacity)}, self.graph)
        return int(capacity)

    def new_cache(self, capacity: int) -> KeyValueCache:
        """An empty cache."""
        return KeyValueCache(self.graph, capacity, self._dimension, self._gpu())

    def new_logits(self) -> Any:
        """An array for logits, where the program runs."""
        gpu = self._gpu()
        if gpu is None:
            return np.empty(self.vocabulary, np.float32)
        from codegen.cuda.arrays import empty

        return empty(gpu, TensorType(f32, (self.vocabulary,)))

    def _gpu(self) -> CudaDevice | None:
        """The device of the program, None for one that computes in the host's memory."""
        if not is_cuda(self._device):
            return None
        from codegen.cuda.device import open_device

        return open_device(self._device)

    def forward(self, ids: NDArray[Any], position: int, caches: Sequence[Any], logits: Any) -> None:
        """Adds tokens to the caches from a position on, and writes the logits behind the last."""
        self._run(ids, np.array(position, np.int64), *caches, out=logits)

    def sampler(self, text: str) -> Executable:
        """A program that chooses a token, compiled."""
        if self._device != "cpu":
            return compile(parse(text, "<sampler>"), device=self._device)
        return compile_text(text, "<sampler>")


def load_program(path: Path, threads: int | None, precision: str, device: Device, files: Files | None, progress: Progress | None) -> Program:
    """The program of a GGUF file, or one that was imported from it."""
    count = (0 if device == "cpu" else 1) if threads is None else int(threads)
    check_device(device, count)
    if not _is_gguf(path):

        def tell_and_check(text: str) -> None:
            if progress is not None:
                progress(text)
            if text == READING:  # it will be compiled, which takes long
                _check_program(path, files)

        executable = compile(path, device=device, threads=count, files=files, precision=precision, progress=tell_and_check)
        gguf = _weights_of(executable.files, files, path)
        tokenizer = Tokenizer(gguf.metadata)
    elif files:
        raise GraphError(Diagnostic("files are for .graph programs", NamedLocation(str(path), 1, 1)))
    else:
        if progress is not None:
            progress("reading the model")
        gguf = GgufFile(path)
        tokenizer = Tokenizer(gguf.metadata)

        def tell(text: str) -> None:
            if text == READING:  # it will be compiled, which takes long
                _check(tokenizer, path)
            if text == WEIGHTS:  # now Python has nothing else to do
                tokenizer.prepare()
            if progress is not None:
                progress(text)

        executable = _compiled(gguf, path, count, precision, device, tell)
    gguf.close()
    return Program(executable, tokenizer, device)


def _check(tokenizer: Tokenizer, path: Path) -> None:
    try:
        tokenizer.check()
    except GraphError as error:
        raise at_location(error, NamedLocation(str(path), 1, 1)) from None


def _check_program(path: Path, files: Files | None) -> None:
    """Raises GraphError for a tokenizer that a program can't be used with."""
    gguf = _weights_of(load(path).files, files, path)
    try:
        _check(Tokenizer(gguf.metadata), path)
    finally:
        gguf.close()


def _compiled(gguf: GgufFile, path: Path, threads: int, precision: str, device: Device, progress: Progress | None) -> Executable:
    from interop.llama import FILE, draft_llama

    # The text goes nowhere: it has a name that can be written, and is the same wherever the file is.
    text, name = draft_llama(gguf, "model.gguf"), f"<import of {path}>"
    if device != "cpu":
        if progress is not None:
            progress(READING)
        return compile(parse(text, name), "main", device=device, threads=threads, files={FILE: path}, precision=precision, progress=progress)
    return compile_text(text, name, "main", threads=threads, files={FILE: path}, precision=precision, progress=progress)


def _is_gguf(path: Path) -> bool:
    """Whether it is one by its first bytes.  What is no regular file may have no end, or never begin."""
    place = NamedLocation(str(path), 1, 1)
    try:
        with RegularFile(path) as file:
            return file.read_at(0, min(4, file.size)) == b"GGUF"
    except GraphError as error:
        if not os.path.lexists(path):
            raise GraphError(Diagnostic("there is no such file", place, near_file(str(path)) or "docs/llm.md says where models are")) from None
        raise at_location(error, place) from None


def _weights_of(declared: Mapping[str, WeightFile], files: Files | None, path: Path) -> GgufFile:
    """The GGUF file that a program's weights are in; it has the tokenizer, too."""
    module = Module(None)
    module.files = dict(declared)
    sources = bind_files(module, files, path.parent, required=True)
    found = [s for s in sources.values() if isinstance(s, GgufFile)]
    if len(found) != 1:
        message = f"expected one GGUF file that the program names, which has the tokenizer, found {len(found)}"
        raise GraphError(Diagnostic(message, NamedLocation(str(path), 1, 1), "graph-opt import writes such programs"))
    return found[0]


def _form_of(graph: Graph) -> tuple[int, str]:
    """The size of the vocabulary, and the name of the caches' capacity."""
    parameters, results = graph.parameters, graph.results
    types = [str(p.type) for p in parameters[:2]]
    caches = parameters[2:]
    capacities = {n: None for p in caches for n in type_symbols(p.type)}
    logits = results[0].type if len(results) == 1 else None
    right = len(types) == 2 and types[0].startswith("i64[") and types[1] == "i64[]" and not any(p.inout for p in parameters[:2])
    right = right and all(p.inout and isinstance(p.type, TensorType) for p in caches) and len(capacities) == 1
    if not right or not isinstance(logits, TensorType) or logits.rank != 1 or not isinstance(logits.shape[0], int) or str(logits.dtype) != "f32":
        message = f"graph @{graph.name} is no language model: it takes ids: i64[S], position: i64[], caches: f32[..., T, ...] inout, gives f32[V]"
        raise GraphError(Diagnostic(message, graph.loc, "graph-opt import writes such programs"))
    return logits.shape[0], next(iter(capacities))
