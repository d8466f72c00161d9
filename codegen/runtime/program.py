"""A native graph as a function from arrays to arrays."""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from codegen.llvm.native import NativeModule, Site
from codegen.runtime.abi import (
    ALIGNMENT,
    CALLBACK,
    LEAST_WORK,
    MAIN,
    STATE_BYTES,
    STATE_CALLBACK,
    STATE_FAILED,
    STATE_VALUES,
    WORK,
    WORK_PER_THREAD,
    WORKSPACE,
    NativeCode,
)
from codegen.runtime.arguments import is_plain, plain_copy, prepare
from codegen.runtime.calls import caller
from codegen.runtime.facts import Facts
from codegen.runtime.frames import Frame, Frames
from codegen.runtime.outputs import bring, check_outputs, run_into
from codegen.runtime.pages import aligned_arrays, aligned_bytes
from codegen.runtime.processors import available_processors
from ir.core import Graph, Parameter, Value
from ir.diagnostics import Diagnostic, GraphError
from ir.interpreter import MEMORY_LIMIT
from ir.opdef import REGISTRY
from ir.signature import array_type, bind_shapes, check_count
from ir.types import DType, TensorType, array_shape, substitute_type

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from codegen.runtime.threads import Pool

_KEPT_PLANS = 64


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a run needs to know besides the arrays; it depends on their types only."""

    dtypes: tuple[DType, ...]
    dims: NDArray[Any]
    dims_address: int
    results: tuple[tuple[tuple[int, ...], Any], ...]
    workspace: int
    work: float


class NativeProgram:
    """Runs one graph that was compiled to machine code.

    ``text`` is what the emitter tells about it, ``code`` the loaded machine code, ``stored`` the tensors that come
    behind the results among its pointers.  ``facts`` are those of the graph where it has only a signature.  ``threads`` is how many
    threads of ``pool`` a run may use, 0 for all that there are processors for; there are never more than that, and a run that is not
    worth it uses fewer.

    Safe to call from several threads at a time.  Results are new arrays that share memory with nothing.
    ``poison`` fills the workspace with NaN before every run, so that a read of what was never written shows.
    """

    def __init__(
        self,
        text: NativeModule,
        code: NativeCode,
        graph: Graph,
        stored: Sequence[NDArray[Any]] = (),
        *,
        threads: int = 1,
        pool: Callable[[], Pool] | None = None,
        poison: bool = False,
        facts: Facts | None = None,
    ) -> None:
        self.text = text
        self.code = code
        self.graph = graph
        self.threads = min(threads or available_processors(), available_processors())
        self.poison = poison
        self.stored = [_aligned(a) for a in stored]
        self.stored_table = (ctypes.c_void_p * max(1, len(self.stored)))(*[a.ctypes.data for a in self.stored])
        self.main_address = code.address(text.function)
        self._main = MAIN(self.main_address)
        self.workspace_address = code.address(text.workspace_function)
        self._workspace = WORKSPACE(self.workspace_address)
        self.work_address = code.address(text.work_function)
        self._work = WORK(self.work_address)
        self._pool = pool
        self.result_types = [_result_type(v, t) for v, t in zip(graph.results, graph.result_types, strict=True)]
        self.facts = Facts.of(graph) if facts is None else facts
        self._plans: dict[tuple[Any, ...], _Plan] = {}
        self._frames = Frames(len(graph.parameters) + len(self.result_types) + len(self.stored))
        self._calls_back = bool(text.prints)

    def updates(self, parameter: Parameter) -> bool:
        """Whether a run may write into the array that the caller gives for a parameter."""
        return parameter.inout or parameter.index in self.facts.written

    @property
    def calls_back(self) -> bool:
        """Whether a run may call Python (to print)."""
        return self._calls_back

    def workspace_size(self) -> int:
        """The largest workspace that the runs so far asked for, in bytes."""
        return max((p.workspace for p in self._plans.values()), default=0)

    def lend_frame(self, size: int) -> Frame:
        """A frame with a workspace of at least ``size`` bytes, for good."""
        frame = self._frames.take()
        frame.reserve(size)
        return frame

    # -- running -------------------------------------------------------------------------------------------------------

    def run(
        self, arrays: Sequence[NDArray[Any]], *, lasting: bool = False, out: list[NDArray[Any]] | None = None
    ) -> list[NDArray[Any]]:
        """The results for arrays in parameter order; arrays of ``inout`` parameters are updated in place.

        ``lasting`` results are kept and read for long: they lie side by side, aligned, on large pages.  ``out`` are the
        caller's arrays for the results, which are then returned (see :mod:`codegen.runtime.outputs`).

        Raises :class:`GraphError` when the arrays don't fit or an operation fails on their values, MemoryError when
        there is not enough memory.
        """
        arrays = [np.asarray(a) for a in arrays]
        key = tuple([(a.dtype, a.shape) for a in arrays])
        plan = self._plans.get(key)
        if plan is None:
            plan = self._make_plan(arrays)
            if len(self._plans) >= _KEPT_PLANS:
                self._plans.clear()
            self._plans[key] = plan
        if out is not None:
            check_outputs(self.graph, out, plan.results, list(arrays))
        ready = prepare(self.graph, arrays, plan.dtypes, self.facts.written)
        if out is not None:
            results = run_into(out, ready.arrays)
        else:
            results = aligned_arrays(plan.results) if lasting else [np.empty(shape, dtype) for shape, dtype in plan.results]
        frame = self._frames.take()
        try:
            frame.reserve(plan.workspace)
            for position, array in enumerate((*ready.arrays, *results, *self.stored)):
                frame.args[position] = array.ctypes.data
            self._call(frame, plan)
        finally:
            self._frames.give_back(frame)
        ready.write_back()
        if out is None:
            return results
        bring(out, results)
        return out

    def _call(self, frame: Frame, plan: _Plan) -> None:
        ctypes.memset(frame.state_address, 0, STATE_BYTES)
        if self.poison:
            frame.workspace.fill(0xFF)
        raised: list[BaseException] = []
        if self._calls_back:
            callback = self._callback(raised)  # lives until the run is over
            ctypes.c_void_p.from_address(frame.state_address + STATE_CALLBACK).value = ctypes.cast(callback, ctypes.c_void_p).value
        arguments = (frame.args_address, plan.dims_address, frame.workspace_address, frame.state_address)
        threads = threads_for(plan.work, self.threads)
        if threads != 1 and self._pool is not None:
            status = self._pool().run(self._main, *arguments, threads, plan.work)
        else:
            status = caller()(None, None, self.main_address, *arguments, 1, plan.work)
        if raised:
            raise raised[0]
        if status or ctypes.c_int32.from_address(frame.state_address + STATE_FAILED).value:  # a thread may come back before another fails
            raise self.error(ctypes.string_at(frame.state_address, STATE_BYTES), plan.dims.tobytes())

    def error(self, state: bytes, dims: bytes) -> GraphError:
        """What a failed run complains about, from the state that it left and the named dimensions that it had."""
        site = int.from_bytes(state[STATE_FAILED : STATE_FAILED + 4], sys.byteorder) - 1
        first, second = memoryview(state)[STATE_VALUES : STATE_VALUES + 16].cast("q")
        if not 0 <= site < len(self.text.sites):
            return GraphError(Diagnostic(f"graph @{self.graph.name} failed", self.graph.loc))
        names = dict(zip(self.text.symbols, memoryview(dims).cast("q"), strict=False))
        return self.text.sites[site].error(first, second, names)

    def _callback(self, raised: list[BaseException]) -> Any:
        sites, symbols = self.text.sites, self.text.symbols

        def print_tensor(site: int, data: int | None, dims: int | None) -> int:
            try:
                if not raised:
                    values = (ctypes.c_int64 * len(symbols)).from_address(dims) if symbols and dims else ()
                    print_site(sites[site], data, dict(zip(symbols, values, strict=True)))
            except BaseException as error:  # goes on in the caller of run, once native code has returned
                raised.append(error)
            return 1 if raised else 0

        return CALLBACK(print_tensor)

    # -- sizes ---------------------------------------------------------------------------------------------------------

    def _make_plan(self, arrays: Sequence[NDArray[Any]]) -> _Plan:
        graph = self.graph
        check_count(graph, len(arrays))
        types = [array_type(a, p) for a, p in zip(arrays, graph.parameters, strict=True)]
        bindings = bind_shapes(graph, types)
        self.facts.check_sizes(bindings)
        results = []
        for value, type_ in zip(graph.results, self.result_types, strict=True):
            concrete = substitute_type(type_, bindings)
            assert isinstance(concrete, TensorType)
            if not all(isinstance(d, int) for d in concrete.shape):
                raise GraphError(Diagnostic(f"%{value.name}: {concrete} has no size here", value.location))
            shape = tuple(int(d) for d in concrete.shape)  # type: ignore[arg-type]
            if any(d < 0 for d in shape):
                raise GraphError(Diagnostic(f"%{value.name}: a dimension of {concrete} is negative", value.location))
            results.append((array_shape(TensorType(type_.dtype, shape)), type_.dtype.numpy))
        dims = np.array([bindings.get(s, 0) for s in self.text.symbols] or [0], np.int64)
        address = int(dims.ctypes.data)
        size = int(self._workspace(address))
        if not 0 <= size <= MEMORY_LIMIT:
            needed = f"{size} bytes, the limit is {MEMORY_LIMIT}" if size > 0 else f"more than the limit of {MEMORY_LIMIT} bytes"
            raise GraphError(Diagnostic(f"graph @{graph.name} needs a workspace of {needed}", graph.loc))
        return _Plan(tuple(t.dtype for t in types), dims, address, tuple(results), size, float(self._work(address)))


def threads_for(work: float, threads: int) -> int:
    """How many of ``threads`` threads are worth it for so many simple operations."""
    return 1 if work < LEAST_WORK else int(min(float(threads), work / WORK_PER_THREAD))


def _result_type(value: Value, declared: Any) -> TensorType:
    type_ = value.type if isinstance(value.type, TensorType) else declared
    if not isinstance(type_, TensorType):
        raise GraphError(Diagnostic(f"%{value.name} is {type_}: a result of native code is a tensor of known type", value.location))
    return type_


def _aligned(array: NDArray[Any]) -> NDArray[Any]:
    """The array itself when native code can use it as a stored tensor, else a copy that it can."""
    from ir.types import dtype_from_numpy

    dtype = dtype_from_numpy(array.dtype)
    assert dtype is not None, array.dtype
    if array.ctypes.data % ALIGNMENT == 0 and is_plain(array, dtype):
        return array
    plain = plain_copy(array, dtype) if not is_plain(array, dtype) else array
    copy = aligned_bytes(plain.nbytes)[: plain.nbytes].view(dtype.numpy).reshape(plain.shape)
    copy[...] = plain
    return copy


def print_site(site: Site, data: int | None, names: dict[str, int]) -> None:
    """What the reference interpreter prints."""
    assert site.type is not None
    type_ = substitute_type(site.type, names)
    assert isinstance(type_, TensorType)
    shape = array_shape(type_)
    size = math.prod(shape) * type_.dtype.numpy.itemsize
    memory = ctypes.string_at(data, size) if size and data else b""
    array = np.frombuffer(memory, type_.dtype.numpy).reshape(shape)
    REGISTRY["graph.print"].evaluate([array], ["x"], {"label": site.label}, (), [type_.dtype])

