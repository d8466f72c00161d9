"""What the issue asks of fusion: which nests the preset O2 leaves of products, rows and layers, in text, and their machine code."""

from __future__ import annotations

import re

import numpy as np
import pytest
from pass_checks import load

from ir.core import Module
from ir.inputs import generate_inputs
from ir.printer import print_module
from passes.infra.manager import PassManager
from passes.infra.verify_exec import same_bits
from passes.pipelines import load_pipeline
from tests.checks import Case, execute
from tests.native_checks import check_outputs, compile_checked


def nests(text: str) -> tuple[Module, list[str]]:
    """The program after O2, and its nests as text."""
    module = load(text)
    PassManager(load_pipeline("O2")).run(module)
    blocks = re.findall(r"^  linalg\.generic.*?^  \}$", print_module(module), re.M | re.S)
    return module, blocks


def names(nest: str) -> list[str]:
    """The operations in a nest, in order, but for constants."""
    return [n for n in re.findall(r"^ +%\S+ = ([a-z]+\.[a-z_]+)\(", nest, re.M) if n != "arith.constant"]


def program(body: str, parameters: str, results: str) -> str:
    lines = "".join(f"  {line.strip()}\n" for line in body.strip().split(";"))
    return f"graph @main({parameters}) {{\n{lines}  return {results}\n}}\n"


PRODUCT = "%x: f32[M, 8], %w: f32[8, 12], %b: f32[12], %r: f32[M, 12]"
EPILOGUES = {
    # what follows a product: the operations of its nest behind the sum
    "bias": ("%h = matmul(%x, %w); %y = add(%h, %b)", ["arith.addf"]),
    "bias and activation": ("%h = matmul(%x, %w); %s = add(%h, %b); %y = silu(%s)", ["arith.addf", "math.silu"]),
    "linear and gelu": ("%v = transpose(%w); %h = linear(%x, %v, bias=%b); %y = gelu(%h)", ["arith.addf", "math.gelu"]),
    "scale": ("%h = matmul(%x, %w); %y = mul(%h, %b)", ["arith.mulf"]),
    "residual": ("%h = matmul(%x, %w); %s = add(%h, %b); %y = add(%r, %s)", ["arith.addf", "arith.addf"]),
    "cast": ("%h = matmul(%x, %w); %s = add(%h, %b); %y = cast(%s, dtype=bf16)", ["arith.addf", "arith.truncf"]),
    "all of them": (
        "%h = matmul(%x, %w); %s = add(%h, %b); %a = tanh(%s); %m = mul(%a, %b); %p = add(%m, %r); %y = cast(%p, dtype=f16)",
        ["arith.addf", "math.tanh", "arith.mulf", "arith.addf", "arith.truncf"],
    ),
}


@pytest.mark.parametrize("name", EPILOGUES)
def test_epilogues(name: str) -> None:
    body, behind = EPILOGUES[name]
    _, found = nests(program(body, PRODUCT, "%y"))
    product = found[-1]
    assert len(found) == (2 if "transpose" in body and "linalg.reduce" not in found[0] else 1)
    assert names(product) == ["linalg.reduce", "math.fma", *behind]


def test_results_are_barriers() -> None:
    """Every result is computed and stored as a value of its own, and what reads it uses it where it is stored."""
    module, found = nests(program("%h = matmul(%x, %w); %s = add(%h, %b); %y = silu(%s); %t = transpose(%y)", PRODUCT, "%h, %s, %y, %t"))
    assert names(found[0]) == ["linalg.reduce", "math.fma", "arith.addf", "math.silu"]
    stored = re.findall(r"%\S+\.o\S* = %(\S+)\.buffer\[", found[0])
    assert stored == ["h", "s", "y", "t"] and len(found) == 1
    taken = [op.operands[0] for op in module.walk() if op.name == "memref.to_tensor"]
    assert len(taken) == len(set(taken)) == 4


ROWS = "%x: f32[M, 16], %r: f32[M, 16], %g: f32[16], %b: f32[16]"
ROW_NESTS = {
    "softmax": ("%y = softmax(%x)", "%y"),
    "log softmax": ("%y = log_softmax(%x)", "%y"),
    "scaled softmax": ("%s = mul(%x, %g); %y = softmax(%s)", "%y"),
    "layernorm": ("%y = layernorm(%x, weight=%g, bias=%b)", "%y"),
    "rmsnorm": ("%y = rmsnorm(%x, weight=%g)", "%y"),
    "sum and layernorm": ("%s = add(%x, %r); %y = layernorm(%s, weight=%g, bias=%b)", "%y"),
    "sum and rmsnorm": ("%s = add(%x, %r); %y = rmsnorm(%s, weight=%g)", "%y"),
    "sum, returned, and rmsnorm": ("%s = add(%x, %r); %y = rmsnorm(%s, weight=%g)", "%y, %s"),
    "sum, returned, and layernorm": ("%s = add(%x, %r); %y = layernorm(%s, weight=%g, bias=%b)", "%s, %y"),
    "norm and activation": ("%n = rmsnorm(%x, weight=%g); %y = silu(%n)", "%y"),
}


