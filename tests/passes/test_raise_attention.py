"""raise-attention: what is one attention, and what is not."""

from __future__ import annotations

import numpy as np
import pytest
from pass_checks import load, optimize

import graph_opt
from ir.core import Module
from passes.graph.raise_attention import RaiseAttention
from passes.infra.verify_exec import compare_modules

Q, K = "f32[B, 4, S, 8]", "f32[B, 4, T, 8]"
PRODUCT = "%s = matmul(%q, %k, transpose_b=true)"
END = "%p = softmax(%x)\n%o = matmul(%p, %v)\nreturn %o"


def program(lines: str, more: str = "", q: str = Q, k: str = K, out: str = Q) -> str:
    return f"graph @main(%q: {q}, %k: {k}, %v: {k}{more}) -> {out} {{\n{lines}\n}}\n"


def raised(text: str) -> tuple[str, Module]:
    """The attention after the pass, as it is written; empty when there is none."""
    before = load(text)
    after = optimize(text, "raise-attention,dce")
    outcome = compare_modules(before, after, RaiseAttention.preserves)
    assert outcome.mismatch is None and outcome.skipped is None
    lines = [line.strip() for line in str(after).splitlines() if " = attention(" in line]
    assert len(lines) <= 1
    return (lines[0].partition(" = ")[2].partition(" : ")[0] if lines else ""), after


SCALED = f"{PRODUCT}\n%c = constant(0.25) : f32[]\n%x = mul(%s, %c)\n{END}"
REPEATED = """
%k1 = unsqueeze(%k, axes=[2])
%k2 = expand(%k1, shape=[B, 2, 2, T, 8])
%k3 = reshape(%k2, shape=[B, 4, T, 8])
%v1 = unsqueeze(%v, axes=[2])
%v2 = expand(%v1, shape=[B, 2, 2, T, 8])
%v3 = reshape(%v2, shape=[B, 4, T, 8])
%s = matmul(%q, %k3, transpose_b=true)
%p = softmax(%s, axis=3)
%o = matmul(%p, %v3)
return %o
"""
PADDING = """
%f = cast(%m, dtype=f32)
%one = constant(1.0) : f32[]
%far = constant(-3.0e4) : f32[]
%m1 = sub(%one, %f)
%m2 = mul(%m1, %far)
%m3 = unsqueeze(%m2, axes=[1, 2])
%x = add(%s, %m3)
"""
CAUSAL = """
%i = iota(shape=[S, 1], axis=0)
%j = iota(shape=[S])
%see = {see}
%hidden = constant({number}) : f32[]
%x = where(%see, %s, %hidden)
"""


def causal(see: str, number: str = "-inf", keys: str = "S") -> str:
    lines = PRODUCT + CAUSAL.format(see=see, number=number).replace("%j = iota(shape=[S])", f"%j = iota(shape=[{keys}])")
    return program(lines + END, k=K.replace("T", keys))


RAISED = {
    "plain": (program(f"{PRODUCT}\n{END}".replace("%x", "%s")), "attention(%q, %k, %v, scale=1.0)"),
    "transposed": (
        program("%kt = transpose(%k, perm=[0, 1, 3, 2])\n" + SCALED.replace("%k, transpose_b=true", "%kt")), "attention(%q, %k, %v, scale=0.25)",
    ),
    "scale first": (program(SCALED.replace("mul(%s, %c)", "mul(%c, %s)")), "attention(%q, %k, %v, scale=0.25)"),
    "quotient": (program(SCALED.replace("= mul(", "= div(")), "attention(%q, %k, %v, scale=4.0)"),
    "full": (program(SCALED.replace("constant(0.25) : f32[]", "full(shape=[1], value=-0.5, dtype=f32)")), "attention(%q, %k, %v, scale=-0.5)"),
    "heads": (program(REPEATED, k=K.replace("4", "2")), "attention(%q, %k, %v, scale=1.0)"),
    "one head for all": (program(SCALED, k=K.replace("4", "1")), "attention(%q, %k, %v, scale=0.25)"),
    "padding": (program(PRODUCT + PADDING + END, ", %m: bool[B, T]"), "attention(%q, %k, %v, mask=%m3, scale=1.0)"),
    "padding first": (
        program(PRODUCT + PADDING.replace("%s, %m3", "%m3, %s") + END, ", %m: bool[B, T]"), "attention(%q, %k, %v, mask=%m3, scale=1.0)",
    ),
    "causal": (causal("greater_equal(%i, %j)"), "attention(%q, %k, %v, causal=true, scale=1.0)"),
    "causal, said otherwise": (causal("less_equal(%j, %i)"), "attention(%q, %k, %v, causal=true, scale=1.0)"),
    "one head": (program(f"{PRODUCT}\n{END}".replace("%x", "%s"), q="f32[S, 8]", k="f32[T, 8]", out="f32[S, 8]"), "attention(%q, %k, %v, scale=1.0)"),
}  # fmt: skip


