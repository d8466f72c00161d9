"""From a module to text.  What is printed here parses back to the same program, comments and names included."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ir.attributes import Attribute, Dense, FileRef, GraphRef
from ir.core import DROPPED, Block, Graph, Module, Operation, Trivia, Value, WeightFile
from ir.dims import Dim, DimExpr, UnknownDim, format_dim, substitute, symbol, symbols_of
from ir.layout import LAYOUT, AccessArg, Argument, BindArg, ExpressionArg, IndexExpr, LoopDim, OperandArg, RangeArg, defines_argument
from ir.opdef import PRESENT
from ir.tokens import KEYWORDS
from ir.types import TYPE_CLASSES, DType, UnknownType

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.]*")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_HEADER_WIDTH = 110


def format_name(name: str) -> str:
    """``%name``, quoted where it has other characters than letters, digits, ``_`` and ``.``."""
    return "%" + (name if _PLAIN_NAME.fullmatch(name) else json.dumps(name, ensure_ascii=False))


def format_float(value: float) -> str:
    """The shortest decimal that reads back as the same float64; ``bits(...)`` for a NaN with a payload."""
    if math.isnan(value):
        bits = struct.unpack("<Q", struct.pack("<d", value))[0]
        return "nan" if bits == 0x7FF8000000000000 else f"bits(0x{bits:016x})"
    return _tidy(repr(value))


def _tidy(text: str) -> str:
    """Python's float text without the zeros and plus signs that say nothing."""
    if "inf" in text or "nan" in text:
        return text
    mantissa, mark, exponent = text.partition("e")
    if mark:
        return f"{mantissa}e{int(exponent)}"
    return text if "." in text else text + ".0"