@pytest.mark.parametrize("name", ROW_NESTS)
def test_one_nest_for_each_row(name: str) -> None:
    body, results = ROW_NESTS[name]
    _, found = nests(program(body, ROWS, results))
    assert len(found) == 1 and found[0].startswith("  linalg.generic(i < M"), "\n".join(found)


def test_the_sum_before_a_norm_is_read_again_later() -> None:
    """A pre-norm layer: a sum of two tensors is made again by the product behind; the sum of a product is stored by its nest."""
    body = "%s = add(%x, %r); %n = rmsnorm(%s, weight=%g); %h = matmul(%n, %w); %y = add(%s, %h)"
    _, found = nests(program(body, ROWS + ", %w: f32[16, 16]", "%y"))
    assert len(found) == 2 and names(found[1]) == ["linalg.reduce", "math.fma", "arith.addf", "arith.addf"]
    _, found = nests(program(f"%o = matmul(%r, %w); {body.replace('%r)', '%o)')}", ROWS + ", %w: f32[16, 16]", "%y"))
    assert [names(n)[:2] == ["linalg.reduce", "math.fma"] for n in found] == [True, False, True] and "%s.buffer[i, " in found[0]


SWIGLU = "%g = matmul(%x, %wg); %u = matmul(%x, %wu); %s = silu(%g); %y = mul(%s, %u)"
SWIGLU_PARAMETERS = "%x: f32[M, {K}], %wg: f32[{K}, {N}], %wu: f32[{K}, {N}]"


def test_gate_and_up_are_one_nest() -> None:
    _, found = nests(program(SWIGLU, SWIGLU_PARAMETERS.format(K=8, N=12), "%y"))
    (nest,) = found
    assert names(nest) == ["linalg.reduce", "math.fma", "linalg.reduce", "math.fma", "math.silu", "arith.mulf"]
    assert "memref" not in nest and len(set(re.findall(r"= (%x\S*\[\w, \w\])", nest))) == 1
    parameters = SWIGLU_PARAMETERS.format(K=8, N=12)
    _, found = nests(program("%g = matmul(%x, %wg); %u = matmul(%z, %wu); %y = mul(%g, %u)", f"{parameters}, %z: f32[M, 8]", "%y"))
    assert len(found) == 2  # factors of their own: nothing to share
    _, found = nests(program(SWIGLU, SWIGLU_PARAMETERS.format(K=8, N=12), "%y, %u"))
    assert len(found) == 1  # a result is stored, too


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("shape", [(5, 12), (17, 48), (8, 65), (1, 49)])
def test_machine_code_of_gate_and_up(shape: tuple[int, int], stored: bool) -> None:
    """At the edges of tiles: exact data gives the interpreter's bits, a row the same bits in any batch, two threads the same."""
    k, n = shape
    if stored:
        text = program(f'%wg = weight(@w, "g") : f32[{k}, {n}]; %wu = weight(@w, "u") : f32[{k}, {n}]; {SWIGLU}', f"%x: f32[M, {k}]", "%y, %g")
        text = f'file @w = "w.safetensors"\n{text}'
    else:
        text = program(SWIGLU, SWIGLU_PARAMETERS.format(K=k, N=n), "%y, %g")
    module = load(text)
    native = compile_checked(module)
    for kind in ("real", "exact", "special"):
        rows: dict[int, list[np.ndarray]] = {}
        given = generate_inputs(module, module.main, {"M": 33}, kind, 0, 1)  # type: ignore[arg-type]
        for m in (33, 0, 1, 7, 8, 9, 16):
            inputs = [given[0][:m], *given[1:]]
            case = Case("main", {"M": m}, kind, inputs, execute(module, "main", inputs, kind))  # type: ignore[arg-type]
            rows[m] = native.run(case)
            check_outputs(module, case, rows[m], str(case))
            assert all(same_bits(a, b[:m]) for a, b in zip(rows[m], rows[33], strict=True))
            assert all(same_bits(a, b) for a, b in zip(rows[m], native.run(case, 2), strict=True))


def test_heads_are_split_and_joined_by_index_maps() -> None:
    """Of a reshape and a transpose around products nothing is left: no nest only moves elements."""
    body = """%q0 = linear(%x, %wq); %k0 = linear(%x, %wk); %q1 = reshape(%q0, shape=[B, S, 2, 4]); %k1 = reshape(%k0, shape=[B, S, 2, 4]);
      %q = transpose(%q1, perm=[0, 2, 1, 3]); %k = transpose(%k1, perm=[0, 2, 3, 1]); %s = matmul(%q, %k); %p = softmax(%s)"""
    _, found = nests(program(body, "%x: f32[B, S, 8], %wq: f32[8, 8], %wk: f32[8, 8]", "%p"))
    assert [("linalg.reduce" in n) for n in found] == [True] * len(found) and len(found) == 4, "\n".join(found)
