"""What the emitter and the runtime agree on: the functions of a native graph and the memory that they share.

For a graph called NAME the code has::

    i32  @NAME(ptr args, ptr dims, ptr workspace, ptr state, i64 thread, i64 threads)   ; 0: done
    i64  @NAME_workspace(ptr dims)              ; bytes of workspace, -1 when they are too many
    void @NAME_shapes(ptr dims, ptr out)        ; dimensions of all results, one after the other
    double @NAME_work(ptr dims)                 ; about how many simple operations threads can share

``args`` holds a pointer for each parameter, then for each result, then for each stored tensor; ``dims`` the values of the
named dimensions (i64).  Arrays are row-major without gaps and aligned to their element; the workspace and the stored
tensors are aligned to :data:`ALIGNMENT`.  ``state`` is zero when a run begins.
"""

from __future__ import annotations

import ctypes
from typing import Protocol

ALIGNMENT = 64
"""Alignment of the workspace, of the state and of stored tensors."""

STATE_BYTES = 256
STATE_FAILED = 0
"""i32: the site that failed, plus one; 0 when none has."""
STATE_VALUES = 8
"""Two i64 that the message of the failed site mentions."""
STATE_CALLBACK = 192
"""The function that prints a tensor: ``i32 (i64 site, ptr data, ptr dims)``, with the named dimensions of the graph; 0 goes on."""

LEAST_WORK = 36864
"""A program with fewer simple operations to share (about 5 microseconds) runs on the caller's thread alone."""
WORK_PER_THREAD = 12288
"""No more threads are used than have so many simple operations to do each."""

STATE_STOP, STATE_CHECK = 200, 208
"""The byte that says whether to ask if the run should end, and who is asked: ``i32 (ptr state, i64 thread)``, 0 to go on."""
STATE_THREAD = 216
"""Of :mod:`codegen.runtime.calls`: Python's state of the calling thread while it is without the lock."""
INTERRUPTED = -1
"""What STATE_FAILED is when a handler of a signal has ended the run by raising something."""

MAIN = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
WORK = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_void_p)
WORKSPACE = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)


class NativeCode(Protocol):
    """Loaded machine code.  Its functions can be called as long as the object lives."""

    def address(self, name: str) -> int:
        """Where a function is."""
        ...


class Loader(Protocol):
    """Makes machine code of LLVM IR text."""

    def __call__(self, text: str) -> NativeCode: ...

