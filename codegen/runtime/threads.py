"""Threads that run native code together: started when first needed, shared by all programs, asleep between runs.

A worker is a Python thread that stays inside native code: it spins for a short while after a run, then sleeps in the
kernel until the next one.  So a run with threads costs about a microsecond more than one without, when runs follow each other
closely.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Callable

from codegen.runtime.abi import Loader, NativeCode
from codegen.runtime.pages import aligned_bytes

_SPINS = 4000
"""Rounds of waiting (about 50 microseconds) before a worker goes to sleep."""

_LIMIT = 256
"""More threads than this are never started."""

_JOB_BYTES, _BOX_BYTES = 128, 64
_RUN = ctypes.CFUNCTYPE(
    ctypes.c_int32,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int64,
)
_WORK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
_FLAG = ctypes.PYFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)

BUSY, WORKERS = 48, 52
"""Where the memory of a pool says whether a run uses the workers, and how many there are (i32 each)."""

# The memory of a pool: the job (function, args, dims, workspace, state, threads), BUSY and WORKERS, at +64 the i32 count of
# workers that are done; then a box for each worker: i32 number of its job (-1: leave), i32 whether it sleeps.
_TEXT = """
declare void @llvm.x86.sse2.pause()

define internal void @pause() alwaysinline {
  PAUSE
  ret void
}

define void @graph_opt_pool_work(ptr %pool, i64 %me) {
entry:
  %offset = mul i64 %me, 64
  %place = add i64 %offset, 64
  %box = getelementptr i8, ptr %pool, i64 %place
  %sleeps = getelementptr i8, ptr %box, i64 4
  %done = getelementptr i8, ptr %pool, i64 64
  br label %wait

wait:
  %seen = phi i32 [ 0, %entry ], [ %number, %finished ]
  br label %spin

spin:
  %round = phi i32 [ 0, %wait ], [ %next, %again ], [ 0, %awake ]
  %number = load atomic i32, ptr %box acquire, align 4
  %new = icmp ne i32 %number, %seen
  br i1 %new, label %go, label %still

still:
  %next = add i32 %round, 1
  %tired = icmp sgt i32 %next, SPINS
  br i1 %tired, label %sleep, label %again

again:
  call void @pause()
  br label %spin

sleep:
  store atomic i32 1, ptr %sleeps seq_cst, align 4
  %last = load atomic i32, ptr %box seq_cst, align 4
  %late = icmp ne i32 %last, %seen
  br i1 %late, label %awake, label %down

down:
  WAIT
  br label %awake

awake:
  store atomic i32 0, ptr %sleeps seq_cst, align 4
  br label %spin

go:
  %leave = icmp eq i32 %number, -1
  br i1 %leave, label %end, label %work

work:
  %function = load ptr, ptr %pool, align 8
  %p1 = getelementptr i8, ptr %pool, i64 8
  %args = load ptr, ptr %p1, align 8
  %p2 = getelementptr i8, ptr %pool, i64 16
  %dims = load ptr, ptr %p2, align 8
  %p3 = getelementptr i8, ptr %pool, i64 24
  %workspace = load ptr, ptr %p3, align 8
  %p4 = getelementptr i8, ptr %pool, i64 32
  %state = load ptr, ptr %p4, align 8
  %p5 = getelementptr i8, ptr %pool, i64 40
  %threads = load i64, ptr %p5, align 8
  %status = call i32 %function(ptr %args, ptr %dims, ptr %workspace, ptr %state, i64 %me, i64 %threads)
  %before = atomicrmw add ptr %done, i32 1 release
  br label %finished

finished:
  br label %wait

end:
  ret void
}

define i32 @graph_opt_pool_take(ptr %pool) {
  %busy = getelementptr i8, ptr %pool, i64 48
  %pair = cmpxchg ptr %busy, i32 0, i32 1 acq_rel monotonic
  %got = extractvalue { i32, i1 } %pair, 1
  %taken = zext i1 %got to i32
  ret i32 %taken
}

