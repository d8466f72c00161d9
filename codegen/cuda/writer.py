"""Statements of one function: names, expressions, blocks, loops, index arithmetic, checks.

While a function is written, names of variables are tokens (numbers between control characters); the names from the graph take their place
at the end.  So kernels that differ in names alone have the same text before, and are emitted once.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from codegen.cuda import names
from codegen.cuda.expressions import NARROW, PRIMARY, WIDE, Expr
from codegen.cuda.types import C_TYPES, c_type, element_constant, vector_constant
from codegen.llvm.native import Site
from codegen.llvm.polynomials import Poly
from codegen.llvm.space import Space
from ir.attributes import Dense
from ir.core import Block, Operation, Value
from ir.diagnostics import Diagnostic, GraphError
from ir.dims import Dim
from ir.types import MemRefType, ScalarType, VectorType, index

INLINE_COST = 4
"""Operations that an expression in the place of a value has at most."""

_TOKEN = re.compile("\x01([0-9]+)\x02")
_MARK = re.compile("\x04([0-9]+)\x05")
_COMMENT = "\x03"
_NUMBER = re.compile("([.][0-9]+)+$")

_SELF_CONTAINED = ("arith", "math", "affine")
"""Dialects whose operations on scalars may become parts of expressions."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory: a pointer (an expression), its elements and shape, a power of two that divides its address, whether it may be written."""

    pointer: str
    type: MemRefType
    shape: tuple[Dim, ...]
    align: int
    readonly: bool = False


Emitter = Callable[["Writer", Operation], None]
EMITTERS: dict[str, Emitter] = {}
"""By full name of the operation: what writes it."""


def emits(*operations: str) -> Callable[[Emitter], Emitter]:
    """Registers what writes some operations."""

    def register(function: Emitter) -> Emitter:
        for name in operations:
            EMITTERS[name] = function
        return function

    return register


@dataclass(slots=True)
class Finished:
    """The text of a function with tokens, the names they stand for, its checks and marks."""

    lines: list[str]
    hints: list[str]
    sites: list[Site]
    marks: list[tuple[str, str]]

    def key(self) -> str:
        """Text that is the same for functions that do the same: without comments and names."""
        return "\n".join(line for line in self.lines if not line.lstrip().startswith(_COMMENT))

    def text(self, first_mark: int = 0) -> str:
        """The function with its names; marks are numbered from ``first_mark`` on."""
        return self.render("\n".join(self.lines).replace(_COMMENT, "// "), first_mark)

    def render(self, text: str, first_mark: int = 0) -> str:
        """A piece of text with names in the place of tokens."""
        chosen = self._names()
        text = _TOKEN.sub(lambda m: chosen[int(m.group(1))], text)
        return _MARK.sub(lambda m: str(first_mark + int(m.group(1))), text)

    def _names(self) -> list[str]:
        chosen: list[str] = []
        taken: set[str] = set()
        for hint in self.hints:
            name = names.unique(names.identifier(hint), taken)
            taken.add(name)
            chosen.append(name)
        return chosen


