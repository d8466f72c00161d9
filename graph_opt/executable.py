"""A compiled program: a callable on numpy arrays, run by the reference interpreter or as machine code."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from codegen.runtime.entry import make_entry
from codegen.runtime.outputs import as_outputs, bring, check_outputs
from graph_opt.binding import at_location, plain_array
from ir.clone import clone_module
from ir.core import Graph, Module, Operation, WeightFile
from ir.diagnostics import Diagnostic, GraphError
from ir.interpreter import Interpreter
from ir.signature import array_type, bind_shapes, check_count, match_arguments
from ir.types import TensorType, Type, array_shape, is_known, substitute_type

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from codegen.runtime.abi import Loader
    from codegen.runtime.program import NativeProgram
    from ir.weights import WeightSource

    Arrays = list[NDArray[Any]]
    OnOperation = Callable[[Operation, Sequence[Any]], None]


_NUMBERS = (np.generic, int, float)


class Executable(ABC):
    """Runs one graph of a module.

    Call it with arrays by position or by name; it returns an array, or a tuple when the graph has several results (an
    empty one when it has none).  Arrays must have the declared element types and fitting shapes; any memory layout is
    accepted.  Arrays of ``inout`` parameters are updated in place.  ``out=`` is an array for the result, or a tuple of one for
    each, which is then returned (a parameter called ``out`` hides it).  Raises :class:`GraphError` for arguments that don't fit
    and for values that an operation can't handle.

    ``module`` is the program after the passes; ``str(executable)`` its text.  ``graph`` is the one that runs; of a program that came
    out of the cache it has only the signature.  ``files`` are the files of weights that the program declares.
    """

    def __init__(self, module: Module | Callable[[], Module], graph: Graph, files: Mapping[str, WeightFile] | None = None) -> None:
        self._module = module
        self.graph = graph
        self.files: Mapping[str, WeightFile] = files if files is not None else module.files if isinstance(module, Module) else {}

    @property
    def module(self) -> Module:
        """The program after the passes.  When it came out of the cache, the passes run when this is first asked for."""
        if not isinstance(self._module, Module):
            self._module = self._module()
        return self._module

    def __str__(self) -> str:
        return str(self.module)

    @property
    def input_names(self) -> list[str]:
        """Names of the parameters, in order."""
        return [p.name for p in self.graph.parameters]

    @property
    def output_names(self) -> list[str]:
        """Names of the results, in order."""
        return list(self.graph.result_names)

    def __call__(self, /, *args: ArrayLike, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def _call(self, /, *args: ArrayLike, **kwargs: Any) -> Any:
        out = None if "out" in self.input_names else kwargs.pop("out", None)
        results = self.run(match_arguments(self.graph, args, kwargs), out=out)
        return results[0] if len(results) == 1 else tuple(results)

    def run(self, arrays: Sequence[ArrayLike], on_operation: OnOperation | None = None, *, out: Any = None) -> list[NDArray[Any]]:
        """The results for arrays in parameter order.

        ``on_operation`` is called after each operation, where operations run one by one: in the interpreter.  ``out`` are arrays
        for the results.
        """
        try:
            outputs = None if out is None else as_outputs(self.graph, out)
            checked = [as_array(a, p) for a, p in zip(arrays, self.graph.parameters, strict=False)]
            return self._run(checked if len(checked) == len(arrays) else [np.asarray(a) for a in arrays], on_operation, outputs)
        except MemoryError as error:
            raise GraphError(Diagnostic(f"not enough memory: {error}", self.graph.loc)) from error
        except GraphError as error:
            raise at_location(error, self.graph.loc) from error

    @abstractmethod
    def _run(self, arrays: Arrays, on_operation: OnOperation | None, out: Arrays | None) -> Arrays:
        """The results; arguments that are no arrays have been refused."""


class ReferenceExecutable(Executable):
    """Runs a graph in the reference interpreter."""

    def __init__(self, module: Module, graph: Graph, sources: Mapping[str, WeightSource]) -> None:
        super().__init__(module, graph)
        self._interpreter = Interpreter(module, sources)
        self._interpreter.check_sizes(graph, {})

    def _run(self, arrays: Arrays, on_operation: OnOperation | None, out: Arrays | None) -> Arrays:
        self._interpreter.on_operation = on_operation
        if out is None:
            return self._interpreter.run(self.graph, arrays)
        self._check_types(arrays, out)
        results = self._interpreter.run(self.graph, arrays)
        check_outputs(self.graph, out, [(r.shape, r.dtype) for r in results], arrays)
        bring(out, results)
        return out

    def _check_types(self, arrays: Arrays, out: Arrays) -> None:
        """Refuses arrays for results, as far as that can be told before the run."""
        graph = self.graph
        check_count(graph, len(arrays))
        names = bind_shapes(graph, [array_type(a, p) for a, p in zip(arrays, graph.parameters, strict=True)])
        for at, value in enumerate(graph.results):
            type_ = substitute_type(value.type, names)
            if isinstance(type_, TensorType) and all(isinstance(d, int) for d in type_.shape):
                shapes: Any = [(a.shape, a.dtype.newbyteorder("=")) for a in out]
                shapes[at] = (array_shape(type_), type_.dtype.numpy)
                check_outputs(graph, out, shapes, arrays)


class NativeExecutable(Executable):
    """Runs a graph as machine code.

    Calls go through a compiled function for plain arrays; everything else, and whatever it can't handle, is left to
    :meth:`run`.
    """

    __slots__ = ("__call__",)  # type: ignore[misc]  # holds the compiled function, which Python finds there without a detour

    def __init__(
        self,
        module: Module | Callable[[], Module],
        graph: Graph,
        program: NativeProgram,
        load: Loader,
        files: Mapping[str, WeightFile] | None = None,
    ) -> None:
        super().__init__(module, graph, files)
        self._program = program
        self._entry = make_entry(program, self._call, self._fail, load)
        self.__call__ = self._call if self._entry is None else self._entry.callable  # type: ignore[method-assign]

    def _call(self, /, *args: ArrayLike, **kwargs: Any) -> Any:
        """What the compiled function doesn't take.  Numbers become arrays, with which it is tried once more."""
        parameters = self.graph.parameters
        if self._entry is not None and len(args) == len(parameters) and any(isinstance(a, _NUMBERS) for a in args):
            changed = [
                plain_array(a, p.name, p.loc) if isinstance(a, _NUMBERS) and not p.inout else a for a, p in zip(args, parameters, strict=True)
            ]
            if not any(isinstance(a, _NUMBERS) for a in changed):
                return self._entry.callable(*changed, **kwargs)
        return super()._call(*args, **kwargs)

    def _run(self, arrays: Arrays, on_operation: OnOperation | None, out: Arrays | None) -> Arrays:
        results = self._program.run(arrays, out=out)
        if self._entry is not None:
            self._entry.adopt()
        return results

    def _fail(self, state: bytes, dims: bytes) -> None:
        raise at_location(self._program.error(state, dims), self.graph.loc)


