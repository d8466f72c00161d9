"""Memory as the threads of a block touch it: loads and stores of all of them at once, bounds, and who comes in whose way."""

from __future__ import annotations

from typing import Any

import numpy as np

from dialects._access import block_shape, write
from dialects.affine import expressions_of
from dialects.gpu._execution import APART, TOGETHER, BlockState, Lanes, lane_number
from dialects.gpu._races import Access
from ir.core import Operation
from ir.evaluate import round_to
from ir.layout import AccessArg, OperandArg, layout_of, wrap
from ir.opdef import ExecutionError
from ir.types import MemRefType


class Places:
    """The elements that an access means, for each thread that runs.

    ``index`` has an array for each axis that broadcasts to ``[threads, ...]``, ``mask`` (None: all) says which of them are meant.
    When all threads mean the same ``alike`` is true, and the first axis has one place.
    """

    def __init__(self, op: Operation, access: AccessArg, operands: list[Any], environment: Any, valid: Any = None, as_runs: bool = False) -> None:
        """``as_runs`` keeps the axes of ``[threads, ...]`` where each thread means one element."""
        state: BlockState = environment.block_state
        self.state, self.access = state, access
        buffer = operands[access.position]
        self.local = isinstance(buffer, Lanes)
        self.buffer = buffer.array if self.local else buffer
        self.name = op.operands[access.position].name
        shape = self.buffer.shape[1:] if self.local else self.buffer.shape
        runs = block_shape(access)
        starts = [lane_number(i.expr, operands, environment.names, state.active) for i in access.indices]
        self.alike = not self.local and not any(np.ndim(s) for s in starts) and not isinstance(valid, Lanes)
        self.runs = runs if as_runs or valid is not None or any(n > 1 for n in runs) else ()
        self.mask = _mask(valid, state, runs)
        ones = (1,) * len(self.runs)
        self.starts = [(np.asarray(s, np.int64) if np.ndim(s) == 0 else s[state.active]).reshape(-1, *ones) for s in starts]
        self.index = tuple(
            s + np.arange(n).reshape(-1, *ones[axis + 1 :]) if n > 1 else s for axis, (s, n) in enumerate(zip(self.starts, runs, strict=True))
        )
        self.shape = (1 if self.alike else len(state.active), *self.runs)
        self._check(shape, runs)

    def _check(self, shape: tuple[int, ...], runs: tuple[int, ...]) -> None:
        for axis, (at, size, run) in enumerate(zip(self.index, shape, runs, strict=True)):
            wrong = (at < 0) | (at >= size)
            if self.mask is not None:
                wrong = wrong & self.mask
            if wrong.any():
                where = np.unravel_index(int(np.argmax(np.broadcast_to(wrong, self.shape))), self.shape)
                thread = self.state.active[where[0]]
                if run == 1:
                    message = f"index {int(np.broadcast_to(at, self.shape)[where])} is outside dimension {axis} of size {size}"
                else:
                    start = int(np.broadcast_to(self.starts[axis].reshape(-1), self.shape[0])[where[0]])
                    message = f"elements {start} to {start + run} are outside dimension {axis} of size {size}"
                raise ExecutionError(f"{message} (thread {thread} of the block)")

    @property
    def full_index(self) -> tuple[Any, ...]:
        """The places with the thread in front where each has a buffer of its own."""
        if not self.local:
            return self.index
        return (self.state.active.reshape(-1, *(1,) * (len(self.shape) - 1)), *self.index)

    def touch(self, shared: bool, writing: bool) -> None:
        """Says to who watches for races what is read or written."""
        if self.local:
            return
        races = self.state.races
        access = self.as_access()
        if writing:
            races.write(access, shared)
        else:
            races.read(access, shared)

    def touch_together(self) -> None:
        """As ``touch``, for shared elements that each warp reads as a whole."""
        self.state.races.read(self.as_access(), True, together=True)

    def refuse_unaligned(self) -> None:
        """Raises ExecutionError when a run doesn't start at a multiple of its bytes (a row, of the buffer's)."""
        size = self.runs[-1] * self.buffer.itemsize
        at = sum((s * stride for s, stride in zip(self.starts, self.buffer.strides, strict=True)), np.int64(0)).reshape(-1)
        if (at % size).any():
            number = int(np.argmax(at % size != 0))
            raise ExecutionError(f"byte {at[number]} of %{self.name} is no multiple of {size} (thread {self.state.active[number]} of the block)")

    def as_access(self) -> Access:
        """The access for who watches for races."""
        return Access(self.name, self.buffer, self.index, self.state.active, self.mask)

    def read(self, filler: Any = 0) -> Any:
        """The elements, ``[threads, ...]`` of those that run (one for all when alike); ``filler`` for those that are not meant."""
        if self.mask is None:
            return np.asarray(self.buffer[self.full_index]).reshape(self.shape)
        result = np.full(self.shape, filler, self.buffer.dtype)
        mask = np.broadcast_to(self.mask, self.shape)
        if mask.any():
            result[mask] = self.buffer[tuple(np.broadcast_to(i, self.shape)[mask] for i in self.full_index)]
        return result

    def write(self, values: Any) -> None:
        """Stores ``[threads, ...]``.  Raises ExecutionError when the buffer is read-only."""
        values = np.broadcast_to(values, self.shape)
        if self.mask is None:
            write(self.buffer, self.full_index if self.full_index else ..., values if self.full_index else values.reshape(-1)[-1])
            return
        mask = np.broadcast_to(self.mask, self.shape)
        if mask.any():
            write(self.buffer, tuple(np.broadcast_to(i, self.shape)[mask] for i in self.full_index), values[mask])


