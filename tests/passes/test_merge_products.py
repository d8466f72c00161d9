"""merge-products: products of one tensor by weights become one, and what reads them reads pieces of it."""

from __future__ import annotations

import re

import numpy as np
import pytest
from pass_checks import apply, load, operations

from ir.clone import clone_module
from ir.core import Module
from ir.inputs import GeneratedWeights, generate_inputs
from ir.interpreter import Interpreter
from ir.printer import print_module
from passes.infra.decisions import Rule
from passes.infra.manager import Instrumentation, PassManager
from passes.infra.verify_exec import same_bits
from passes.pipelines import load_pipeline
from tests.checks import Case, check_text, execute
from tests.native_checks import check_outputs, compile_checked

HEADS = ["{v}1 = reshape({v}, shape=[B, S, {h}, 4])", "{v}2 = transpose({v}1, perm=[0, 2, 1, 3])"]
ATTENTION = "%s = matmul(%q2, %k2, transpose_b=true)", "%e = softmax(%s)", "%o = matmul(%e, %v2)"


def program(products: list[str], rest: list[str], returned: str = "%o", weights: str = "q: f32[8, 6], k: f32[8, 6], v: f32[8, 6]") -> str:
    declared = [f'%w{n.strip()} = weight(@f, "{n.strip()}") : {t}' for n, t in re.findall(r"(\w+): (\w+\[[^\]]*\])", weights)]
    lines = "".join(f"  {line}\n" for line in [*declared, *products, *rest])
    return f'file @f = "w.npz"\n\ngraph @main(%x: f32[B, S, 6], %p: f32[6]) {{\n{lines}  return {returned}\n}}\n'


def heads(names: str = "qkv", count: int = 2) -> list[str]:
    return [line.format(v=f"%{n}", h=count) for n in names for line in HEADS]


def merged(text: str) -> tuple[Module, int]:
    """The program after the pass, which does nothing the second time, and how many products are one now."""
    module = load(text)
    sources = {f: GeneratedWeights(module, f) for f in module.files}
    before = clone_module(module)
    manager = apply(module, "merge-products", sources)
    check_text(module)
    assert not any(r.changed for r in apply(clone_module(module), "merge-products", sources).records)
    for kind in ("real", "exact"):
        inputs = generate_inputs(before, before.main, {"B": 2, "S": 3}, kind, 0, 1)  # type: ignore[arg-type]
        want, found = (Interpreter(m, sources, quiet=True).run(m.main, inputs) for m in (before, module))
        assert all(same_bits(a, b) if kind == "exact" else np.allclose(a, b, rtol=1e-6, atol=1e-6) for a, b in zip(want, found, strict=True))
    return module, manager.records[-1].statistics.get("products merged", 0)


LINEAR = [f"%{n} = linear(%x, %w{n})" for n in "qkv"]
PLAIN = [f"%{n} = matmul(%x, %w{n})" for n in "qkv"]
BIASES = "q: f32[8, 6], k: f32[8, 6], v: f32[8, 6], a: f32[8], b: f32[8], c: f32[8]"
COLUMNS = "q: f32[6, 8], k: f32[6, 8], v: f32[6, 8]"

