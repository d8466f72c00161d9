"""Runs a :class:`~codegen.cuda.module.CudaProgram` on a device.

The kernels are loaded once, weights and constants uploaded once; the arena and memory for copies grow and are kept.  A call whose steps are
launches and copies alone is captured as a graph when it comes a second time, and is one launch from then on.
"""

from __future__ import annotations

import ctypes
import gc
import math
import threading
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from codegen.cuda.arrays import DeviceArray, Seen, ghost, is_device_array, see
from codegen.cuda.calls import PARAMETER_ALIGNMENT, Call, Captured, Layout, pattern, plain, put
from codegen.cuda.device import Block, Device
from codegen.cuda.driver import STATIC_SHARED, DriverError, Packed
from codegen.cuda.drivers import load_error, refuse_forked
from codegen.cuda.module import ARENA_ALIGNMENT, CudaProgram, Kernel
from codegen.cuda.parts import parts_of
from codegen.cuda.plan import Copy, Fail, Launch, Place, Plan, Print, Work
from codegen.runtime.arguments import check_written_buffers
from codegen.runtime.facts import Facts
from codegen.runtime.outputs import check_outputs
from codegen.runtime.program import print_site
from ir.core import Graph
from ir.diagnostics import Diagnostic, GraphError
from ir.interpreter import MEMORY_LIMIT
from ir.signature import array_type, bind_shapes, check_count, check_updatable
from ir.types import DType, TensorType, array_shape, substitute_type

if TYPE_CHECKING:
    from numpy.typing import NDArray

STATE_BYTES = 64
"""Of a run's state on the device: the number of the site that failed and 1 (32 bits, 0 for none), at 8 its two numbers (64 bits each)."""

CALLS = 16
"""Calls of different patterns that are kept."""