def _mask(valid: Any, state: BlockState, runs: tuple[int, ...]) -> Any:
    if valid is None:
        return None
    count = np.asarray(valid.array[state.active] if isinstance(valid, Lanes) else int(valid)).reshape(-1, *(1,) * len(runs))
    mask = np.arange(runs[-1]) < count
    return None if mask.all() else mask


def is_shared(interpreter: Any, op: Operation, access: AccessArg) -> bool:
    """Whether the buffer is the block's own memory."""
    type_ = interpreter.static_type(op.operands[access.position])
    return isinstance(type_, MemRefType) and type_.space == "shared"


def spread(state: BlockState, found: Any) -> Lanes:
    """What the threads that run have found as what all have; zeros for the others."""
    if len(state.active) == state.threads:
        return Lanes(found)
    whole = np.zeros((state.threads, *found.shape[1:]), found.dtype)
    whole[state.active] = found
    return Lanes(whole)


def valid_of(op: Operation, operands: list[Any]) -> Any:
    """The value of ``valid``; None when it is not written."""
    position = op.definition.operand_position(op, "valid")
    return None if position is None else operands[position]


def _load(interpreter: Any, op: Operation, operands: list[Any], environment: Any) -> tuple[Any, ...]:
    access = layout_of(op)[0]
    assert isinstance(access, AccessArg)
    state = environment.block_state
    scalar = op.name == "memref.load"
    valid = None if scalar else valid_of(op, operands)
    places = Places(op, access, operands, environment, valid)
    places.touch(is_shared(interpreter, op, access), False)
    filler: Any = 0
    if valid is not None:
        pad: Any = op.attribute("pad")
        dtype = environment.dtypes[op.operands[access.position]]
        filler = round_to(np.array(float(pad)), dtype) if dtype.is_float else np.array(pad, dtype.numpy)
    found = places.read(filler)
    shape = () if scalar else interpreter.static_type(op.results[0]).shape
    if places.alike:
        return (found.reshape(shape)[()],)
    return (spread(state, found.reshape(-1, *shape)),)


