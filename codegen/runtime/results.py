"""Memory of large results: aligned to cache lines, and used again for the next result of its size.

numpy's own memory begins anywhere in a line: then every vector that is stored touches two lines, and threads that write side by side
write the same ones.  And fresh memory of megabytes is given back to the system and comes back page by page.  So results from
:data:`LARGE` bytes on get theirs here.  numpy frees it like its own, by the *handler* that the array names (NEP 49).  All this happens
under Python's lock.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import TYPE_CHECKING

from codegen.runtime.numpy_api import ALIGNED as NUMPY_ALIGNED
from codegen.runtime.numpy_api import C_CONTIGUOUS, FLAGS_OFFSET, HANDLER_OFFSET, OWNS_DATA, WRITEABLE, Interface

if TYPE_CHECKING:
    from codegen.runtime.abi import NativeCode

LARGE = 1 << 14
"""Smaller results have numpy's memory, which is at hand faster."""

_KEPT_BYTES = 64 << 20
_LARGE_PAGE = 2 << 20
_FLAGS = C_CONTIGUOUS | NUMPY_ALIGNED | WRITEABLE

_TEXT = f"""
@slots = internal global [8 x {{ i64, ptr }}] zeroinitializer, align 16  ; sizes (0: empty) and memory of results that have gone
@held = internal global i64 0, align 8
@oldest = internal global i64 0, align 8

define internal i64 @rounded(i64 %size) alwaysinline {{
  %more = add i64 %size, 63
  %even = and i64 %more, -64
  ret i64 %even
}}

define internal ptr @fresh(i64 %size) noinline {{
entry:
  %place = alloca ptr, align 8
  %large = icmp uge i64 %size, {_LARGE_PAGE}
  %alignment = select i1 %large, i64 {_LARGE_PAGE}, i64 64
  %status = call i32 inttoptr (i64 POSIX_MEMALIGN to ptr)(ptr %place, i64 %alignment, i64 %size)
  %fine = icmp eq i32 %status, 0
  br i1 %fine, label %good, label %none
good:
  %memory = load ptr, ptr %place
  br i1 %large, label %advise, label %end
advise:
  %advised = call i32 inttoptr (i64 MADVISE to ptr)(ptr %memory, i64 %size, i32 14)  ; large pages
  br label %end
end:
  ret ptr %memory
none:
  ret ptr null
}}

define internal ptr @take(i64 %wanted) {{
entry:
  %size = call i64 @rounded(i64 %wanted)
  br label %look
look:
  %i = phi i64 [ 0, %entry ], [ %next, %other ]
  %slot = getelementptr {{ i64, ptr }}, ptr @slots, i64 %i
  %has = load i64, ptr %slot
  %same = icmp eq i64 %has, %size
  br i1 %same, label %found, label %other
other:
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, 8
  br i1 %more, label %look, label %none
none:
  %new = call ptr @fresh(i64 %size)
  ret ptr %new
found:
  store i64 0, ptr %slot
  %place = getelementptr i8, ptr %slot, i64 8
  %memory = load ptr, ptr %place
  %held = load i64, ptr @held
  %less = sub i64 %held, %size
  store i64 %less, ptr @held
  ret ptr %memory
}}

define internal void @give(ptr %memory, i64 %given) {{
entry:
  %size = call i64 @rounded(i64 %given)
  %held = load i64, ptr @held
  %total = add i64 %held, %size
  %many = icmp ugt i64 %total, {_KEPT_BYTES}
  %small = icmp ult i64 %size, {LARGE}
  %no = or i1 %many, %small
  br i1 %no, label %free, label %look
look:
  %i = phi i64 [ 0, %entry ], [ %next, %other ]
  %slot = getelementptr {{ i64, ptr }}, ptr @slots, i64 %i
  %has = load i64, ptr %slot
  %empty = icmp eq i64 %has, 0
  br i1 %empty, label %keep, label %other
other:
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, 8
  br i1 %more, label %look, label %replace
replace:  ; sizes that nobody asks for any more give way
  %at = load i64, ptr @oldest
  %following = add i64 %at, 1
  %wrapped = and i64 %following, 7
  store i64 %wrapped, ptr @oldest
  %old_slot = getelementptr {{ i64, ptr }}, ptr @slots, i64 %at
  %old_size = load i64, ptr %old_slot
  %old_place = getelementptr i8, ptr %old_slot, i64 8
  %old = load ptr, ptr %old_place
  call void inttoptr (i64 FREE to ptr)(ptr %old)
  %rest = sub i64 %total, %old_size
  br label %keep
keep:
  %into = phi ptr [ %slot, %look ], [ %old_slot, %replace ]
  %now = phi i64 [ %total, %look ], [ %rest, %replace ]
  store i64 %size, ptr %into
  %place = getelementptr i8, ptr %into, i64 8
  store ptr %memory, ptr %place
  store i64 %now, ptr @held
  ret void
free:
  call void inttoptr (i64 FREE to ptr)(ptr %memory)
  ret void
}}

define ptr @graph_opt_malloc(ptr %context, i64 %size) {{
  %memory = call ptr @take(i64 %size)
  ret ptr %memory
}}

define ptr @graph_opt_calloc(ptr %context, i64 %count, i64 %item) {{
entry:
  %size = mul i64 %count, %item
  %memory = call ptr @take(i64 %size)
  %some = icmp ne ptr %memory, null
  br i1 %some, label %clear, label %end
clear:
  call void @llvm.memset.p0.i64(ptr %memory, i8 0, i64 %size, i1 false)
  br label %end
end:
  ret ptr %memory
}}

define ptr @graph_opt_realloc(ptr %context, ptr %memory, i64 %wanted) {{
  %size = call i64 @rounded(i64 %wanted)
  %new = call ptr inttoptr (i64 REALLOC to ptr)(ptr %memory, i64 %size)
  ret ptr %new
}}

define void @graph_opt_free(ptr %context, ptr %memory, i64 %size) {{
  call void @give(ptr %memory, i64 %size)
  ret void
}}

define internal ptr @new(ptr %dtype, i32 %n, ptr %dims, ptr %data, i32 %flags) alwaysinline {{
  %new = call ptr inttoptr (i64 NEW to ptr)(ptr inttoptr (i64 TYPE to ptr), ptr %dtype, i32 %n, ptr %dims, ptr null, ptr %data, i32 %flags, ptr null)
  ret ptr %new
}}

define ptr @graph_opt_new_array(ptr %dtype, i32 %rank, ptr %shape, i64 %bytes) {{
; A new array; takes a reference to its dtype.  Null with an error set when there is no memory.
entry:
  %large = icmp uge i64 %bytes, {LARGE}
  br i1 %large, label %ours, label %numpy
numpy:
  %plain = call ptr @new(ptr %dtype, i32 %rank, ptr %shape, ptr null, i32 0)
  ret ptr %plain
ours:
  %memory = call ptr @take(i64 %bytes)
  %some = icmp ne ptr %memory, null
  br i1 %some, label %make, label %numpy
make:
  %array = call ptr @new(ptr %dtype, i32 %rank, ptr %shape, ptr %memory, i32 {_FLAGS})
  %fine = icmp ne ptr %array, null
  br i1 %fine, label %own, label %failed
own:
  call void inttoptr (i64 INCREF to ptr)(ptr inttoptr (i64 CAPSULE to ptr))
  %handler_place = getelementptr i8, ptr %array, i64 {HANDLER_OFFSET}
  store ptr inttoptr (i64 CAPSULE to ptr), ptr %handler_place
  %flags_place = getelementptr i8, ptr %array, i64 {FLAGS_OFFSET}
  %flags = load i32, ptr %flags_place
  %owner = or i32 %flags, {OWNS_DATA}
  store i32 %owner, ptr %flags_place
  ret ptr %array
failed:
  call void @give(ptr %memory, i64 %bytes)
  ret ptr null
}}

declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
"""


