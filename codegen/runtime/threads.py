"""Threads that run native code together: started when first needed, shared by all programs, asleep between runs.

A worker is a Python thread that stays inside native code: it spins for a short while after a run, then sleeps in the
kernel until the next one.  So a run with threads costs about a microsecond more than one without, when runs follow each other
closely.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable

from codegen.runtime._pool_ir import (
    BOX_BYTES,
    BOX_PROCESSOR,
    BOX_THREAD,
    BOXES,
    FEW_SPINS,
    SPARE,
    SPIN_TIME,
    SPINS,
    WORKERS,
    pool_text,
)
from codegen.runtime.abi import Loader, NativeCode
from codegen.runtime.calls import caller
from codegen.runtime.pages import aligned_bytes
from codegen.runtime.processors import affinity

_FEW_TIME, _SPIN_TIME = 5_000, 50_000
"""Nanoseconds that a worker waits for a job before it sleeps: where the last wait was in vain, and where it was not."""

_LIMIT = 256
"""More threads than this are never started."""

_WORK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
_FLAG = ctypes.PYFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)
_WAKE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_PAUSES = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)


class Pool:
    """Worker threads; normally there is one pool in a process, see :func:`shared_pool`."""

    def __init__(self, loader: Loader) -> None:
        self._code: NativeCode = loader(pool_text())
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._code))  # a worker may be in it when the process ends
        self._work = _WORK(self._code.address("graph_opt_pool_work"))
        self.run_address = self._code.address("graph_opt_pool_run")
        self._take = _FLAG(self._code.address("graph_opt_pool_take"))
        self._leave = _FLAG(self._code.address("graph_opt_pool_leave"))
        self._wake = _WAKE(self._code.address("graph_opt_pool_wake"))
        self._memory = aligned_bytes(BOXES + _LIMIT * BOX_BYTES)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._memory))
        self._memory.fill(0)
        self.address = int(self._memory.ctypes.data)
        self._count = self._word(WORKERS)
        self._spare = self._word(SPARE)
        self._spare.value = -1
        self._processors = affinity()
        self._pause_time = max(1.0, min(_PAUSES(self._code.address("graph_opt_pool_pauses"))(200) for _ in range(5)) / 200)
        self._workers: list[threading.Thread] = []
        self._closed = False
        self._be_patient(_FEW_TIME, _SPIN_TIME)

    def _word(self, offset: int) -> ctypes.c_int32:
        return ctypes.c_int32.from_address(self.address + offset)

    def _be_patient(self, few: int, time: int) -> None:
        """How many nanoseconds workers wait before they sleep, when runs are far apart and when they are not."""
        self._word(FEW_SPINS).value = int(few / self._pause_time)
        self._word(SPINS).value = int(time / self._pause_time)
        ctypes.c_int64.from_address(self.address + SPIN_TIME).value = time

    @property
    def workers(self) -> int:
        """How many threads have been started."""
        return len(self._workers)

    def run(self, main: Callable[..., int], args: int, dims: int, workspace: int, state: int, threads: int, work: float) -> int:
        """Runs the function on ``threads`` threads, the caller's among them, and waits for all.

        ``work`` is about how many simple operations it has to do.  Runs it on the caller's thread alone when that is too little
        to wake workers that sleep, while another run uses the workers, and when no threads can be started.
        """
        wanted = min(threads, _LIMIT)
        if wanted > 1 and self._take(self.address):
            try:
                ready = min(wanted, self._start(wanted - 1) + 1)
                if ready > 1:
                    return int(caller()(self.run_address, self.address, main, args, dims, workspace, state, ready, work))
            finally:
                self._leave(self.address)
        return int(caller()(None, None, main, args, dims, workspace, state, 1, work))

    def _start(self, wanted: int) -> int:
        """Starts workers until there are ``wanted``; returns how many there are."""
        while len(self._workers) < wanted and not self._closed:
            ready = threading.Event()
            number = len(self._workers) + 1
            box = self.address + BOXES + (number - 1) * BOX_BYTES
            processor = self._processor()
            ctypes.c_int32.from_address(box + BOX_PROCESSOR).value = -1 if processor is None else processor
            worker = threading.Thread(target=self._be_worker, args=(number, box, processor, ready), name=f"graph-opt-{number}", daemon=True)
            try:
                worker.start()
            except RuntimeError:  # the system has no more threads for us
                break
            self._workers.append(worker)
            ready.wait()
            self._find_spare()
            self._count.value = len(self._workers)
        return len(self._workers)

    def _taken(self) -> list[int]:
        return [self._word(BOXES + i * BOX_BYTES + BOX_PROCESSOR).value for i in range(len(self._workers))]

    def _processor(self) -> int | None:
        """Where the next worker stays: a processor that no other worker nor the caller has; None when there is none left."""
        if len(self._workers) + 1 >= len(self._processors):
            self._be_patient(0, _SPIN_TIME // 50)  # there are more threads than processors: they keep each other waiting
            return None
        here, taken = self._here(), self._taken()
        behind = [p for p in self._processors if p > here] + [p for p in self._processors if p <= here]
        return next(p for p in behind if p not in taken and p != here)

    def _find_spare(self) -> None:
        """The processor that a worker goes to when the caller comes to its own."""
        taken, here = self._taken(), self._here()
        free = [p for p in self._processors if p not in taken]
        self._spare.value = -1 if -1 in taken or not free else here if here in free else free[0]

    def _here(self) -> int:
        try:
            return int(ctypes.CDLL(None).sched_getcpu())
        except AttributeError:
            return -1

    def _be_worker(self, number: int, box: int, processor: int | None, ready: threading.Event) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are for the threads of the program
        ctypes.c_int32.from_address(box + BOX_THREAD).value = threading.get_native_id()
        if processor is not None:
            try:
                os.sched_setaffinity(threading.get_native_id(), {processor})
            except OSError:  # a processor that has gone: then it runs anywhere
                ctypes.c_int32.from_address(box + BOX_PROCESSOR).value = -1
        ready.set()
        self._work(self.address, number)

    def close(self) -> None:
        """Ends the workers; runs after that use the caller's thread alone."""
        deadline = time.monotonic() + 1.0
        while not self._take(self.address):
            if time.monotonic() > deadline:  # a run that does not end: its threads end with the process
                return
            time.sleep(0.001)
        self._closed = True
        self._count.value = 0
        for i in range(len(self._workers)):
            self._word(BOXES + i * BOX_BYTES).value = -1
            self._wake(self.address + BOXES + i * BOX_BYTES)
        for worker in self._workers:
            worker.join(1.0)
        self._workers = []
        self._leave(self.address)


_shared: list[Pool] = []
_making = threading.Lock()

CELL = aligned_bytes(64)
"""For compiled callers: the address of the shared pool's memory (0: there is none yet), and of the function that runs a job."""
CELL_ADDRESS = int(CELL.ctypes.data)
ctypes.pythonapi.Py_IncRef(ctypes.py_object(CELL))
_cell = (ctypes.c_uint64 * 2).from_address(CELL_ADDRESS)
_cell[0] = _cell[1] = 0


def shared_pool(loader: Loader) -> Pool:
    """The pool of this process, made when it is first asked for; a forked child gets its own."""
    with _making:
        if not _shared:
            pool = Pool(loader)
            _shared.append(pool)
            _cell[0], _cell[1] = pool.address, pool.run_address
        return _shared[0]


def _forget() -> None:
    """In a forked child: the parent's workers are not there, and locks may have been held."""
    global _making
    _making = threading.Lock()
    _cell[0] = 0
    _shared.clear()


def _close() -> None:
    for pool in _shared:
        pool.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
atexit.register(_close)