def _store(interpreter: Any, op: Operation, operands: list[Any], environment: Any) -> tuple[Any, ...]:
    value, access = layout_of(op)
    assert isinstance(value, OperandArg) and isinstance(access, AccessArg)
    state = environment.block_state
    places = Places(op, access, operands, environment, None if op.name == "memref.store" else valid_of(op, operands))
    places.touch(is_shared(interpreter, op, access), True)
    given = operands[value.position]
    if places.alike:  # of several threads, the last one's stays, where nobody watches
        last = given.array[state.active[-1:]] if isinstance(given, Lanes) else np.asarray(given)
        places.write(last.reshape(places.shape))
    elif isinstance(given, Lanes):
        places.write(given.array[state.active].reshape(places.shape))
    else:
        places.write(np.asarray(given).reshape(1, *places.shape[1:]))
    return ()


def _copy(interpreter: Any, op: Operation, operands: list[Any], environment: Any) -> tuple[Any, ...]:
    """Every thread that runs copies the whole: a race, where it isn't into a buffer of its own or by one thread alone."""
    state = environment.block_state
    for number, (buffer, value) in enumerate(zip(operands, op.operands, strict=True)):
        if not isinstance(buffer, Lanes):
            rank = buffer.ndim
            index = tuple(np.arange(n).reshape(1, *(1,) * axis, -1, *(1,) * (rank - 1 - axis)) for axis, n in enumerate(buffer.shape))
            touch = state.races.write if number else state.races.read
            type_ = interpreter.static_type(value)
            touch(Access(value.name, buffer, index, state.active), isinstance(type_, MemRefType) and type_.space == "shared")
    source, target = operands
    given = source.array[state.active] if isinstance(source, Lanes) else source
    if isinstance(target, Lanes):
        write(target.array, state.active, given)
    else:
        write(target, ..., given[-1] if isinstance(source, Lanes) else given)
    return ()


def _prefetch(interpreter: Any, op: Operation, operands: list[Any], environment: Any) -> tuple[Any, ...]:
    return ()


def _view(interpreter: Any, op: Operation, operands: list[Any], environment: Any) -> tuple[Any, ...]:
    """Views of each thread's own buffer.  Splitting an axis, or joining all behind the first, copies nothing."""
    type_ = interpreter.concrete_type(op.results[0], environment)
    whole = operands[0].array
    flat = whole.reshape(len(whole), -1)
    assert np.may_share_memory(flat, whole) or not whole.size
    if op.name == "memref.view":
        offset: Any = op.attribute("offset")
        dtype = type_.dtype.numpy
        flat = flat[:, offset : offset + int(np.prod(type_.shape)) * dtype.itemsize].view(dtype)
    return (Lanes(flat.reshape(len(whole), *type_.shape)),)


def _dim(interpreter: Any, op: Operation, operands: list[Any], environment: Any) -> tuple[Any, ...]:
    axis: Any = op.attribute("axis")
    return (np.int64(operands[0].array.shape[axis + 1]),)


def _affine(interpreter: Any, op: Operation, operands: list[Any], environment: Any) -> tuple[Any, ...]:
    """Index arithmetic; numbers wrap around at 64 bits."""
    state = environment.block_state
    values = [lane_number(e, operands, environment.names, state.active) for e in expressions_of(op)]
    values = [v if np.ndim(v) else wrap(int(v)) for v in values]
    result: Any = values[0]
    if op.name == "affine.align_down":
        wrong = np.broadcast_to(values[1], state.threads)[state.active] < 1
        if wrong.any():
            raise ExecutionError(f"the alignment is {np.broadcast_to(values[1], state.threads)[state.active][wrong][0]}, it must be positive")
        result = values[0] // np.maximum(values[1], 1) * values[1]
    for value in values[1:] if op.name in ("affine.min", "affine.max") else ():
        result = np.minimum(result, value) if op.name == "affine.min" else np.maximum(result, value)
    return (Lanes(np.asarray(result)) if np.ndim(result) else np.int64(result),)


TOGETHER |= {"memref.load": _load, "memref.store": _store, "vector.load": _load, "vector.store": _store, "memref.copy": _copy}
APART |= {"memref.prefetch": _prefetch, "memref.view": _view, "memref.reshape": _view, "memref.dim": _dim}
APART |= dict.fromkeys(("affine.apply", "affine.min", "affine.max", "affine.align_down"), _affine)