class DeferredExecutable(Executable):
    """Makes machine code for the types of the arrays that it is called with, once for each of the last few.

    ``module`` is the program as it was written.
    """

    LIMIT = 64
    """How many programs are kept."""

    def __init__(self, module: Module, graph: Graph, make: Callable[[Module], Executable]) -> None:
        super().__init__(module, graph)
        self._make = make
        self._made: dict[tuple[Type, ...], Executable] = {}

    def _run(self, arrays: Arrays, on_operation: OnOperation | None, out: Arrays | None) -> Arrays:
        check_count(self.graph, len(arrays))
        types = [array_type(a, p) for a, p in zip(arrays, self.graph.parameters, strict=True)]
        return self._program(types)._run(arrays, on_operation, out)

    def _program(self, given: Sequence[TensorType]) -> Executable:
        """The program for arguments of these types."""
        types = tuple(given)
        program = self._made.pop(types, None)
        if program is None:
            bind_shapes(self.graph, types)
            program = self._specialized(types)
        self._made[types] = program  # the last in the order of use
        if len(self._made) > self.LIMIT:
            del self._made[next(iter(self._made))]
        return program

    def _specialized(self, types: Sequence[TensorType]) -> Executable:
        from passes.graph.specialize import specialize_graph

        module = clone_module(self.module)
        graph = module.graphs[self.graph.name]
        open_ = {p.name: t for p, t in zip(graph.parameters, types, strict=True) if not is_known(p.type)}
        specialize_graph(module, graph, open_, {})
        return self._make(module)


def as_array(value: Any, parameter: Any) -> NDArray[Any]:
    """An argument as an array.  Raises GraphError for what is none, or is none that can be updated."""
    if parameter.inout and not isinstance(value, np.ndarray):
        raise GraphError(Diagnostic(f"%{parameter.name} is inout: it takes a numpy array, found {type(value).__name__}", parameter.loc))
    return plain_array(value, parameter.name, parameter.loc)
