"""From text to a module: drives the LALR tables that Lark makes from grammar.lark, and goes on after a syntax error.

Every operation is built as soon as it is read (no tree of the whole text exists), by :mod:`ir.construct`.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from ir.construct import Constructor
from ir.core import Module
from ir.diagnostics import Diagnostic, Diagnostics, GraphError, Location, NamedLocation, Source
from ir.literals import LiteralProblem
from ir.tokens import Comment, Lexer, Token, describe_bad
from ir.types import Type

_STATEMENT_LISTS = frozenset({"item", "bare_return", "body", "region_ops", "terminator"})
"""A state that may go on with one of these rules is at the level of statements."""
_STATEMENT_STARTS = ("VALUE", "NAME", "RETURN", "YIELD", "RBRACE", "GRAPH", "FILE", "WHERE")


class Reduction:
    """What to do when a rule is complete: take ``size`` values off the stack and put the one they make there.

    ``build`` makes it; None for a rule that only passes its one value on.
    """

    __slots__ = ("build", "name", "size")

    def __init__(self, size: int, name: str, build: Callable[[list[Any]], Any] | None) -> None:
        self.size = size
        self.name = name
        self.build = build


def _lexer_stand_in() -> type[Any]:
    from lark.lexer import Lexer as LarkLexer

    class Unused(LarkLexer):  # type: ignore[misc]
        """Takes the place of Lark's own lexer, whose checks would cost more than reading a program."""

        def __init__(self, conf: Any) -> None:
            pass

        def lex(self, lexer_state: Any, parser_state: Any) -> Any:
            raise NotImplementedError

    return Unused


class Tables:
    """Lark's LALR tables in the form that the loop below wants: state -> symbol -> next state or :class:`Reduction`."""

    def __init__(self) -> None:
        from lark import Lark
        from lark.parsers.lalr_analysis import Shift

        text = (Path(__file__).parent / "grammar.lark").read_text(encoding="utf-8")
        lark = Lark(text, parser="lalr", lexer=_lexer_stand_in(), maybe_placeholders=False, transformer=_SHARED)
        self.lexer = Lexer(lark)
        conf = lark.parse_interactive("").parser_state.parse_conf
        reductions = {rule: _reduction(rule, build) for rule, build in conf.callbacks.items()}
        self.states: dict[Any, dict[str, Any]] = {
            state: {str(symbol): argument if action is Shift else reductions[argument] for symbol, (action, argument) in actions.items()}
            for state, actions in conf.states.items()
        }
        self.start = conf.start_state
        self.end = conf.end_state


def _reduction(rule: Any, build: Callable[[list[Any]], Any]) -> Reduction:
    passes_on = len(rule.expansion) == 1 and rule.options.expand1 and rule.alias is None
    return Reduction(len(rule.expansion), str(rule.origin.name), None if passes_on else build)


@lru_cache(maxsize=1)
def _tables() -> Tables:
    return Tables()


class _Callbacks:
    """Lark binds the callbacks of its grammar once; this object passes them on to the constructor in charge."""

    def __init__(self) -> None:
        self.target: Constructor | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(Constructor, name):
            raise AttributeError(name)
        method = getattr(Constructor, name)
        return lambda children: method(self.target, children)


_SHARED = _Callbacks()


def parse_module(text: str, name: str = "<string>", diagnostics: Diagnostics | None = None) -> Module:
    """The module that ``text`` spells out.

    All syntax and name errors are collected; with ``diagnostics`` they are added there and the part of the module that
    could be read is returned, without it a :class:`GraphError` is raised.
    """
    source = Source(name, text)
    report = diagnostics if diagnostics is not None else Diagnostics()
    enabled = gc.isenabled()
    gc.disable()  # everything built stays alive; collecting meanwhile doubles the time
    previous = _SHARED.target
    try:
        module = _Parse(source, report).run()
    finally:
        _SHARED.target = previous
        if enabled:
            gc.enable()
    if diagnostics is None:
        report.raise_if_any()
    return module


