"""The grammar has no conflicts, and the scanner, which is not Lark's, finds the tokens that Lark's finds."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lark import Lark
from lark.exceptions import GrammarError, LexError

from ir.diagnostics import Source
from ir.printer import print_module
from ir.tokens import Comment, Lexer, Token
from tests.checks import all_examples
from tests.generators import random_module
from tests.texts import rewrite_text

GRAMMAR = (Path(__file__).parent.parent / "ir" / "grammar.lark").read_text(encoding="utf-8")
ALTERNATIVES = ["VALUE", "NAME", "COMMENT", "FLOAT", "HEX", "INT", "SYMBOL", "STRING"]
FRAGMENTS = (
    *("%a", '%"q\\"x"', "@w", "name", "name.x", "graph", "return", "step", "0", "12", "1.5", "1.", "1e5", "1.5e-3", "0x1F", "0x", "-", "->"),
    *('"s"', '"a\\\\"', '"', "//", "// c\n", "{", "}", "(", ")", "[", "]", "<", "<=", "==", "=", ":", ":+", "+", ",", "?", "*", "%", "@", "#"),
    *(" ", "\n", "\t", "\f", "é", "inout", "_", "9a", ".", "e5"),
)


@cache
def grammar() -> Lark:
    return Lark(GRAMMAR, parser="lalr", lexer="basic", maybe_placeholders=False)


def strict(text: str) -> Lark:
    """Raises GrammarError for any conflict: two reductions, a shift and a reduction, two terminals that match one text.

    BAD matches any single character that begins no token, by design: it is left out, with the rule that uses it.
    """
    pytest.importorskip("interegular", reason="Lark finds collisions of terminals with interegular")
    text = text.replace("BAD.-9: /[^\\s]/\n", "").replace(" | BAD -> bad", "")
    assert "BAD" not in text
    return Lark(text, parser="lalr", lexer="basic", strict=True)


def test_no_conflicts() -> None:
    strict(GRAMMAR)


@pytest.mark.parametrize(
    "extra",
    [
        "bare_op: op",  # reduce/reduce: a second way to read an operation
        "constraint: expr compare expr",
    ],
)
def test_conflicts_would_be_found(extra: str) -> None:
    name, _, body = extra.partition(": ")
    assert f"\n{name}: " in GRAMMAR
    with pytest.raises(GrammarError):
        strict(GRAMMAR.replace(f"\n{name}: ", f"\n{name}: copy_of_{name} | ") + f"\ncopy_of_{name}: {body}\n")


def test_terminal_collisions_would_be_found() -> None:
    with pytest.raises(LexError, match="NAME and WORD"):
        strict(GRAMMAR.replace("?value: expr", "?value: expr | WORD") + "\nWORD: /[a-z_]+/\n")


def test_the_scanner_knows_all_terminals() -> None:
    lexer = Lexer(grammar())
    known = {*ALTERNATIVES, "BAD", *lexer.keywords.values(), *lexer.punctuation.values()}
    wanted = {t.name for t in grammar().terminals if t.name not in grammar().ignore_tokens}
    assert known - {"COMMENT"} == wanted
    for terminal in grammar().terminals:
        if terminal.pattern.type == "str":
            assert {**lexer.keywords, **lexer.punctuation}[terminal.pattern.value] == terminal.name
    words = {t for t in re.findall(r'"([a-z_0-9]+)"', re.sub(r"/.*/", "", GRAMMAR)) if t[0].isalpha()}
    assert words == set(lexer.keywords)


def ours(text: str) -> list[tuple[str, str, int]]:
    comments: list[Comment] = []
    found: list[Token] = list(Lexer(grammar()).tokens(Source("<t>", text), comments))
    return [(t.type, t.text, t.start) for t in found if t.type != "$END"]


def larks(text: str) -> list[tuple[str, str, int]]:
    return [(t.type, str(t), t.start_pos or 0) for t in grammar().lex(text)]


def test_same_tokens_in_programs() -> None:
    texts = [text for _, _, text in all_examples()]
    texts += [rewrite_text(print_module(random_module(seed)), seed)[0] for seed in range(40)]
    for text in texts:
        assert ours(text) == larks(text)
    assert len(texts) > 150


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join))
def test_same_tokens_in_any_text(text: str) -> None:
    assert ours(text) == larks(text)