class _Handler(ctypes.Structure):
    """numpy's PyDataMem_Handler: a name, a version, a context, and four functions."""

    _fields_ = (
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        ("context", ctypes.c_void_p),
        *((name, ctypes.c_void_p) for name in ("malloc", "calloc", "realloc", "free")),
    )


_handler = _Handler(b"graph_opt", 1)
_NAME = ctypes.create_string_buffer(b"mem_handler")


@lru_cache(maxsize=1)
def _code(interface: Interface) -> NativeCode:
    from codegen.llvm.jit import Code

    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    capsule = make(ctypes.addressof(_handler), ctypes.addressof(_NAME), None)
    text = _TEXT.replace("NEW", str(interface.new_array)).replace("TYPE", str(interface.array_type)).replace("CAPSULE", str(id(capsule)))
    text = text.replace("INCREF", str(interface.functions["Py_IncRef"]))
    for name in ("posix_memalign", "madvise", "realloc", "free"):
        text = text.replace(f"i64 {name.upper()} ", f"i64 {ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value} ")
    code = Code.from_text(text, level=1)
    for name in ("malloc", "calloc", "realloc", "free"):
        setattr(_handler, name, code.address(f"graph_opt_{name}"))
    for kept in (capsule, code):  # arrays may be the last to go
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
    return code


def new_array_address(interface: Interface) -> int:
    """The address of ``ptr (ptr dtype, i32 rank, ptr shape, i64 bytes)``, which makes an array."""
    return _code(interface).address("graph_opt_new_array")