def format_attribute(value: Attribute) -> str:
    """The text of an attribute value."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return format_float(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, tuple):
        return "[" + ", ".join(map(format_attribute, value)) + "]"
    if isinstance(value, (GraphRef, FileRef)):
        return f"@{value.name}"
    if isinstance(value, Dense):
        return format_dense(value)
    if isinstance(value, (DimExpr, UnknownDim)):
        return format_dim(value)
    assert isinstance(value, (DType, *TYPE_CLASSES))
    return str(value)


def format_dense(dense: Dense) -> str:
    """Nested lists, or one element when all have the same bits and the tensor has a shape."""
    array = dense.array
    render = _element_formatter(dense.dtype)
    if array.size > 1:
        raw = array.reshape(-1).view(f"u{dense.dtype.itemsize}")
        if bool((raw == raw[0]).all()):
            return render(array.reshape(-1)[0])
    return _nested(array, render)


def _nested(array: NDArray[Any], render: Callable[[Any], str]) -> str:
    if array.ndim == 0:
        return render(array[()])
    return "[" + ", ".join(_nested(row, render) for row in array) + "]" if array.ndim > 1 else "[" + ", ".join(map(render, array)) + "]"


def _element_formatter(dtype: DType) -> Callable[[Any], str]:
    if dtype.kind == "bool":
        return lambda v: "true" if v else "false"
    if not dtype.is_float:
        return lambda v: str(int(v))
    nan_bits = {"f64": 0x7FF8000000000000, "f32": 0x7FC00000, "f16": 0x7E00, "bf16": 0x7FC0}[dtype.name]

    def render(value: Any) -> str:
        number = float(value)
        if math.isnan(number):
            bits = int.from_bytes(value.tobytes(), "little")
            return "nan" if bits == nan_bits else f"bits(0x{bits:0{dtype.bits // 4}x})"
        if dtype.name == "bf16":
            return _tidy(_shortest(number, value))
        return _tidy(str(value))

    return render


def _shortest(number: float, value: Any) -> str:
    """Fewest digits that round to the same element; for types whose own text is not the shortest."""
    kind = type(value)
    for digits in range(1, 18):
        text = f"{number:.{digits}g}"
        if kind(float(text)) == value:
            return repr(float(text))
    return repr(number)


class Printer:
    """Collects lines.  ``locations`` also writes where every operation comes from."""

    def __init__(self, locations: bool = False) -> None:
        self.locations = locations
        self.lines: list[str] = []

    # -- modules and graphs ----------------------------------------------------------------------------------------

    def module(self, module: Module) -> None:
        if module.version_line:
            self._before(module.version_trivia, "", first=True)
            self.lines.append("graph_format 1" + _behind(module.version_trivia))
        for weights in module.files.values():
            self._before(weights.trivia, "", first=not self.lines)
            self.lines.append(format_file(weights) + _behind(weights.trivia))
        for graph in module.graphs.values():
            if self.lines and not (graph.bare and prints_bare(graph)) and not (graph.trivia and graph.trivia.blank_before):
                self.lines.append("")
            if graph.bare and prints_bare(graph):
                self.bare_graph(graph)
            else:
                self.graph(graph)
        self._block_comments(module.comments, "", bool(self.lines))

    def graph(self, graph: Graph) -> None:
        self._before(graph.trivia, "", first=not self.lines)
        self._header(graph)
        self.block(graph.block, "  ")
        self.lines.append("}" + _behind(graph.trivia))

    def _header(self, graph: Graph) -> None:
        parameters = [f"{format_name(p.name)}: {p.type}{' inout' if p.inout else ''}" for p in graph.parameters]
        signature = format_signature(graph)
        line = f"graph @{graph.name}({', '.join(parameters)}){signature}"
        if len(line) > _HEADER_WIDTH or any(p.trivia for p in graph.parameters):
            self.lines.append(f"graph @{graph.name}(")
            for i, (text, parameter) in enumerate(zip(parameters, graph.parameters, strict=True)):
                trivia = parameter.trivia
                for comment in trivia.leading if trivia else ():
                    self.lines.append(f"  {comment}")
                comma = "," if i + 1 < len(parameters) else ""
                self.lines.append(f"  {text}{comma}{_behind(trivia)}")
            self.lines.append(f"){signature}")
        else:
            self.lines.append(line)
        if graph.constraints:
            self.lines.append("  where " + ", ".join(map(format_constraint, graph.constraints)) + " {")
        else:
            self.lines[-1] += " {"

    def bare_graph(self, graph: Graph) -> None:
        """The form without header: ``input()`` lines, operations, no return."""
        floating = _input_positions(graph)
        for parameter in floating.get(None, []):
            self._input(parameter)
        for op in graph.block:
            for parameter in floating.get(op, []):
                self._input(parameter)
            if op.definition.full_name == "graph.return":
                if op.trivia is not None:
                    self._block_comments(op.trivia.detached, "", True)
                continue
            self.operation(op, "", bare=True)
        self._block_comments(graph.block.comments, "", bool(self.lines))

    def _input(self, parameter: Value) -> None:
        trivia = getattr(parameter, "trivia", None)
        self._before(trivia, "", first=not self.lines)
        suffix = "" if isinstance(parameter.type, UnknownType) else f" : {parameter.type}"
        self.lines.append(f"{_bare_name(parameter)} = input(){suffix}{_behind(trivia)}")

    # -- comments --------------------------------------------------------------------------------------------------

    def _before(self, trivia: Trivia | None, indent: str, first: bool) -> None:
        if trivia is None:
            return
        if trivia.blank_before and not first:
            self.lines.append("")
        for block in trivia.detached:
            self.lines.extend(f"{indent}{comment}" for comment in block)
            self.lines.append("")
        self.lines.extend(f"{indent}{comment}" for comment in trivia.leading)

    def _block_comments(self, blocks: Iterable[tuple[str, ...]], indent: str, after_something: bool) -> None:
        for i, block in enumerate(blocks):
            if i or after_something:
                self.lines.append("")
            self.lines.extend(f"{indent}{comment}" for comment in block)

    # -- operations ------------------------------------------------------------------------------------------------

    def block(self, block: Block, indent: str) -> None:
        start = len(self.lines)
        for op in block:
            self.operation(op, indent, first=len(self.lines) == start)
        self._block_comments(block.comments, indent, len(self.lines) > start)

    def operation(self, op: Operation, indent: str, bare: bool = False, first: bool = False) -> None:
        self._before(op.trivia, indent, first or not self.lines)
        head = indent + self._results(op, bare) + self._call(op)
        tail = self._types(op) + (format_location(op) if self.locations else "") + _behind(op.trivia)
        for region in op.regions:
            self.lines.append(head + " {")
            for block in region.blocks:
                self.block(block, indent + "  ")
            head = indent + "}"
        self.lines.append(head + tail)

    def _results(self, op: Operation, bare: bool) -> str:
        if not op.results:
            return ""
        if bare and len(op.results) == 1:
            return _bare_name(op.results[0]) + " = "
        return ", ".join(format_name(r.name) for r in op.results) + " = "

    def _call(self, op: Operation) -> str:
        definition = op.definition
        if definition.is_terminator:
            names = ", ".join(format_name(v.name) for v in op.operands)
            return f"{definition.text_name} {names}" if names else definition.text_name
        return f"{definition.text_name}({', '.join(operation_arguments(op))})"

    def _types(self, op: Operation) -> str:
        if not op.results or all(isinstance(r.type, UnknownType) for r in op.results):
            return ""
        return " : " + ", ".join(str(r.type) for r in op.results)


def operation_arguments(op: Operation) -> list[str]:
    """The texts between the parentheses, in order."""
    definition = op.definition
    texts: list[str] = []
    present: tuple[Any, ...] = ()
    operands = [format_name(v.name) for v in op.operands]
    if definition.has_layout:
        texts += _layout_texts(op)
        names = op.attributes.get(PRESENT, ())
        assert isinstance(names, tuple)
        texts += [f"{n}={o}" for n, o in zip(names, operands[len(operands) - len(names) :], strict=True)]
    else:
        present = op.attributes.get(PRESENT, ())  # type: ignore[assignment]
        texts += [format_attribute(op.attributes[a.name]) for a in definition.positional_attributes if a.name in op.attributes]
        count = len(operands) - len(present)
        texts += operands[:count]
        texts += [f"{n}={o}" for n, o in zip(present, operands[count:], strict=True)]
    leading = {a.name for a in definition.positional_attributes}
    order = [n for n in definition.attribute_specs if n in op.attributes and n not in leading]
    extra = sorted(n for n in op.attributes if "." in n and n not in (PRESENT, LAYOUT))
    texts += [f"{n}={format_attribute(op.attributes[n])}" for n in (*order, *extra)]
    return texts


def _layout_texts(op: Operation) -> list[str]:
    names = [format_name(v.name) for v in op.operands]
    arguments: tuple[Argument, ...] = op.attributes[LAYOUT]  # type: ignore[assignment]
    defined = iter(op.regions[0].block.arguments if op.regions else ())

    def expr(dim: Dim) -> str:
        bindings = {n: symbol(names[int(n[1:])]) for n in symbols_of(dim) if n.startswith("%")}
        return format_dim(substitute(dim, bindings) if bindings else dim)

    def index(item: IndexExpr) -> str:
        return expr(item.expr) + (f":+{item.size}" if item.size is not None else "")

    def one(argument: Argument) -> str:
        if isinstance(argument, OperandArg):
            return names[argument.position]
        if isinstance(argument, ExpressionArg):
            return expr(argument.expr)
        if isinstance(argument, AccessArg):
            return f"{names[argument.position]}[{', '.join(map(index, argument.indices))}]"
        if isinstance(argument, LoopDim):
            return f"{'reduce ' if argument.reduce else ''}{argument.name} < {expr(argument.bound)}"
        if isinstance(argument, RangeArg):
            step = "" if argument.step == 1 else f" step {expr(argument.step)}"
            return f"{expr(argument.start)} to {expr(argument.stop)}{step}"
        assert isinstance(argument, BindArg)
        return one(argument.source)

    return [f"{format_name(next(defined).name)} = {one(a)}" if defines_argument(a) else one(a) for a in arguments]


def _behind(trivia: Trivia | None) -> str:
    return "".join(f"  {comment}" for comment in trivia.trailing[:1]) if trivia else ""


def _bare_name(value: Value) -> str:
    return "%" + f"{format_name(value.name)[1:]:<4}"


def _input_positions(graph: Graph) -> dict[Operation | None, list[Value]]:
    """Where the ``input()`` lines of a bare graph go: as written while that keeps the parameters' order, else on top."""
    order = {op: i for i, op in enumerate(graph.block)}
    positions = [order.get(p.anchor, -1) if p.anchor is not None else -1 for p in graph.parameters]
    first_use = [min((order[u.owner] for u in p.uses if u.owner in order), default=len(order)) for p in graph.parameters]
    kept = all(a <= b for a, b in zip(positions, positions[1:], strict=False)) and all(a <= b for a, b in zip(positions, first_use, strict=True))
    by_op: dict[Operation | None, list[Value]] = {}
    for parameter, position in zip(graph.parameters, positions, strict=True):
        anchor = parameter.anchor if kept and position >= 0 else None
        by_op.setdefault(anchor, []).append(parameter)
    return by_op


