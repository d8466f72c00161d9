"""How the reference interpreter runs the threads of a block: all of them together, one operation after the other.

A value that may differ between threads is a :class:`Lanes`, an array whose first axis is the thread; any other is the same for all of
them and is computed once.  Where threads go different ways those that don't go along are left out (``BlockState.active``).  What
threads do together, barriers and the operations of a warp, then is one step; those that don't come are missed and named.

So each operation happens at one time for all threads, which is one of the orders that a processor may choose.  That another order
gives the same is checked: see :mod:`dialects.gpu._races`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from dialects.gpu._races import Races
from ir.core import Operation, Value
from ir.dims import Dim, DimExpr
from ir.interpreter import Environment
from ir.opdef import ExecutionError, RegionOpDef
from ir.types import DType, VectorType

WARP = 32
"""Threads that shuffle and compute matrix products together (fixed for all NVIDIA processors)."""


class Lanes:
    """What each thread of a block has in the place of a value: the first axis is the thread."""

    __slots__ = ("array",)

    def __init__(self, array: Any) -> None:
        self.array = array


class BlockState:
    """The threads of one block: who takes part, what they share, what they copy."""

    def __init__(self, threads: int, active: Any, races: Races) -> None:
        self.threads = threads
        self.active = active
        """numbers of the threads that run now, ascending"""
        self.races = races
        self.shared: dict[Operation, Any] = {}
        self.arena: Any = None
        """the shared memory in which buffers have planned places"""
        self.copies: list[Any] = []
        self.commits = np.zeros(threads, np.int64)
        """groups of copies that each thread has closed"""

    @contextmanager
    def only(self, active: Any) -> Iterator[None]:
        """Some of the threads go on, the others wait behind it."""
        before, self.active = self.active, active
        try:
            yield
        finally:
            self.active = before

    def all_of(self, value: Any) -> Any:
        """What each thread has, as an array (which nobody writes to)."""
        if isinstance(value, Lanes):
            return value.array
        return np.broadcast_to(np.asarray(value), (self.threads, *np.shape(value)))

    def merged(self, old: Any, new: Any) -> Any:
        """The new value for the threads that run, the old one for the others."""
        if new is old or len(self.active) == self.threads:
            return new
        result = np.array(self.all_of(old))
        result[self.active] = self.all_of(new)[self.active]
        return Lanes(result)

    def meet(self, op: Operation, group: int) -> None:
        """Raises ExecutionError when only a part of a group of neighbours is here: a warp, or the block."""
        if len(self.active) == self.threads:
            return
        present = np.zeros(self.threads, bool)
        present[self.active] = True
        for first in range(0, self.threads, group):
            part = present[first : first + group]
            if part.any() and not part.all():
                here, missing = first + int(np.argmax(part)), first + int(np.argmin(part))
                raise ExecutionError(f"thread {here} waits at {op.name} for thread {missing}, which does not come")


    def finish(self) -> None:
        """The block ends.  Raises ExecutionError when a copy is still under way."""
        for copy in self.copies:
            under_way = f"its gpu.cp_async into %{copy.places.name} is under way"
            raise ExecutionError(f"thread {copy.lanes[0]} ends while {under_way}: no gpu.cp_wait has waited for it")
        for buffer in (*self.shared.values(), self.arena):
            if buffer is not None:
                self.races.forget(buffer)


class KernelEnvironment(Environment):
    """The values of the threads of one block."""

    __slots__ = ("block_state",)
    observed = False

    def __init__(self, outer: Environment, captured: Sequence[Value], block_state: BlockState) -> None:
        super().__init__(outer.names)
        for value in captured:
            self.arrays[value] = outer.arrays[value]
            self.dtypes[value] = outer.dtypes[value]
        self.block_state = block_state

    def results(self, interpreter: Any, op: Operation) -> tuple[Sequence[Any], Sequence[DType]]:
        definition = op.definition
        operands = [self.arrays[v] for v in op.operands]
        together = TOGETHER.get(definition.full_name)
        if together is not None:
            results = together(interpreter, op, operands, self)
        elif definition.dialect == "gpu":
            assert isinstance(definition, RegionOpDef)
            results = definition.execute(interpreter, op, operands, self)
        elif not any(isinstance(v, Lanes) for v in operands) and (not op.regions or definition.dialect == "scf"):
            return interpreter.results(op, self)  # type: ignore[no-any-return]
        elif definition.full_name in APART:
            results = APART[definition.full_name](interpreter, op, operands, self)
        elif definition.elementwise and definition.result_count == 1:
            results = (self._elementwise(interpreter, op, operands),)
        else:
            results = self._one_by_one(interpreter, op, operands)
        return results, [interpreter.result_dtype(r) for r in op.results]

    def _elementwise(self, interpreter: Any, op: Operation, operands: Sequence[Any]) -> Lanes:
        """All threads at once; only those that run where the operation may fail."""
        state, definition = self.block_state, op.definition
        some = definition.traps and len(state.active) < state.threads
        rank = len(_vector_shape(interpreter, op.results[0]))
        arrays = []
        for value, use in zip(operands, op.operands, strict=True):
            if isinstance(value, Lanes):
                shape = _vector_shape(interpreter, use)
                array = value.array[state.active] if some else value.array
                value = array.reshape(len(array), *(1,) * (rank - len(shape)), *shape)
            arrays.append(value)
        types = [interpreter.concrete_type(r, self) for r in op.results]
        dtypes = [self.dtypes[v] for v in op.operands]
        result = definition.evaluate(arrays, definition.operand_names(op), op.attributes, types, dtypes, interpreter.double)[0]
        if not some:
            return Lanes(result)
        whole = np.zeros((state.threads, *result.shape[1:]), result.dtype)
        whole[state.active] = result
        return Lanes(whole)

    def _one_by_one(self, interpreter: Any, op: Operation, operands: Sequence[Any]) -> tuple[Any, ...]:
        """Each thread for itself, by what the operation means for one; buffers that the threads share are not watched."""
        state = self.block_state
        columns: list[list[Any]] = [[None] * state.threads for _ in op.results]
        used = {v for n in op.walk() for v in n.operands if v in self.arrays}
        for thread in state.active:
            alone = Environment(self.names)
            for value in used:
                alone.arrays[value] = _of_thread(self.arrays[value], thread)
                alone.dtypes[value] = self.dtypes[value]
            found, _ = interpreter.results(op, alone)
            for column, value in zip(columns, found, strict=True):
                column[thread] = value
        return tuple(_stacked(column, state) for column in columns)


Executor = Callable[[Any, Operation, list[Any], Any], tuple[Any, ...]]
TOGETHER: dict[str, Executor] = {}
"""What operations mean for the threads of a block that would mean another thing for each: those that touch memory."""
APART: dict[str, Executor] = {}
"""What operations mean when an operand differs between threads, faster than one thread after the other."""


def _of_thread(value: Any, thread: int) -> Any:
    return value.array[thread] if isinstance(value, Lanes) else value


def _stacked(column: list[Any], state: BlockState) -> Lanes:
    known = np.asarray(column[state.active[0]])
    result = np.zeros((state.threads, *known.shape), known.dtype)
    for thread in state.active:
        result[thread] = column[thread]
    return Lanes(result)


def _vector_shape(interpreter: Any, value: Value) -> tuple[int, ...]:
    type_ = interpreter.static_type(value)
    return type_.shape if isinstance(type_, VectorType) else ()


def block_of(environment: Any) -> BlockState:
    """The threads that run an operation of this dialect.  Raises ExecutionError outside of a launch."""
    if not isinstance(environment, KernelEnvironment):
        raise ExecutionError("only the threads of a gpu.launch can do this")
    return environment.block_state


def lane_number(expr: Dim, operands: Sequence[Any], names: Mapping[str, int], active: Any) -> Any:
    """The value of an index expression: a number, or an array of one for each thread.  Raises ExecutionError where it has none."""
    if isinstance(expr, int):
        return expr
    if not isinstance(expr, DimExpr):
        raise ExecutionError(f"{expr} has no value here")
    total: Any = 0
    for monomial, coefficient in expr.terms:
        value: Any = coefficient
        for atom in monomial:
            if not isinstance(atom, str):
                value = value * _function(atom.kind, [lane_number(a, operands, names, active) for a in atom.args], active)
            elif atom.startswith("%"):
                operand = operands[int(atom[1:])]
                value = value * (operand.array if isinstance(operand, Lanes) else int(operand))
            elif atom in names:
                value = value * names[atom]
            else:
                raise ExecutionError(f"{atom} has no value here")
        total = total + value
    return total


def _function(kind: str, values: Sequence[Any], active: Any) -> Any:
    if kind in ("min", "max"):
        choose: Any = np.minimum if kind == "min" else np.maximum
        result = values[0]
        for value in values[1:]:
            result = choose(result, value)
        return result if isinstance(result, np.ndarray) and result.ndim else int(result)
    top, bottom = values
    if np.any((bottom[active] if np.ndim(bottom) else bottom) == 0):
        raise ExecutionError("division by zero in an index")
    with np.errstate(all="ignore"):
        return {"floordiv": lambda: top // bottom, "ceildiv": lambda: -(-top // bottom), "mod": lambda: top % bottom}[kind]()
