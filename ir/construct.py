"""Builds modules and graphs from what the parser reads, one statement at a time.

The methods called by the parser have the names of the rules in grammar.lark.  Nothing is raised for wrong input:
complaints go to the report, and a placeholder value keeps later complaints from repeating the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ir.construct_ops import OperationRules, OpNode
from ir.core import DROPPED, Constraint, Graph, Module, Operation, Parameter, Value, WeightFile
from ir.diagnostics import AnyLocation, Diagnostics, Location, Source, did_you_mean
from ir.opdef import REGISTRY
from ir.tokens import Comment, Token, describe_bad
from ir.types import UNKNOWN, Type


class Constructor(OperationRules):
    """State of one parse: the module so far and the graph in progress."""

    def __init__(self, source: Source, report: Diagnostics, comments: list[Comment]) -> None:
        super().__init__(source, report, comments)
        self.bare: Graph | None = None
        self.graph: Graph | None = None
        self.pending_inputs: list[Parameter] = []
        self.bare_scope: tuple[dict[str, Value], dict[str, AnyLocation], dict[str, list[Location]], set[str]] | None = None

    # -- items -----------------------------------------------------------------------------------------------------

    def start(self, children: list[Any]) -> None:
        return None

    def item(self, children: list[Any]) -> None:
        return None

    def bad(self, children: list[Token]) -> None:
        message, offset = describe_bad(self.source, children[0])
        self.report.error(message, self.at(offset))

    def version_line(self, children: list[Token]) -> None:
        keyword, number = children
        if self.module.version_line:
            self.report.error("graph_format is given twice", self.at(keyword))
        if number.text != "1":
            self.report.error(f"graph_format {number.text[:20]} is not known", self.at(number), hint="this version reads graph_format 1")
        self.module.version_line = True
        self.module.version_trivia = self.comments.of_statement(keyword, self.previous_end, -1)

    def file_declaration(self, children: list[Token]) -> None:
        keyword, symbol, _, path, *digest = children
        name = symbol.text[1:]
        trivia = self.comments.of_statement(keyword, self.previous_end, -1)
        if name in self.module.files:
            self.report.error(f"file @{name} is declared twice", self.at(symbol))
            return
        sha = self._string(digest[-1]) if digest else None
        if sha is not None and (len(sha) != 64 or not set(sha) <= set("0123456789abcdef")):
            self.report.error("sha256 must be 64 lower-case hexadecimal digits", self.at(digest[-1]))
        self.module.files[name] = WeightFile(name, self._string(path), sha, self.at(symbol), trivia)

    # -- graphs ----------------------------------------------------------------------------------------------------

    def header(self, children: list[Any]) -> Token:
        keyword, symbol, _, parameters, _, *extras = children
        name = symbol.text[1:]
        if name in self.module.graphs:
            self.report.error(f"graph @{name} is defined twice", self.at(symbol), notes=[("first defined here", self.module.graphs[name].loc)])
        graph = Graph(name, loc=self.at(symbol))
        self._suspend_bare()
        self._open(graph)
        for value, type_node, inout in parameters:
            self._add_parameter(value, self._type(type_node), inout is not None)
        for kind, payload in extras:
            if kind == "signature":
                for result_name, type_node in payload:
                    graph.result_names.append(self._result_label(result_name) if result_name is not None else "")
                    graph.names_results |= result_name is not None
                    graph.result_types.append(self._type(type_node))
            else:
                graph.constraints = tuple(c for c in map(self._constraint, payload) if c is not None)
        self.comments.of_header(graph, keyword)
        return keyword  # type: ignore[no-any-return]

    def _result_label(self, token: Token) -> str:
        """A result's name in the header: a word, or ``%name`` where a word would not do."""
        return self._value_name(token) if token.type == "VALUE" else token.text

    def parameters(self, children: list[Any]) -> list[Any]:
        return children

    def parameter(self, children: list[Any]) -> tuple[Any, Any, Any]:
        return children[0], children[1], children[2] if len(children) > 2 else None

    def one_result(self, children: list[Any]) -> Any:
        return "signature", [(None, children[0])]

    def results_signature(self, children: list[Any]) -> Any:
        return "signature", children

    def result(self, children: list[Any]) -> Any:
        return None, children[0]

    def named_result(self, children: list[Any]) -> Any:
        return children[0], children[1]

    def where(self, children: list[Any]) -> Any:
        return "where", children

    def constraint(self, children: list[Any]) -> list[Any]:
        return children

    def compare(self, children: list[Token]) -> str:
        return children[0].text

    def _constraint(self, parts: list[Any]) -> Constraint | None:
        dims = [self._dim(p) for p in parts[0::2]]
        return Constraint(tuple(dims), tuple(parts[1::2]))

    def _add_parameter(self, token: Token, type_: Type, inout: bool) -> Parameter:
        assert self.graph is not None
        name = self._value_name(token)
        location = self.at(token)
        duplicate = not self._declare(name, location)
        parameter = self.graph.add_parameter(name, type_, inout=inout, loc=location)
        if not duplicate:
            self.values[name] = parameter
        return parameter

    def graph_definition(self, children: list[Any]) -> None:
        graph = self.graph
        assert graph is not None
        braces = [c for c in children if isinstance(c, Token) and c.type in ("LBRACE", "RBRACE")]
        for child in children:
            if isinstance(child, OpNode):
                self._build_top(child)
        graph.block.comments = self.comments.of_block(braces[0].start, braces[-1].start)
        if graph.trivia is not None:
            graph.trivia.trailing = self.comments.behind(self.previous_end)
        if graph.block.terminator is None and not self.return_abandoned:
            self.report.error(f"graph @{graph.name} does not end in 'return'", self.at(braces[-1]))
        self._close()
        if graph.name not in self.module.graphs:
            self.module.add(graph)
        self._resume_bare()

    def _open(self, graph: Graph) -> None:
        self.graph = graph
        self.values, self.places, self.missing, self.abandoned = {}, {}, {}, set()
        self.return_abandoned = False

    def _suspend_bare(self) -> None:
        if self.graph is not None and self.graph is self.bare:
            self.bare_scope = (self.values, self.places, self.missing, self.abandoned)
        elif self.graph is not None:
            self._close()
        self.graph = None

    def _resume_bare(self) -> None:
        self.graph = None
        if self.bare is not None and self.bare_scope is not None:
            self.graph = self.bare
            self.values, self.places, self.missing, self.abandoned = self.bare_scope

    def _close(self) -> None:
        """Reports values that were used but never defined, or only later."""
        for name, uses in self.missing.items():
            if name in self.abandoned:
                continue
            if name in self.places:
                notes = [("defined here", self.places[name])]
                self.report.error(f"%{name} is used before its definition", uses[0], notes=notes)
                continue
            known = [v for v in self.values if self.values[v].owner is not None]
            self.report.error(f"%{name} is not defined", uses[0], hint=_value_hint(name, known))
            for use in uses[1:]:
                self.report.error(f"%{name} is not defined", use)

    def finish(self) -> Module:
        """Ends the text: completes the bare graph and returns the module."""
        if self.graph is not None and self.graph is not self.bare:  # a graph that was never closed
            self._close()
            self._resume_bare()
        if self.bare is not None:
            self._resume_bare_if_needed()
            self._finish_bare(self.bare)
        self._check_calls()
        self.module.comments = self.comments.rest()
        return self.module

    def _resume_bare_if_needed(self) -> None:
        if self.graph is not self.bare:
            self._resume_bare()

    def _finish_bare(self, graph: Graph) -> None:
        self._close()
        if graph.block.terminator is None:
            unused = [v for v in _all_values(graph) if not v.has_uses and v.name != DROPPED]
            graph.block.append(Operation(REGISTRY["graph.return"], unused, loc=graph.loc))
        self._complete_signature(graph)
        graph.block.comments = self.comments.rest()
        if "main" in self.module.graphs:
            self.report.error("graph @main is defined, so there can be no operations outside a graph", graph.loc)
        else:
            self.module.add(graph)

    def _check_calls(self) -> None:
        for name, location in self.calls:
            if name not in self.module.graphs:
                self.report.error(f"graph @{name} is not defined", location, hint=did_you_mean(name, self.module.graphs))

    def _complete_signature(self, graph: Graph) -> None:
        """Fills in what the header left out: unknown types, and names after the returned values."""
        returned = graph.block.terminator
        if returned is None:
            return
        values = returned.operands
        if not graph.result_types:
            graph.result_types = [UNKNOWN] * len(values)
            graph.result_names = [""] * len(values)
        taken = {n for n in graph.result_names if n}
        if len(taken) < sum(1 for n in graph.result_names if n):
            self.report.error("two results have the same name", graph.loc)
        for i, value in enumerate(values[: len(graph.result_names)]):
            if not graph.result_names[i]:
                name, number = value.name, 1
                while name in taken:
                    name, number = f"{value.name}.{number}", number + 1
                graph.result_names[i] = name
                taken.add(name)

    # -- operations ------------------------------------------------------------------------------------------------

    def empty_body(self, children: list[Any]) -> None:
        return None

    def extend_body(self, children: list[Any]) -> None:
        self._build_top(children[1])

    def bare_op(self, children: list[Any]) -> None:
        self._bare_statement(children[0])

    def bare_return(self, children: list[Any]) -> None:
        self._bare_statement(children[0])

    def _bare_statement(self, node: OpNode) -> None:
        if self.bare is None:
            first = node.results[0] if node.results else node.name
            self.bare = Graph("main", bare=True, loc=self.at(first))
            self._open(self.bare)
            self.bare_scope = (self.values, self.places, self.missing, self.abandoned)
        if self.graph is not self.bare:
            self._resume_bare()
        if node.name.text == "input":
            self._bare_input(node)
        else:
            self._build_top(node)

    def _bare_input(self, node: OpNode) -> None:
        if node.arguments or node.regions or len(node.results) != 1 or len(node.types) > 1:
            self.report.error("'input' is written %name = input() or %name = input() : type", self.at(node.name))
        type_ = self._type(node.types[0]) if node.types else UNKNOWN
        for result in node.results:
            parameter = self._add_parameter(result, type_, False)
            parameter.trivia = node.trivia
            self.pending_inputs.append(parameter)

    def _build_top(self, node: OpNode) -> None:
        assert self.graph is not None
        op = self._build(node, self.graph.block, top=True)
        if op is None:
            return
        self.graph.block.append(op)
        for parameter in self.pending_inputs:
            parameter.anchor = op
        self.pending_inputs.clear()
        if op.definition.is_terminator and self.graph is not self.bare:
            self._check_result_count(op)
            self._complete_signature(self.graph)

    def _check_result_count(self, op: Operation) -> None:
        assert self.graph is not None
        declared = len(self.graph.result_types)
        if declared and declared != len(op.operand_uses):
            self.report.error(
                f"graph @{self.graph.name} declares {declared} result{'s' * (declared != 1)}, but {len(op.operand_uses)} are returned", op.loc
            )


def _all_values(graph: Graph) -> list[Value]:
    return [*graph.parameters, *(r for op in graph.block for r in op.results)]


def _value_hint(name: str, known: Sequence[str]) -> str | None:
    hint = did_you_mean(name, known[-2000:])
    return hint.replace("'", "'%", 1) if hint else None
