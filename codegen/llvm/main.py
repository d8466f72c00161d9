"""The main function of a graph: memory, calls of the loops, threads, results."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from codegen.llvm.clock import tick
from codegen.llvm.control import shared
from codegen.llvm.helpers import CALLBACK, STOP, ZERO
from codegen.llvm.memory import copy_bytes
from codegen.llvm.native import STORED, Argument, Site
from codegen.llvm.nests import Call, KnownNests
from codegen.llvm.plan import effects, has_shared_loop, result_memory, root_of, writes_later
from codegen.llvm.polynomials import Poly
from codegen.llvm.turns import Turns, is_shared
from codegen.llvm.types import lanes_of, llvm_type
from codegen.llvm.writer import Buffer, Unit, Writer
from ir.core import Block, Graph, Operation, Parameter, Value
from ir.diagnostics import Diagnostic, GraphError
from ir.dims import Dim
from ir.layout import AccessArg, layout_of
from ir.structure import Copies
from ir.types import MemRefType, TensorType, buffer_of

_READS = ("memref.load", "vector.load")


class NestWriter(Writer):
    """A top-level operation as a function of its own."""

    def write(self, op: Operation, slots: str | None) -> None:
        """Writes the operation, and stores its results through a pointer of the caller."""
        if is_shared(op):
            self.current = op
            shared(self, op)
        else:
            self.operation(op)
        if slots is not None:
            pointer = self._argument(slots, "ptr")
            for result, offset in zip(op.results, slot_offsets(op), strict=True):
                at = self.set(f"getelementptr i8, ptr {pointer}, i64 {offset}")
                self.line(f"store {llvm_type(result.type)} {self.name(result)}, ptr {at}, align 64")  # type: ignore[arg-type]
        self.line("ret i32 0")

    def watch(self) -> None:
        place = self.pure(0, f"getelementptr i8, ptr %state, i64 {STOP}")
        given = self.pure(0, f"load ptr, ptr {place}, align 8")
        nobody = self.pure(0, f"icmp eq ptr {given}, null")
        zero = self.pure(0, f"getelementptr i8, ptr %state, i64 {ZERO}")
        flag = self.pure(0, f"select i1 {nobody}, ptr {zero}, ptr {given}")
        raised = self.set(f"icmp ne i8 {self.set(f'load atomic i8, ptr {flag} monotonic, align 1')}, 0")
        go, ask, leave = self.label("go"), self.label("ask"), self.label("leave")
        self.line(f"br i1 {raised}, label %{ask}, label %{go}, !prof !0")
        self.cold += [
            f"{ask}:",
            f"  %{ask}.answer = call i32 @{self.unit.name}.stopped(ptr %state, i64 %thread)",
            f"  %{ask}.on = icmp eq i32 %{ask}.answer, 0",
            f"  br i1 %{ask}.on, label %{go}, label %{leave}",
            f"{leave}:",
            "  ret i32 1",
        ]
        self.place(go)


def slot_offsets(op: Operation) -> list[int]:
    """Where the results of an operation lie in the memory that hands them to all threads."""
    offsets, at = [], 0
    for result in op.results:
        offsets.append(at)
        at += _slot_size(result)
    return offsets


def _slot_size(result: Value) -> int:
    return max(64, -(-lanes_of(result.type) * 8 // 64) * 64)


class MainWriter(Writer):
    """The function that all threads call."""

    def __init__(self, unit: Unit, graph: Graph, symbols: list[str], clocks: bool = False, copies: Copies | None = None) -> None:
        super().__init__(unit)
        self.graph = graph
        self.clocks = clocks
        self.timed: list[Operation] = []
        self.functions: list[str] = []
        self.known_functions: dict[tuple[str, ...], str] = {}
        self.copies = copies or {}
        self.known_nests = KnownNests(self, self.copies)
        self.pieces: list[tuple[int, list[Poly]]] = []
        self.workspace_end = "0"
        self.tensors: dict[Value, Buffer] = {}
        self.stored: list[Operation] = []
        self.result_memory = result_memory(graph, self.copies)
        self.turns = Turns(self, self._barrier)
        self.began = self._tick() if clocks else None
        self._begin(symbols)

    def _begin(self, symbols: list[str]) -> None:
        self.line("%site = add i64 0, 0")
        self.line("%first = icmp eq i64 %thread, 0")
        for position, symbol in enumerate(symbols):
            ((number,),) = self.space.symbol(symbol)
            pointer = self.set(f"getelementptr i64, ptr %dims, i64 {position}")
            self.symbols[number] = self.set(f"load i64, ptr {pointer}, align 8")
        self.unit.sites.append(Site("error", "", "a dimension, or a product of dimensions, is larger than 2^40", location=self.graph.loc))
        fits = self.set(f"call i1 @{self.unit.name}.guard(ptr %dims)")
        self.check_site(fits, "0", "0", "0")
        for position, parameter in enumerate(self.graph.parameters):
            if isinstance(parameter.type, MemRefType):
                type_ = parameter.type
                self.buffers[parameter] = Buffer(self._argument_pointer(position), type_, self.unit.shape_of(type_), type_.dtype.itemsize)

    def _argument_pointer(self, position: int) -> str:
        at = self.pure(0, f"getelementptr ptr, ptr %args, i64 {position}")
        return self.pure(0, f"load ptr, ptr {at}, align 8")

    def site(self, template: str, dims: Sequence[Dim] = (), *, name: str | None = None, given: tuple[int, ...] | None = None) -> int:
        super().site(template, dims, name=name, given=given)
        self.unit.sites.append(self.sites.pop())
        return len(self.unit.sites) - 1

    # -- operations of the top level -------------------------------------------------------------------------------

    def operation(self, op: Operation) -> None:
        name = op.definition.full_name
        self.current = op
        if name in STORED:
            self.stored.append(op)
            result = op.results[0]
            self.tensors[result] = self._tensor_buffer(result, len(self.graph.parameters) + len(self.graph.results) + len(self.stored) - 1, 64)
        elif name == "memref.from_tensor":
            source, result = op.operand_uses[0].value, op.results[0]
            buffer = self.tensor(source)
            assert isinstance(result.type, MemRefType)
            self.buffers[result] = Buffer(buffer.pointer, result.type, self.unit.shape_of(result.type, op), buffer.align, True)
        elif name == "memref.of_inout":
            buffer, result = self.tensor(op.operand_uses[0].value), op.results[0]
            assert isinstance(result.type, MemRefType)
            self.buffers[result] = Buffer(buffer.pointer, result.type, buffer.shape, buffer.align)
        elif name == "memref.to_tensor":
            self._to_tensor(op)
        elif name == "graph.print":
            self._print(op)
        elif op.regions:
            self._region(op, name)
        elif name in ("memref.store", "vector.store", "memref.copy"):
            self._call(op, "true")
        else:
            if name in _READS and not self._is_constant(op):
                self.turns.settle()
                self.turns.reading = True
            super().operation(op)

    def _is_constant(self, read: Operation) -> bool:
        """Whether an operation reads what nobody writes while the program runs: an argument, or what is there before."""
        access = layout_of(read)[0]
        assert isinstance(access, AccessArg)
        root = root_of(read.operand_uses[access.position].value)
        if isinstance(root, Parameter):
            return isinstance(root.type, TensorType) and not root.inout
        return root.defining_op is not None and root.defining_op.definition.full_name in STORED

    def run(self, block: Block, facts: Sequence[Poly] = ()) -> list[str]:
        if block is self.graph.block:
            return self._whole()
        yielded = super().run(block, facts)
        self.turns.settle()
        if self.turns.reading and any(has_shared_loop(op) or effects(op) for op in block):
            self._barrier()  # the next round may write what was read in this one
        return yielded

    def _whole(self) -> list[str]:
        for op in self.graph.block:
            if op.definition.is_terminator:
                self._return(op)
                break
            self.operation(op)
        self.space.hypotheses.clear()
        if self.began is not None:
            self._count(self.graph.return_op, self.began)
        self.line("ret i32 0")
        return []

    def _region(self, op: Operation, name: str) -> None:
        if is_shared(op):
            alone = self.turns.is_alone(op)
            self.unit.parallel = self.unit.parallel or alone != "true"
            self._call(op, alone)
        elif has_shared_loop(op) or not effects(op):
            self.turns.settle()
            super().operation(self.known_nests.real(op))  # by all threads, which share the loops inside
        else:
            self._call(op, "true")

    def _call(self, op: Operation, alone: str) -> None:
        """Calls the operation's function, on all threads or, if ``alone``, on the first one."""
        slots = self._piece(1, [{(): slot_offsets(op)[-1] + _slot_size(op.results[-1])}]) if op.results else None
        nest = self.known_nests.find(op) or self._new_function(self.known_nests.real(op), slots)
        base = len(self.unit.sites)
        self.unit.sites += nest.sites
        passed_by = self.turns.begin(alone)
        start = self._tick() if self.clocks else None
        threads = {"true": "1", "false": "%threads"}.get(alone) or self.set(f"select i1 {alone}, i64 1, i64 %threads")
        call = f"call i32 {nest.function}(ptr %state, i64 {base}, i64 %thread, i64 {threads}{nest.passed})"
        self.turns.do(alone, passed_by, lambda: self.set(call))
        if start is not None:
            self._count(op, start)
        if slots is not None:
            self.turns.settle()
            for result, offset in zip(op.results, slot_offsets(op), strict=True):
                at = self.set(f"getelementptr i8, ptr {slots}, i64 {offset}")
                self.names[result] = self.set(f"load {llvm_type(result.type)}, ptr {at}, align 64")  # type: ignore[arg-type]
            self.turns.reading = True

    def _new_function(self, op: Operation, slots: str | None) -> Call:
        """Writes the operation's function, if none with the same text is there."""
        writer = NestWriter(self.unit, self)
        writer.write(op, slots)
        body = writer.body()
        arguments = list(writer.arguments.items())
        key = (body, *(t for _, (t, _) in arguments))
        function = self.known_functions.get(key)
        if function is None:
            function = self.known_functions[key] = f"@{self.unit.name}.nest{len(self.functions)}"
            parameters = "".join(f", {t} {n}" for _, (t, n) in arguments)
            self.functions.append(f"define internal i32 {function}(ptr %state, i64 %site, i64 %thread, i64 %threads{parameters}) #0 {{\n{body}\n}}\n")
        self.known_nests.remember(op, function, writer)
        return Call(function, "".join(f", {t} {outside}" for outside, (t, _) in arguments), writer.sites)

    def _tick(self) -> str:
        """The processor's clock."""
        return self.set(f"call i64 {self.unit.declare('i64', tick())}()")

    def _count(self, op: Operation, start: str) -> None:
        """Adds the time since ``start`` to that of the operation, on the first thread."""
        spent = self.set(f"sub i64 {self._tick()}, {start}")
        at = f"getelementptr (i64, ptr @{self.unit.name}_clocks, i64 {len(self.timed)})"
        self.timed.append(op)

        def add() -> None:
            before = self.set(f"load i64, ptr {at}, align 8")
            self.line(f"store i64 {self.set(f'add i64 {before}, {spent}')}, ptr {at}, align 8")

        self.turns.do("true", False, add)

    def _on_first(self, write: Callable[[], object]) -> None:
        """Code for the first thread only, behind all that was begun."""
        self.turns.do("true", self.turns.begin("true"), write)

    def _barrier(self) -> None:
        """Waits for all threads; all leave when one has failed."""
        self.turns.waited()
        failed = self.set(f"call i32 @{self.unit.name}.barrier(ptr %state, i64 %threads, i64 %thread)")
        fine = self.set(f"icmp eq i32 {failed}, 0")
        good, leave = self.label("ok"), self.label("leave")
        self.line(f"br i1 {fine}, label %{good}, label %{leave}")
        self.cold += [f"{leave}:", "  ret i32 1"]
        self.place(good)

    # -- tensors and memory ----------------------------------------------------------------------------------------

    def tensor(self, value: Value) -> Buffer:
        """The memory of a tensor."""
        found = self.tensors.get(value)
        if found is None:
            if not isinstance(value, Parameter):
                raise GraphError(Diagnostic(f"codegen: %{value.name} is no tensor that native code has", value.location))
            found = self.tensors[value] = self._tensor_buffer(value, value.index, 1)
        return found

    def _tensor_buffer(self, value: Value, position: int, align: int) -> Buffer:
        if not isinstance(value.type, TensorType):
            raise GraphError(Diagnostic(f"codegen: %{value.name} of type {value.type} is no tensor", value.location))
        type_ = buffer_of(value.type)
        return Buffer(self._argument_pointer(position), type_, self.unit.shape_of(type_), max(align, type_.dtype.itemsize))

    def _result_pointer(self, position: int) -> str:
        return self._argument_pointer(len(self.graph.parameters) + position)

    def memory(self, op: Operation, type_: MemRefType) -> str:
        result = op.results[0]
        if result in self.result_memory:
            return self._result_pointer(self.result_memory[result])
        return self._piece(type_.dtype.itemsize, self.unit.shape_of(type_, op))

    def memory_alignment(self, op: Operation, type_: MemRefType) -> int:
        return type_.dtype.itemsize if op.results[0] in self.result_memory else super().memory_alignment(op, type_)

    def _piece(self, item: int, shape: list[Poly]) -> str:
        """A part of the workspace."""
        self.pieces.append((item, shape))
        start = self.workspace_end
        size = str(item)
        for dim in shape:
            number = self.integer(dim)
            both = size.isdigit() and number.isdigit()
            size = str(int(size) * int(number)) if both else self.pure(0, f"mul i64 {number}, {size}")
        if size.isdigit():
            size = str(-(-int(size) // 64) * 64)
        else:
            more = self.pure(0, f"add i64 {size}, 63")
            size = self.pure(0, f"and i64 {more}, -64")
        both = size.isdigit() and start.isdigit()
        self.workspace_end = str(int(start) + int(size)) if both else self.pure(0, f"add i64 {start}, {size}")
        return self.pure(0, f"getelementptr i8, ptr %workspace, i64 {start}")

    def _to_tensor(self, op: Operation) -> None:
        source, result = op.operand_uses[0].value, op.results[0]
        buffer = self.buffer(source)
        if op.block is not self.graph.block:
            raise GraphError(Diagnostic("codegen: memref.to_tensor inside a loop", op.loc))
        if writes_later(self.graph, op, source, self.copies):
            pointer = self._piece(buffer.type.dtype.itemsize, buffer.shape)
            copy = Buffer(pointer, buffer.type, buffer.shape, 64)
            self._on_first(lambda: copy_bytes(self, buffer, copy))
            buffer = copy
        self.tensors[result] = buffer

    def _return(self, op: Operation) -> None:
        copies = []
        for position, use in enumerate(op.operand_uses):
            buffer = self.tensor(use.value)
            pointer = self._result_pointer(position)
            if buffer.pointer != pointer:
                copies.append((buffer, Buffer(pointer, buffer.type, buffer.shape, buffer.type.dtype.itemsize)))
        for source, target in copies:
            self._on_first(lambda source=source, target=target: copy_bytes(self, source, target))  # type: ignore[misc]

    def _print(self, op: Operation) -> None:
        value = op.operand_uses[0].value
        buffer = self.tensor(value)
        assert isinstance(value.type, TensorType)
        text = "the callback failed"
        label = str(op.attribute("label"))
        self.unit.sites.append(Site("print", "print", text, location=op.loc, type=value.type, label=label, operation=op))
        site = len(self.unit.sites) - 1

        def write() -> None:
            at = self.set(f"getelementptr i8, ptr %state, i64 {CALLBACK}")
            function = self.set(f"load ptr, ptr {at}, align 8")
            failed = self.set(f"call i32 {function}(i64 {site}, ptr {buffer.pointer}, ptr %dims)")
            fine = self.set(f"icmp eq i32 {failed}, 0")
            bad, end = self.label("bad"), self.label("end")
            self.line(f"br i1 {fine}, label %{end}, label %{bad}")
            self.place(bad)
            self.line(f"call void @{self.unit.name}.fail(ptr %state, i64 {site}, i64 0, i64 0)")
            self.line(f"br label %{end}")
            self.place(end)

        self._on_first(write)
        self._barrier()

    def stored_arguments(self) -> list[Argument]:
        """The weights and constants, as they follow the results."""
        found = []
        for op in self.stored:
            type_ = op.results[0].type
            assert isinstance(type_, TensorType)
            found.append(Argument("stored", op.results[0].name, type_, False, op))
        return found
