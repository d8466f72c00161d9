"""map-attention: the bits of machine code of the CPU, whatever hides keys, however the work is cut, in whatever order threads run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from pass_checks import apply, load
from test_lower_attention import Form, native

import graph_opt
from ir.core import Module
from ir.interpreter import Interpreter
from ir.printer import print_module
from passes.gpu._attention import tiling_of_few, tiling_of_many
from passes.gpu.map_attention import MapAttention
from passes.infra.base import PassContext
from passes.infra.verify_exec import describe_difference, same_bits
from passes.loops._attention import Problem

BEFORE = "O1,decompose{keep=[attention]},cse,lower-to-linalg,fuse,collapse"
SMALL = Form(heads=2, key_heads=1, width=4, value_width=4)


def mapped(text: str, options: str = "") -> Module:
    """The kernels, with the functions that machine code has."""
    module = load(text)
    apply(module, f"{BEFORE},map-attention{options},expand-math")
    assert "graph.attention" not in {op.name for op in module.walk()}
    return module


def run(module: Module, arrays: Sequence[np.ndarray], reverse: bool = False) -> np.ndarray:
    (found,) = Interpreter(module, quiet=True, reverse_parallel=reverse).run(module.main, [np.array(a) for a in arrays])
    return np.asarray(found)


def assert_native(form: Form, arrays: Sequence[np.ndarray], *options: str) -> None:
    """Kernels in every form have the bits of machine code; every other one with its threads in reverse order."""
    want = native(form.text)(*arrays)
    for n, option in enumerate(options or ("",)):
        found = run(mapped(form.text, option), arrays, reverse=bool(n % 2))
        assert same_bits(want, found), f"{option}: {describe_difference(want, found)}"


@pytest.mark.parametrize(("steps", "total", "causal"), [
    (1, 1, False), (2, 127, True), (8, 128, True), (9, 129, False), (9, 129, True), (17, 15, True),
])  # fmt: skip
def test_sizes(steps: int, total: int, causal: bool) -> None:
    form = Form(2, 1, 4, 4, ", causal=true" if causal else "")
    assert_native(form, form.arrays(1, steps, total), "{few=0, rows=16}", "")
    if causal:
        form.written = {"B": 1, "S": steps, "T": total}
        assert_native(form, form.arrays(1, steps, total))


@pytest.mark.parametrize(("batch", "steps", "total"), [(0, 3, 4), (2, 0, 4), (2, 3, 0), (1, 0, 0)])
def test_nothing(batch: int, steps: int, total: int) -> None:
    for options in ("", "{few=0}"):
        module = mapped(SMALL.text, options)
        found = run(module, SMALL.arrays(batch, steps, total))
        assert found.shape == (batch, 2, steps, 4) and not found.any()


@pytest.mark.parametrize("form", [Form(3, 1, 16, 16), Form(8, 1, 6, 7), Form(4, 4, 1, 1), Form(2, 2, 5, 40), Form(2, 1, 36, 130), Form(1, 1, 260, 4)])
def test_heads_and_widths(form: Form) -> None:
    arrays = form.arrays(1, 3, 35)
    assert_native(form, arrays, "{few=0, rows=32}", "", *(("{shared=65536}",) if form.value_width > 100 else ()))


@pytest.mark.parametrize(("shape", "dtype"), [((2, 2, 3, 150), "f32"), ((1, 2, 1, 150), "bool"), ((2, 1, 3, 1), "bool"), ((1,), "f32")])
def test_masks(shape: tuple[int, ...], dtype: str) -> None:
    mask = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    mask[mask > 0.5] = -np.inf
    if shape[-1] > 1 and shape[-2] > 1:
        mask[..., 1, :] = -np.inf  # a query that sees nothing
    given = mask if dtype == "f32" else mask > -1
    names = [str(d) if d == 1 else n for d, n in zip(shape, "B2ST"[-len(shape) :], strict=True)]
    form = Form(2, 1, 4, 4, ", mask=%mask, causal=true", f", %mask: {dtype}[{', '.join(names)}]")
    assert_native(form, [*form.arrays(2, 3, 150), given], "{few=0, rows=16}", "")


@pytest.mark.parametrize("length", [-(2**62), 129, 2**62])
def test_lengths(length: int) -> None:
    form = Form(2, 1, 4, 4, ", length=%n, causal=true", ", %n: i64[]")
    arrays = [*form.arrays(2, 3, 140), np.array(length)]
    for array in arrays[1:3]:
        array[:, :, max(min(length, 140), 0) :] = np.nan  # what is there does not matter
    assert_native(form, arrays, *("{few=0, rows=16}", "")[length > 999 :])
    form = Form(2, 1, 4, 4, ", length=%n", ", %n: i64[B]")
    assert_native(form, [*(np.nan_to_num(a) for a in arrays[:3]), np.array([min(max(length, -9), 999), 5])], "{few=0, rows=16}" if length > 9 else "")


def test_special_values() -> None:
    """NaN, infinities and large numbers come out where machine code has them."""
    form = Form(4, 2, 16, 16, ", mask=%mask", ", %mask: f32[S, T]")
    q, k, v = form.arrays(1, 9, 140)
    q[0, 0, 3, 2] = np.nan
    q[0, 1, 4] = 1e30
    k[0, 1, 139, 5] = np.inf
    v[0, 0, 7, 1] = -np.inf
    v[0, 1, 8, 3] = np.nan
    mask = np.zeros((9, 140), np.float32)
    mask[5, 100:], mask[6, :130], mask[7], mask[8] = -np.inf, -1e9, -np.inf, -3.4e38
    assert_native(form, [q, k, v, mask], "{few=0}", "")


@pytest.mark.parametrize("options", ["", "{few=0, rows=16}"])
def test_exact_data(options: str) -> None:
    """Equal scores of a power of two of keys, and one score far above the others, are exact: the interpreter's bits."""
    rng = np.random.default_rng(3)
    q, v = rng.integers(-3, 4, (1, 2, 3, 4)).astype(np.float32), rng.integers(-9, 10, (1, 1, 256, 4)).astype(np.float32)
    alone = np.zeros((1, 1, 256, 4), np.float32)
    alone[0, 0, 200] = 1000 * np.sign(q[0, 0, 0].sum() or 1)
    for k in (np.zeros_like(alone), alone):
        q[...] = np.abs(q) + 1 if k is alone else q
        want = graph_opt.compile(graph_opt.parse(SMALL.text), device="reference")(q, np.abs(k), v)
        assert same_bits(want, run(mapped(SMALL.text, options), [q, np.abs(k), v]))


