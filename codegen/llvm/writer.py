"""Writes one LLVM function: registers, blocks, loops, index arithmetic at the level where it belongs, checks.

LLVM runs no passes over the text that would move code, so loop-invariant index arithmetic is put in front of the loops
here: every region has a list of lines that stand before it, and an expression is written where its operands are known.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Union

from codegen.llvm.native import Site
from codegen.llvm.polynomials import Poly, as_number, divisor_of, multiply
from codegen.llvm.space import SMALL, Space
from codegen.llvm.types import BadVector, in_memory, is_constant, llvm_type, splat_text, vector_of
from ir.core import Block, Operation, Value
from ir.diagnostics import Diagnostic, GraphError
from ir.dims import Dim
from ir.types import DType, MemRefType, ScalarType, VectorType

Line = Union[str, "list[Line]"]
MAX_STACK = 1024 * 1024


class Buffer:
    """A buffer in the code: its pointer, and what is known about it."""

    __slots__ = ("pointer", "type", "shape", "strides", "align", "readonly")

    def __init__(self, pointer: str, type_: MemRefType, shape: Sequence[Poly], align: int, readonly: bool = False) -> None:
        self.pointer = pointer
        self.type = type_
        self.shape = list(shape)
        self.align = align
        self.readonly = readonly
        self.strides: list[Poly] = []
        stride: Poly = {(): 1}
        for size in reversed(self.shape):
            self.strides.insert(0, stride)
            stride = multiply(stride, size)

    def renamed(self, pointer: str) -> Buffer:
        """The same buffer under another register."""
        return Buffer(pointer, self.type, self.shape, self.align, self.readonly)


class Unit:
    """What all functions of one graph share."""

    def __init__(self, name: str, features: Collection[str] = ()) -> None:
        self.name = name
        self.features = features  # what the processor has that is no part of every one of its kind
        self.space = Space()
        self.sites: list[Site] = []
        self.declarations: dict[str, None] = {}
        self.externals: dict[str, None] = {}
        self.definitions: dict[str, str] = {}  # helper functions
        self.shapes: dict[MemRefType, list[Poly]] = {}
        self.parallel = False

    def declare(self, result: str, name: str, *parameters: str) -> str:
        """Declares an intrinsic; returns its name with the sign."""
        self.declarations[f"declare {result} @{name}({', '.join(parameters)})"] = None
        return f"@{name}"

    def external(self, result: str, name: str, *parameters: str) -> str:
        """Declares a function of the C library."""
        self.externals[name] = None
        return self.declare(result, name, *parameters)

    def shape_of(self, type_: MemRefType, op: Operation | None = None) -> list[Poly]:
        """The dimensions of a buffer's type as polynomials."""
        found = self.shapes.get(type_)
        if found is None:
            if any(not isinstance(d, int) and str(d) == "?" for d in type_.shape):
                raise GraphError(Diagnostic(f"codegen: a dimension of {type_} is not known", op.loc if op is not None else None))
            found = self.shapes[type_] = [self.space.convert(d) for d in type_.shape]
        return found


class Level:
    """A region that is being written: the lines before it, and what was computed at its level."""

    __slots__ = ("before", "cache")

    def __init__(self, before: list[Line]) -> None:
        self.before = before
        self.cache: dict[str, str] = {}


Handler = Callable[["Writer", Operation], None]
HANDLERS: dict[str, Handler] = {}
"""How operations are written, by full name."""


def emits(*names: str) -> Callable[[Handler], Handler]:
    """Registers a function as what writes the named operations."""

    def decorate(handler: Handler) -> Handler:
        for name in names:
            assert name not in HANDLERS, name
            HANDLERS[name] = handler
        return handler

    return decorate


