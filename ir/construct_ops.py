"""Builds operations from what the parser reads: names, operands, attributes, regions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ir import literals
from ir.attributes import Attribute, Dense, FileRef, GraphRef
from ir.comments import CommentKeeper
from ir.core import DROPPED, Block, Module, Operation, Region, Trivia, Value
from ir.diagnostics import AnyLocation, Diagnostics, FusedLocation, Location, NamedLocation, Source, did_you_mean
from ir.dims import Dim
from ir.layout import LAYOUT, AccessArg, Argument, BindArg, ExpressionArg, IndexExpr, LoopDim, OperandArg, RangeArg, operand_symbol
from ir.literals import LiteralProblem, Node
from ir.opdef import PRESENT, REGISTRY, AttributeSpec, OpDef, TypeProblem, check_attributes
from ir.tokens import Comment, Token
from ir.types import UNKNOWN, ScalarType, TensorType, Type, UnknownType, VectorType


class OpNode:
    """What the parser read of one operation."""

    __slots__ = ("results", "name", "arguments", "regions", "types", "loc", "trivia")

    def __init__(self, results: list[Token], name: Token, arguments: list[Any], regions: list[RegionNode], types: list[Any], loc: Any) -> None:
        self.results = results
        self.name = name
        self.arguments = arguments
        self.regions = regions
        self.types = types
        self.loc = loc
        self.trivia: Trivia | None = None


class RegionNode:
    __slots__ = ("ops", "comments")

    def __init__(self, ops: list[OpNode], comments: tuple[tuple[str, ...], ...]) -> None:
        self.ops = ops
        self.comments = comments


class OperationRules(literals.LiteralRules):
    """The parser's callbacks for operations, and the building of one in the scope of the graph in progress."""

    def __init__(self, source: Source, report: Diagnostics, comments: list[Comment]) -> None:
        self.source = source
        self.report = report
        self.comments = CommentKeeper(comments)
        self.open_braces: list[int] = []
        self.previous_end = 0
        self.module = Module(source)
        self.values: dict[str, Value] = {}
        self.places: dict[str, AnyLocation] = {}
        self.missing: dict[str, list[Location]] = {}
        self.abandoned: set[str] = set()
        self.return_abandoned = False
        self.enclosing: dict[Block, Block] = {}  # of the regions in progress
        self.calls: list[tuple[str, AnyLocation]] = []

    def at(self, token: Token | Node | int) -> Location:
        """A place in the text."""
        return Location(self.source, token if isinstance(token, int) else token.start)

    def _trivia(self, start: Token) -> Trivia | None:
        return self.comments.of_statement(start, self.previous_end, self.open_braces[-1] if self.open_braces else -1)

    def _string(self, token: Token) -> str:
        try:
            return literals.string_value(token)
        except LiteralProblem as problem:
            self.report.error(problem.message, self.at(problem.offset))
            return ""

    # -- callbacks -------------------------------------------------------------------------------------------------

    def empty_region(self, children: list[Any]) -> list[OpNode]:
        return []

    def extend_region(self, children: list[Any]) -> list[OpNode]:
        children[0].append(children[1])
        return children[0]  # type: ignore[no-any-return]

    def region(self, children: list[Any]) -> RegionNode:
        ops = children[1]
        if isinstance(children[2], OpNode):
            ops.append(children[2])
        return RegionNode(ops, self.comments.of_block(children[0].start, children[-1].start))

    def result_names(self, children: list[Token]) -> list[Token]:
        return children

    def op_name(self, children: list[Token]) -> Token:
        return children[0]

    def op(self, children: list[Any]) -> OpNode:
        node: OpNode = children[-1]
        if len(children) > 1:
            node.results = children[0]
        node.trivia = self._trivia(node.results[0] if node.results else node.name)
        return node

    def call(self, children: list[Any]) -> OpNode:
        name, arguments, *rest = children
        regions = [r for r in rest if isinstance(r, RegionNode)]
        types: list[Any] = []
        loc = None
        for extra in rest:
            if isinstance(extra, tuple):
                if extra[0] == "types":
                    types = extra[1]
                else:
                    loc = extra[1]
        return OpNode([], name, arguments, regions, types, loc)

    def terminator(self, children: list[Any]) -> OpNode:
        name = children[0]
        operands: list[Any] = []
        loc = None
        for extra in children[1:]:
            if isinstance(extra, tuple):
                loc = extra[1]
            else:
                operands = extra
        node = OpNode([], name, operands, [], [], loc)
        node.trivia = self._trivia(name)
        return node

    def terminator_name(self, children: list[Token]) -> Token:
        return children[0]

    def operands(self, children: list[Token]) -> list[Token]:
        return children

    def arguments(self, children: list[Any]) -> list[Any]:
        return children

    def type_list(self, children: list[Any]) -> Any:
        return "types", children

    def loc(self, children: list[Any]) -> Any:
        return "loc", children

    def place(self, children: list[Token]) -> NamedLocation:
        return NamedLocation(self._string(children[0]), int(children[1].text[:9]), int(children[2].text[:9]))

    # -- building --------------------------------------------------------------------------------------------------

    def _build(self, node: OpNode, block: Block, top: bool = False) -> Operation | None:
        definition = self._find_definition(node, top)
        if definition is None:
            self._abandon_results(node)
            return None
        operands: list[Value] = []
        attributes: dict[str, Attribute] = {}
        if definition.has_layout:
            ok = self._layout_arguments(node, definition, block, operands, attributes)
        else:
            ok = self._plain_arguments(node, definition, block, operands, attributes)
        types = [self._type(t) for t in node.types]
        count = self._result_count(node, definition, types)
        if ok and any(a.annotation is Dense for a in definition.positional_attributes):
            ok = self._complete_constant(node, definition, attributes, types)
        if ok:
            try:
                attributes = check_attributes(definition, attributes)
            except TypeProblem as problem:
                self.report.error(problem.message, self._attribute_place(node, problem.attribute), hint=problem.hint)
                ok = False
        if not ok or count is None:
            self._abandon_results(node)
            return None
        regions = self._build_regions(node, definition, operands, attributes, block)
        types += [UNKNOWN] * (count - len(types))
        names = [self._result_name(t) for t in node.results] or [DROPPED] * count
        loc: AnyLocation = self.at(node.name)
        if node.loc is not None:
            loc = node.loc[0] if len(node.loc) == 1 else FusedLocation(node.loc)
        op = Operation(definition, operands, attributes, regions, types[:count], names, loc)
        op.trivia = node.trivia
        for token, name, value in zip(node.results, names, op.results, strict=False):
            if name != DROPPED and self._declare(name, self.at(token)):
                self.values[name] = value
        return op

    def _find_definition(self, node: OpNode, top: bool) -> OpDef | None:
        text = node.name.text
        definition = REGISTRY.get(text if "." in text else f"graph.{text}")
        if definition is None:
            names = [d.text_name for d in REGISTRY.values()]
            hint = did_you_mean(text, names)
            if text == "input":
                hint = "inside 'graph @name(...)' the inputs are the parameters"
            self.report.error(f"there is no operation '{text[:80]}'", self.at(node.name), hint=hint)
        elif definition.is_terminator and definition.name != ("return" if top else "yield"):
            other = "a graph ends in 'return'" if top else "a region ends in 'yield'"
            self.report.error(f"'{text}' can't stand here", self.at(node.name), hint=other)
            return None
        return definition

    def _result_count(self, node: OpNode, definition: OpDef, types: Sequence[Type]) -> int | None:
        named = len(node.results)
        count = definition.result_count
        if count is None:
            count = named or len(types)
        if count != named:
            if count == 0:
                self.report.error(f"'{node.name.text}' has no result", self.at(node.results[0]))
            elif named == 0:
                hint = "write %name = ..., or %_ = ... to drop it"
                self.report.error(f"the result of '{node.name.text}' needs a name", self.at(node.name), hint=hint)
            else:
                self.report.error(f"'{node.name.text}' has {count} result{'s' * (count != 1)}, but {named} are named", self.at(node.results[0]))
            return None
        if types and len(types) != count:
            self.report.error(f"{count} result{'s' * (count != 1)}, but {len(types)} types", self.at(node.name))
            return None
        return count

    def _result_name(self, token: Token) -> str:
        return DROPPED if token.text == "%_" else self._value_name(token)

    def _abandon_results(self, node: OpNode) -> None:
        for token in node.results:
            if token.text != "%_":
                name = self._value_name(token)
                self.abandoned.add(name)
                self.places.setdefault(name, self.at(token))

    def abandon(self, popped: Sequence[Any]) -> None:
        """Called after a syntax error with what the parser had read of the broken statement."""
        for item in popped:
            tokens = item if isinstance(item, list) else [item]
            for token in tokens:
                if isinstance(token, Token) and token.type == "RETURN":
                    self.return_abandoned = True
                if isinstance(token, Token) and token.type == "VALUE":
                    self.abandoned.add(self._value_name(token))

    def _declare(self, name: str, location: AnyLocation) -> bool:
        first = self.places.get(name)
        if first is not None:
            self.report.error(f"%{name} is already defined", location, notes=[("first defined here", first)])
            return False
        self.places[name] = location
        return True

    def is_file(self, name: str) -> bool:
        return name in self.module.files

    # -- operands and attributes -----------------------------------------------------------------------------------

    def _value_name(self, token: Token) -> str:
        text = token.text[1:]
        if not text.startswith('"'):
            return text
        try:
            name = json.loads(text)
        except ValueError:
            name = None
        problem = literals.name_problem(name) if isinstance(name, str) else "bad escape in this name"
        if problem:
            self.report.error(problem, self.at(token))
            return "invalid"
        return str(name)

    def _use(self, token: Token, block: Block) -> Value:
        """The value a token names; a placeholder when it is not defined (yet)."""
        name = self._value_name(token)
        value = self.values.get(name)
        if value is not None and self._is_visible(value, block):
            return value
        location = self.at(token)
        if value is not None:
            notes = [("defined here, inside a region", self.places.get(name))]
            self.report.error(f"%{name} is not visible here", location, notes=notes)
        else:
            self.missing.setdefault(name, []).append(location)
        return Value(name, UNKNOWN, block, -1)

    def _is_visible(self, value: Value, block: Block) -> bool:
        """Whether ``value`` is defined in ``block`` or one around it."""
        home = value.owner if isinstance(value.owner, Block) else value.owner.block
        at: Block | None = block
        while at is not None:
            if at is home:
                return True
            at = self.enclosing.get(at)
        return False

    def _plain_arguments(self, node: OpNode, definition: OpDef, block: Block, operands: list[Value], attributes: dict[str, Attribute]) -> bool:
        positional: list[Token] = []
        named: dict[str, Value] = {}
        literals_given: list[Any] = []
        ok = True
        for argument in node.arguments:
            if isinstance(argument, Token) and argument.type == "VALUE":
                positional.append(argument)
            elif isinstance(argument, Node) and argument.kind == "attribute":
                ok &= self._keyword(argument, definition, block, named, attributes)
            elif isinstance(argument, Node) and argument.kind in _LAYOUT_FORMS:
                self.report.error(f"'{node.name.text}' takes plain operands and attributes only", self.at(argument))
                ok = False
            else:
                literals_given.append(argument)
        for spec, literal in zip(definition.positional_attributes, literals_given, strict=False):
            value = self._attribute_value(literal, spec)
            ok &= value is not _FAILED
            attributes[spec.name] = value
        if len(literals_given) > len(definition.positional_attributes):
            extra = literals_given[len(definition.positional_attributes)]
            self.report.error(f"'{node.name.text}' takes no literal here", self.at(extra), hint=self._signature_hint(definition))
            ok = False
        elif len(literals_given) < len(definition.positional_attributes) and definition.positional_attributes[len(literals_given)].required:
            spec = definition.positional_attributes[len(literals_given)]
            if spec.name not in attributes:
                self.report.error(f"'{node.name.text}' needs '{spec.name}'", self.at(node.name), hint=self._signature_hint(definition))
                ok = False
        required = len(definition.required_operands)
        if len(positional) < required or (len(positional) > required and definition.variadic is None):
            found = f"found {len(positional)}"
            takes = f"at least {required}" if definition.variadic else str(required)
            self.report.error(
                f"'{node.name.text}' takes {takes} operand{'s' * (required != 1)}, {found}",
                self.at(positional[required]) if len(positional) > required else self.at(node.name),
                hint=self._signature_hint(definition),
            )
            ok = False
        operands.extend(self._use(t, block) for t in positional)
        present = tuple(o.name for o in definition.optional_operands if o.name in named)
        operands.extend(named[name] for name in present)
        if present:
            attributes[PRESENT] = present
        return ok

    def _keyword(self, node: Node, definition: OpDef, block: Block, named: dict[str, Value], attributes: dict[str, Attribute]) -> bool:
        key, value = node.parts
        if key.text in (PRESENT, LAYOUT):
            self.report.error(f"the name '{key.text}' is reserved", self.at(key))
            return False
        optional = any(o.name == key.text for o in definition.optional_operands)
        if key.text in attributes or key.text in named:
            self.report.error(f"'{key.text}' is given twice", self.at(key))
            return False
        if isinstance(value, Token) and value.type == "VALUE":
            used = self._use(value, block)
            if optional:
                named[key.text] = used
                return True
            if key.text in definition.attribute_specs:
                self.report.error(f"'{key.text}' is an attribute, not an operand", self.at(value), hint="write a literal")
                return False
            known = [*definition.attribute_specs, *(o.name for o in definition.optional_operands)]
            operand = any(o.name == key.text for o in definition.operand_specs)
            hint = f"'{key.text}' is given by position" if operand else did_you_mean(key.text, known)
            self.report.error(f"'{definition.text_name}' has no optional operand '{key.text}'", self.at(key), hint=hint)
            return False
        if optional:
            self.report.error(f"'{key.text}' is an operand: expected a value (%name)", self.at(value))
            return False
        spec = definition.attribute_specs.get(key.text)
        converted = self._attribute_value(value, spec)
        attributes[key.text] = converted
        return converted is not _FAILED

    def _attribute_value(self, node: Any, spec: AttributeSpec | None) -> Any:
        if spec is not None and spec.annotation is Dense:
            return node  # converted when the type is known
        wants_file = spec is not None and spec.annotation is FileRef
        try:
            value = self.attribute_of(node)
        except LiteralProblem as problem:
            self.report.error(problem.message, self.at(problem.offset), hint=problem.hint)
            return _FAILED
        if isinstance(value, GraphRef) and wants_file:
            value = FileRef(value.name)
        if isinstance(value, GraphRef):
            self.calls.append((value.name, self.at(node)))
        if isinstance(value, FileRef) and value.name not in self.module.files:
            hint = did_you_mean(value.name, self.module.files) or f'write file @{value.name} = "path" above'
            self.report.error(f"file @{value.name} is not declared", self.at(node), hint=hint)
            return _FAILED
        return value

    def _complete_constant(self, node: OpNode, definition: OpDef, attributes: dict[str, Attribute], types: list[Type]) -> bool:
        declared = types[0] if types else UNKNOWN
        tensor = definition.dialect == "graph"
        if not isinstance(declared, UnknownType) and not isinstance(declared, TensorType if tensor else (ScalarType, VectorType)):
            self.report.error(f"a constant is a {'tensor' if tensor else 'scalar or vector here'}, not {declared}", self.at(node.name))
            return False
        if isinstance(declared, (ScalarType, VectorType)):
            declared = TensorType(declared.dtype, declared.shape if isinstance(declared, VectorType) else ())
        try:
            attributes["value"] = self.dense_of(attributes["value"], declared if isinstance(declared, TensorType) else None)
        except LiteralProblem as problem:
            self.report.error(problem.message, self.at(problem.offset), hint=problem.hint)
            return False
        return True

    def _signature_hint(self, definition: OpDef) -> str:
        from ir.docs import signature_text

        return f"its form is {signature_text(definition)}"

    def _attribute_place(self, node: OpNode, attribute: str | None) -> Location:
        for argument in node.arguments:
            if isinstance(argument, Node) and argument.kind == "attribute" and argument.parts[0].text == attribute:
                return self.at(argument)
        return self.at(node.name)

    def _type(self, node: Any) -> Type:
        try:
            return self.type_of(node)
        except LiteralProblem as problem:
            self.report.error(problem.message, self.at(problem.offset), hint=problem.hint)
            return UNKNOWN

    def _dim(self, node: Any) -> Dim:
        try:
            return self.dim_of(node)
        except LiteralProblem as problem:
            self.report.error(problem.message, self.at(problem.offset), hint=problem.hint)
            return 0

    # -- operations with regions -----------------------------------------------------------------------------------

    def _layout_arguments(self, node: OpNode, definition: OpDef, block: Block, operands: list[Value], attributes: dict[str, Attribute]) -> bool:
        layout: list[Argument] = []
        named: dict[str, Value] = {}
        ok = True
        for argument in node.arguments:
            if isinstance(argument, Node) and argument.kind == "attribute":
                ok &= self._keyword(argument, definition, block, named, attributes)
                continue
            try:
                layout.append(self._layout_argument(argument, block, operands, definition.takes_expressions))
            except LiteralProblem as problem:
                self.report.error(problem.message, self.at(problem.offset), hint=problem.hint)
                ok = False
        attributes[LAYOUT] = tuple(layout)  # type: ignore[assignment, arg-type]
        present = tuple(o.name for o in definition.optional_operands if o.name in named)
        operands.extend(named[name] for name in present)
        if present:
            attributes[PRESENT] = present
        return ok

    def _layout_argument(self, node: Any, block: Block, operands: list[Value], expressions: bool) -> Argument:
        def operand(token: Token) -> int:
            operands.append(self._use(token, block))
            return len(operands) - 1

        def expr(part: Any) -> Dim:
            return self.dim_of(part, lambda token: operand_symbol(operand(token)))

        def access(base: Token, indices: Sequence[Any]) -> AccessArg:
            position = operand(base)
            found = []
            for index in indices:
                if isinstance(index, Node) and index.kind == "sized_index":
                    found.append(IndexExpr(expr(index.parts[0]), int(index.parts[1].text[:18])))
                else:
                    found.append(IndexExpr(expr(index)))
            return AccessArg(position, tuple(found))

        if expressions:
            if isinstance(node, Node) and node.kind not in _EXPRESSIONS:
                raise LiteralProblem("expected an index expression", node.start)
            return ExpressionArg(expr(node))
        if isinstance(node, Token) and node.type == "VALUE":
            return OperandArg(operand(node))
        if isinstance(node, Node):
            parts = node.parts
            if node.kind == "access":
                return access(parts[0], parts[1])
            if node.kind == "access_binding":
                return BindArg(access(parts[1], parts[2]))
            if node.kind == "binding" and isinstance(parts[1], Token) and parts[1].type == "VALUE":
                return BindArg(OperandArg(operand(parts[1])))
            if node.kind == "range_binding":
                return RangeArg(expr(parts[1]), expr(parts[2]), expr(parts[3]) if len(parts) > 3 else 1)
            if node.kind in ("parallel_dim", "reduce_dim"):
                return LoopDim(parts[0].text, expr(parts[1]), node.kind == "reduce_dim")
        raise LiteralProblem("expected an operand, an access, a range, a binding or a loop dimension", node.start)

    def _build_regions(self, node: OpNode, definition: OpDef, operands: list[Value], attributes: dict[str, Attribute], block: Block) -> list[Region]:
        regions: list[Region] = []
        for region_node in node.regions:
            inner = Block()
            region = Region([inner])
            self.enclosing[inner] = block
            for token in _region_argument_tokens(node) if not regions else []:
                name = self._value_name(token)
                value = Value(name, UNKNOWN, inner, len(inner.arguments))
                inner.arguments.append(value)
                if self._declare(name, self.at(token)):
                    self.values[name] = value
            for op_node in region_node.ops:
                op = self._build(op_node, inner)
                if op is not None:
                    inner.append(op)
            inner.comments = region_node.comments
            regions.append(region)
        return regions


_FAILED: Any = object()
_EXPRESSIONS = ("add", "sub", "mul", "division", "function", "negative")
_LAYOUT_FORMS = ("binding", "range_binding", "access", "access_binding", "parallel_dim", "reduce_dim")


def _region_argument_tokens(node: OpNode) -> list[Token]:
    defining = ("binding", "access_binding", "range_binding")
    return [a.parts[0] for a in node.arguments if isinstance(a, Node) and a.kind in defining]
