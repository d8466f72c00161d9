"""sink-casts: weights are widened behind what moves them, and stay narrow where products read them."""

from __future__ import annotations

import pytest
from pass_checks import check, operations, optimize

from ir.core import Module
from ir.printer import print_module

HEAD = 'file @f = "w.npz"\n\n'


def program(*body: str, result: str = "f32[B, 8]", dtype: str = "bf16") -> str:
    weight = f'%w = weight(@f, "w") : {dtype}[8, 4]'
    lines = "".join(f"  {line}\n" for line in (weight, *body, "return %y"))
    return f"{HEAD}graph @main(%x: f32[B, 4], %ids: i64[3]) -> {result} {{\n{lines}}}\n"


def types(module: Module) -> dict[str, str]:
    return {r.name: str(r.type) for op in module.main.walk() for r in op.results}


WIDE = "%c = cast(%w, dtype=f32)"


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize(
    ("move", "result", "narrow"),
    [
        ("%y = transpose(%c, perm=[1, 0])", "f32[4, 8]", "[4, 8]"),
        ("%y = reshape(%c, shape=[2, 16])", "f32[2, 16]", "[2, 16]"),
        ("%y = flatten(%c)", "f32[8, 4]", "[8, 4]"),
        ("%y = unsqueeze(%c, axes=[0])", "f32[1, 8, 4]", "[1, 8, 4]"),
        ("%y = slice(%c, starts=[1], ends=[5], axes=[0])", "f32[4, 4]", "[4, 4]"),
        ("%y = concat(%c, %c, axis=0)", "f32[16, 4]", "[16, 4]"),
        ("%y = gather(%c, %ids)", "f32[3, 4]", "[3, 4]"),
    ],
)
def test_moves(move: str, result: str, narrow: str, dtype: str) -> None:
    after = check(program(WIDE, move, result=result, dtype=dtype), "sink-casts")
    assert operations(after)[-1] == "cast"
    assert types(after)["y.narrow"] == f"{dtype}{narrow}" and types(after)["y"] == result


def test_text() -> None:
    """Moves behind moves; a product gets the cast, a table is read narrow."""
    body = (WIDE, "%r = reshape(%c, shape=[4, 8])", "%t = transpose(%r, perm=[1, 0])", "%p = linear(%x, %t)", "%e = gather(%c, %ids)", "%s = sum(%e)")
    after = check(program(*body, "%y = add(%p, %s)"), "sink-casts")
    assert operations(after) == ["weight", "reshape", "transpose", "cast", "linear", "gather", "cast", "sum", "add"]
    assert [t for n, t in types(after).items() if n in ("r.narrow", "t.narrow", "e.narrow")] == ["bf16[4, 8]", "bf16[8, 4]", "bf16[3, 4]"]


@pytest.mark.parametrize(
    "body",
    [
        ("%n = cast(%x, dtype=bf16)", "%c = cast(%n, dtype=f32)", "%y = transpose(%c, perm=[1, 0])"),  # nothing that is stored
        ("%c = cast(%w, dtype=f64)", "%t = transpose(%c, perm=[1, 0])", "%y = cast(%t, dtype=f32)"),  # another type
        (WIDE, "%t = concat(%c, %x, axis=0)", "%y = transpose(%t, perm=[1, 0])"),  # with something wide
        (WIDE, "%v = cast(%w, dtype=f16)", "%u = cast(%v, dtype=f32)", "%t = concat(%c, %u, axis=0)", "%y = transpose(%t, perm=[1, 0])"),
    ],
)
def test_what_stays(body: tuple[str, ...]) -> None:
    text = program(*body, result="?")
    after = check(text, "sink-casts")
    assert operations(after) == ["weight", *(line.partition("= ")[2].partition("(")[0] for line in body)]


def test_weights_of_products_stay_narrow() -> None:
    """All of it: one packed product of two narrow weights, a tied table, f32 for what is no factor."""
    text = f"""{HEAD}graph @main(%x: f32[B, 64], %ids: i64[B]) -> (f32[1, B, 96], f32[1, B, 32], f32[B, 64], f32[B, 40]) {{
  %q = weight(@f, "q") : bf16[96, 64]
  %k = weight(@f, "k") : bf16[32, 64]
  %t = weight(@f, "t") : bf16[40, 64]
  %n = weight(@f, "n") : bf16[64]
  %qw = cast(%q, dtype=f32)
  %kw = cast(%k, dtype=f32)
  %tw = cast(%t, dtype=f32)
  %nw = cast(%n, dtype=f32)
  %xn = mul(%x, %nw)
  %a = linear(%xn, %qw)
  %b = linear(%xn, %kw)
  %c = reshape(%a, shape=[1, B, 96])
  %d = reshape(%b, shape=[1, B, 32])
  %ca = softmax(%c, axis=1)
  %da = softmax(%d, axis=1)
  %e = embedding(%tw, %ids)
  %o = linear(%e, %tw)
  return %ca, %da, %e, %o
}}
"""
    after = check(print_module(optimize(text, "merge-products,decompose,cse")), "sink-casts,hoist-to-init")
    stored = [str(op.result.type) for op in after.main.walk() if op.name in ("graph.initial", "graph.weight")]
    assert stored == ["bf16[40, 64]", "f32[64]", "bf16[128, 64]"]