class Writer:
    """One function.  ``outer`` is the function that calls it, whose values become arguments where they are used."""

    def __init__(self, unit: Unit, outer: Writer | None = None) -> None:
        self.unit = unit
        self.space = unit.space
        self.outer = outer
        self.code: list[Line] = []
        self.cold: list[str] = []
        self.levels = [Level(self.code)]
        self.names: dict[Value, str] = {}
        self.buffers: dict[Value, Buffer] = {}
        self.depths: dict[str, int] = {}
        self.symbols: dict[int, str] = {}
        self.arguments: dict[str, tuple[str, str]] = {}  # register of the caller -> (type, register here)
        self.imported: list[Value | int] = []  # what comes from the caller: values, and numbers of named dimensions
        self.sites: list[Site] = []
        self.stack: list[str] = []
        self.stack_bytes = 0
        self.slots: list[list[tuple[int, str]]] = [[]]  # memory on the stack by the open region that has it
        self.free_slots: list[tuple[int, str]] = []  # of regions that are closed: later ones take it over
        self.tile_shape: tuple[int, int, int] | None = None  # of the products of matrices that are in registers of their own
        self.count = 0
        self.block = "entry"

    # -- registers -------------------------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        """Appends one instruction."""
        self.code.append("  " + text)

    def set(self, instruction: str) -> str:
        """Appends an instruction with a result; returns its register."""
        self.count += 1
        name = f"%v{self.count}"
        self.code.append(f"  {name} = {instruction}")
        self.depths[name] = len(self.levels) - 1
        return name

    def result(self, op: Operation, instruction: str) -> None:
        """The same, as the result of an operation."""
        self.names[op.results[0]] = self.set(instruction)

    def pure(self, depth: int, instruction: str) -> str:
        """The register of an instruction without effect whose operands are known at ``depth``; written once."""
        level = self.levels[depth]
        found = level.cache.get(instruction)
        if found is None:
            self.count += 1
            found = level.cache[instruction] = f"%v{self.count}"
            lines = self.code if depth == len(self.levels) - 1 else self.levels[depth + 1].before
            lines.append(f"  {found} = {instruction}")
            self.depths[found] = depth
        return found

    def depth(self, *names: str) -> int:
        """The level at which all of these registers are known."""
        get = self.depths.get
        return max([get(n, 0) for n in names])

    def label(self, kind: str) -> str:
        self.count += 1
        return f"{kind}{self.count}"

    def place(self, label: str) -> None:
        """Starts a block."""
        self.code.append(f"{label}:")
        self.block = label

    def name(self, value: Value) -> str:
        """The register or constant of a scalar or vector."""
        found = self.names.get(value)
        if found is None:
            found = self.names[value] = self._import(value)
        return found

    def _import(self, value: Value) -> str:
        if self.outer is None or not isinstance(value.type, (ScalarType, VectorType)):
            raise GraphError(Diagnostic(f"codegen: %{value.name} of type {value.type} is no scalar or vector in native code", value.location))
        self.imported.append(value)
        return self._argument(self.outer.name(value), llvm_type(value.type))

    def _argument(self, outside: str, type_: str) -> str:
        if is_constant(outside):
            return outside
        if outside not in self.arguments:
            self.arguments[outside] = (type_, f"%a{len(self.arguments)}")
        return self.arguments[outside][1]

    def buffer(self, value: Value) -> Buffer:
        """The buffer that a value is."""
        found = self.buffers.get(value)
        if found is None:
            if self.outer is None:
                raise GraphError(Diagnostic(f"codegen: %{value.name} of type {value.type} is no buffer that native code can have", value.location))
            self.imported.append(value)
            outside = self.outer.buffer(value)
            found = self.buffers[value] = outside.renamed(self._argument(outside.pointer, "ptr"))
        return found

    def symbol(self, number: int) -> str:
        """The register of a named dimension."""
        found = self.symbols.get(number)
        if found is None:
            assert self.outer is not None, self.space.atoms[number].name
            self.imported.append(number)
            found = self.symbols[number] = self._argument(self.outer.symbol(number), "i64")
        return found

    # -- index arithmetic ------------------------------------------------------------------------------------------

    def _atom(self, number: int) -> str:
        atom = self.space.atoms[number]
        if atom.name:
            return self.symbol(number)
        if atom.value is not None:
            return self.name(atom.value)
        assert atom.function is not None
        return self._function(*atom.function, atom.meaning if atom.described else None)

    def integer(self, poly: Poly) -> str:
        """The i64 with the value of a polynomial."""
        groups = self._groups(poly)
        number = poly.get((), 0)
        if not groups:
            return str(number)
        total = ""
        deepest = 0
        for depth, term in groups:
            deepest = max(deepest, depth)
            total = self.pure(deepest, f"add i64 {total}, {term}") if total else term
        return self.pure(deepest, f"add i64 {total}, {number}") if number else total

    def _groups(self, poly: Poly) -> list[tuple[int, str]]:
        """(level, register) of every term but the constant, the outermost levels first."""
        found = []
        for monomial, coefficient in poly.items():
            if not monomial:
                continue
            factors = [self._atom(n) for n in monomial]
            factors.sort(key=lambda f: (self.depths.get(f, 0), f))
            term = factors[0]
            depth = self.depth(term)
            for factor in factors[1:]:
                depth = max(depth, self.depth(factor))
                term = self.pure(depth, f"mul i64 {term}, {factor}")
            if coefficient != 1:
                term = self.pure(depth, f"mul i64 {term}, {coefficient}")
            found.append((depth, term))
        if len(found) > 1:
            found.sort(key=lambda g: g[0])
        return found

    def _function(self, kind: str, args: tuple[Poly, ...], meaning: Poly | None) -> str:
        if kind in ("min", "max"):
            intrinsic = self.unit.declare("i64", f"llvm.s{kind}.i64", "i64", "i64")
            total = self.integer(args[0])
            for arg in args[1:]:
                other = self.integer(arg)
                total = self.pure(self.depth(total, other), f"call i64 {intrinsic}(i64 {total}, i64 {other})")
            return total
        divisor = as_number(args[1])
        if divisor is None or divisor <= 0:
            return self._division(kind, args)
        x = self.integer(args[0])
        depth = self.depth(x)
        power = divisor & (divisor - 1) == 0
        natural = self.space.prove(args[0])
        if kind == "ceildiv" and natural:
            x = self.pure(depth, f"add i64 {x}, {divisor - 1}")
        elif kind == "ceildiv":
            return self._round_up(depth, x, self._floor(depth, x, divisor, False), str(divisor))
        if kind == "mod":
            if power:
                return self.pure(depth, f"and i64 {x}, {divisor - 1}")
            if natural:
                return self.pure(depth, f"urem i64 {x}, {divisor}")
            down = self._floor(depth, x, divisor, False)
            return self.pure(depth, f"sub i64 {x}, {self.pure(depth, f'mul i64 {down}, {divisor}')}")
        return self._floor(depth, x, divisor, natural)

    def _floor(self, depth: int, x: str, divisor: int, natural: bool) -> str:
        if divisor & (divisor - 1) == 0:
            return self.pure(depth, f"ashr i64 {x}, {divisor.bit_length() - 1}")
        if natural:
            return self.pure(depth, f"udiv i64 {x}, {divisor}")
        quotient = self.pure(depth, f"sdiv i64 {x}, {divisor}")
        back = self.pure(depth, f"mul i64 {quotient}, {divisor}")
        above = self.pure(depth, f"icmp slt i64 {x}, {back}")
        return self.pure(depth, f"add i64 {quotient}, {self.pure(depth, f'sext i1 {above} to i64')}")

    def _round_up(self, depth: int, x: str, down: str, divisor: str) -> str:
        """The quotient rounded up, from the one rounded down."""
        back = self.pure(depth, f"mul i64 {down}, {divisor}")
        inexact = self.pure(depth, f"icmp ne i64 {x}, {back}")
        return self.pure(depth, f"add i64 {down}, {self.pure(depth, f'zext i1 {inexact} to i64')}")

    def _division(self, kind: str, args: tuple[Poly, ...]) -> str:
        """By a divisor that is not known, or not positive."""
        from codegen.llvm.helpers import floor_division

        x, y = self.integer(args[0]), self.integer(args[1])
        if self.checks_indices and not self.space.prove({**args[1], (): args[1].get((), 0) - 1}):
            ok = self.set(f"icmp ne i64 {y}, 0")
            self.check(ok, "division by zero in an index")
        helper = floor_division(self.unit)
        depth = self.depth(x, y)
        down = self.pure(depth, f"call i64 {helper}(i64 {x}, i64 {y})")
        if kind == "ceildiv":
            return self._round_up(depth, x, down, y)
        if kind == "floordiv":
            return down
        return self.pure(depth, f"sub i64 {x}, {self.pure(depth, f'mul i64 {down}, {y}')}")

    def address(self, buffer: Buffer, offset: Poly) -> str:
        """A pointer to the element at an offset, counted in elements."""
        element = in_memory(buffer.type.dtype)
        pointer, depth = buffer.pointer, self.depth(buffer.pointer)
        terms = self._groups(offset)
        at = 0
        while at < len(terms):
            level, total = terms[at]
            at += 1
            while at < len(terms) and max(terms[at][0], depth) == max(level, depth):
                total = self.pure(max(level, terms[at][0]), f"add i64 {total}, {terms[at][1]}")
                at += 1
            depth = max(depth, level)
            pointer = self.pure(depth, f"getelementptr {element}, ptr {pointer}, i64 {total}")
        number = offset.get((), 0)
        if number:  # last and at the place of use, where it is part of the instruction's address
            pointer = self.pure(len(self.levels) - 1, f"getelementptr {element}, ptr {pointer}, i64 {number}")
        return pointer

    def alignment(self, buffer: Buffer, offset: Poly) -> int:
        """A power of two that divides the address of an element."""
        size = buffer.type.dtype.itemsize
        if buffer.align <= size:
            return buffer.align
        divisor = divisor_of(self.space.expand(offset)) * size
        return min(buffer.align, divisor & -divisor) if divisor else buffer.align

    # -- checks ----------------------------------------------------------------------------------------------------

    current: Operation | None = None
    checks_indices = True  # whether a division in an index may fail

    def site(self, template: str, dims: Sequence[Dim] = (), *, name: str | None = None, given: tuple[int, ...] | None = None) -> int:
        """A new site for the operation that is being written; its number within the function."""
        op = self.current
        assert op is not None
        prefix = op.definition.text_name if name is None else name
        fields = tuple(range(2 + len(dims))) if given is None else given
        self.sites.append(Site("error", prefix, template, tuple(dims), op.loc, given=fields, operation=op))
        return len(self.sites) - 1

    def check(self, ok: str, template: str, first: str = "0", second: str = "0", dims: Sequence[Dim] = ()) -> None:
        """Ends the function, with a message, unless ``ok`` (an i1) is true."""
        self.check_site(ok, str(self.site(template, dims)), first, second)

    def check_site(self, ok: str, site: str, first: str, second: str, prepare: Callable[[], tuple[str, str, str]] | None = None) -> None:
        """The same for a site given as an i64; ``prepare`` writes the code that finds site and numbers after a failure."""
        good, bad = self.label("ok"), self.label("bad")
        self.line(f"br i1 {ok}, label %{good}, label %{bad}")
        kept = self.code
        self.code = [f"{bad}:"]
        if prepare is not None:
            site, first, second = prepare()
        where = self.set(f"add i64 %site, {site}")
        self.line(f"call void @{self.unit.name}.fail(ptr %state, i64 {where}, i64 {first}, i64 {second})")
        self.line("ret i32 1")
        self.cold += [str(c) for c in self.code]
        self.code = kept
        self.place(good)

    # -- regions ---------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Begins a region; what is written next up to the branch into it stands behind its preheader."""
        before: list[Line] = []
        self.code.append(before)
        self.levels.append(Level(before))
        self.slots.append([])

    def close(self) -> None:
        """Ends a region."""
        self.levels.pop()
        self.free_slots += self.slots.pop()

    def loop(
        self, variable: Value, bounds: tuple[Poly, Poly, Poly], carried: Sequence[tuple[Value, str, str]], body: Callable[[], Sequence[str]],
        described: tuple[Poly, Poly, Poly] | None = None, watched: bool = False,
    ) -> list[str]:  # fmt: skip
        """A counted loop.  ``carried`` are (block argument, type, first value); returns the registers of the last ones.

        ``described`` are the bounds that proofs may use, where those of the code say less.  In a ``watched`` loop every round
        begins with a look whether the run should end.
        """
        start, stop, step = map(self.integer, bounds)
        self.space.counter(variable, *(described or bounds))
        labels = self.label("loop"), self.label("done")
        self.open()
        first, last = as_number(bounds[0]), as_number(bounds[1])
        runs = first is not None and last is not None and first < last
        if runs:
            self.line(f"br label %{labels[0]}")
        else:
            self.code.append(f"  %{labels[0]}.enter = icmp slt i64 {start}, {stop}")
            self.line(f"br i1 %{labels[0]}.enter, label %{labels[0]}, label %{labels[1]}")
        before = self.block
        self.place(labels[0])
        depth = len(self.levels) - 1
        counter = f"%{labels[0]}.i"
        head = len(self.code)
        self.code += [""] * (1 + len(carried))
        self.names[variable] = counter
        self.depths[counter] = depth
        for position, (argument, _, _) in enumerate(carried):
            self.names[argument] = f"{counter}{position}"
            self.depths[f"{counter}{position}"] = depth
        code = self.code
        if watched:
            self.watch()
        yielded = body()
        following = self._advance(counter, stop, step, bounds, labels)
        code[head] = f"  {counter} = phi i64 [ {start}, %{before} ], [ {following}, %{self.block} ]"
        for position, ((_, type_, init), value) in enumerate(zip(carried, yielded, strict=True)):
            code[head + 1 + position] = f"  {counter}{position} = phi {type_} [ {init}, %{before} ], [ {value}, %{self.block} ]"
        end = self.block
        self.close()
        self.place(labels[1])
        if runs:
            return [self.set(f"phi {t} [ {v}, %{end} ]") for (_, t, _), v in zip(carried, yielded, strict=True)]
        return [self.set(f"phi {t} [ {i}, %{before} ], [ {v}, %{end} ]") for (_, t, i), v in zip(carried, yielded, strict=True)]

    def _advance(self, counter: str, stop: str, step: str, bounds: tuple[Poly, Poly, Poly], labels: tuple[str, str]) -> str:
        number = as_number(bounds[2])
        if number == 1 or (number is not None and number <= SMALL and self.space.magnitude(bounds[1]) <= SMALL):
            following = self.set(f"add nsw i64 {counter}, {step}")
            more = self.set(f"icmp slt i64 {following}, {stop}")
        else:  # the next number may be beyond the largest i64
            left = self.set(f"sub i64 {stop}, {counter}")
            more = self.set(f"icmp ugt i64 {left}, {step}")
            following = self.set(f"add i64 {counter}, {step}")
        self.line(f"br i1 {more}, label %{labels[0]}, label %{labels[1]}")
        return following

    def watch(self) -> None:
        """Looks whether the run should end.  Nothing here: a function that is called alone has no say in that."""

    def choice(self, condition: str, branches: Sequence[Callable[[], Sequence[str]]], types: Sequence[str]) -> list[str]:
        """Runs the first branch when the condition is true, the second one, if there is one, when it is not."""
        labels = [self.label("then"), self.label("else")][: len(branches)]
        end = self.label("end")
        before: list[Line] = []
        self.code.append(before)
        self.line(f"br i1 {condition}, label %{labels[0]}, label %{labels[1] if len(labels) > 1 else end}")
        ends: list[tuple[str, Sequence[str]]] = []
        for label, branch in zip(labels, branches, strict=True):
            self.place(label)
            self.levels.append(Level(before))
            values = branch()
            ends.append((self.block, values))
            self.levels.pop()
            self.line(f"br label %{end}")
        self.place(end)
        results = []
        for position, type_ in enumerate(types):
            incoming = ", ".join(f"[ {values[position]}, %{block} ]" for block, values in ends)
            results.append(self.set(f"phi {type_} {incoming}"))
        return results

    def run(self, block: Block, facts: Sequence[Poly] = ()) -> list[str]:
        """Writes the operations of a block, where ``facts`` are not negative; returns the registers of what it yields."""
        known = len(self.space.hypotheses)
        self.space.hypotheses += facts
        yielded: list[str] = []
        for op in block:
            if op.definition.is_terminator:
                yielded = [self.name(v) for v in op.operands]
                break
            self.operation(op)
        del self.space.hypotheses[known:]  # also what asserts of the block have added
        return yielded

    def operation(self, op: Operation) -> None:
        """Writes one operation.  Raises GraphError for one that native code does not have."""
        handler = HANDLERS.get(op.definition.full_name)
        if handler is None:
            kernel = op.definition.dialect == "gpu"
            hint = "it is for a GPU: --device cuda, or cuda-emulated" if kernel else "it is for a higher level: lower it first"
            raise GraphError(Diagnostic(f"codegen: no native code for '{op.definition.text_name}'", op.loc, hint))
        self.current = op
        try:
            handler(self, op)
        except BadVector as problem:
            raise GraphError(Diagnostic(f"codegen: {problem}", op.loc, "unroll-vectors makes vectors for machines")) from None

    # -- memory on the stack ---------------------------------------------------------------------------------------

    def memory_alignment(self, op: Operation, type_: MemRefType) -> int:
        """What the address of :meth:`memory` is a multiple of."""
        return 64

    def memory(self, op: Operation, type_: MemRefType) -> str:
        """A pointer to new memory for ``memref.alloc``."""
        return self.stack_buffer(op, type_)

    def stack_buffer(self, op: Operation, type_: MemRefType) -> str:
        """Memory for a buffer of static size, kept until the region ends."""
        size = type_.dtype.itemsize
        for dim in type_.shape:
            if not isinstance(dim, int):
                raise GraphError(Diagnostic(f"codegen: {type_} inside a loop has no static size", op.loc, "allocate it outside of the loops"))
            size *= dim
        size = max(64, -(-size // 64) * 64)
        free = [slot for slot in self.free_slots if slot[0] >= size]
        if free:
            slot = min(free)
            self.free_slots.remove(slot)
            self.slots[-1].append(slot)
            return slot[1]
        self.stack_bytes += size
        if self.stack_bytes > MAX_STACK:
            message = f"codegen: the buffers inside of this loop need {self.stack_bytes} bytes on the stack, the limit is {MAX_STACK}"
            raise GraphError(Diagnostic(message, op.loc, "allocate large buffers outside of the loops"))
        name = f"%s{len(self.stack)}"
        self.stack.append(f"  {name} = alloca [{size} x i8], align 64")
        self.slots[-1].append((size, name))
        return name

    # -- vectors ---------------------------------------------------------------------------------------------------

    def splat(self, text: str, element: str, lanes: int) -> str:
        """A vector of equal elements."""
        if is_constant(text):
            return splat_text(text, element, lanes)
        depth = self.depth(text)
        vector = vector_of(element, lanes)
        first = self.pure(depth, f"insertelement {vector} poison, {element} {text}, i32 0")
        if lanes == 1:
            return first
        return self.pure(depth, f"shufflevector {vector} {first}, {vector} poison, <{lanes} x i32> zeroinitializer")

    def shuffle(self, text: str, element: str, lanes: int, mask: Sequence[int]) -> str:
        """The vector of the lanes that the mask names."""
        if list(mask) == list(range(lanes)):
            return text
        vector = vector_of(element, lanes)
        numbers = ", ".join(f"i32 {m}" for m in mask)
        return self.pure(self.depth(text), f"shufflevector {vector} {text}, {vector} poison, <{len(mask)} x i32> <{numbers}>")

    def body(self) -> str:
        """The text of the function between its braces."""
        lines = ["entry:", *self.stack]
        _flatten(self.code, lines)
        return "\n".join([*lines, *self.cold])


def _flatten(code: Sequence[Line], into: list[str]) -> None:
    for line in code:
        if isinstance(line, str):
            into.append(line)
        else:
            _flatten(line, into)


def dtype_of(value: Value) -> DType:
    """The element type of a scalar or vector."""
    return value.type.dtype  # type: ignore[union-attr]