class Writer:
    """Writes one function, statement by statement."""

    checked = False
    """Whether accesses that are not proved to be inside of their buffers are checked: of a program whose kernels or loops come from outside."""
    together = False
    """Whether threads wait for each other, so that none may leave before the others."""

    def __init__(self, *, marked: bool = False, comments: bool = True, statements: dict[tuple[int, int], str] | None = None) -> None:
        self.lines: list[str] = []
        self.depth = 1
        self.hints: list[str] = []
        self.sites: list[Site] = []
        self.marks: list[tuple[str, str]] = []
        self.marked = marked
        self.comments = comments
        self.space = Space()
        self.values: dict[Value, Expr] = {}
        self.buffers: dict[Value, Buffer] = {}
        self.current: Operation | None = None
        self._fixed: dict[str, str] = {}
        self._symbols: dict[str, Expr] = {}
        self._said: set[str] = set()
        self._statements = {} if statements is None else statements

    # -- names and lines -------------------------------------------------------------------------------------------

    def token(self, hint: str) -> str:
        """A new variable; ``hint`` is what it should be called, without the number that told it from others of the graph."""
        self.hints.append(_NUMBER.sub("", hint) or hint)
        return f"\x01{len(self.hints) - 1}\x02"

    def fixed(self, hint: str) -> str:
        """The one variable of the function for a purpose: ``lane``, ``state``."""
        if hint not in self._fixed:
            self._fixed[hint] = self.token(hint)
        return self._fixed[hint]

    def uses(self, hint: str) -> bool:
        """Whether :meth:`fixed` was asked for a variable."""
        return hint in self._fixed

    def line(self, text: str) -> None:
        """A line at the current depth."""
        self.lines.append("  " * self.depth + text)

    def pragma(self) -> None:
        """Asks for the loop that follows to be unrolled."""
        self.line("#pragma unroll")

    @contextlib.contextmanager
    def block(self, head: str) -> Iterator[None]:
        """``head { ... }``."""
        self.line(f"{head} {{" if head else "{")
        self.depth += 1
        yield
        self.depth -= 1
        self.line("}")

    def say(self, op: Operation) -> None:
        """A comment for every origin of an operation that the function has not named yet."""
        if not self.comments:
            return
        for place in names.origins(op.loc):
            offset = getattr(place, "offset", None)
            key = (id(getattr(place, "source", place)), -1 if offset is None else offset)
            text = self._statements.get(key)
            if text is None:
                text = self._statements[key] = names.statement_at(place)
            if text and text not in self._said:
                self._said.add(text)
                self.line(f"{_COMMENT}{text}")

    def finished(self) -> Finished:
        """What was written."""
        return Finished(self.lines, self.hints, self.sites, self.marks)

    # -- values ----------------------------------------------------------------------------------------------------

    def value(self, value: Value) -> Expr:
        """The expression for a value."""
        found = self.values.get(value)
        if found is None:
            found = self.values[value] = self.outside(value)
        return found

    def outside(self, value: Value) -> Expr:
        """A value that the function did not compute."""
        raise GraphError(Diagnostic(f"codegen: %{value.name} is not known in the kernel", value.location))

    def buffer(self, value: Value) -> Buffer:
        """The memory that a value stands for."""
        found = self.buffers.get(value)
        if found is None:
            found = self.buffers[value] = self.outside_buffer(value)
        return found

    def outside_buffer(self, value: Value) -> Buffer:
        """Memory that the function did not make."""
        raise GraphError(Diagnostic(f"codegen: the memory of %{value.name} is not known in the kernel", value.location))

    def symbol(self, name: str) -> Expr:
        """A named dimension."""
        found = self._symbols.get(name)
        if found is None:
            self.space.symbol(name)
            found = self._symbols[name] = Expr(self.token(name), PRIMARY, 0, 1 << 40)
        return found

    @property
    def symbols(self) -> dict[str, Expr]:
        """The named dimensions that were asked for, in order."""
        return self._symbols

    def result(self, op: Operation, expr: Expr) -> None:
        """Gives the operation's result: as a part of the expression that uses it, or as a variable."""
        value = op.results[0]
        use = value.first_use
        if use is None or expr.cost == 0 or (use.next is None and self._may_move(op, use.owner) and expr.cost <= INLINE_COST):
            self.values[value] = expr
        else:
            self.declare(value, expr)

    def _may_move(self, op: Operation, user: Operation) -> bool:
        return user.block is op.block and not user.regions and isinstance(op.results[0].type, ScalarType) and op.definition.dialect in _SELF_CONTAINED

    def declare(self, value: Value, expr: Expr) -> Expr:
        """A variable for a value."""
        type_ = value.type
        assert isinstance(type_, (ScalarType, VectorType))
        name = self.token(value.name)
        bound, wide = WIDE, True
        text = c_type(type_)
        if isinstance(type_, ScalarType) and type_.dtype == index:
            bound = self.bound_of(value, expr)
            wide = bound >= NARROW
            text = "go_index" if wide else "int"
        self.line(f"const {text} {name} = {expr.text};")
        found = self.values[value] = Expr(name, PRIMARY, 0, bound, wide)
        return found

    def bound_of(self, value: Value, expr: Expr) -> int:
        """A bound of a value of type index: what its expression says, or what proofs know."""
        return min(expr.bound, self.space.magnitude(self.space.expand(self.space.value(value))), WIDE)

    def variable(self, value: Value, expr: Expr | None) -> Expr:
        """A variable that is changed later, by loops and choices; without a value where it is None."""
        type_ = value.type
        if not isinstance(type_, (ScalarType, VectorType)):
            message = f"codegen: %{value.name} of type {type_} is carried by a loop or chosen, which kernels can't"
            raise GraphError(Diagnostic(message, value.location))
        name = self.token(value.name)
        self.line(f"{c_type(type_)} {name}{'' if expr is None else f' = {expr.text}'};")
        return Expr(name)

    def atomic(self, expr: Expr, type_: str, hint: str) -> Expr:
        """The expression, or a variable that has its value, so that it can be written several times."""
        if expr.level == PRIMARY and expr.cost == 0:
            return expr
        name = self.token(hint)
        self.line(f"const {type_} {name} = {expr.text};")
        return Expr(name, PRIMARY, 0, expr.bound, expr.wide)

    def constant(self, op: Operation) -> None:
        """``arith.constant``."""
        value = op.attributes["value"]
        assert isinstance(value, Dense)
        result = op.results[0]
        if isinstance(result.type, ScalarType):
            self.values[result] = element_constant(value.array[()], value.dtype)
            if value.dtype == index:
                number = int(value.array)
                self.space.describe(result, {(): number} if number else {})
        elif isinstance(result.type, VectorType):
            self.result(op, vector_constant(value.array, value.dtype))

    # -- operations ------------------------------------------------------------------------------------------------

    def operation(self, op: Operation) -> None:
        """Writes one operation.  Raises GraphError when kernels don't have it."""
        emitter = EMITTERS.get(op.definition.full_name)
        if emitter is None:
            raise GraphError(Diagnostic(f"codegen: there is no {op.definition.text_name} in kernels", op.loc))
        self.current = op
        self.say(op)
        emitter(self, op)

    def run(self, block: Block, facts: Sequence[Poly] = ()) -> list[Value]:
        """Writes the operations of a block, where ``facts`` hold; the values that it yields."""
        kept = len(self.space.hypotheses)
        self.space.hypotheses += facts
        yielded: list[Value] = []
        for op in block:
            if op.definition.is_terminator:
                yielded = op.operands
            else:
                self.operation(op)
        del self.space.hypotheses[kept:]
        return yielded

    # -- checks ----------------------------------------------------------------------------------------------------

    def site(self, template: str, dims: Sequence[Dim] = (), *, name: str | None = None, given: tuple[int, ...] | None = None) -> int:
        """A new site for the operation that is being written; its number within the function."""
        op = self.current
        assert op is not None
        prefix = op.definition.text_name if name is None else name
        fields = tuple(range(2 + len(dims))) if given is None else given
        self.sites.append(Site("error", prefix, template, tuple(dims), op.loc, given=fields, operation=op))
        return len(self.sites) - 1

    def fail_unless(self, ok: str, site: str, first: str = "0", second: str = "0") -> None:
        """Ends the thread, with a site's message, unless ``ok`` is true."""
        raise GraphError(Diagnostic("codegen: a function can't fail", self.current.loc if self.current is not None else None))

    def complain_unless(self, ok: str, site: str, first: str, second: str) -> None:
        """The same, but the thread goes on."""
        raise GraphError(Diagnostic("codegen: a function can't fail", self.current.loc if self.current is not None else None))

    def thread(self, value: Value) -> Expr:
        """The number of the thread, which ``value`` stands for."""
        raise GraphError(Diagnostic("codegen: a function has no threads", value.location))

    def shared(self, op: Operation, size: int) -> int:
        """The place of a shared buffer of ``size`` bytes in the block's memory."""
        raise GraphError(Diagnostic("codegen: a function has no shared memory", op.loc))

    # -- marks -----------------------------------------------------------------------------------------------------

    def mark(self, kind: str) -> str:
        """The number of a new mark, as text."""
        op = self.current
        assert op is not None
        self.marks.append((kind, op.definition.text_name))
        return f"\x04{len(self.marks) - 1}\x05"


def element_type(value: Value) -> str:
    """The C type of a scalar, or of a vector's elements."""
    assert isinstance(value.type, (ScalarType, VectorType))
    return C_TYPES[value.type.dtype.name]