def prints_bare(graph: Graph) -> bool:
    """Whether the bare form says everything: the results are exactly the unused values in order, under their names."""
    if graph.name != "main" or graph.constraints or any(p.inout for p in graph.parameters):
        return False
    returned = graph.block.terminator
    if returned is None or (returned.trivia and (returned.trivia.leading or returned.trivia.trailing)):
        return False
    values = [*graph.parameters, *(r for op in graph.block for r in op.results)]
    unused = [v for v in values if v.name != DROPPED and all(u.owner is returned for u in v.uses)]
    if unused != returned.operands or len(set(unused)) != len(returned.operand_uses):
        return False
    return [v.name for v in unused] == graph.result_names


def format_signature(graph: Graph) -> str:
    """`` -> types``; names where they were written or differ from those of the returned values; nothing while all types are unknown."""
    returned = graph.block.terminator
    values = returned.operands if returned is not None else []
    # names stand for all results or for none: a text that has one reads back as a program that writes them
    named = graph.names_results or graph.result_names != _implied_names(values)[: len(graph.result_names)]
    if not named and all(isinstance(t, UnknownType) for t in graph.result_types):
        return ""
    parts = [f"{_format_label(n)}: {t}" if named else str(t) for n, t in zip(graph.result_names, graph.result_types, strict=False)]
    if len(parts) == 1 and not named:
        return f" -> {parts[0]}"
    return f" -> ({', '.join(parts)})"