def test_heads_that_are_split_off_and_caches_are_read_in_place() -> None:
    text = """graph @main(%x: f32[S, 8], %kv: f32[1, S, 4], %k: f32[1, T, 4] inout, %v: f32[1, T, 4] inout, %p: i64[], %n: i64[]) -> f32[S, 8] {
      %heads = reshape(%x, shape=[S, 2, 4])
      %q = transpose(%heads, perm=[1, 0, 2])
      %k1 = cache_update(%k, %kv, %p)
      %v1 = cache_update(%v, %kv, %p)
      %o = attention(%q, %k1, %v1, length=%n, causal=true)
      %back = transpose(%o, perm=[1, 0, 2])
      %y = reshape(%back, shape=[S, 8])
      return %y
    }"""
    module, lowered = load(text), load(text)
    apply(module, f"{BEFORE},map-attention,expand-math")
    apply(lowered, f"{BEFORE},lower-attention,expand-math,unroll-vectors")
    assert [op.name for op in module.main.block if "linalg" in op.name] == ["linalg.generic"] * 2, "only the caches are written by nests"
    for steps, position in ((1, 5), (7, 0)):
        rng = np.random.default_rng(steps)
        arrays = [rng.standard_normal(s, dtype=np.float32) for s in ((steps, 8), (1, steps, 4), (1, 16, 4), (1, 16, 4))]
        arrays += [np.array(position), np.array(position + steps)]
        found = []
        for program in (module, lowered):
            given = [np.array(a) for a in arrays]
            found.append([*Interpreter(program, quiet=True).run(program.main, given), *given[2:4]])
        assert all(same_bits(a, b) for a, b in zip(*found, strict=True))


