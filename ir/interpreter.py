"""The reference interpreter: runs a program one operation at a time with numpy.

It is the living definition of what a program means: the bodies of the op definitions, the rounding rule of
:mod:`ir.evaluate`, and nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ir.attributes import Attribute, FileRef, GraphRef
from ir.core import Block, Graph, Module, Operation, Parameter, Value
from ir.diagnostics import Diagnostic, Diagnostics, GraphError
from ir.dims import DimExpr, substitute
from ir.inference import Inference
from ir.locate import attribute_location, use_location
from ir.opdef import ExecutionError, RegionOpDef, TypeProblem, operand_use_for
from ir.references import INITIAL
from ir.signature import array_type, bind_shapes, check_count, check_updatable
from ir.types import DType, MemRefType, ScalarType, TensorType, Type, VectorType, byte_count, merge_types, substitute_type, tensor_shape
from ir.updates import final_versions

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ir.weights import WeightSource

def _memory_limit() -> int:
    """Bytes of one tensor; a larger one is refused before it is allocated."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 64 * 2**30


MEMORY_LIMIT = _memory_limit()


class Environment:
    """Values of one running graph: arrays (or scalars of the lower levels), element types, symbolic dimensions."""

    __slots__ = ("arrays", "dtypes", "names", "remaining")
    observed = True
    """whether ``on_operation`` is told what happens here"""

    def __init__(self, names: Mapping[str, int]) -> None:
        self.arrays: dict[Value, Any] = {}
        self.dtypes: dict[Value, DType] = {}
        self.names: dict[str, int] = dict(names)
        self.remaining: dict[Value, int] = {}

    def results(self, interpreter: Interpreter, op: Operation) -> tuple[Sequence[Any], Sequence[DType]]:
        """What an operation gives here, and the element types of that."""
        return interpreter.results(op, self)


