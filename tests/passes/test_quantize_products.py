"""quantize-products: what is packed together, what shares digits, and how far results may be from those of floats."""

from __future__ import annotations

import numpy as np
import pytest
from pass_checks import apply, load, operations

import graph_opt
from ir.clone import clone_module
from ir.core import Module
from ir.diagnostics import GraphError
from ir.inputs import GeneratedWeights, generate_inputs
from ir.interpreter import Interpreter
from ir.printer import print_module
from ir.types import q4_1, q8_0
from passes.graph.quantize_products import PRECISIONS, QuantizeProducts
from passes.infra.base import PassContext
from passes.infra.verify_exec import compare_modules
from tests.checks import check_text

FORMATS = ("q4_0", "q4_1", "q8_0")


def program(body: str, returned: str, parameters: str = "%x: f32[B, 64], %y: f32[B, 64]") -> str:
    lines = "".join(f"  {line.strip()}\n" for line in body.strip().splitlines())
    return f'file @f = "w.npz"\n\ngraph @main({parameters}) {{\n{lines}  return {returned}\n}}\n'


def weights(**types: str) -> str:
    return "".join(f'%{n} = weight(@f, "{n}") : {t}\n' for n, t in types.items())


def quantized(text: str, digits: int = 3) -> Module:
    """The program after the pass, which does nothing the second time; the results are within the tolerance of before."""
    module = load(text)
    before = clone_module(module)
    apply(module, f"quantize-products{{digits={digits}}}", {f: GeneratedWeights(module, f) for f in module.files})
    check_text(module)
    assert not QuantizeProducts(digits).run(clone_module(module), PassContext())
    found = compare_modules(before, module, "approximate", tolerance=QuantizeProducts(digits).tolerance())
    assert found.mismatch is None and found.skipped is None, found
    return module


def lines(module: Module, operation: str) -> list[str]:
    return [line.strip() for line in print_module(module).splitlines() if f"= {operation}(" in line]


@pytest.mark.parametrize("digits", [0, 1, 2, 3])
@pytest.mark.parametrize("format_", FORMATS)
def test_products_of_one_tensor(format_: str, digits: int) -> None:
    text = program(
        weights(q=f"{format_}[40, 64]", k=f"{format_}[8, 64]", b="f32[8]", o=f"{format_}[7, 64]")
        + "%a = linear(%x, %q)\n%c = linear(%x, %k, bias=%b)\n%d = linear(%y, %o)",
        "%a, %c, %d",
    )
    module = quantized(text, digits)
    kinds = operations(module)
    assert kinds.count("pack_rows") == 2 and kinds.count("slice") == 2 and kinds.count("add") == 1 and "linear" not in kinds
    assert kinds.count("split_digits") == (2 if digits else 0) and kinds.count("digit_linear" if digits else "packed_linear") == 2


def test_what_is_not_packed_together() -> None:
    """Other formats, other tensors, weights that other products have too, tables."""
    text = program(
        weights(a="q4_1[40, 64]", b="q8_0[8, 64]", c="q4_1[7, 64]", t="q4_1[33, 64]")
        + "%e = embedding(%t, %ids)\n%p = linear(%x, %a)\n%q = linear(%x, %b)\n%r = linear(%x, %c)\n%s = linear(%y, %c)\n%u = linear(%x, %t)\n"
        + "%v = gather(%t, %ids, axis=0)",
        "%e, %p, %q, %r, %s, %u, %v",
        "%x: f32[B, 64], %y: f32[B, 64], %ids: i32[S]",
    )
    module = quantized(text)
    assert [line.split(" = ")[1].split(" : ")[0] for line in lines(module, "pack_rows")] == [
        "pack_rows(%t)", "pack_rows(%a)", "pack_rows(%b)", "pack_rows(%c)",
    ]  # fmt: skip
    assert len(lines(module, "split_digits")) == 2 and len(lines(module, "packed_embedding")) == 2 and not lines(module, "slice")


def test_repeated_layers_share_what_is_packed() -> None:
    text = program(
        weights(a="q4_0[32, 64]", b="q4_0[32, 64]") + "%p = linear(%x, %a)\n%q = linear(%x, %b)\n%r = linear(%y, %a)\n%s = linear(%y, %b)",
        "%p, %q, %r, %s",
    )
    module = quantized(text)
    assert len(lines(module, "pack_rows")) == 1 and len(lines(module, "digit_linear")) == 2 and len(lines(module, "slice")) == 4


def test_one_weight_twice() -> None:
    both = "%p = linear(%x, %a)\n%r = linear(%x, %a, bias=%b)\n"
    module = quantized(program(weights(a="q4_0[40, 64]", b="f32[40]", c="q4_0[9, 64]") + both + "%s = linear(%x, %c)", "%p, %r, %s"))
    assert lines(module, "pack_rows") == ["%p.packed = pack_rows(%a, %c) : u8[2, 2, 576]"]
    module = quantized(program(weights(a="q4_0[40, 64]", b="f32[40]") + both, "%p, %r"))
    assert len(lines(module, "digit_linear")) == 1 and not lines(module, "slice")


def test_weights_are_packed_at_load_time() -> None:
    module = quantized(program(weights(v="q8_0[9, 64]", w="q8_0[30, 64]") + "%p = linear(%x, %v)\n%q = linear(%x, %w)", "%p, %q"))
    apply(module, "hoist-to-init", {f: GeneratedWeights(module, f) for f in module.files})
    main, init = print_module(module).split("graph @main.init")
    assert "pack_rows" in init and "weight(" not in main and "pack_rows" not in main


