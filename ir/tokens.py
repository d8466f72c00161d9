"""From text to tokens.  The terminals are those of grammar.lark; one regular expression finds them all."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ir.diagnostics import Diagnostic, GraphError, Location, Source

if TYPE_CHECKING:
    from lark import Lark

MAX_DEPTH = 256

KEYWORDS = frozenset(
    (
        *("graph_format", "file", "sha256", "graph", "inout", "where", "return", "yield", "loc", "reduce", "to", "step"),
        *("vector", "memref", "floordiv", "ceildiv", "mod"),
    )
)
"""Words of grammar.lark that are not names; a test holds them against it."""


class Token:
    """A terminal: its name in the grammar, its text and its place; ``newlines`` stand between it and what is before."""

    __slots__ = ("type", "text", "start", "end", "newlines")

    def __init__(self, type_: str, text: str, start: int, end: int, newlines: int) -> None:
        self.type = type_
        self.text = text
        self.start = start
        self.end = end
        self.newlines = newlines


class Comment:
    """A ``//`` comment; ``after`` is the end of the token before it."""

    __slots__ = ("text", "start", "end", "newlines", "after")

    def __init__(self, text: str, start: int, end: int, newlines: int, after: int) -> None:
        self.text = text
        self.start = start
        self.end = end
        self.newlines = newlines
        self.after = after


class Lexer:
    """A scanner compiled from the terminals of a Lark grammar."""

    def __init__(self, lark: Lark) -> None:
        punctuation: dict[str, str] = {}
        patterns: dict[str, str] = {}
        self.keywords: dict[str, str] = {}
        for terminal in lark.terminals:
            value = terminal.pattern.value
            if terminal.pattern.type != "str":
                patterns[terminal.name] = value
            elif value[0].isalpha():
                self.keywords[value] = terminal.name
            else:
                punctuation[value] = terminal.name
        self.punctuation = punctuation
        self.texts = {name: text for text, name in [*self.keywords.items(), *punctuation.items()]}
        order = ["VALUE", "NAME", "COMMENT", "FLOAT", "HEX", "INT", "SYMBOL", "STRING"]
        marks = sorted(punctuation, key=len, reverse=True)
        alternatives = [f"(?P<{name}>{patterns[name]})" for name in order]
        alternatives.append("(?P<MARK>" + "|".join(re.escape(m) for m in marks) + ")")
        alternatives.append(r"(?P<BAD>[^\s])")
        self._scan = re.compile(r"([ \t\f\r\n]*)(?:" + "|".join(alternatives) + r"|\Z|(?P<SPACE>\s))").match

    def tokens(self, source: Source, comments: list[Comment]) -> Iterator[Token]:
        """All tokens in order; comments are appended to ``comments`` as they are met.

        Raises GraphError when brackets are nested deeper than MAX_DEPTH, since nothing after that can be trusted.
        """
        text, scan, keywords, punctuation = source.text, self._scan, self.keywords, self.punctuation
        position, depth, after = 0, 0, 0
        size = len(text)
        newlines = 1
        while True:
            match = scan(text, position)
            assert match is not None
            kind = match.lastgroup
            space = match.end(1)
            if space > position:
                newlines += text.count("\n", position, space)
            position = match.end()
            if kind is None or position > size:
                break
            if kind == "COMMENT":
                comments.append(Comment(match.group(kind).rstrip(), space, position, newlines, after))
                newlines = 0
                continue
            found = text[space:position]
            if kind == "NAME":
                kind = keywords.get(found, "NAME")
            elif kind == "MARK":
                kind = punctuation[found]
                if found in "([{":
                    depth += 1
                    if depth > MAX_DEPTH:
                        raise GraphError(Diagnostic(f"brackets are nested deeper than {MAX_DEPTH}", Location(source, space)))
                elif found in ")]}":
                    depth = max(0, depth - 1)
            elif kind == "SPACE":
                kind = "BAD"
            yield Token(kind, found, space, position, newlines)
            after = position
            newlines = 0
        yield Token("$END", "", size, size, newlines)


def describe_bad(source: Source, token: Token) -> tuple[str, int]:
    """What is wrong with a character that begins no token, and where."""
    text, offset = token.text, token.start
    following = source.text[token.end : token.end + 1]
    if text in "%@" and following and not following.isspace() and not following.isprintable():
        text, offset = following, token.end
    if text == '"':
        return "this string is not closed on its line", offset
    if text == "%":
        return "a value needs a name after '%'", offset
    if text == "@":
        return "a graph or file needs a name after '@'", offset
    if text.isprintable() and text.isascii():
        return f"unexpected character '{text}'", offset
    return f"unexpected character U+{ord(text):04X}", offset
