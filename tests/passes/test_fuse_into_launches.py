"""fuse-into-launches: norms, sums and activations in front of a product with digits are computed by its kernel, with the same bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from gpu_checks import assert_mapped
from pass_checks import apply, load

from dialects.graph import digits as d
from ir.core import Block, Module
from ir.diagnostics import GraphError
from ir.interpreter import Interpreter
from passes.infra.verify_exec import same_bits
from passes.pipelines import PRESETS
from tests.digit_programs import random_weights

SIZE, ROWS = 96, 40
PRODUCT = ("%d, %s, %t = split_digits(%a, digits=3)", f"%y = digit_linear(%d, %s, %t, %p, rows={ROWS})")
NORM = "%a = rmsnorm(%x, weight=%w)"
BODIES = {
    "norm": (NORM, *PRODUCT),
    "sum and norm": ("%u = add(%x, %z)", "%a = rmsnorm(%u, weight=%w)", *PRODUCT),
    "layernorm": ("%a = layernorm(%x, weight=%w)", *PRODUCT),
    "softmax": ("%a = softmax(%x)", *PRODUCT),
    "gate": ("%g = silu(%x)", "%a = mul(%g, %z)", *PRODUCT),
}


def text(*lines: str, count: str | int = "S", results: Sequence[str] = ("y",), size: int = SIZE) -> str:
    """A product behind other operations; results that are no product have the type of ``%x``."""
    x, y = f"f32[{count}, {size}]", f"f32[{count}, {ROWS}]"
    types = f"%x: {x}, %z: {x}, %w: f32[{size}], %p: u8[2, {size // 32}, {d.FORMATS['q4_1'].bytes}]"
    found = ", ".join(y if name in "yq" else x for name in results)
    body = "".join(f"  {line}\n" for line in lines)
    return f"graph @main({types}) -> ({found}) {{\n{body}  return {', '.join(f'%{n}' for n in results)}\n}}\n"


def inputs(count: int, size: int = SIZE) -> list[Any]:
    generator = np.random.default_rng(count)
    x, z = (generator.standard_normal((count, size)).astype(np.float32) for _ in range(2))
    if count > 1:
        x[1, 3] = np.nan
    if count > 2:
        x[2] = -0.0
    return [x, z, np.float32(generator.standard_normal(size)), d.pack_rows(random_weights("q4_1", ROWS, size))]


def check(program: str, counts: Sequence[int], options: str = "", size: int = SIZE) -> Module:
    """The kernels, which have the bits of those without the pass, in whatever order threads run."""
    module: Module = load(program)
    before: Module = load(program)
    preset = PRESETS["cuda"].removesuffix(",plan-memory")
    apply(module, preset.replace("fuse-into-launches", f"fuse-into-launches{options}"))
    apply(before, preset.replace("fuse-into-launches,", ""))
    assert_mapped(module)
    for count in counts:
        arrays = inputs(count, size)
        arrays += arrays[-1:] * (len(module.main.parameters) - len(arrays))
        want = run(before, arrays)
        for reverse in (False, True) if count == counts[0] else (False,):
            for a, b in zip(want, run(module, arrays, reverse), strict=True):
                assert same_bits(a, b), (count, reverse)
    return module


def run(module: Module, arrays: Sequence[Any], reverse: bool = False) -> list[np.ndarray]:
    return Interpreter(module, quiet=True, reverse_parallel=reverse).run(module.main, [np.array(a) for a in arrays])


def launches(block: Block, branch: int = 0) -> list[str]:
    """The tags of the kernels of one branch of all choices: 0 for one row, 1 for more."""
    found = []
    for op in block:
        if op.name == "gpu.launch":
            found.append(str(op.attribute("tag")))
        elif op.name == "scf.if":
            found += launches(op.regions[branch].block, branch)
    return found


@pytest.mark.parametrize("kind", BODIES)
def test_one_kernel_for_one_row(kind: str) -> None:
    module = check(text(*BODIES[kind]), (1, 3))
    assert launches(module.main.block) == ["digits"]
    more = launches(module.main.block, 1)
    assert more == ["digits.split", "digits"] if kind == "gate" else more == ["rows", "digits.split", "digits"]


def test_a_number_of_rows_that_is_known() -> None:
    assert launches(check(text(*BODIES["gate"], count=1), (1,)).main.block) == ["digits"]
    assert launches(check(text(*BODIES["gate"], count=5), (5,)).main.block) == ["digits.split", "digits"]
    assert launches(check(text(*BODIES["norm"], count=1), (1,)).main.block) == ["digits"]
    assert launches(check(text(*BODIES["norm"], count=3), (3,)).main.block) == ["rows", "digits.split", "digits"]


def test_no_rows() -> None:
    check(text(*BODIES["sum and norm"]), (0,))


@pytest.mark.parametrize("size", [32, 160, 3264])
def test_rows_of_other_lengths(size: int) -> None:
    """Fewer elements than threads, lanes that have one more than others, blocks that come in pieces."""
    check(text(*BODIES["sum and norm"], size=size, count=1), (1,), size=size)


def test_what_others_read_is_stored() -> None:
    """What the sums are of, and what they give, are read behind the product, too."""
    for body, other in ((("%u = exp(%x)", "%a = rmsnorm(%u, weight=%w)"), "u"), ((NORM,), "a")):
        program = text(*body, *PRODUCT, f"%c = concat(%y, %{other}, axis=1)", results=("c",))
        program = program.replace(f"-> (f32[S, {SIZE}])", f"-> (f32[S, {SIZE + ROWS}])")
        module = check(program, (1, 3))
        assert launches(module.main.block)[0] == "digits", other
        assert any(op.name == "scf.for" and op.regions[0].block.arguments[0].name.startswith("kept") for op in module.main.walk()), other


def test_two_products_of_one_row() -> None:
    """Their digits are made once, and only sums along a row have a kernel of their own."""
    second = f"%q = digit_linear(%d, %s, %t, %r, rows={ROWS})"
    for kind, want in (("gate", ["digits.split"]), ("norm", ["rows", "digits.split"])):
        program = text(*BODIES[kind], second, results=("y", "q"), count=1).replace(") -> (", ", %r: u8[2, 3, 640]) -> (")
        assert launches(check(program, (1,)).main.block) == [*want, "digits", "digits"]


def test_shared_memory_has_a_limit() -> None:
    module = check(text(*BODIES["norm"], count=1), (1,), "{shared=1024}")
    assert launches(module.main.block) == ["rows", "digits"]


CACHE = """graph @main(%c: f32[2, T, 8] inout, %x: f32[2, S, 8], %at: i64[], %p: i64[S]) -> f32[2, T, 8] {{
  %k = rope(%x, %p, interleaved=true)
{lines}
}}
"""


def test_rotated_keys_are_stored_into_the_cache() -> None:
    module = load(CACHE.format(lines="  %d = cache_update(%c, %k, %at)\n  return %d"))
    apply(module, PRESETS["cuda"].removesuffix(",plan-memory"))
    assert_mapped(module)
    assert launches(module.main.block).count("elements") == 0
    x = np.float32(np.random.default_rng(1).standard_normal((2, 3, 8)))
    for at in (0, 2, 3):
        cache = np.zeros((2, 6, 8), np.float32)
        (found,) = run(module, [cache, x, np.array(at), np.arange(at, at + 3)])
        want = np.zeros_like(cache)
        (rotated,) = run(load("graph @main(%x: f32[2, S, 8], %p: i64[S]) -> f32[2, S, 8] {\n  %k = rope(%x, %p, interleaved=true)\n  return %k\n}\n"),
                         [x, np.arange(at, at + 3)])  # fmt: skip
        want[:, at : at + 3] = rotated
        assert np.allclose(found, want, atol=1e-6)
    for at in (-1, 4):
        with pytest.raises(GraphError, match="cache_update"):
            run(module, [np.zeros((2, 6, 8), np.float32), x, np.array(at), np.arange(3)])


def test_keys_that_others_read_are_copied() -> None:
    """What reads the rotated keys themselves finds them."""
    lines = "  %d = cache_update(%c, %k, %at)\n  %s = sum(%k, axes=[1])\n  %b = unsqueeze(%s, axes=[1])\n  %e = add(%d, %b)\n  return %e"
    module = load(CACHE.format(lines=lines))
    apply(module, PRESETS["cuda"].removesuffix(",plan-memory"))
    before = load(CACHE.format(lines=lines))
    apply(before, PRESETS["cuda"].removesuffix(",plan-memory").replace("fuse-into-launches,", "").replace("merge-launches,", ""))
    x = np.float32(np.random.default_rng(1).standard_normal((2, 3, 8)))
    given = [np.zeros((2, 6, 8), np.float32), x, np.array(1), np.arange(3)]
    assert same_bits(run(module, given)[0], run(before, given)[0])
