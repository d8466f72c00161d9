"""Long runs: Python's lock is given up, and signals are answered while native code runs.

Python's handler of a signal, in C, only notes that there is one; what is to be done for it waits until Python code runs again.  So
a function of ours stands before that handler: it passes the signal on and sets a byte, which loops look at (see
:func:`codegen.llvm.emit.emit_graph`).  Then the first thread takes the lock and has Python do what waits.  When that raises
(KeyboardInterrupt), the run ends; otherwise it goes on.  Only signals that Python handles are touched, and only in runs of the main
thread, where Python handles them.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from codegen.runtime.abi import INTERRUPTED, STATE_CHECK, STATE_STOP, STATE_THREAD
from codegen.runtime.pages import aligned_bytes

if TYPE_CHECKING:
    from codegen.runtime.abi import NativeCode

CALL = ctypes.PYFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 7, ctypes.c_int64, ctypes.c_double)
"""(what runs a job on threads, or null; pool; function, args, dims, workspace, state, threads, work): called with the lock held; raises
what a handler of a signal has raised."""

_LONG = 1 << 20
"""From so many simple operations on (some 200 microseconds) a run makes sure that signals still come to us first."""

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGALRM", "SIGHUP", "SIGUSR1", "SIGUSR2") if hasattr(signal, name))

_FLAG, _MAIN = 0, 8
_cell = aligned_bytes(64)
_cell.fill(0)
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_cell))
_main_thread = ctypes.c_uint64.from_address(int(_cell.ctypes.data) + _MAIN)

# struct sigaction of Linux: the handler, 128 bytes of mask, at 136 the flags, of which 4 says that the handler takes more
_TEXT = f"""
define void @graph_opt_signal(i32 %number) {{
  call void inttoptr (i64 HANDLER to ptr)(i32 %number)
  store atomic i8 1, ptr inttoptr (i64 FLAG to ptr) seq_cst, align 1
  ret void
}}

define internal void @stand_before(i32 %number) {{
entry:
  %action = alloca [192 x i8], align 16
  %status = call i32 inttoptr (i64 SIGACTION to ptr)(i32 %number, ptr null, ptr %action)
  %handler = load ptr, ptr %action
  %flags_place = getelementptr i8, ptr %action, i64 136
  %flags = load i32, ptr %flags_place
  %more = and i32 %flags, 4
  %plain = icmp eq i32 %more, 0
  %of_python = icmp eq ptr %handler, inttoptr (i64 HANDLER to ptr)
  %fine = icmp eq i32 %status, 0
  %both = and i1 %plain, %of_python
  %all = and i1 %both, %fine
  br i1 %all, label %change, label %end
change:
  store ptr @graph_opt_signal, ptr %action
  %changed = call i32 inttoptr (i64 SIGACTION to ptr)(i32 %number, ptr %action, ptr null)
  br label %end
end:
  ret void
}}

define void @graph_opt_watch() noinline {{
WATCHED
  ret void
}}

define i32 @graph_opt_check(ptr %state, i64 %thread) {{
entry:
  %first = icmp eq i64 %thread, 0
  %so_far = load atomic i32, ptr %state acquire, align 4
  %fine = icmp eq i32 %so_far, 0
  %here = and i1 %first, %fine
  br i1 %here, label %ask, label %tell
ask:
  %place = getelementptr i8, ptr %state, i64 {STATE_THREAD}
  %before = load ptr, ptr %place
  call void inttoptr (i64 PyEval_RestoreThread to ptr)(ptr %before)
  store atomic i8 0, ptr inttoptr (i64 FLAG to ptr) seq_cst, align 1  ; first, so that what comes meanwhile is seen
  %raised = call i32 inttoptr (i64 PyErr_CheckSignals to ptr)()
  %after = call ptr inttoptr (i64 PyEval_SaveThread to ptr)()
  store ptr %after, ptr %place
  %bad = icmp ne i32 %raised, 0
  br i1 %bad, label %stop, label %tell
stop:
  %pair = cmpxchg ptr %state, i32 0, i32 {INTERRUPTED} acq_rel acquire
  store atomic i8 1, ptr inttoptr (i64 FLAG to ptr) seq_cst, align 1  ; for the other threads
  br label %tell
tell:
  %known = load atomic i32, ptr %state acquire, align 4
  ret i32 %known
}}