def parse_type(text: str) -> Type:
    """The type that ``text`` spells out.  Raises :class:`ir.literals.LiteralProblem` with an offset into it."""
    prefix = "graph @t(%x: "
    report = Diagnostics()
    _check_is_one_argument(text)
    module = parse_module(f"{prefix}{text}) {{ return }}", "<type>", report)
    if report.items:
        first = report.items[0]
        offset = first.location.offset - len(prefix) if isinstance(first.location, Location) else 0
        raise LiteralProblem(first.message, max(0, min(offset, len(text))), first.hint)
    parameters = module.graphs["t"].parameters if "t" in module.graphs else []
    if len(parameters) != 1 or parameters[0].inout:
        raise LiteralProblem("expected one type", 0)
    return parameters[0].type


def _check_is_one_argument(text: str) -> None:
    """Raises LiteralProblem for a text that would end the parameter it is put into."""
    comments: list[Comment] = []
    depth = 0
    for token in _tables().lexer.tokens(Source("<type>", text), comments):
        depth += (token.text in ("(", "[")) - (token.text in (")", "]"))
        if depth < 0 or token.text in ("{", "}", "%", "inout"):
            raise LiteralProblem(f"unexpected '{token.text}' in a type", token.start)
    if comments:
        raise LiteralProblem("a type has no comment", comments[0].start)