class Interpreter:
    """Runs the graphs of a module.

    ``sources`` hold the tensors of the files of weights.  With ``double`` floats stay float64 between operations (for
    comparing two programs without rounding noise).  ``on_operation`` is called after each operation of the outermost
    graph, with it and its results.  ``quiet`` runs leave out ``print``.  ``reverse_parallel`` runs the rounds of parallel
    loops from the last to the first (for finding out whether they depend on each other).
    """

    def __init__(
        self,
        module: Module,
        sources: Mapping[str, WeightSource] | None = None,
        *,
        double: bool = False,
        on_operation: Callable[[Operation, Sequence[Any]], None] | None = None,
        quiet: bool = False,
        reverse_parallel: bool = False,
    ) -> None:
        self.module = module
        self.sources = sources or {}
        self.double = double
        self.on_operation = on_operation
        self.quiet = quiet
        self.reverse_parallel = reverse_parallel
        self._weights: dict[tuple[str, str], NDArray[Any]] = {}
        self._initials: dict[Graph, list[tuple[NDArray[Any], DType]]] = {}
        self._depth = 0
        self._largest: dict[Graph, dict[TensorType, Value]] = {}
        self._fixed_types: dict[Operation, Sequence[Type] | None] = {}

    @cached_property
    def _static_types(self) -> Mapping[Value, Type]:
        """Types of all values where there is more than tensor operations: scalars and rank-0 tensors look alike in numpy."""
        lower = any(op.regions or op.definition.dialect != "graph" for op in self.module.walk())
        return Inference(self.module, Diagnostics()).run() if lower else {}

    def run(self, graph: Graph, arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """The results for the given inputs, in order; arrays of ``inout`` parameters are updated in place.

        Raises :class:`GraphError` when the inputs don't fit or an operation fails on their values.
        """
        arrays = [np.asarray(a) for a in arrays]
        check_count(graph, len(arrays))
        types = [array_type(a, p) for a, p in zip(arrays, graph.parameters, strict=True)]
        environment = Environment(bind_shapes(graph, types))
        self.check_sizes(graph, environment.names)
        for parameter, array, type_ in zip(graph.parameters, arrays, types, strict=True):
            # a copy of what is updated, since older versions of it may still be read
            if parameter.inout:
                environment.arrays[parameter] = np.array(array, order="C")
            elif isinstance(parameter.type, MemRefType):
                environment.arrays[parameter] = array  # a buffer: operations write into it
            else:
                environment.arrays[parameter] = np.asarray(array, type_.dtype.numpy)
            environment.dtypes[parameter] = type_.dtype
        final = final_versions(graph, self.module) if any(p.inout for p in graph.parameters) else {}
        check_updatable(graph, arrays)
        self._count_uses(graph, environment, list(final.values()))
        self._run_inner(graph, environment)
        results = [environment.arrays[v] for v in graph.results]
        # a result never shares memory with an input, a weight, a constant or another result
        results = [np.array(r, order="C") for r in results]
        for parameter, value in final.items():
            self._write_back(parameter, arrays[parameter.index], environment.arrays[value])
        return results

    def run_into(self, graph: Graph, targets: Sequence[NDArray[Any]]) -> None:
        """Runs a graph without parameters and puts its results into arrays, each as soon as it is there.

        So what results are made of is in memory for a short time only.
        """
        self.check_sizes(graph, {})
        environment = Environment({})
        self._count_uses(graph, environment, [])
        places: dict[Value, list[NDArray[Any]]] = {}
        for value, target in zip(graph.results, targets, strict=True):
            places.setdefault(value, []).append(target)
        for op in graph.block:
            if op.definition.is_terminator:
                break
            self.run_operation(op, environment)
            for value in op.results:
                for target in places.get(value, ()):
                    if environment.arrays[value] is not target:
                        target[...] = environment.arrays[value]
                        environment.arrays[value] = target
            self._release(op, environment)

    def check_sizes(self, graph: Graph, names: Mapping[str, int]) -> None:
        """Raises GraphError for a value that needs more than MEMORY_LIMIT bytes, as far as sizes are known."""
        if graph not in self._largest:
            self._largest[graph] = {r.type: r for op in graph.block for r in op.results if isinstance(r.type, TensorType)}
        for type_, value in self._largest[graph].items():
            size = byte_count(type_.dtype, tuple(substitute(d, names) for d in type_.shape))
            if isinstance(size, int) and size > MEMORY_LIMIT:
                raise GraphError(Diagnostic(f"%{value.name}: {type_} needs {size} bytes, the limit is {MEMORY_LIMIT}", value.location))

    def _write_back(self, parameter: Parameter, target: NDArray[Any], array: NDArray[Any]) -> None:
        if not target.flags.writeable:
            raise GraphError(Diagnostic(f"%{parameter.name} is inout, but the array is read-only", parameter.loc))
        target[...] = array

    def _count_uses(self, graph: Graph, environment: Environment, kept: Sequence[Value]) -> None:
        remaining = environment.remaining
        for op in graph.walk():
            for value in op.operands:
                remaining[value] = remaining.get(value, 0) + 1
        for value in kept:
            remaining[value] = remaining.get(value, 0) + 1

    # -- blocks and operations -------------------------------------------------------------------------------------

    def run_block(self, block: Block, environment: Environment, *, keep: bool = False) -> None:
        """Runs the operations of a block up to its terminator.  ``keep`` holds on to values used last (loops)."""
        outermost = self._depth == 1 and self.on_operation is not None and environment.observed
        for op in block:
            if op.definition.is_terminator:
                return
            self.run_operation(op, environment)
            if outermost:
                assert self.on_operation is not None
                self.on_operation(op, [environment.arrays[r] for r in op.results])
            if not keep:
                self._release(op, environment)

    def _release(self, op: Operation, environment: Environment) -> None:
        """Drops arrays that nothing needs any more, so that a long program fits in memory."""
        remaining = environment.remaining
        for nested in op.walk() if op.regions else (op,):
            for value in nested.operands:
                remaining[value] -= 1
                if remaining[value] == 0:
                    environment.arrays.pop(value, None)

    def run_operation(self, op: Operation, environment: Environment) -> None:
        """Runs one operation and stores its results in ``environment``."""
        try:
            results, dtypes = environment.results(self, op)
        except ExecutionError as error:
            name, message = op.definition.text_name, str(error)
            raise GraphError(Diagnostic(message if message.startswith(f"{name}:") else f"{name}: {message}", op.loc)) from error
        except TypeProblem as problem:
            use = operand_use_for(op, problem.operand)
            place = use_location(use) if use is not None else attribute_location(op, problem.attribute) if problem.attribute else op.loc
            raise GraphError(Diagnostic(f"{op.definition.text_name}: {problem.message}", place, problem.hint)) from problem
        except MemoryError as error:
            raise GraphError(Diagnostic(f"{op.definition.text_name}: not enough memory", op.loc)) from error
        for value, array, dtype in zip(op.results, results, dtypes, strict=True):
            environment.arrays[value] = array
            environment.dtypes[value] = dtype

    def results(self, op: Operation, environment: Environment) -> tuple[Sequence[Any], Sequence[DType]]:
        """What an operation gives for values of its operands, and the element types of that."""
        definition = op.definition
        operands = [environment.arrays[v] for v in op.operands]
        if isinstance(definition, RegionOpDef):
            results = definition.execute(self, op, operands, environment)
            return results, [self.result_dtype(r) for r in op.results]
        if definition.full_name == "graph.weight":
            array = self._weight(op)
            return (array,), (self._weight_dtype(op),)
        if definition.full_name == INITIAL:
            return self._initial(op)
        if definition.full_name == "graph.print" and self.quiet:
            return (), ()
        if definition.full_name == "graph.call":
            return self._call(op, operands, environment)
        dtypes = [environment.dtypes[v] for v in op.operands]
        names = definition.operand_names(op)
        attributes = self._attributes(op, environment)
        result_types = self._types_of_scalars(op)
        if result_types is None:
            types = [self._runtime_type(v, a, d) for v, a, d in zip(op.operands, operands, dtypes, strict=True)]
            declared = [self.concrete_type(r, environment) for r in op.results]
            result_types = definition.infer(types, names, attributes, declared)
            assert result_types is not None, definition.full_name
            self._check_results(op, result_types, environment)
        results = definition.evaluate(operands, names, attributes, result_types, dtypes, self.double)
        return results, [t.dtype for t in result_types]  # type: ignore[union-attr]

    def _types_of_scalars(self, op: Operation) -> Sequence[Type] | None:
        """Result types of an operation on scalars and vectors, which are the same in every run; None for others."""
        if op not in self._fixed_types:
            types = [self._static_types.get(v, v.type) for v in (*op.operands, *op.results)]
            fixed = bool(op.results) and all(isinstance(t, (ScalarType, VectorType)) for t in types)
            self._fixed_types[op] = types[len(op.operand_uses) :] if fixed else None
        return self._fixed_types[op]

    def result_dtype(self, value: Value) -> DType:
        """The element type of a value."""
        return self.static_type(value).dtype  # type: ignore[no-any-return, union-attr]

    def static_type(self, value: Value) -> Type:
        """The type of a value as it is known without a run."""
        return self._static_types.get(value, value.type)

    def _runtime_type(self, value: Value, array: Any, dtype: DType) -> Type:
        """The type that a value has in this run: a tensor's dimensions are those of its array."""
        static = self._static_types.get(value, value.type)
        if isinstance(static, MemRefType):
            return MemRefType(static.dtype, np.shape(array), static.space, static.align)
        return static if isinstance(static, (ScalarType, VectorType)) else TensorType(dtype, tensor_shape(dtype, np.shape(array)))

    def _attributes(self, op: Operation, environment: Environment) -> Mapping[str, Attribute]:
        if not any(_mentions_symbols(v) for v in op.attributes.values()):
            return op.attributes
        return {k: _substitute(v, environment.names) for k, v in op.attributes.items()}

    def _check_results(self, op: Operation, found: Sequence[Type], environment: Environment) -> None:
        """What is declared must be what comes out, and must fit in memory."""
        for result, type_ in zip(op.results, found, strict=True):
            declared = substitute_type(result.type, environment.names)
            if merge_types(declared, type_) is None:
                raise TypeProblem(f"%{result.name} is declared {result.type}, here {declared}, but {type_} comes out")
            self.check_memory(result, type_)

    def concrete_type(self, value: Value, environment: Environment) -> Type:
        """The type of a value, with the dimensions of this run."""
        return substitute_type(self._static_types.get(value, value.type), environment.names)

    def check_memory(self, value: Value, type_: Type) -> None:
        """Raises TypeProblem for a tensor or buffer that can't fit in memory."""
        if isinstance(type_, (TensorType, MemRefType)):
            size = byte_count(type_.dtype, type_.shape)
            if not isinstance(size, int) or size > MEMORY_LIMIT:
                raise TypeProblem(f"%{value.name} needs {size} bytes, the limit is {MEMORY_LIMIT}")

    # -- weights and calls -----------------------------------------------------------------------------------------

    def _weight_dtype(self, op: Operation) -> DType:
        file, name = op.attributes["file"], op.attributes["name"]
        assert isinstance(file, FileRef) and isinstance(name, str)
        return self.sources[file.name].info(name)[0]

    def _weight(self, op: Operation) -> NDArray[Any]:
        file, name = op.attributes["file"], op.attributes["name"]
        assert isinstance(file, FileRef) and isinstance(name, str)
        key = (file.name, name)
        if key not in self._weights:
            source = self.sources.get(file.name)
            if source is None:
                raise TypeProblem(f"file @{file.name} is not bound", hint=f"give it with --file {file.name}=PATH or files={{...}}")
            dtype, shape = source.info(name)
            declared = op.results[0].type
            if merge_types(declared, TensorType(dtype, tuple(shape))) is None:
                raise TypeProblem(f"'{name}' is declared {declared}, but the file holds {TensorType(dtype, tuple(shape))}")
            self._weights[key] = source.read(name)
        return self._weights[key]

    def _initial(self, op: Operation) -> tuple[Sequence[Any], Sequence[DType]]:
        reference, number = op.attributes["source"], op.attributes["result"]
        assert isinstance(reference, GraphRef) and isinstance(number, int)
        source = self.module.graphs[reference.name]
        if source not in self._initials:
            self.check_sizes(source, {})
            inner = Environment({})
            self._count_uses(source, inner, [])
            self._run_inner(source, inner)
            self._initials[source] = [(_read_only(inner.arrays[v]), inner.dtypes[v]) for v in source.results]
        array, dtype = self._initials[source][number]
        return (array,), (dtype,)

    def _run_inner(self, graph: Graph, environment: Environment) -> None:
        self._depth += 1
        try:
            self.run_block(graph.block, environment)
        finally:
            self._depth -= 1

    def _call(self, op: Operation, operands: Sequence[NDArray[Any]], environment: Environment) -> tuple[Sequence[Any], Sequence[DType]]:
        reference = op.attributes["callee"]
        assert isinstance(reference, GraphRef)
        callee = self.module.graphs[reference.name]
        inner = self._call_environment(callee, op, operands, environment)
        final = final_versions(callee, self.module)
        self._count_uses(callee, inner, list(final.values()))
        self._run_inner(callee, inner)
        values = [*callee.results, *(final[p] for p in callee.parameters if p.inout)]
        return [inner.arrays[v] for v in values], [inner.dtypes[v] for v in values]

    def _call_environment(self, callee: Graph, op: Operation, operands: Sequence[NDArray[Any]], environment: Environment) -> Environment:
        dtypes = [environment.dtypes[v] for v in op.operands]
        types = [TensorType(d, tensor_shape(d, np.shape(a))) for a, d in zip(operands, dtypes, strict=True)]
        inner = Environment(bind_shapes(callee, types))
        for parameter, array, dtype in zip(callee.parameters, operands, dtypes, strict=True):
            inner.arrays[parameter] = np.array(array, order="C") if parameter.inout else array
            inner.dtypes[parameter] = dtype
        return inner


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    view = np.asarray(array).view()
    view.setflags(write=False)
    return view


def _mentions_symbols(value: Attribute) -> bool:
    if isinstance(value, tuple):
        return any(map(_mentions_symbols, value))
    return isinstance(value, DimExpr)


def _substitute(value: Attribute, names: Mapping[str, int]) -> Attribute:
    if isinstance(value, tuple):
        return tuple(_substitute(v, names) for v in value)
    if isinstance(value, DimExpr):
        result = substitute(value, names)
        if not isinstance(result, int):
            raise TypeProblem(f"{result} has no value here")
        return result
    return value