CASES = {
    # name: (program, products that are one now)
    "linear": (program(LINEAR, [*heads(), *ATTENTION]), 3),
    "biases": (
        program([f"%{n} = linear(%x, %w{n}, bias=%w{b})" for n, b in zip("qkv", "abc", strict=True)], [*heads(), *ATTENTION], weights=BIASES), 3
    ),
    "one without": (program(["%q = linear(%x, %wq, bias=%wa)", *LINEAR[1:]], [*heads(), *ATTENTION], weights=BIASES), 2),
    "matmul": (program(PLAIN, [*heads(), *ATTENTION], weights=COLUMNS), 3),
    "matmul and a vector": (
        program(
            [f"%{n}0 = matmul(%x, %w{n})\n  %{n} = add(%w{b}, %{n}0)" for n, b in zip("qkv", "abc", strict=True)],
            [*heads(), *ATTENTION],
            weights=BIASES.replace("8, 6", "6, 8"),
        ),
        3,
    ),
    "transposed": (program([f"%{n} = matmul(%x, %w{n}, transpose_b=true)" for n in "qkv"], [*heads(), *ATTENTION]), 3),
    "weights made of others": (
        program(["%t = transpose(%wq)", "%q = matmul(%x, %t)", "%u = mul(%wk, %wk)", "%r = transpose(%u)", "%k = matmul(%x, %r)"],
                [*heads("qk"), "%s = matmul(%q2, %k2, transpose_b=true)"], "%s"), 2,
    ),
    "grouped": (
        program(LINEAR, [*heads("q"), *heads("kv", 1), "%o = attention(%q2, %k2, %v2)"], weights="q: f32[8, 6], k: f32[4, 6], v: f32[4, 6]"), 3
    ),
    "gate and up": (program(["%g = linear(%x, %wq)", "%u = linear(%x, %wk)"], ["%a = silu(%g)", "%o = mul(%a, %u)"]), 0),
    "activations": (program(["%g = linear(%x, %wq)", "%u = linear(%x, %wk)"], ["%a = silu(%g)", "%o = tanh(%u)"], "%a, %o"), 0),
    "results": (program(LINEAR, [], "%q, %k, %v"), 0),
    "results under another shape": (
        program(LINEAR, ["%a = reshape(%q, shape=[B, S, 2, 4])", *heads("kv"), "%o = matmul(%k2, %v2, transpose_b=true)"], "%a, %o"), 2
    ),
    "a parameter as weight": (
        program(["%q = linear(%x, %wq)", "%m = reshape(%p, shape=[1, 6])", "%k = linear(%x, %m)"], [*heads("q"), "%o = softmax(%k)"], "%o, %q2"), 0
    ),
    "other tensors": (program(["%y = softmax(%x)", "%q = linear(%x, %wq)", "%k = linear(%y, %wk)"],
                              [*heads("qk"), "%o = matmul(%q2, %k2, transpose_b=true)"]), 0),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_merged(name: str) -> None:
    text, count = CASES[name]
    module, found = merged(text)
    assert found == count, print_module(module)
    kinds = operations(module)
    assert kinds.count("slice") == count and (kinds.count("linear") + kinds.count("matmul")) <= text.count("linear(") + text.count("matmul(")


def test_text() -> None:
    module, _ = merged(program(LINEAR[:2], [*heads("qk"), "%o = matmul(%q2, %k2, transpose_b=true)"]))
    lines = print_module(module).splitlines()
    assert [line.strip() for line in lines[6:11]] == [
        "%q.concat = concat(%wq, %wk, axis=0) : f32[16, 6]",
        "%q.linear = linear(%x, %q.concat) : f32[B, S, 16]",
        "%q = slice(%q.linear, starts=[0], ends=[8], axes=[2]) : f32[B, S, 8]",
        "%k = slice(%q.linear, starts=[8], ends=[16], axes=[2]) : f32[B, S, 8]",
        "%q1 = reshape(%q, shape=[B, S, 2, 4]) : f32[B, S, 2, 4]",
    ]


def test_weights_behind_the_first_product_are_brought() -> None:
    text = program(["%q = linear(%x, %wq)", '%wz = weight(@f, "z") : f32[6, 8]', "%t = transpose(%wz)", "%k = linear(%x, %t)"],
                   [*heads("qk"), "%o = matmul(%q2, %k2, transpose_b=true)"])  # fmt: skip
    module, found = merged(text)
    assert found == 2 and operations(module).index("linear") > operations(module).index("transpose")


def test_nothing_is_copied() -> None:
    """The pieces are places in the loops that read them, and the weights are put together when the program is loaded."""
    module = load(program(LINEAR, [*heads(), *ATTENTION]))
    pipeline = "O1,merge-products,decompose,hoist-to-init,lower-to-linalg,fuse"
    apply(module, pipeline, {f: GeneratedWeights(module, f) for f in module.files})
    text = print_module(module)
    nests = [op for op in module.main.block if op.name == "linalg.generic"]
    assert len(nests) == 4 and "= concat(" not in text[: text.index("graph @main.init")]
    assert "= slice(" not in text and text.count("linalg.reduce") >= 4


def test_the_merge_is_recorded() -> None:
    module = load(CASES["linear"][0])
    manager = PassManager(load_pipeline("merge-products"), Instrumentation(explain=True), {f: GeneratedWeights(module, f) for f in module.files})
    manager.run(module)
    (found,) = manager.records[0].decisions
    assert [s.name for s in found.steps] == ["q", "k", "v"] and found.what == "product"
    assert [(d.step, d.reader, d.verdict) for d in found.decisions] == [(0, 1, Rule.MERGED), (0, 2, Rule.MERGED)]


@pytest.mark.parametrize("name", ["biases", "matmul", "grouped"])
def test_machine_code(name: str) -> None:
    """The same bits as from products of their own, and what the interpreter computes."""
    module = load(CASES[name][0])
    both = [compile_checked(module, p) for p in ("cpu", "infer-types," + ",".join(map(str, _without_merging())))]
    for sizes in ({"B": 1, "S": 1}, {"B": 2, "S": 9}, {"B": 0, "S": 3}):
        inputs = generate_inputs(module, module.main, sizes, "real", 0, 1)
        case = Case("main", sizes, "real", inputs, execute(module, "main", inputs, "real"))
        found, plain = (n.run(case) for n in both)
        check_outputs(module, case, found, str(case))
        assert all(map(same_bits, found, plain))


def _without_merging() -> list[str]:
    from passes.infra.pipeline import format_pass

    return [text for text in map(format_pass, load_pipeline("cpu")) if not text.startswith("merge-products")]