define i32 @graph_opt_pool_leave(ptr %pool) {
  %busy = getelementptr i8, ptr %pool, i64 48
  store atomic i32 0, ptr %busy release, align 4
  ret i32 0
}

define i32 @graph_opt_pool_run(ptr %pool, ptr %function, ptr %args, ptr %dims, ptr %workspace, ptr %state, i64 %threads) {
entry:
  store ptr %function, ptr %pool, align 8
  %p1 = getelementptr i8, ptr %pool, i64 8
  store ptr %args, ptr %p1, align 8
  %p2 = getelementptr i8, ptr %pool, i64 16
  store ptr %dims, ptr %p2, align 8
  %p3 = getelementptr i8, ptr %pool, i64 24
  store ptr %workspace, ptr %p3, align 8
  %p4 = getelementptr i8, ptr %pool, i64 32
  store ptr %state, ptr %p4, align 8
  %p5 = getelementptr i8, ptr %pool, i64 40
  store i64 %threads, ptr %p5, align 8
  %done = getelementptr i8, ptr %pool, i64 64
  store atomic i32 0, ptr %done seq_cst, align 4
  br label %call

call:
  %who = phi i64 [ 1, %entry ], [ %following, %called ]
  %offset = mul i64 %who, 64
  %place = add i64 %offset, 64
  %box = getelementptr i8, ptr %pool, i64 %place
  %sleeps = getelementptr i8, ptr %box, i64 4
  %number = load atomic i32, ptr %box monotonic, align 4
  %more = add i32 %number, 1
  %next = and i32 %more, 2147483647
  %old = atomicrmw xchg ptr %box, i32 %next seq_cst
  %asleep = load atomic i32, ptr %sleeps seq_cst, align 4
  %wake = icmp ne i32 %asleep, 0
  br i1 %wake, label %rouse, label %called

rouse:
  WAKE
  br label %called

called:
  %following = add i64 %who, 1
  %further = icmp slt i64 %following, %threads
  br i1 %further, label %call, label %own

own:
  %status = call i32 %function(ptr %args, ptr %dims, ptr %workspace, ptr %state, i64 0, i64 %threads)
  %others = sub i64 %threads, 1
  %wanted = trunc i64 %others to i32
  br label %join

join:
  %round = phi i32 [ 0, %own ], [ %count, %waiting ], [ 0, %yield ]
  %finished = load atomic i32, ptr %done acquire, align 4
  %all = icmp eq i32 %finished, %wanted
  br i1 %all, label %end, label %waiting_or_yield

waiting_or_yield:
  %count = add i32 %round, 1
  %long = icmp sgt i32 %count, SPINS
  br i1 %long, label %yield, label %waiting

waiting:
  call void @pause()
  br label %join

yield:
  %ignored = call i32 inttoptr (i64 YIELD to ptr)()
  br label %join

end:
  ret i32 %status
}
"""


def _pool_text() -> str:
    """The code of workers and of the one who calls them, for this process."""
    libc = ctypes.CDLL(None)

    def address(name: str) -> int:
        return ctypes.cast(getattr(libc, name), ctypes.c_void_p).value or 0

    machine = platform.machine()
    text = _TEXT
    if machine in ("x86_64", "AMD64"):
        text = text.replace("PAUSE", "call void @llvm.x86.sse2.pause()")
    else:
        text = text.replace("declare void @llvm.x86.sse2.pause()", "").replace("PAUSE", 'call void asm sideeffect "yield", ""()')
    futex = {"x86_64": 202, "aarch64": 98}.get(machine) if sys.platform == "linux" else None
    if futex is not None:
        call = f"call i64 (i64, ...) inttoptr (i64 {address('syscall')} to ptr)(i64 {futex}, ptr %box, "
        text = text.replace("WAIT", f"%w = {call}i64 128, i32 %seen, ptr null)").replace("WAKE", f"%w = {call}i64 129, i64 1)")
    else:
        text = text.replace("WAIT", f"%w = call i32 inttoptr (i64 {address('usleep')} to ptr)(i32 100)").replace("WAKE", "")
    return text.replace("SPINS", str(_SPINS)).replace("YIELD", str(address("sched_yield")))


def available_processors() -> int:
    """Processors that this process may use."""
    return len(_affinity()) or os.cpu_count() or 1


def _affinity() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


class Pool:
    """Worker threads; normally there is one pool in a process, see :func:`shared_pool`."""

    def __init__(self, loader: Loader) -> None:
        self._code: NativeCode = loader(_pool_text())
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._code))  # a worker may be in it when the process ends
        self._work = _WORK(self._code.address("graph_opt_pool_work"))
        self.run_address = self._code.address("graph_opt_pool_run")
        self._run = _RUN(self.run_address)
        self._take = _FLAG(self._code.address("graph_opt_pool_take"))
        self._leave = _FLAG(self._code.address("graph_opt_pool_leave"))
        self._memory = aligned_bytes(_JOB_BYTES + _LIMIT * _BOX_BYTES)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._memory))
        self._memory.fill(0)
        self.address = int(self._memory.ctypes.data)
        self._count = ctypes.c_int32.from_address(self.address + WORKERS)
        self._processors = _affinity()
        self._workers: list[threading.Thread] = []
        self._closed = False

    @property
    def workers(self) -> int:
        """How many threads have been started."""
        return len(self._workers)

    def run(self, main: Callable[..., int], args: int, dims: int, workspace: int, state: int, threads: int) -> int:
        """Runs the function on ``threads`` threads, the caller's among them (0: one for each processor), and waits for all.

        Runs it on the caller's thread alone while another run uses the workers, and when no threads can be started.
        """
        wanted = min(threads or available_processors(), _LIMIT)
        if wanted > 1 and self._take(self.address):
            try:
                ready = min(wanted, self._start(wanted - 1) + 1)
                if ready > 1:
                    return self._run(self.address, main, args, dims, workspace, state, ready)  # type: ignore[no-any-return]
            finally:
                self._leave(self.address)
        return main(args, dims, workspace, state, 0, 1)

    def _start(self, wanted: int) -> int:
        """Starts workers until there are ``wanted``; returns how many there are."""
        while len(self._workers) < wanted and not self._closed:
            ready = threading.Event()
            number = len(self._workers) + 1
            worker = threading.Thread(target=self._be_worker, args=(number, self._processor(number), ready), name=f"graph-opt-{number}", daemon=True)
            try:
                worker.start()
            except RuntimeError:  # the system has no more threads for us
                break
            self._workers.append(worker)
            ready.wait()
            self._count.value = len(self._workers)
        return len(self._workers)

    def _processor(self, number: int) -> int | None:
        """Where a worker stays: the processors behind that of the caller; None when there are more threads than processors."""
        if number >= len(self._processors):
            return None
        try:
            here = self._processors.index(ctypes.CDLL(None).sched_getcpu())
        except (AttributeError, ValueError):
            here = 0
        taken = (here + number) % len(self._processors)
        return self._processors[taken]

    def _be_worker(self, number: int, processor: int | None, ready: threading.Event) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are for the threads of the program
        if processor is not None:
            with contextlib.suppress(OSError):  # a processor that has gone: then it runs anywhere
                os.sched_setaffinity(threading.get_native_id(), {processor})
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
        boxes = (ctypes.c_int32 * (_BOX_BYTES // 4 * len(self._workers))).from_address(self.address + _JOB_BYTES)
        for i in range(len(self._workers)):
            boxes[i * (_BOX_BYTES // 4)] = -1
            _wake(self.address + _JOB_BYTES + i * _BOX_BYTES)
        for worker in self._workers:
            worker.join(1.0)
        self._workers = []
        self._leave(self.address)


def _wake(address: int) -> None:
    futex = {"x86_64": 202, "aarch64": 98}.get(platform.machine())
    if sys.platform == "linux" and futex is not None:
        ctypes.CDLL(None).syscall(ctypes.c_long(futex), ctypes.c_void_p(address), ctypes.c_long(129), ctypes.c_long(1))


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
