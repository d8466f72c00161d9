"""Finding the place of an operand or attribute in the source text again.

Operations remember only where their name stands; when something is wrong, the statement is read once more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ir.core import Graph, Operation, Use
from ir.diagnostics import AnyLocation, Location
from ir.dims import Dim, symbols_of
from ir.opdef import PRESENT

_TOKEN = re.compile(
    r"""//[^\n]*
    | (?P<defined>%(?:[A-Za-z0-9_][A-Za-z0-9_.]*|"(?:\\.|[^"\\\n])*"))\s*=(?!=)
    | (?P<value>%[A-Za-z0-9_][A-Za-z0-9_.]*|%"(?:\\.|[^"\\\n])*")
    | "(?:\\.|[^"\\\n])*"
    | (?P<key>[A-Za-z_][A-Za-z0-9_.]*)\s*=(?!=)
    | (?P<open>[(\[{])
    | (?P<close>[)\]}])""",
    re.VERBOSE,
)


def _statement_tokens(op: Operation) -> list[tuple[str, int, str]]:
    """(kind, offset, text) of the values, keys and defined names in an operation's arguments; empty without a source."""
    if not isinstance(op.loc, Location):
        return []
    text = op.loc.source.text
    found: list[tuple[str, int, str]] = []
    depth = 0
    terminator = op.definition.is_terminator
    for match in _TOKEN.finditer(text, op.loc.offset):
        kind = match.lastgroup
        if kind == "open":
            depth += 1
        elif kind == "close":
            depth -= 1
            if depth <= 0:
                break
        elif kind is not None and (depth > 0 or (terminator and len(found) < len(op.operand_uses))):
            found.append((kind, match.start(kind), match.group(kind)))
        if terminator and len(found) >= len(op.operand_uses):
            break
    return found


def use_location(use: Use) -> AnyLocation | None:
    """Where the operand is written; the operation's own place when it is not in a text."""
    op = use.owner
    tokens = _statement_tokens(op)
    if not tokens or not isinstance(op.loc, Location):
        return op.loc
    source = op.loc.source
    present = op.attributes.get(PRESENT, ())
    assert isinstance(present, tuple)
    first_named = len(op.operand_uses) - len(present)
    if use.index >= first_named:
        key = present[use.index - first_named]
        for (kind, _, text), following in zip(tokens, tokens[1:], strict=False):
            if kind == "key" and text == key and following[0] == "value":
                return Location(source, following[1])
        return op.loc
    named = {i + 1 for i, (kind, _, _) in enumerate(tokens) if kind == "key"}
    positional = [offset for i, (kind, offset, _) in enumerate(tokens) if kind == "value" and i not in named]
    if op.definition.has_layout:
        positional = [offset for kind, offset, _ in tokens if kind == "value"]
    return Location(source, positional[use.index]) if use.index < len(positional) else op.loc


def attribute_location(op: Operation, name: str) -> AnyLocation | None:
    """Where ``name=`` is written in the operation; the operation's own place when it is not."""
    for kind, offset, text in _statement_tokens(op):
        if kind == "key" and text == name and isinstance(op.loc, Location):
            return Location(op.loc.source, offset)
    return op.loc


def symbol_location(graph: Graph, dim: Dim, bound: Mapping[str, None]) -> AnyLocation | None:
    """Where the first name of ``dim`` that ``bound`` lacks stands behind ``where``; else the graph's own place."""
    loc = graph.loc
    name = next((n for n in symbols_of(dim) if n not in bound), None)
    if name is None or not isinstance(loc, Location):
        return loc
    found = re.compile(rf"\bwhere\b[^{{]*?\b({re.escape(name)})\b").search(loc.source.text, loc.offset)
    return Location(loc.source, found.start(1)) if found else loc