define i32 @graph_opt_call(ptr %runner, ptr %pool, ptr %function, ptr %args, ptr %dims, ptr %workspace, ptr %state, i64 %threads, double %work) {{
entry:
  %me = call i64 inttoptr (i64 PyThread_get_thread_ident to ptr)()
  %main = load i64, ptr inttoptr (i64 MAIN to ptr)
  %watched = icmp eq i64 %me, %main
  br i1 %watched, label %watch, label %go
watch:
  %stop_place = getelementptr i8, ptr %state, i64 {STATE_STOP}
  store ptr inttoptr (i64 FLAG to ptr), ptr %stop_place
  %check_place = getelementptr i8, ptr %state, i64 {STATE_CHECK}
  store ptr @graph_opt_check, ptr %check_place
  %long = fcmp oge double %work, {_LONG}.0
  br i1 %long, label %renew, label %go
renew:
  call void @graph_opt_watch()
  br label %go
go:
  %thread_place = getelementptr i8, ptr %state, i64 {STATE_THREAD}
  %before = call ptr inttoptr (i64 PyEval_SaveThread to ptr)()
  store ptr %before, ptr %thread_place
  %alone = icmp eq ptr %runner, null
  br i1 %alone, label %single, label %many
single:
  %status1 = call i32 %function(ptr %args, ptr %dims, ptr %workspace, ptr %state, i64 0, i64 1)
  br label %done
many:
  %status2 = call i32 %runner(ptr %pool, ptr %function, ptr %args, ptr %dims, ptr %workspace, ptr %state, i64 %threads, double %work)
  br label %done
done:
  %status = phi i32 [ %status1, %single ], [ %status2, %many ]
  %after = load ptr, ptr %thread_place
  call void inttoptr (i64 PyEval_RestoreThread to ptr)(ptr %after)
  ret i32 %status
}}
"""
_OF_PYTHON = ("PyErr_CheckSignals", "PyEval_RestoreThread", "PyEval_SaveThread", "PyThread_get_thread_ident")


@lru_cache(maxsize=1)
def _code() -> NativeCode:
    from codegen.llvm.jit import Code

    address = int(_cell.ctypes.data)
    handler = _handler_of_python()
    watched = [f"  call void @stand_before(i32 {int(number)})" for number in _SIGNALS] if handler else []
    text = _TEXT.replace("HANDLER", str(handler)).replace("WATCHED", "\n".join(watched))
    text = text.replace("MAIN", str(address + _MAIN)).replace("FLAG", str(address + _FLAG))
    text = text.replace("SIGACTION", str(_address(ctypes.CDLL(None), "sigaction")))
    for name in _OF_PYTHON:
        text = text.replace(f"i64 {name} ", f"i64 {_address(ctypes.pythonapi, name)} ")
    code = Code.from_text(text, level=1)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(code))  # handlers of signals stay as long as the process runs
    _main_thread.value = (threading.main_thread().ident or 0) if handler else 0
    ctypes.PYFUNCTYPE(None)(code.address("graph_opt_watch"))()
    return code


def _handler_of_python() -> int:
    """The address of Python's handler of signals; 0 where it isn't known (then signals are answered behind the run)."""
    if sys.platform != "linux":
        return 0
    action = ctypes.create_string_buffer(192)
    for number in _SIGNALS:
        if callable(signal.getsignal(number)) and ctypes.CDLL(None).sigaction(int(number), None, action) == 0:
            return ctypes.c_uint64.from_buffer(action).value
    return 0


def _address(library: ctypes.CDLL, name: str) -> int:
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0


def call_address() -> int:
    """The address of the function that :func:`caller` is."""
    return _code().address("graph_opt_call")


@lru_cache(maxsize=1)
def caller() -> Any:
    """The function that makes long runs; see :data:`CALL`."""
    return CALL(call_address())


def _renew() -> None:
    """In a forked child another thread may be the main one."""
    if _main_thread.value:
        _main_thread.value = threading.get_ident()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
