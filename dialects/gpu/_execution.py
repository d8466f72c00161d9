"""How the reference interpreter runs the threads of a block: one at a time, in turns at what they do together.

A thread runs until it comes to a *meeting* (a barrier, a shuffle); when every thread that takes part is there, all go on.
So whatever is read behind a barrier is what was stored in front of it, and threads that wait for each other for ever are
found and named.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Sequence
from typing import Any

from ir.core import Operation, Value
from ir.interpreter import Environment
from ir.opdef import ExecutionError

WARP = 32
"""Threads that shuffle and compute matrix products together (fixed for all NVIDIA processors)."""


class Abandoned(BaseException):
    """Ends a thread of a block in which another one has failed."""


class BlockState:
    """What the threads of one block have in common: shared memory, and who waits where."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.shared: dict[Operation, Any] = {}
        self.waiting: dict[int, tuple[Operation, int, Any]] = {}
        self.answers: dict[int, Any] = {}
        self.failed = False
        self._wake = [threading.Semaphore(0) for _ in range(threads)]
        self._back = threading.Semaphore(0)

    def meet(self, thread: int, op: Operation, group: int, value: Any) -> dict[int, Any]:
        """Waits at ``op`` for the ``group`` threads that ``thread`` belongs to; what each of them has brought.

        ``group`` is a number of neighbouring threads: 32 for a warp, the block's threads for a barrier.
        """
        self.waiting[thread] = (op, group, value)
        self._back.release()
        self._wake[thread].acquire()
        if self.failed:
            raise Abandoned
        answer: dict[int, Any] = self.answers.pop(thread)
        return answer

    def run(self, work: Callable[[int], None], order: Sequence[int]) -> None:
        """Runs ``work(thread)`` for all threads, in that order where they don't wait for each other."""
        errors: list[BaseException] = []

        def body(thread: int) -> None:
            self._wake[thread].acquire()
            try:
                if not self.failed:
                    work(thread)
            except Abandoned:
                return
            except BaseException as error:
                errors.append(error)
            finally:
                done.add(thread)
                self._back.release()

        done: set[int] = set()
        context = contextvars.copy_context()
        runners = [threading.Thread(target=context.copy().run, args=(body, t), daemon=True) for t in range(self.threads)]
        for runner in runners:
            runner.start()
        ready = list(order)
        try:
            while ready and not errors:
                for thread in ready:
                    self._wake[thread].release()
                    self._back.acquire()
                    if errors:
                        break
                else:
                    ready = self._released(order, done)
        finally:
            self.failed = True
            for thread in range(self.threads):
                self._wake[thread].release()
            for runner in runners:
                runner.join()
        if errors:
            raise errors[0]

    def _released(self, order: Sequence[int], done: set[int]) -> list[int]:
        """The threads whose meetings are complete.  Raises ExecutionError when threads wait and none is."""
        if not self.waiting:
            return []
        released: list[int] = []
        for first in range(self.threads):
            if first not in self.waiting or first in released:
                continue
            op, group, _ = self.waiting[first]
            members = range(first // group * group, min(first // group * group + group, self.threads))
            if any(m not in self.waiting or self.waiting[m][:2] != (op, group) for m in members):
                continue
            values = {m: self.waiting[m][2] for m in members}
            for m in members:
                del self.waiting[m]
                self.answers[m] = values
            released += members
        if not released:
            raise ExecutionError(self._stuck(done))
        chosen = set(released)
        return [t for t in order if t in chosen]

    def _stuck(self, done: set[int]) -> str:
        thread, (op, group, _) = min(self.waiting.items())
        members = range(thread // group * group, min(thread // group * group + group, self.threads))
        other = next(m for m in members if m not in self.waiting or self.waiting[m][:2] != (op, group))
        where = "has ended" if other in done else f"waits at another {self.waiting[other][0].name}" if other in self.waiting else "runs"
        return f"thread {thread} waits at {op.name} for thread {other}, which {where}"


class ThreadEnvironment(Environment):
    """The values of one thread of a block."""

    __slots__ = ("block_state", "copies", "groups", "thread")

    def __init__(self, outer: Environment, captured: Sequence[Value], block_state: BlockState, thread: int) -> None:
        super().__init__(outer.names)
        for value in captured:
            self.arrays[value] = outer.arrays[value]
            self.dtypes[value] = outer.dtypes[value]
        self.block_state = block_state
        self.thread = thread
        self.copies: list[tuple[Any, Any, Any]] = []
        self.groups: list[list[tuple[Any, Any, Any]]] = []


def thread_environment(environment: Any) -> ThreadEnvironment:
    """The environment as that of a thread.  Raises ExecutionError outside of a launch."""
    if not isinstance(environment, ThreadEnvironment):
        raise ExecutionError("only the threads of a gpu.launch can do this")
    return environment
