"""The fast way into a native program: a compiled function that Python calls without any Python code in between.

It takes plain arrays only: of the right element type, without gaps, aligned, of fitting shape, and apart from each other
where one is written.  For everything else it calls the slow path with the same arguments, which handles it or says what is
wrong.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
import weakref
from collections.abc import Callable
from typing import Any

from codegen.runtime._apart_ir import compare, compare_in_loops, reserve
from codegen.runtime._dims_ir import DIMENSION_LIMIT, DimWriter, Lines, Number, Unsupported
from codegen.runtime._pool_ir import BUSY, WORKERS
from codegen.runtime.abi import ALIGNMENT, INTERRUPTED, LEAST_WORK, STATE_BYTES, WORK_PER_THREAD, Loader
from codegen.runtime.calls import call_address
from codegen.runtime.frames import Frame
from codegen.runtime.numpy_api import (
    ALIGNED,
    C_CONTIGUOUS,
    DATA_OFFSET,
    DTYPE_OFFSET,
    FLAGS_OFFSET,
    RANK_OFFSET,
    SHAPE_OFFSET,
    TYPE_OFFSET,
    WRITEABLE,
    Interface,
    find_interface,
)
from codegen.runtime.pages import aligned_bytes
from codegen.runtime.program import NativeProgram
from codegen.runtime.results import LARGE, new_array_address
from codegen.runtime.threads import CELL_ADDRESS
from ir.core import Constraint
from ir.dims import Dim, UnknownDim
from ir.interpreter import MEMORY_LIMIT
from ir.types import MemRefType, TensorType

_METH_FASTCALL_KEYWORDS = 0x0080 | 0x0002
_RELEASE_BYTES = 1 << 14
"""Runs over more bytes than this let other Python threads go on meanwhile."""

_CHECKED_BOOLS = 4096
"""Arrays of more booleans than this go the slow way, which checks their bytes faster."""

_COMPARED = 64
"""More pairs of arrays than this are compared by a loop."""

_CONTROL_BYTES = 64  # i32 whether the workspace is in use; at +8 its address, at +16 its size

_NAME = "graph_opt_entry"
_OUT = sys.intern("out")

_BOOLS = f"""
define internal i1 @graph_opt_are_bools(ptr %data, i64 %count) {{
entry:
  %few = icmp ule i64 %count, {_CHECKED_BOOLS}
  br i1 %few, label %test, label %no
test:
  %i = phi i64 [ 0, %entry ], [ %next, %body ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %body, label %yes
body:
  %place = getelementptr i8, ptr %data, i64 %i
  %byte = load i8, ptr %place, align 1
  %fine = icmp ule i8 %byte, 1
  %next = add i64 %i, 1
  br i1 %fine, label %test, label %no
yes:
  ret i1 true
no:
  ret i1 false
}}
"""


class _MethodDef(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("function", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p))


_methods: list[Any] = []
"""Descriptions of the callables that were made; Python reads them even while it frees a callable, so they stay."""


_entries: weakref.WeakSet[Entry] = weakref.WeakSet()


def _free_workspaces() -> None:
    """In a forked child: runs of other threads are not there, so they use no workspace."""
    for entry in _entries:
        entry.busy.value = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_workspaces)


class Entry:
    """The native callable of a program.

    ``callable`` takes arrays by position and returns an array or a tuple of arrays; ``slow`` is called instead for
    whatever it does not take, and ``fail`` when a run has failed, with what :meth:`NativeProgram.error` takes; it raises.
    It is valid as long as this object lives: ``slow`` must hold on to it.
    """

    def __init__(self, program: NativeProgram, slow: Callable[..., Any], fail: Callable[..., Any], load: Loader, interface: Interface) -> None:
        self._program = program
        self._control = aligned_bytes(_CONTROL_BYTES)
        self._control.fill(0)
        self.busy = ctypes.c_int32.from_address(int(self._control.ctypes.data))
        self._frame: Frame | None = None
        self.text = _Writer(program, int(self._control.ctypes.data), interface).text()
        self._code = load(self.text)
        name = program.graph.name.encode("ascii", "replace")
        method = _MethodDef(name, self._code.address(_NAME), _METH_FASTCALL_KEYWORDS, f"Runs graph @{program.graph.name}.".encode("ascii", "replace"))
        _methods.append(method)
        make = ctypes.pythonapi.PyCFunction_NewEx
        make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
        _entries.add(self)
        self.callable: Callable[..., Any] = make(ctypes.addressof(method), (slow, fail), None)

    def adopt(self) -> None:
        """Takes over the workspace of a finished run when it is larger than what is at hand; the slow path calls this."""
        needed = self._program.workspace_size()
        words = (ctypes.c_uint64 * 2).from_address(int(self._control.ctypes.data) + 8)
        if words[1] < needed and not self.busy.value:  # only changed by those who hold the interpreter's lock, as we do
            frame = self._program.lend_frame(needed)
            words[0], words[1] = frame.workspace_address, frame.workspace.size
            self._frame = frame


def make_entry(program: NativeProgram, slow: Callable[..., Any], fail: Callable[..., Any], load: Loader) -> Entry | None:
    """The fast path of a program; None where there can't be one.

    There is none for programs that print or take or give tensors of blocks, for sizes that take more than 64 bits to compute, and in
    a Python or numpy that is not known here.  Programs with threads use those of the shared pool.
    """
    if program.calls_back or program.poison or any(t.dtype.is_block for t in program.result_types):
        return None
    interface = find_interface()
    if interface is None:
        return None
    try:
        return Entry(program, slow, fail, load, interface)
    except Unsupported:
        return None


class _Writer:
    """Writes the entry of one program."""

    def __init__(self, program: NativeProgram, control: int, interface: Interface) -> None:
        self.program = program
        self.control = control
        self.interface = interface
        self.out = Lines()
        self.dims = DimWriter(self.out)
        self.conditions: list[str] = []
        self.parameter_types: list[TensorType | MemRefType] = []
        self.data: list[str] = []
        self.gives = False  # whether the caller may give arrays for results
        self.taken: list[tuple[str, str]] = []
        self.threads = program.threads
        for parameter in program.graph.parameters:
            if not isinstance(parameter.type, TensorType | MemRefType) or any(isinstance(d, UnknownDim) for d in parameter.type.shape):
                raise Unsupported
            if parameter.type.dtype.is_block:
                raise Unsupported
            self.parameter_types.append(parameter.type)

    def text(self) -> str:
        """The whole module."""
        out, program = self.out, self.program
        parameters, results = len(self.parameter_types), len(program.result_types)
        out.label("entry")
        out.add(f"%args = alloca ptr, i64 {max(1, parameters + results + len(program.stored))}, align 16")
        out.add(f"%dims = alloca i64, i64 {max(1, len(program.text.symbols))}, align 16")
        out.add(f"%shape = alloca i64, i64 {max([1, *(t.rank for t in program.result_types)])}, align 16")
        out.add(f"%state = alloca i8, i64 {STATE_BYTES}, align {ALIGNMENT}")
        out.add("%failure = alloca ptr, i64 2, align 16")
        reserve(out, parameters)
        out.add("%no_names = icmp eq ptr %names, null")
        out.add(f"%right_count = icmp eq i64 %count, {parameters}")
        self._go_on_if(["%right_count"])
        self._keywords()
        sizes = [self._argument(i, t) for i, t in enumerate(self.parameter_types)]
        self._bind(sizes)
        self._check_apart()
        self._check_workers()
        self._shapes_of_results()
        self._workspace()
        self._results()
        self._run()
        self._return()
        self._failures()
        body = "\n".join(out.lines)
        return (
            "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)\n"
            f"declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)\n{_BOOLS}\n"
            f"define ptr @{_NAME}(ptr %self, ptr %items, i64 %count, ptr %names) {{\n{body}\n}}\n"
        )

    # -- pieces --------------------------------------------------------------------------------------------------------

    def _call(self, type_: str, name: str, arguments: str) -> str:
        return f"call {type_} inttoptr (i64 {self.interface.functions[name]} to ptr)({arguments})"

    def _field(self, type_: str, base: str, offset: int) -> str:
        place = self.out.let(f"getelementptr i8, ptr {base}, i64 {offset}")
        return self.out.let(f"load {type_}, ptr {place}")

    def _go_on_if(self, conditions: list[str], otherwise: str = "slow") -> None:
        following = f"go{len(self.out.lines)}"
        self.out.add(f"br i1 {self.out.all_of(conditions)}, label %{following}, label %{otherwise}")
        self.out.label(following)

    def _keywords(self) -> None:
        """No keywords, or the one for results: ``%out0`` and so on are the caller's arrays, or null."""
        out, count = self.out, len(self.program.result_types)
        if count == 0 or any(p.name == "out" for p in self.program.graph.parameters):
            self._go_on_if(["%no_names"])
            self.gives = False
            return
        self.gives = True
        before = out.lines[-1].removesuffix(":")  # the block that was begun last
        out.add("br i1 %no_names, label %positional, label %named")
        out.label("named")
        size = out.let(self._call("i64", "PyTuple_Size", "ptr %names"))
        self._go_on_if([out.let(f"icmp eq i64 {size}, 1")])
        name = out.let(self._call("ptr", "PyTuple_GetItem", "ptr %names, i64 0"))
        self._go_on_if([out.let(f"icmp eq ptr {name}, inttoptr (i64 {id(_OUT)} to ptr)")])
        given = self._field("ptr", "%items", 8 * len(self.parameter_types))
        arrays = [given]
        if count > 1:
            kind = self._field("ptr", given, TYPE_OFFSET)
            self._go_on_if([out.let(f"icmp eq ptr {kind}, inttoptr (i64 {id(tuple)} to ptr)")])
            length = out.let(self._call("i64", "PyTuple_Size", f"ptr {given}"))
            self._go_on_if([out.let(f"icmp eq i64 {length}, {count}")])
            arrays = [out.let(self._call("ptr", "PyTuple_GetItem", f"ptr {given}, i64 {i}")) for i in range(count)]
        out.add("br label %into")
        out.label("into")
        out.add("br label %positional")
        out.label("positional")
        for i, array in enumerate(arrays):
            out.add(f"%out{i} = phi ptr [ null, %{before} ], [ {array}, %into ]")

    def _argument(self, position: int, type_: TensorType | MemRefType) -> list[str]:
        """Checks an argument as far as that needs no other; returns registers with its sizes."""
        out = self.out
        item = self._field("ptr", "%items", 8 * position)
        kind = self._field("ptr", item, TYPE_OFFSET)
        self._go_on_if([out.let(f"icmp eq ptr {kind}, inttoptr (i64 {self.interface.array_type} to ptr)")])
        dtype = self._field("ptr", item, DTYPE_OFFSET)
        rank = self._field("i32", item, RANK_OFFSET)
        wanted = C_CONTIGUOUS | ALIGNED | (WRITEABLE if self.program.updates(self.program.graph.parameters[position]) else 0)
        flags = out.let(f"and i32 {self._field('i32', item, FLAGS_OFFSET)}, {wanted}")
        self._go_on_if(
            [
                out.let(f"icmp eq ptr {dtype}, inttoptr (i64 {id(type_.dtype.numpy)} to ptr)"),
                out.let(f"icmp eq i32 {rank}, {len(type_.shape)}"),
                out.let(f"icmp eq i32 {flags}, {wanted}"),
            ]
        )
        data = self._field("ptr", item, DATA_OFFSET)
        self._store_pointer(position, data)
        self.data.append(data)
        shape = self._field("ptr", item, SHAPE_OFFSET) if type_.shape else ""
        sizes = [self._field("i64", shape, 8 * axis) for axis in range(len(type_.shape))]
        conditions = []
        for dim, size in zip(type_.shape, sizes, strict=True):
            if isinstance(dim, int):
                conditions.append(out.let(f"icmp eq i64 {size}, {dim}"))
            else:
                conditions.append(out.let(f"icmp ule i64 {size}, {DIMENSION_LIMIT}"))
        self._go_on_if(conditions)
        if type_.dtype.kind == "bool":
            count = "1"
            for size in sizes:
                count = out.let(f"mul i64 {count}, {size}")
            self._go_on_if([out.let(f"call i1 @graph_opt_are_bools(ptr {data}, i64 {count})")])
        return sizes

    def _store_pointer(self, position: int, pointer: str) -> None:
        place = self.out.let(f"getelementptr ptr, ptr %args, i64 {position}")
        self.out.add(f"store ptr {pointer}, ptr {place}")

    def _bind(self, sizes: list[list[str]]) -> None:
        """Finds the named dimensions, compares the others, checks the conditions of the graph, stores ``dims``."""
        conditions: list[str] = []
        pairs = [(d, s) for t, found in zip(self.parameter_types, sizes, strict=True) for d, s in zip(t.shape, found, strict=True)]
        pending = [(d, s) for d, s in pairs if not isinstance(d, int)]
        pending.sort(key=lambda pair: not _is_name(pair[0]))  # stable: plain names first
        while pending:
            remaining = [(d, s) for d, s in pending if not self.dims.bind(d, s, conditions)]
            if len(remaining) == len(pending):
                raise Unsupported
            pending = remaining
        for constraint in self.program.graph.constraints:
            conditions += self._constraint(constraint)
        self._go_on_if(conditions)
        for i, name in enumerate(self.program.text.symbols):
            place = self.out.let(f"getelementptr i64, ptr %dims, i64 {i}")
            self.out.add(f"store i64 {self.dims.value(_name(name)).text}, ptr {place}")
        self._bytes(sizes)

    def _constraint(self, constraint: Constraint) -> list[str]:
        words = {"<=": "sle", "<": "slt", "==": "eq", ">=": "sge", ">": "sgt"}
        values = [self.dims.value(d) for d in constraint.dims]
        return [
            self.out.let(f"icmp {words[c]} i64 {a.text}, {b.text}") for c, a, b in zip(constraint.comparisons, values, values[1:], strict=False)
        ]

    def _bytes(self, sizes: list[list[str]]) -> None:
        """How many bytes a run reads, roughly: decides whether others may run meanwhile."""
        total = str(sum(a.nbytes for a in self.program.stored))
        self.sizes: list[str] = []
        for type_, found in zip(self.parameter_types, sizes, strict=True):
            count = str(type_.dtype.itemsize)
            for size in found:
                count = self.out.let(f"mul i64 {count}, {size}")
            self.sizes.append(count)
            total = self.out.let(f"add i64 {total}, {count}")
        self.total = total

    def _check_apart(self) -> None:
        """An array that is written must share no memory with another argument."""
        out, parameters = self.out, self.program.graph.parameters
        written = [i for i, p in enumerate(parameters) if self.program.updates(p)]
        if not written:
            return
        starts = [out.let(f"ptrtoint ptr {d} to i64") for d in self.data]
        ends = [out.let(f"add i64 {s}, {size}") for s, size in zip(starts, self.sizes, strict=True)]
        if len(written) * len(parameters) > _COMPARED:
            compare_in_loops(out, len(written), sorted(range(len(parameters)), key=lambda i: i not in written), starts, ends, "slow")
        else:
            self._go_on_if(compare(out, written, starts, ends))

    def _check_workers(self) -> None:
        """How many threads the run is worth; the slow path starts the workers that are missing."""
        if self.threads == 1:
            return
        out = self.out
        out.add(f"%work = call double inttoptr (i64 {self.program.work_address} to ptr)(ptr %dims)")
        out.add(f"%worth = fcmp oge double %work, {LEAST_WORK}.0")
        shares = out.let(f"fdiv double %work, {WORK_PER_THREAD}.0")
        many = out.let(f"fcmp oge double {shares}, {self.threads}.0")
        out.add(f"%team_size = fptosi double {out.let(f'select i1 {many}, double {self.threads}.0, double {shares}')} to i64")
        out.add(f"%pool = load ptr, ptr inttoptr (i64 {CELL_ADDRESS} to ptr)")
        out.add("br i1 %worth, label %look, label %enough")
        out.label("look")
        self._go_on_if([out.let("icmp ne ptr %pool, null")])
        workers = out.let(f"sext i32 {self._field('i32', '%pool', WORKERS)} to i64")
        self._go_on_if([out.let(f"icmp slt i64 {out.let('sub i64 %team_size, 2')}, {workers}")])
        out.add("br label %enough")
        out.label("enough")

    def _shapes_of_results(self) -> None:
        """Sizes of the results; a negative one, or a result too large for memory, goes the slow way."""
        out = self.out
        self.result_shapes: list[list[Number]] = []
        conditions = []
        for type_ in self.program.result_types:
            shape = [self.dims.value(d) for d in type_.shape]
            self.result_shapes.append(shape)
            if all(n.low == n.high for n in shape):
                continue
            count = f"{type_.dtype.itemsize}.0"
            for number in shape:
                if number.low < 0:
                    conditions.append(out.let(f"icmp sge i64 {number.text}, 0"))
                count = out.let(f"fmul double {count}, {out.let(f'sitofp i64 {number.text} to double')}")
            conditions.append(out.let(f"fcmp ole double {count}, {float(MEMORY_LIMIT)}"))
        if conditions:
            self._go_on_if(conditions)

    def _workspace(self) -> None:
        """Takes the workspace, if the program needs one; the slow way when it is too small or in use."""
        out = self.out
        out.add(f"%needed = call i64 inttoptr (i64 {self.program.workspace_address} to ptr)(ptr %dims)")
        has, used = f"inttoptr (i64 {self.control} to ptr)", "%workspace"
        size = self._field("i64", has, 16)
        self._go_on_if([out.let(f"icmp ule i64 {'%needed'}, {size}")])
        out.add("%none_needed = icmp eq i64 %needed, 0")
        out.add("br i1 %none_needed, label %ready, label %take")
        out.label("take")
        got = out.let(f"cmpxchg ptr {has}, i32 0, i32 1 acquire monotonic")
        taken = out.let(f"extractvalue {{ i32, i1 }} {got}, 1")
        out.add(f"br i1 {taken}, label %ready, label %slow")
        out.label("ready")
        out.add(f"{used} = load ptr, ptr getelementptr (i8, ptr inttoptr (i64 {self.control} to ptr), i64 8)")

    def _results(self) -> None:
        """The arrays for the results: the caller's, or new ones."""
        out, count = self.out, len(self.program.result_types)
        if self.gives:
            out.add("%fresh = icmp eq ptr %out0, null")
            out.add("br i1 %fresh, label %make, label %given")
            out.label("given")
            for i in range(count):
                self._given(i)
            for i in range(count):
                out.add(self._call("void", "Py_IncRef", f"ptr %out{i}"))
            out.add("br label %taken")
            out.label("taken")
            out.add("br label %have")
            out.label("make")
        for i in range(count):
            self._make(i)
        if self.gives:
            out.add("br label %made_all")
            out.label("made_all")
            out.add("br label %have")
            out.label("have")
        for i in range(count):
            if self.gives:
                out.add(f"%result{i} = phi ptr [ %made{i}, %made_all ], [ %out{i}, %taken ]")
            else:
                out.add(f"%result{i} = getelementptr i8, ptr %made{i}, i64 0")
        for i in range(count):
            self._store_pointer(len(self.parameter_types) + i, self._field("ptr", f"%result{i}", DATA_OFFSET))

    def _make(self, position: int) -> None:
        out, type_ = self.out, self.program.result_types[position]
        for axis, number in enumerate(self.result_shapes[position]):
            place = out.let(f"getelementptr i64, ptr %shape, i64 {axis}")
            out.add(f"store i64 {number.text}, ptr {place}")
        dtype = f"ptr inttoptr (i64 {id(type_.dtype.numpy)} to ptr)"
        out.add(self._call("void", "Py_IncRef", dtype))  # the new array takes this reference
        shape = self.result_shapes[position]
        most = type_.dtype.itemsize * math.prod(n.high for n in shape)
        if most >= LARGE and self.interface.knows_handlers:
            count = str(type_.dtype.itemsize)
            for number in shape:
                count = out.let(f"mul i64 {count}, {number.text}")
            make, arguments = new_array_address(self.interface), f"{dtype}, i32 {type_.rank}, ptr %shape, i64 {count}"
        else:
            make = self.interface.new_array
            kind = f"ptr inttoptr (i64 {self.interface.array_type} to ptr)"
            arguments = f"{kind}, {dtype}, i32 {type_.rank}, ptr %shape, ptr null, ptr null, i32 0, ptr null"
        out.add(f"%made{position} = call ptr inttoptr (i64 {make} to ptr)({arguments})")
        self._go_on_if([out.let(f"icmp ne ptr %made{position}, null")], f"failed{position}")

    def _given(self, position: int) -> None:
        """Goes the slow way unless the caller's array for a result is a plain one that fits and is apart from all others."""
        out, type_, item = self.out, self.program.result_types[position], f"%out{position}"
        slow = "failed0"  # nothing is held yet but the workspace
        kind = self._field("ptr", item, TYPE_OFFSET)
        self._go_on_if([out.let(f"icmp eq ptr {kind}, inttoptr (i64 {self.interface.array_type} to ptr)")], slow)
        wanted = C_CONTIGUOUS | ALIGNED | WRITEABLE
        flags = out.let(f"and i32 {self._field('i32', item, FLAGS_OFFSET)}, {wanted}")
        conditions = [
            out.let(f"icmp eq ptr {self._field('ptr', item, DTYPE_OFFSET)}, inttoptr (i64 {id(type_.dtype.numpy)} to ptr)"),
            out.let(f"icmp eq i32 {self._field('i32', item, RANK_OFFSET)}, {type_.rank}"),
            out.let(f"icmp eq i32 {flags}, {wanted}"),
        ]
        self._go_on_if(conditions, slow)
        shape = self._field("ptr", item, SHAPE_OFFSET) if type_.rank else ""
        conditions, count = [], str(type_.dtype.itemsize)
        for axis, number in enumerate(self.result_shapes[position]):
            size = self._field("i64", shape, 8 * axis)
            conditions.append(out.let(f"icmp eq i64 {size}, {number.text}"))
            count = out.let(f"mul i64 {count}, {size}")
        start = out.let(f"ptrtoint ptr {self._field('ptr', item, DATA_OFFSET)} to i64")
        end = out.let(f"add i64 {start}, {count}")
        others = [(out.let(f"ptrtoint ptr {d} to i64"), size) for d, size in zip(self.data, self.sizes, strict=True)]
        for other, size in [*((o, s) for o, s in others), *self.taken]:
            behind = out.let(f"icmp ule i64 {out.let(f'add i64 {other}, {size}')}, {start}")
            conditions.append(out.let(f"or i1 {behind}, {out.let(f'icmp ule i64 {end}, {other}')}"))
        self._go_on_if(conditions, slow)
        self.taken.append((start, count))

    def _run(self) -> None:
        """Calls the program, with Python's lock given up while much is to be done."""
        out, program = self.out, self.program
        if program.stored:
            place = out.let(f"getelementptr ptr, ptr %args, i64 {len(self.parameter_types) + len(program.result_types)}")
            table = f"inttoptr (i64 {ctypes.addressof(program.stored_table)} to ptr)"
            out.add(f"call void @llvm.memcpy.p0.p0.i64(ptr align 8 {place}, ptr align 8 {table}, i64 {8 * len(program.stored)}, i1 false)")
        out.add(f"call void @llvm.memset.p0.i64(ptr align {ALIGNMENT} %state, i8 0, i64 {STATE_BYTES}, i1 false)")
        total = out.let(f"add i64 {self.total}, %needed")
        out.add(f"%long = icmp ugt i64 {total}, {_RELEASE_BYTES}")
        arguments = f"ptr inttoptr (i64 {program.main_address} to ptr), ptr %args, ptr %dims, ptr %workspace, ptr %state"
        long = f"call i32 inttoptr (i64 {call_address()} to ptr)"
        call = f"call i32 inttoptr (i64 {program.main_address} to ptr)(ptr %args, ptr %dims, ptr %workspace, ptr %state, i64 0, i64 1)"
        statuses = ["[ %status1, %alone ]"]
        if self.threads == 1:
            out.add("br i1 %long, label %alone, label %run")
        else:
            out.add("br i1 %worth, label %try, label %single")
            out.label("single")
            out.add("br i1 %long, label %alone, label %run")
            out.label("try")
            busy = out.let(f"getelementptr i8, ptr %pool, i64 {BUSY}")
            got = out.let(f"cmpxchg ptr {busy}, i32 0, i32 1 acq_rel monotonic")
            out.add(f"br i1 {out.let(f'extractvalue {{ i32, i1 }} {got}, 1')}, label %together, label %alone")
            out.label("together")
            out.add(f"%runner = load ptr, ptr inttoptr (i64 {CELL_ADDRESS + 8} to ptr)")
            out.add(f"%status3 = {long}(ptr %runner, ptr %pool, {arguments}, i64 %team_size, double %work)")
            out.add(f"store atomic i32 0, ptr {busy} release, align 4")
            out.add("br label %done")
            statuses.append("[ %status3, %together ]")
        out.label("run")
        out.add(f"%status2 = {call}")
        out.add("br label %done")
        statuses.append("[ %status2, %run ]")
        out.label("alone")
        amount = out.let(f"fmul double {out.let(f'uitofp i64 {total} to double')}, 0.25")  # what reading that takes, in operations
        if self.threads > 1:
            more = out.let(f"fcmp ogt double %work, {amount}")
            amount = out.let(f"select i1 {more}, double %work, double {amount}")
        out.add(f"%status1 = {long}(ptr null, ptr null, {arguments}, i64 1, double {amount})")
        out.add("br label %done")
        out.label("done")
        out.add(f"%status = phi i32 {', '.join(statuses)}")
        failed = out.let(f"or i32 %status, {out.let('load i32, ptr %state')}")  # a thread may come back before another fails
        self._free_workspace()
        self._go_on_if([out.let(f"icmp eq i32 {failed}, 0")], "failed")

    def _free_workspace(self) -> None:
        number = len(self.out.lines)
        self.out.add(f"br i1 %none_needed, label %free{number}, label %release{number}")
        self.out.label(f"release{number}")
        self.out.add(f"store atomic i32 0, ptr inttoptr (i64 {self.control} to ptr) release, align 4")
        self.out.add(f"br label %free{number}")
        self.out.label(f"free{number}")

    def _return(self) -> None:
        out, count = self.out, len(self.program.result_types)
        if count == 1:
            out.add("ret ptr %result0")
            return
        tuple_ = out.let(self._call("ptr", "PyTuple_New", f"i64 {count}"))
        self._go_on_if([out.let(f"icmp ne ptr {tuple_}, null")], "no_memory")
        for i in range(count):
            out.let(self._call("i32", "PyTuple_SetItem", f"ptr {tuple_}, i64 {i}, ptr %result{i}"))
        out.add(f"ret ptr {tuple_}")

    def _failures(self) -> None:
        """Gives back what is held, last first; then the slow path, or the error."""
        out, count = self.out, len(self.program.result_types)
        for position in range(count):  # no memory for this result: the workspace is held, and those before it
            out.label(f"failed{position}")
            self._drop(position, "made")
            self._free_workspace()
            out.add(self._call("void", "PyErr_Clear", ""))  # the slow path will say it better
            out.add("br label %slow")
        out.label("slow")
        out.add(f"%slow_path = {self._call('ptr', 'PyTuple_GetItem', 'ptr %self, i64 0')}")
        out.add(f"%answer = {self._call('ptr', 'PyObject_Vectorcall', 'ptr %slow_path, ptr %items, i64 %count, ptr %names')}")
        out.add("ret ptr %answer")
        if count != 1:
            out.label("no_memory")
            self._drop(count)
            out.add("ret ptr null")
        out.label("failed")
        self._drop(count)
        site = out.let("load i32, ptr %state")
        self._go_on_if([out.let(f"icmp ne i32 {site}, {INTERRUPTED}")], "interrupted")
        out.add(f"%bytes0 = {self._call('ptr', 'PyBytes_FromStringAndSize', f'ptr %state, i64 {STATE_BYTES}')}")
        out.add(f"%bytes1 = {self._call('ptr', 'PyBytes_FromStringAndSize', f'ptr %dims, i64 {8 * len(self.program.text.symbols)}')}")
        both = [out.let(f"icmp ne ptr %bytes{i}, null") for i in range(2)]
        self._go_on_if(both, "nothing")
        out.add("store ptr %bytes0, ptr %failure")
        second = out.let("getelementptr ptr, ptr %failure, i64 1")
        out.add(f"store ptr %bytes1, ptr {second}")
        out.add(f"%tell = {self._call('ptr', 'PyTuple_GetItem', 'ptr %self, i64 1')}")
        out.add(f"%told = {self._call('ptr', 'PyObject_Vectorcall', 'ptr %tell, ptr %failure, i64 2, ptr null')}")
        for i in range(2):
            out.add(self._call("void", "Py_DecRef", f"ptr %bytes{i}"))
        out.add("ret ptr %told")
        out.label("interrupted")
        out.add("ret ptr null")  # with what the handler has raised
        out.label("nothing")
        for i in range(2):
            out.add(self._call("void", "Py_DecRef", f"ptr %bytes{i}"))  # which takes null
        out.add("ret ptr null")

    def _drop(self, count: int, name: str = "result") -> None:
        for i in range(count):
            self.out.add(self._call("void", "Py_DecRef", f"ptr %{name}{i}"))


def _is_name(dim: Dim) -> bool:
    return not isinstance(dim, int) and str(dim).isidentifier()


def _name(name: str) -> Dim:
    from ir.dims import symbol

    return symbol(name)