@pytest.mark.parametrize("name", RAISED)
def test_what_is_raised(name: str) -> None:
    text, wanted = RAISED[name]
    found, _ = raised(text)
    assert found == wanted


def test_a_stored_mask() -> None:
    mask = ", ".join(str([0.0 if j <= i else -1e9 for j in range(3)]) for i in range(3))
    q, k = Q.replace("S", "3"), K.replace("T", "3")
    text = program(f"{PRODUCT}\n%m = constant([{mask}]) : f32[3, 3]\n%x = add(%s, %m)\n{END}", q=q, k=k, out=q)
    assert raised(text)[0] == "attention(%q, %k, %v, mask=%m, scale=1.0)"
    assert not raised(text.replace("-1000000000.0", "-inf"))[0], "a query may lose all keys"


LEFT = {
    "another axis": program(SCALED.replace("softmax(%x)", "softmax(%x, axis=2)")),
    "scores are used": program(SCALED.replace("return %o", "%more = max(%s)\n%o2 = add(%o, %more)\nreturn %o2")),
    "weights are used": program(SCALED.replace("return %o", "%more = max(%p)\n%o2 = add(%o, %more)\nreturn %o2")),
    "scale is no number": program(SCALED.replace("constant(0.25) : f32[]", "max(%q)")),
    "scale of each key": program(SCALED.replace("%c = constant(0.25) : f32[]", "").replace("%c", "%f"), ", %f: f32[T]"),
    "quotient that rounds": program(SCALED.replace("= mul(", "= div(").replace("0.25", "3.0")),
    "mask may hide rows": program(f"{PRODUCT}\n%x = add(%s, %m)\n{END}", ", %m: f32[B, 1, 1, T]"),
    "mask of half that is no number": program(PRODUCT + PADDING.replace("-3.0e4", "-inf") + END, ", %m: bool[B, T]"),
    "hidden by a number": causal("greater_equal(%i, %j)", "-1.0e9"),
    "the other way round": causal("greater_equal(%j, %i)"),
    "more keys": causal("greater_equal(%i, %j)", keys="T"),
    "another type": program(SCALED.replace("f32", "f16"), q=Q.replace("f32", "f16"), k=K.replace("f32", "f16"), out=Q.replace("f32", "f16")),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left(name: str) -> None:
    found, after = raised(LEFT[name])
    assert not found
    assert sum(op.name == "graph.matmul" for op in after.walk()) == 2


def test_heads_that_are_not_repeated_alike() -> None:
    lines = [line for line in REPEATED.splitlines() if not line.startswith("%v")]
    text = program("\n".join(["%v3 = concat(%v, %v, axis=1)", *lines]), k=K.replace("4", "2"))
    assert raised(text)[0] == "attention(%q, %k3, %v3, scale=1.0)", "they are as they are written"


def test_results_are_barriers() -> None:
    text = SCALED.replace("return %o", "return %o, %x")
    text = f"graph @main(%q: {Q}, %k: {K}, %v: {K}) -> ({Q}, f32[B, 4, S, T]) {{\n{text}\n}}\n"
    assert not raised(text)[0]


def test_as_machine_code() -> None:
    """The attention of the operation has the bits of the one that is written out."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, 4, n, 8)).astype(np.float32) for n in (33, 140, 140))
    text = program(SCALED)
    short = program("%o = attention(%q, %k, %v, scale=0.25)\nreturn %o")
    found, want = (graph_opt.compile(graph_opt.parse(t))(q, k, v) for t in (text, short))
    assert np.array_equal(found, want)
