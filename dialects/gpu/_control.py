"""Loops and choices of kernels, where threads go different ways."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from dialects.gpu._execution import APART, KernelEnvironment, Lanes, lane_number
from ir.core import Block, Operation
from ir.layout import BindArg, OperandArg, RangeArg, layout_of
from ir.opdef import ExecutionError, RegionOpDef
from ir.types import MemRefType, index


def _bounds(bounds: RangeArg, operands: list[Any], environment: KernelEnvironment) -> tuple[Any, Any, Any]:
    active = environment.block_state.active
    start, stop, step = (lane_number(e, operands, environment.names, active) for e in (bounds.start, bounds.stop, bounds.step))
    wrong = np.broadcast_to(step, environment.block_state.threads)[active] <= 0
    if wrong.any():
        raise ExecutionError(f"the step is {np.broadcast_to(step, environment.block_state.threads)[active][wrong][0]}, it must be positive")
    return start, stop, step


def _run_as_it_is(interpreter: Any, op: Operation, operands: list[Any], environment: Any) -> tuple[Any, ...]:
    assert isinstance(op.definition, RegionOpDef)
    return op.definition.execute(interpreter, op, operands, environment)


def _for(interpreter: Any, op: Operation, operands: list[Any], environment: Any) -> tuple[Any, ...]:
    """Round after round, with the threads that have another one."""
    layout = layout_of(op)
    bounds = layout[0]
    assert isinstance(bounds, RangeArg)
    start, stop, step = _bounds(bounds, operands, environment)
    if not any(np.ndim(n) for n in (start, stop, step)):
        return _run_as_it_is(interpreter, op, operands, environment)
    _refuse_buffers(op)
    state, block = environment.block_state, op.regions[0].block
    inits = [a.source.position for a in layout if isinstance(a, BindArg) and isinstance(a.source, OperandArg)]
    carried = [operands[p] for p in inits]
    at = np.array(np.broadcast_to(start, state.threads))
    stop, step = (np.broadcast_to(n, state.threads) for n in (stop, step))
    while (left := state.active[at[state.active] < stop[state.active]]).size:
        values = [Lanes(at), *carried]
        dtypes = [index, *(environment.dtypes[op.operands[p]] for p in inits)]
        with state.only(left):
            _enter(interpreter, block, values, dtypes, environment)
            carried = [state.merged(old, new) for old, new in zip(carried, _yielded(block, environment), strict=True)]
        at = at + step
    return tuple(carried)


def _parallel(interpreter: Any, op: Operation, operands: list[Any], environment: Any) -> tuple[Any, ...]:
    """The rounds of each thread one after the other, as nobody shares them."""
    state, block = environment.block_state, op.regions[0].block
    ranges = [_bounds(a, operands, environment) for a in layout_of(op) if isinstance(a, RangeArg)]
    counts = [np.broadcast_to(-((start - stop) // step), state.threads) for start, stop, step in ranges]
    most = [int(max(c[state.active].max(), 0)) for c in counts]
    for round_ in itertools.product(*(range(n) for n in most)):
        inside = np.logical_and.reduce([n < c for n, c in zip(round_, counts, strict=True)])
        values = [Lanes(np.broadcast_to(s + n * step, state.threads)) for n, (s, _, step) in zip(round_, ranges, strict=True)]
        left = state.active[inside[state.active]]
        if left.size:
            with state.only(left):
                _enter(interpreter, block, values, [index] * len(values), environment)
    return ()


def _if(interpreter: Any, op: Operation, operands: list[Any], environment: Any) -> tuple[Any, ...]:
    """One region with the threads for which the condition holds, then the other one with the others."""
    _refuse_buffers(op)
    state = environment.block_state
    holds = operands[0].array[state.active].astype(bool)
    results: list[Any] | None = None
    for region, chosen in zip(op.regions, (state.active[holds], state.active[~holds]), strict=False):
        if chosen.size:
            with state.only(chosen):
                _enter(interpreter, region.block, [], [], environment)
                found = _yielded(region.block, environment)
                results = found if results is None else [state.merged(old, new) for old, new in zip(results, found, strict=True)]
    return tuple(results or ())


def _refuse_buffers(op: Operation) -> None:
    if any(isinstance(r.type, MemRefType) for r in op.results):
        raise ExecutionError("threads that go different ways can't choose a buffer")


def _enter(interpreter: Any, block: Block, values: list[Any], dtypes: list[Any], environment: KernelEnvironment) -> None:
    for argument, value, dtype in zip(block.arguments, values, dtypes, strict=True):
        environment.arrays[argument] = value
        environment.dtypes[argument] = dtype
    interpreter.run_block(block, environment, keep=True)


def _yielded(block: Block, environment: KernelEnvironment) -> list[Any]:
    return [environment.arrays[v] for v in block.terminator.operands] if block.terminator is not None else []


def _assert(interpreter: Any, op: Operation, operands: list[Any], environment: Any) -> tuple[Any, ...]:
    """The first thread for which it doesn't hold complains."""
    state = environment.block_state
    holds = state.all_of(operands[0])[state.active].astype(bool)
    if not holds.all():
        thread = state.active[int(np.argmin(holds))]
        assert isinstance(op.definition, RegionOpDef)
        op.definition.execute(interpreter, op, [state.all_of(v)[thread] for v in operands], environment)
    return ()


APART["scf.for"] = _for
APART["scf.parallel"] = _parallel
APART["scf.if"] = _if
APART["cf.assert"] = _assert