def _format_label(name: str) -> str:
    """A result's name in a header: a word where the grammar takes it for one, else ``%name``."""
    return name if _WORD.fullmatch(name) and name not in KEYWORDS else format_name(name)


def _implied_names(values: list[Value]) -> list[str]:
    taken: dict[str, None] = {}
    for value in values:
        name, number = value.name, 1
        while name in taken:
            name, number = f"{value.name}.{number}", number + 1
        taken[name] = None
    return list(taken)


def format_constraint(constraint: Any) -> str:
    """One condition of a ``where`` clause."""
    text = format_dim(constraint.dims[0])
    for comparison, dim in zip(constraint.comparisons, constraint.dims[1:], strict=True):
        text += f" {comparison} {format_dim(dim)}"
    return text


def format_file(weights: WeightFile) -> str:
    """A ``file`` declaration."""
    digest = f' sha256 "{weights.sha256}"' if weights.sha256 is not None else ""
    return f"file @{weights.name} = {json.dumps(weights.path, ensure_ascii=False)}{digest}"


def format_location(op: Operation) -> str:
    """`` loc("f.graph":3:5)`` with every origin; empty when there is none."""
    if op.loc is None:
        return ""
    places = ", ".join(f"{json.dumps(f, ensure_ascii=False)}:{line}:{col}" for f, line, col in op.loc.places)
    return f" loc({places})"


def print_module(module: Module, *, locations: bool = False) -> str:
    """The text of a module; :func:`ir.parser.parse_module` reads it back."""
    printer = Printer(locations)
    printer.module(module)
    return "\n".join(printer.lines) + "\n" if printer.lines else ""


def print_operation(op: Operation) -> str:
    """The text of one operation, regions included."""
    printer = Printer()
    printer.operation(op, "", first=True)
    return "\n".join(printer.lines)