def test_pieces_of_a_sequence_have_the_bits_of_the_whole() -> None:
    """Prefill in one run, and one query after the other against the keys so far."""
    form = Form(3, 1, 8, 8, ", length=%n, causal=true", ", %n: i64[]")
    q, k, v = form.arrays(1, 131, 131)
    module = mapped(form.text)
    whole = run(module, [q, k, v, np.array(131)])
    for at in (0, 127, 130):
        one = run(module, [q[:, :, at : at + 1], k, v, np.array(at + 1)])
        assert same_bits(np.ascontiguousarray(whole[:, :, at : at + 1]), one)


@pytest.mark.parametrize("options", ["", "{few=0}"])
def test_layers_have_launches_of_the_first_one_for_their_buffers(options: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers are built as one, but for one that differs (not causal)."""
    lines = ["%a = attention(%x, %k, %v, causal=true)", "%b = attention(%a, %v, %k, causal=true)", "%c = attention(%b, %k, %a, causal=true)"]
    lines += ["%d = attention(%c, %v, %k)", "%e = attention(%d, %k, %k, causal=true)"]
    size = "f32[1, 2, S, 4]"
    text = "\n  ".join([f"graph @main(%x: {size}, %k: {size}, %v: {size}) -> {size} {{", *lines, "return %e\n}\n"])
    built: list[str] = []
    build = MapAttention._build

    def noted(self: MapAttention, problem: Problem, name: str, *tilings: Any) -> None:
        built.append(name)
        build(self, problem, name, *tilings)

    monkeypatch.setattr(MapAttention, "_build", noted)
    module = mapped(text, options)
    assert built == ["a", "d"]
    launches = [str(op.attribute("name")).partition(".")[0] for op in module.walk() if op.name == "gpu.launch"]
    assert sorted(launches) == sorted(name for name in "abcde" for _ in range(1 if options else 3))
    arrays = [np.random.default_rng(n).standard_normal((1, 2, 5, 4), dtype=np.float32) for n in range(3)]
    want = native(text)(*arrays)
    for reverse in (False, True):
        assert same_bits(want, run(module, arrays, reverse))


def test_tilings() -> None:
    """Registers and shared memory hold what the tilings ask for, at every width."""
    for shared, widest in ((166912, 512), (65536, 384)):
        for width in (w for w in (1, 7, 64, 80, 128, 129, 256, 384, 511, 512) if w <= widest):
            for value_width in (w for w in (1, 16, 64, 128, 130, 256, 384, 510, 511, 512) if w <= widest):
                for rows in (16, 64):
                    assert tiling_of_many(width, value_width, rows, shared).fits(width, value_width, shared), (width, value_width)
                for rows in (1, 4, 5, 16):
                    few = tiling_of_few(width, value_width, rows, shared)
                    assert few is not None and few.rows >= rows and few.fits(width, value_width, shared)
    assert tiling_of_few(64, 64, 65, 166912) is None


def test_what_is_left_alone() -> None:
    for text in (SMALL.text.replace("f32", "f64"), SMALL.text.replace(", 4]", ", D]")):
        module = load(text)
        once = print_module(module)
        assert not MapAttention().run(module, PassContext()) and print_module(module) == once
    for options in ({"rows": 8}, {"few": 65}, {"few": -1}, {"shared": 1000}):
        with pytest.raises(ValueError, match="expected"):
            MapAttention(**options)