@pytest.mark.parametrize(
    "body",
    [
        "%p = linear(%x, %w)",  # no blocks
        "%d = dequantize(%b)\n%p = matmul(%x, %d, transpose_b=true)",
        "%p = linear(%x, %b)",  # parameters
        "%p = linear(%x, %n)",
        "%p = embedding(%b, %i)",
        "%p = gather(%m, %i, axis=1)",
    ],
)
def test_what_stays(body: str) -> None:
    parameters = "%x: f32[B, 64], %w: f32[5, 64], %b: q8_0[5, 64], %n: q4_1[N, 64], %m: q4_1[2, 3, 64], %i: i64[4]"
    module = load(program(body, "%p", parameters))
    before = print_module(module)
    assert not QuantizeProducts().run(module, PassContext()) and print_module(module) == before


@pytest.mark.parametrize("operation", ["embedding(%t, %i)", "gather(%t, %i)", "gather(%t, %i, axis=-2)"])
def test_an_id_out_of_range_names_what_was_written(operation: str) -> None:
    name = operation.partition("(")[0]
    text = f"graph @main(%t: q4_1[40, 64], %i: i64[2]) -> f32[2, 64] {{\n  %e = {operation}\n  return %e\n}}"
    run = graph_opt.compile(graph_opt.parse(text), constants={"t": np.zeros((40, 2), q4_1.numpy)})
    with pytest.raises(GraphError) as caught:
        run(np.array([0, 40]))
    assert f"error: {name}: {name} index 40 at position [1] is out of range for axis 0: expected -40 <= index < 40" in str(caught.value)
    assert f"%e = {operation}" in str(caught.value) and "packed" not in str(caught.value)


@pytest.mark.parametrize("precision", ["f32", "float"])
@pytest.mark.parametrize(("rows", "size"), [(3, 0), (0, 64), (0, 0)])
def test_empty_weights_compile(rows: int, size: int, precision: str) -> None:
    results = f"f32[2, {rows}], f32[S, {size}], f32[S, {size}]"
    text = f"""
    graph @main(%x: f32[2, {size}], %w: q4_1[{rows}, {size}], %t: q8_0[{rows}, {size}], %i: i64[S]) -> ({results}) {{
      %y = linear(%x, %w)
      %e = embedding(%t, %i)
      %g = gather(%w, %i, axis=0)
      return %y, %e, %g
    }}
    """
    constants = {"w": np.zeros((rows, size // 32), q4_1.numpy), "t": np.zeros((rows, size // 32), q8_0.numpy)}
    run = graph_opt.compile(graph_opt.parse(text), constants=constants, precision=precision)
    ids = np.array([2, 0, -3][:rows], np.int64)
    product, embedded, gathered = run(np.zeros((2, size), np.float32), ids)
    assert np.array_equal(product, np.zeros((2, rows), np.float32))
    assert embedded.shape == gathered.shape == (len(ids), size)
    with pytest.raises(GraphError, match="index 3 at position .* out of range" if rows else "no index is in range"):
        run(np.zeros((2, size), np.float32), np.array([rows], np.int64))


@pytest.mark.parametrize(("digits", "bits"), [(3, 22.91), (2, 15.91), (1, 7.90)])
def test_the_error_is_bounded(digits: int, bits: float) -> None:
    """By half a unit of every activation times the weights, also where 3 % of the activations are a hundred times as large."""
    module = load(program(weights(w="q4_1[33, 96]") + "%p = linear(%x, %w)", "%p", "%x: f32[B, 96]"))
    sources = {f: GeneratedWeights(module, f) for f in module.files}
    rng = np.random.default_rng(digits)
    x = (rng.standard_normal((64, 96)) * np.where(rng.random((64, 96)) < 0.03, 100, 1)).astype(np.float32)
    (exact,) = Interpreter(module, sources, double=True).run(module.main, [x])
    (identity,) = Interpreter(module, sources, double=True).run(module.main, [np.eye(96, dtype=np.float32)])
    QuantizeProducts(digits).run(module, PassContext())
    (found,) = Interpreter(module, sources, double=True).run(module.main, [x])
    largest = np.abs(x.reshape(64, 3, 32)).max(axis=-1)
    bound = (largest * 2.0**-bits) @ np.abs(identity).reshape(3, 32, -1).sum(axis=1)
    assert np.all(np.abs(found - exact) <= bound) and np.any(found != exact)


def test_tolerances_tell_digits_apart() -> None:
    before = load(program(weights(w="q4_1[33, 96]") + "%p = linear(%x, %w)", "%p", "%x: f32[B, 96]"))
    for digits in (1, 2):
        after = clone_module(before)
        QuantizeProducts(digits).run(after, PassContext())
        found = compare_modules(before, after, "approximate", tolerance=QuantizeProducts(digits + 1).tolerance())
        assert found.mismatch is not None and "changed" in found.mismatch.message


def test_exact_data_stays_exact() -> None:
    module = load(program(weights(w="q4_0[33, 64]") + "%p = linear(%x, %w)", "%p", "%x: f32[B, 64]"))
    sources = {f: GeneratedWeights(module, f, kind="exact") for f in module.files}
    inputs = generate_inputs(module, module.main, {"B": 5}, "exact", 0, 1)
    (want,) = Interpreter(module, sources).run(module.main, inputs)
    QuantizeProducts().run(module, PassContext())
    (found,) = Interpreter(module, sources).run(module.main, inputs)
    assert np.array_equal(found, want)


def test_options() -> None:
    assert {QuantizeProducts(d).digits for d in PRECISIONS.values()} == {0, 1, 2, 3} and PRECISIONS["f32"] == QuantizeProducts().digits
    with pytest.raises(ValueError, match="expected 0, 1, 2 or 3"):
        QuantizeProducts(4)