class Engine:
    """One program on one device.  Safe to call from several threads, whose runs come one after the other.

    ``stored`` are the arrays of the program's weights, constants and results of load time; they are copied to the device.
    ``poison`` fills all memory that a run uses with NaN first, so that a read of what was never written shows.
    """

    def __init__(
        self, program: CudaProgram, graph: Graph, stored: Sequence[NDArray[Any]], device: Device, *, facts: Facts | None = None, poison: bool = False
    ) -> None:
        self.program = program
        self.graph = graph
        self.device = device
        self.poison = poison
        self.facts = Facts.of(graph) if facts is None else facts
        self._updated = tuple(sorted({*self.facts.written, *(p.index for p in graph.parameters if p.inout)}))
        self._checks = any(k.checks for k in program.kernels)
        self._lock = threading.RLock()
        self._calls: dict[Any, Call] = {}
        self._uses = 0
        self._plans: OrderedDict[Any, Plan] = OrderedDict()
        self._arena = self._staging = Block(device, 0, 0)
        self._pinned = (0, 0)
        self._busy = 0
        self._captures = True
        self._timed: list[tuple[Launch, int, int]] | None = None
        self._gone: list[tuple[str, int]] = []
        weakref.finalize(self, _dismiss, device, self._gone).atexit = False
        with device:
            self._load()
            self._upload(stored)

    def _load(self) -> None:
        driver, program = self.device.driver, self.program
        self._functions: dict[str, tuple[int, int, int]] = {}
        if program.kernels:
            parts = parts_of(program, driver.builders())
            for image, (_, kernels) in zip(driver.build_all([source for source, _ in parts]), parts, strict=True):
                self._load_kernels(image, kernels)
        self._state = self.device.allocate(STATE_BYTES)
        self._event = driver.new_event()
        self._host_state = driver.allocate_host(STATE_BYTES)
        self._gone += [("event", self._event), ("host", self._host_state)]

    def _load_kernels(self, image: bytes, kernels: Sequence[Kernel]) -> None:
        driver = self.device.driver
        try:
            module = driver.load_module(image)
        except DriverError as error:
            raise load_error(error, driver) from None
        self._gone.append(("module", module))
        for kernel in kernels:
            if kernel.shared_bytes > driver.properties.shared:
                message = f"kernel {kernel.name} needs {kernel.shared_bytes} bytes of shared memory, a block of {driver.properties.name} has"
                raise GraphError(Diagnostic(f"{message} {driver.properties.shared}", self.graph.loc))
            function = driver.function(module, kernel.name)
            if kernel.shared_bytes > STATIC_SHARED:
                driver.allow_shared(function, kernel.shared_bytes)
            self._functions[kernel.name] = (function, kernel.threads, kernel.shared_bytes)

    def _upload(self, stored: Sequence[NDArray[Any]]) -> None:
        """Weights side by side in one piece of memory."""
        places, size = [], 0
        for array in stored:
            places.append(size)
            size += -(-array.nbytes // ARENA_ALIGNMENT) * ARENA_ALIGNMENT
        self._stored = self.device.allocate(size)
        self._bases = {("stored", n): self._stored.address + at for n, at in enumerate(places)}
        for at, array, argument in zip(places, stored, self.program.stored, strict=True):
            bytes_ = plain(array, argument.type.dtype)
            self.device.upload(self._stored.address + at, bytes_.ctypes.data, bytes_.nbytes)

    # -- calls ---------------------------------------------------------------------------------------------------------

    def call(self, args: Sequence[Any], out: Sequence[Any] | None = None, stream: int | None = None) -> list[Any]:
        """The results for arrays in parameter order; arrays of ``inout`` parameters are updated in place.

        Arrays are numpy's, or of the device: :class:`DeviceArray`, or another library's, which are used where they are.  Results are
        ``out``, else arrays of the device if one of the arguments is, else numpy's.  With results on the device, and in a program that
        can't fail, the call returns before the work is done.  ``stream`` is the handle of the stream for the work, by default our own.

        Raises GraphError for arrays that don't fit, and for values that an operation can't handle.
        """
        refuse_forked()  # before the lock, which another thread may have had
        at = self.device.stream if stream is None else stream
        with self._lock, self.device:
            return self._run(self._call_for(args, out, at), args, out, at)

    def quick(self, args: Sequence[Any], out: Sequence[Any] | None = None, stream: int | None = None) -> list[Any] | None:
        """The same for arguments like those of a call before; None for others, and where more must be looked at."""
        known = pattern(args) if out is None else pattern((*args, *out))
        if known is None:
            return None
        key = tuple(known) if out is None else (*known, "out")
        refuse_forked()
        with self._lock:
            call = self._calls.get(key)
            if call is None or call.checked:
                return None
            device = self.device
            at = device.stream if stream is None else stream
            self._uses = call.used = self._uses + 1
            token = device.begin()
            try:
                if call.alone is None or (out is None and call.result_types):  # results without elements are made, too
                    return self._run(call, args, out, at)
                with device.lock:
                    device.tidy()
                    device.follow(at)
                    device.driver.launch_graph(call.alone.handle, at)
                    device.submitted(at)
                return [] if out is None else list(out)
            finally:
                device.driver.leave(token)

    def profile(self, args: Sequence[Any], out: Sequence[Any] | None = None) -> list[tuple[Launch, float]]:
        """Runs once, launch by launch: every launch with the seconds between events around it (which add about two microseconds)."""
        device, driver = self.device, self.device.driver
        with self._lock, device:
            call = self._call_for(args, out, device.stream)
            graphs, captures = call.graphs.copy(), self._captures
            self._timed, self._captures = [], False
            call.graphs.clear()
            try:
                self._run(call, args, out, device.stream)
                driver.synchronize_stream(device.stream)
                return [(work, driver.elapsed(first, second)) for work, first, second in self._timed]
            finally:
                call.graphs.update(graphs)
                self._captures = captures
                for _, first, second in self._timed:
                    driver.destroy_event(first)
                    driver.destroy_event(second)
                self._timed = None

    def _call_for(self, args: Sequence[Any], out: Sequence[Any] | None, stream: int) -> Call:
        """The call for these arguments: the one that is kept for their pattern, or a new one."""
        graph = self.graph
        check_count(graph, len(args))
        names = [(p.name, p.loc) for p in graph.parameters]
        given = self._seen(args, names, stream)
        outputs = None if out is None else self._seen(out, [(f"{v.name}", v.location) for v in graph.results], stream)
        self._refuse_read_only(given, outputs)
        everything = given if outputs is None else [*given, *outputs]
        values = args if out is None else [*args, *out]
        key = (*(_key(v, s) for v, s in zip(values, everything, strict=True)), *(("out",) if out is not None else ()))
        call = self._calls.get(key)
        ghosts = [ghost(s) if s is not None else a for a, s in zip(args, given, strict=True)]
        if call is not None and not call.checked:
            self._uses = call.used = self._uses + 1
            return call
        call = self._new_call(args, ghosts, given, out, outputs) if call is None else self._rechecked(call, ghosts, out, outputs)
        self._uses = call.used = self._uses + 1
        self._calls[key] = call
        if len(self._calls) > CALLS:
            oldest = min(self._calls.items(), key=lambda item: item[1].used)[0]
            del self._calls[oldest]
        return call

    def _seen(self, values: Sequence[Any], names: Sequence[tuple[str, Any]], stream: int) -> list[Seen | None]:
        """Arrays of the device; None for those of the host."""
        pairs = zip(values, names, strict=True)
        return [see(v, self.device, stream, name, loc) if is_device_array(v) else None for v, (name, loc) in pairs]

    def _refuse_read_only(self, given: Sequence[Seen | None], outputs: Sequence[Seen | None] | None) -> None:
        """Arrays of other libraries may say that nobody may write them."""
        for n in self._updated:
            if (seen := given[n]) is not None and not seen.writeable:
                parameter = self.graph.parameters[n]
                what = "is inout" if parameter.inout else "is written"
                raise GraphError(Diagnostic(f"%{parameter.name} {what}, but the array is read-only", parameter.loc))
        for value, seen in zip(self.graph.results, outputs or (), strict=False):
            if seen is not None and not seen.writeable:
                raise GraphError(Diagnostic(f"out: the array for %{value.name} is read-only", value.location))

    def _rechecked(self, call: Call, ghosts: list[NDArray[Any]], out: Sequence[Any] | None, outputs: list[Seen | None] | None) -> Call:
        check_updatable(self.graph, ghosts)
        check_written_buffers(self.graph, ghosts, self.facts.written)
        if out is not None and outputs is not None:
            arrays = [ghost(s) if s is not None else a for a, s in zip(out, outputs, strict=True)]
            check_outputs(self.graph, arrays, [(array_shape(t), t.dtype.numpy) for t in call.result_types], ghosts)
        return call

    def _new_call(
        self, args: Sequence[Any], ghosts: list[NDArray[Any]], given: list[Seen | None], out: Sequence[Any] | None, outputs: list[Seen | None] | None
    ) -> Call:
        graph = self.graph
        types = [array_type(g, p) for g, p in zip(ghosts, graph.parameters, strict=True)]
        names = bind_shapes(graph, types)
        self.facts.check_sizes(names)
        plan = self._plan(names)
        results = [self._result_type(n, names) for n in range(len(graph.results))]
        layout = Layout(plan, graph, self._updated)
        layout.call.result_types = tuple(results)
        self._rechecked(layout.call, ghosts, out, outputs)
        for n, (seen, type_) in enumerate(zip(given, types, strict=True)):
            if seen is None:
                layout.host_parameter(n, ghosts[n], type_.dtype)
            else:
                layout.device_parameter(n, seen, copied=self._is_copied(n, seen, given))
        on_device = any(s is not None for s in given)
        for n, type_ in enumerate(results):
            seen = outputs[n] if outputs is not None else None
            if seen is not None:
                shared = any(s is not None and _overlap(seen, s) for s in given)
                layout.device_result(n, seen, copied=shared or seen.address % ARENA_ALIGNMENT != 0)
            elif out is None and on_device:
                layout.fresh_result(n, type_)
            else:
                layout.host_result(n, type_)
        layout.call.checked = layout.call.checked or (out is not None and any(s is None for s in outputs or ()))
        self._reserve(plan, layout.call.staging, layout.call.pinned)
        return layout.placed(self._staging.address, self._pinned[0])

    def _is_copied(self, index: int, seen: Seen, given: list[Seen | None]) -> bool:
        """Whether kernels can't use an array of the device where it is: its address, or a run writes it before all of it is read."""
        if seen.address % PARAMETER_ALIGNMENT:
            return True
        others = (given[n] for n in self._updated if n != index)
        return index not in self._updated and any(o is not None and _overlap(seen, o) for o in others)

    def _result_type(self, index: int, names: dict[str, int]) -> TensorType:
        value = self.graph.results[index]
        type_ = substitute_type(self.program.results[index].type, names)
        if not isinstance(type_, TensorType) or not all(isinstance(d, int) for d in type_.shape):
            raise GraphError(Diagnostic(f"%{value.name}: {type_} has no size here", value.location))
        if any(int(str(d)) < 0 for d in type_.shape):
            raise GraphError(Diagnostic(f"%{value.name}: a dimension of {type_} is negative", value.location))
        return type_

    def _plan(self, names: dict[str, int]) -> Plan:
        key = tuple(names.get(s, 0) for s in self.program.symbols)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = Plan.of(self.program, names)
            while len(self._plans) > CALLS:
                self._plans.popitem(last=False)
        if plan.arena > MEMORY_LIMIT:
            message = f"graph @{self.graph.name} needs a workspace of {plan.arena} bytes, the limit is {MEMORY_LIMIT}"
            raise GraphError(Diagnostic(message, self.graph.loc))
        return plan

    def _reserve(self, plan: Plan, staging: int, pinned: int) -> None:
        """Makes the arena and the memory for copies as large as a call needs; calls that know the old ones are forgotten."""
        arena = -(-plan.arena // ARENA_ALIGNMENT) * ARENA_ALIGNMENT + plan.scratch
        if arena <= self._arena.size and staging <= self._staging.size and pinned <= self._pinned[1]:
            return
        with self.device.lock:
            self.device.tidy()
            self._calls.clear()
            if arena > self._arena.size:
                self._arena = Block(self.device, 0, 0)  # first give back, then take
                self._arena = self.device.allocate(arena)
            if staging > self._staging.size:
                self._staging = Block(self.device, 0, 0)
                self._staging = self.device.allocate(staging)
            if pinned > self._pinned[1]:
                self.device.driver.synchronize()
                if self._pinned[0]:
                    self._gone.remove(("host", self._pinned[0]))
                    self.device.driver.free_host(self._pinned[0])
                self._pinned = (0, 0)
                size = -(-pinned // 4096) * 4096
                self._pinned = (self.device.driver.allocate_host(size), size)
                self._gone.append(("host", self._pinned[0]))

    # -- running -------------------------------------------------------------------------------------------------------

    def _run(self, call: Call, args: Sequence[Any], out: Sequence[Any] | None, stream: int) -> list[Any]:
        device, driver = self.device, self.device.driver
        if call.uploads and self._busy:
            self._settle()
        direct = []
        for transfer in call.uploads:
            if transfer.view is not None:
                put(transfer.view, args[transfer.index], transfer.dtype)
            else:
                direct.append((transfer, plain(args[transfer.index], transfer.dtype)))
        fresh = {n: DeviceArray(device, t, device.allocate(size)) for n, t, size in call.fresh}
        waits = call.ends_on_host or self._checks or not call.plan.capturable
        busy, self._busy = self._busy, 2
        with device.lock:
            device.tidy()
            device.follow(stream)
            for transfer, array in direct:
                driver.copy_to_device(transfer.address, array.ctypes.data, transfer.size, stream)
            try:
                self._submit(call, fresh, stream)
            finally:  # also of what is only begun
                device.submitted(stream)
            if call.uploads and not waits:
                driver.record(self._event, stream)
        if waits:
            driver.synchronize_stream(stream)
            self._raise_failure(call.plan)
        self._busy = 0 if waits else 1 if call.uploads else busy
        self._finish(call, args, stream)
        return self._results(call, fresh, out)

    def _settle(self) -> None:
        """Waits until memory for copies is free again: for the last run, or for everything when that was interrupted."""
        if self._busy == 1:
            self.device.driver.synchronize_event(self._event)
        else:
            self.device.driver.synchronize()
        self._busy = 0

    def _submit(self, call: Call, fresh: dict[int, DeviceArray], stream: int) -> None:
        """Does the work, as a graph if there is one; a call that comes a second time is captured."""
        addresses = tuple(f.address for f in fresh.values())
        captured = call.known(addresses)
        if captured is None and call.plan.capturable and self._captures and addresses in call.graphs:
            captured = self._capture(call, fresh)
            if captured is not None:
                call.keep(addresses, captured)
                if not (call.uploads or call.fresh or call.ends_on_host or self._checks):
                    call.alone = captured
        if captured is not None:
            self.device.driver.launch_graph(captured.handle, stream)
            return
        if call.plan.capturable and self._captures:
            call.keep(addresses, None)
        self._work(call, fresh, stream)

    def _capture(self, call: Call, fresh: dict[int, DeviceArray]) -> Captured | None:
        """The work as an executable graph.  A driver that can't is heard of once, and gets launches one by one from then on."""
        driver, stream = self.device.driver, self.device.capture_stream
        with _no_collections():  # a finalizer may call the driver, which would break what is captured
            driver.begin_capture(stream)
            try:
                self._work(call, fresh, stream)
                return Captured(self.device, driver.end_capture(stream))
            except DriverError as error:
                driver.abandon_capture(stream)
                self._captures = False
                message = f"graph @{self.graph.name} can't be captured as a CUDA graph, its kernels are launched one by one: {error}"
                warnings.warn(message, stacklevel=2)
                return None
            except BaseException:
                driver.abandon_capture(stream)
                raise

    def _work(self, call: Call, fresh: dict[int, DeviceArray], stream: int) -> None:
        driver, state = self.device.driver, self._state.address
        for transfer in call.uploads:
            if transfer.view is not None:
                driver.copy_to_device(transfer.address, transfer.view.ctypes.data, transfer.size, stream)
        for move in call.before:
            driver.copy_on_device(move.target, move.source, move.size, stream)
        if self.poison:
            self._poison(call, fresh, stream)
        if self._checks:
            driver.fill(state, 0, STATE_BYTES, stream)
        bases = {**self._bases, **call.bases, ("arena", 0): self._arena.address, **{("result", n): f.address for n, f in fresh.items()}}
        for work in call.plan.all_work():
            self._do(work, bases, call.plan, stream)
        for move in call.behind:
            driver.copy_on_device(move.target, move.source, move.size, stream)
        for transfer in (*call.updates, *call.downloads):
            if transfer.view is not None:
                driver.copy_to_host(transfer.view.ctypes.data, transfer.address, transfer.size, stream)
        if self._checks:
            driver.copy_to_host(self._host_state, state, STATE_BYTES, stream)

    def _do(self, work: Work, bases: dict[tuple[str, int], int], plan: Plan, stream: int) -> None:
        driver = self.device.driver
        if isinstance(work, Launch):
            function, threads, shared = self._functions[work.kernel]
            values = [bases[a.base] + a.offset if isinstance(a, Place) else self._state.address if a is None else a for a in work.arguments]
            try:
                timed = self._timing(work)
                if timed:
                    driver.record(timed[0], stream)
                driver.launch(function, work.grid, threads, shared, stream, Packed(values))
                if timed:
                    driver.record(timed[1], stream)
            except DriverError as error:
                error.diagnostics[0].message = f"kernel {work.kernel}: {error.diagnostics[0].message}"
                error.diagnostics[0].location = work.location
                raise
        elif isinstance(work, Copy):
            source, target = (bases[p.base] + p.offset for p in (work.source, work.target))
            if work.overlaps:
                scratch = self._arena.address + -(-plan.arena // ARENA_ALIGNMENT) * ARENA_ALIGNMENT
                driver.copy_on_device(scratch, source, work.size, stream)
                source = scratch
            driver.copy_on_device(target, source, work.size, stream)
        elif isinstance(work, Print):
            self._print(work, bases, plan, stream)
        else:
            self._fail(work, plan, stream)

    def _timing(self, work: Launch) -> tuple[int, int] | None:
        """Events for the beginning and the end of a launch, where somebody wants its time."""
        if self._timed is None:
            return None
        events = self.device.driver.new_event(timing=True), self.device.driver.new_event(timing=True)
        self._timed.append((work, *events))
        return events

    def _poison(self, call: Call, fresh: dict[int, DeviceArray], stream: int) -> None:
        fill = self.device.driver.fill
        if call.plan.arena:
            fill(self._arena.address, 0xFF, call.plan.arena, stream)
        for n, type_ in enumerate(call.result_types):
            size = math.prod(array_shape(type_)) * type_.dtype.numpy.itemsize
            address = fresh[n].address if n in fresh else call.bases["result", n]
            if size:
                fill(address, 0xFF, size, stream)

    # -- failures, prints ----------------------------------------------------------------------------------------------

    def _raise_failure(self, plan: Plan) -> None:
        """Raises what a check complained about, from the state that has come back."""
        if not self._checks:
            return
        state = ctypes.string_at(self._host_state, STATE_BYTES)
        site = int.from_bytes(state[:4], "little", signed=True) - 1
        if site < 0:
            return
        self._busy = 0
        first, second = memoryview(state)[8:24].cast("q")
        if site >= len(self.program.sites):
            raise GraphError(Diagnostic(f"graph @{self.graph.name} failed", self.graph.loc))
        raise self.program.sites[site].error(first, second, plan.names)

    def _look_at_state(self, plan: Plan, stream: int) -> None:
        """What came before this point of a run has run; raises what it complained about."""
        if self._checks:
            self.device.driver.copy_to_host(self._host_state, self._state.address, STATE_BYTES, stream)
        self.device.driver.synchronize_stream(stream)
        self._raise_failure(plan)

    def _fail(self, work: Fail, plan: Plan, stream: int) -> None:
        self._look_at_state(plan, stream)
        raise self.program.sites[work.site].error(work.first, work.second, plan.names)

    def _print(self, work: Print, bases: dict[tuple[str, int], int], plan: Plan, stream: int) -> None:
        self._look_at_state(plan, stream)
        array = np.empty(array_shape(work.type), work.type.dtype.numpy)
        if array.nbytes:
            self.device.driver.copy_to_host(array.ctypes.data, bases[work.source.base] + work.source.offset, array.nbytes, stream)
            self.device.driver.synchronize_stream(stream)
        print_site(self.program.sites[work.site], array.ctypes.data, dict(plan.names))

    # -- results -------------------------------------------------------------------------------------------------------

    def _finish(self, call: Call, args: Sequence[Any], stream: int) -> None:
        """Brings what was updated into the caller's arrays of the host; all is done by then."""
        for transfer in call.updates:
            target = args[transfer.index]
            if not target.flags.writeable:
                parameter = self.graph.parameters[transfer.index]
                raise GraphError(Diagnostic(f"%{parameter.name} is inout, but the array is read-only", parameter.loc))
            self._fetch(transfer.view, transfer.address, transfer.size, target, transfer.dtype, stream)

    def _fetch(self, view: NDArray[Any] | None, address: int, size: int, target: NDArray[Any], dtype: DType, stream: int) -> None:
        if view is not None:
            target[...] = view
            return
        direct = target if target.flags.c_contiguous and target.flags.aligned and target.dtype.isnative else np.empty(target.shape, dtype.numpy)
        self.device.driver.copy_to_host(direct.ctypes.data, address, size, stream)
        self.device.driver.synchronize_stream(stream)
        if direct is not target:
            target[...] = direct

    def _results(self, call: Call, fresh: dict[int, DeviceArray], out: Sequence[Any] | None) -> list[Any]:
        if out is None and call.fresh:
            return [fresh[n] for n in range(len(call.result_types))]
        found: list[Any] = list(out) if out is not None else [np.empty(array_shape(t), t.dtype.numpy) for t in call.result_types]
        for transfer in call.downloads:
            self._fetch(transfer.view, transfer.address, transfer.size, found[transfer.index], transfer.dtype, self.device.stream)
        return found


# -- helpers -----------------------------------------------------------------------------------------------------------


def _key(value: Any, seen: Seen | None) -> Any:
    """What of one argument decides how a call is done; see :func:`codegen.cuda.calls.pattern`."""
    if type(value) is DeviceArray:
        return value.key
    return (value.dtype, value.shape) if seen is None else ("seen", seen.address, seen.shape, seen.dtype)


def _overlap(a: Seen, b: Seen) -> bool:
    """Whether two arrays of the device share memory; they have no gaps."""
    sizes = [math.prod(s.shape) * s.dtype.numpy.itemsize for s in (a, b)]
    return sizes[0] > 0 and sizes[1] > 0 and a.address < b.address + sizes[1] and b.address < a.address + sizes[0]


def _dismiss(device: Device, gone: list[tuple[str, int]]) -> None:
    """Gives back what an engine had, once it is gone and its work is done."""

    def give_back() -> None:
        driver = device.driver
        ways = {"module": driver.unload_module, "event": driver.destroy_event, "host": driver.free_host}
        for kind, handle in gone:
            ways[kind](handle)

    device.dismiss(give_back)


@contextmanager
def _no_collections() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