def check_text(text: str, name: str) -> str:
    """The text with one kind of line end.  Raises GraphError for half a surrogate pair, which is no character."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        location = Location(Source(name, text), error.start)
        raise GraphError(Diagnostic(f"unexpected character U+{ord(text[error.start]):04X}", location)) from None
    return text


def decode_text(data: bytes, name: str) -> str:
    """Program text from bytes: UTF-8, with or without a byte-order mark.  Raises GraphError at the first bad byte."""
    if data.startswith(b"GGUF"):  # a model, not text
        hint = "graph-opt import writes its program, graph-opt generate lets it speak"
        raise GraphError(Diagnostic("this is a GGUF file, expected the text of a program", NamedLocation(name, 1, 1), hint))
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        good = data[: error.start].decode("utf-8-sig", "replace")
        source = Source(name, good)
        what = "UTF-16 text" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else f"byte 0x{data[error.start]:02x}"
        place: Location | NamedLocation = Location(source, len(good))
        if "\0" in good:  # nothing that a line could be shown of
            place = NamedLocation(name, *source.line_col(len(good)))
        raise GraphError(Diagnostic(f"not UTF-8: {what}", place, "save the file as UTF-8")) from None
    return text


class _Parse:
    """One run over one text."""

    def __init__(self, source: Source, report: Diagnostics) -> None:
        self.source = source
        self.report = report
        self.comments: list[Comment] = []
        tables = _tables()
        self.lexer = tables.lexer
        self.states = tables.states
        self.end = tables.end
        self.constructor = Constructor(source, report, self.comments)
        _SHARED.target = self.constructor
        self.state_stack: list[Any] = [tables.start]
        self.value_stack: list[Any] = []

    def _feed(self, token: Token) -> bool:
        """Advances the automaton by one token; False, with the stacks at the error, when it can't stand here."""
        states, state_stack, value_stack = self.states, self.state_stack, self.value_stack
        kind = token.type
        while True:
            action = states[state_stack[-1]].get(kind)
            if action is None:
                return False
            if action.__class__ is not Reduction:
                state_stack.append(action)
                value_stack.append(token)
                return True
            size = action.size
            if action.build is None:
                state_stack[-1] = states[state_stack[-2]][action.name]
                continue
            if size:
                children = value_stack[-size:]
                del state_stack[-size:]
                del value_stack[-size:]
            else:
                children = []
            value_stack.append(action.build(children))
            state_stack.append(states[state_stack[-1]][action.name])
            if state_stack[-1] == self.end and kind == "$END":
                return True

    def run(self) -> Module:
        constructor = self.constructor
        braces = constructor.open_braces
        previous_end = 0
        skipping_to: tuple[str, ...] | None = None
        for token in self.lexer.tokens(self.source, self.comments):
            if skipping_to is not None:
                if token.type != "$END" and not (token.newlines and token.type in skipping_to and self._unwind(token)):
                    continue
                skipping_to = None
                if token.type == "$END" and not self._unwind(token):
                    break
            constructor.previous_end = previous_end
            if not self._feed(token):
                self._report(token)
                if token.type == "$END":
                    break
                if not self._in_header() and token.newlines and token.type in _STATEMENT_STARTS and self._unwind(token):
                    self._feed(token)  # the broken statement ended before this one
                else:
                    skipping_to = ("GRAPH", "FILE") if self._in_header() else _STATEMENT_STARTS
                    continue
            if token.type == "LBRACE":
                braces.append(token.start)
            elif token.type == "RBRACE" and braces:
                braces.pop()
            previous_end = token.end
        return constructor.finish()

    # -- after an error --------------------------------------------------------------------------------------------

    def _in_header(self) -> bool:
        """Whether a graph's header has begun and its body has not."""
        kinds = {v.type for v in self.value_stack if isinstance(v, Token)}
        return "GRAPH" in kinds and "LBRACE" not in kinds

    def _unwind(self, token: Token) -> bool:
        """Pops the stacks to the innermost list of statements that can go on with ``token``."""
        depth = len(self.state_stack)
        while depth > 0:
            actions = self.states[self.state_stack[depth - 1]]
            if token.type in actions and not _STATEMENT_LISTS.isdisjoint(actions):
                break
            depth -= 1
        if depth == 0:
            return False
        self.constructor.abandon(self.value_stack[depth - 1 :])
        del self.state_stack[depth:]
        del self.value_stack[depth - 1 :]
        self.constructor.open_braces[:] = [v.start for v in self.value_stack if isinstance(v, Token) and v.type == "LBRACE"]
        return True

    def _report(self, token: Token) -> None:
        if len(self.report.items) >= self.report.limit:
            self.report.error("")  # only counted
            return
        expected = {name for name in self.states[self.state_stack[-1]] if (name.isupper() or name == "$END") and self._accepts(name)}
        source = self.source
        opened = self._innermost_bracket()
        location = Location(source, token.start)
        if token.type == "BAD":
            message, offset = describe_bad(source, token)
            self.report.error(message, Location(source, offset))
            return
        if token.type == "$END" and opened is not None:
            self.report.error(f"'{opened.text}' is never closed", Location(source, opened.start))
            return
        found = "end of text" if token.type == "$END" else f"'{_clip(token.text)}'"
        notes = []
        if opened is not None and opened.text != "{" and (token.newlines or token.text in ")]}"):
            notes.append((f"'{opened.text}' opened here", Location(source, opened.start)))
        last = self.value_stack[-1] if self.value_stack else None
        is_operator = token.type == "VALUE" and isinstance(last, Token) and last.text == "="
        hint = "operations are written as calls: add(%x, %y)" if is_operator else None
        self.report.error(f"unexpected {found}, expected {self._expected(expected)}", location, hint=hint, notes=notes)

    def _accepts(self, kind: str) -> bool:
        """Whether the automaton would take a token of this kind (its tables alone say so too often)."""
        stack = list(self.state_stack)
        while True:
            action = self.states[stack[-1]].get(kind)
            if action is None:
                return False
            if action.__class__ is not Reduction:
                return True
            if action.size:
                del stack[-action.size :]
            stack.append(self.states[stack[-1]][action.name])
            if stack[-1] == self.end:
                return kind == "$END"

    def _innermost_bracket(self) -> Token | None:
        """The last bracket that was opened and not closed."""
        closed = 0
        for value in reversed(self.value_stack):
            if isinstance(value, Token) and value.text in (")", "]", "}"):
                closed += 1
            elif isinstance(value, Token) and value.text in ("(", "[", "{"):
                if not closed:
                    return value
                closed -= 1
        return None

    def _expected(self, names: set[str]) -> str:
        texts = self.lexer.texts
        words = {
            "NAME": "a name",
            "VALUE": "a value (%x)",
            "SYMBOL": "@name",
            "INT": "an integer",
            "STRING": "a string",
            "FLOAT": "a number",
            "$END": "end of text",
        }
        shown = [words.get(n) or f"'{texts.get(n, n)}'" for n in sorted(names) if n not in ("BAD", "HEX", "UNKNOWN")]
        if {"RETURN", "GRAPH"} <= names:
            return "an operation, 'graph' or 'file'"
        if "RETURN" in names:
            return "an operation or '}'"
        if {"NAME", "VALUE", "INT", "FLOAT"} <= names:
            return "an argument" if "RPAR" in names else "a value"
        if {"STAR", "PLUS"} <= names:  # inside an expression: what could end it says more than the operators
            kept = [s for s in shown if s in ("','", "')'", "']'", "'}'", "'>'")]
            shown = kept or shown
        if not shown:
            return "something else"
        return shown[0] if len(shown) == 1 else ", ".join(shown[:-1]) + f" or {shown[-1]}"


def _clip(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."
