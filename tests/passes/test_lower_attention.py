"""lower-attention: values, edges, what hides keys, and the same bits however the work is cut."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from pass_checks import apply, load, optimize

import graph_opt
from dialects._access import number
from ir.core import Module, Operation
from ir.interpreter import Environment, Interpreter
from ir.layout import AccessArg, layout_of
from ir.opdef import REGISTRY
from passes.infra.base import PassContext
from passes.infra.verify_exec import compare_modules, same_bits
from passes.loops.lower_attention import LowerAttention
from passes.pipelines import PRESETS

UNIT = 2.0**-24


@dataclass
class Form:
    """An attention: heads, widths, and which of its sizes are written as numbers."""

    heads: int = 4
    key_heads: int = 2
    width: int = 16
    value_width: int = 16
    options: str = ""
    more: str = ""  # parameters
    written: dict[str, int] = field(default_factory=dict)

    @property
    def text(self) -> str:
        b, s, t = (str(self.written.get(n, n)) for n in "BST")
        q, k = f"f32[{b}, {self.heads}, {s}, {self.width}]", f"f32[{b}, {self.key_heads}, {t}, {self.width}]"
        v, o = f"f32[{b}, {self.key_heads}, {t}, {self.value_width}]", f"f32[{b}, {self.heads}, {s}, {self.value_width}]"
        return f"graph @main(%q: {q}, %k: {k}, %v: {v}{self.more}) -> {o} {{\n  %o = attention(%q, %k, %v{self.options})\n  return %o\n}}\n"

    def arrays(self, batch: int, steps: int, total: int, seed: int = 0) -> list[np.ndarray]:
        rng = np.random.default_rng(seed)
        shapes = ((self.heads, steps, self.width), (self.key_heads, total, self.width), (self.key_heads, total, self.value_width))
        return [rng.standard_normal((batch, *shape), dtype=np.float32) for shape in shapes]


def native(text: str, threads: int = 1, **options: int | str) -> Callable[..., np.ndarray]:
    given = ", ".join(f"{name}={value}" for name, value in options.items())
    pipeline = re.sub(r"lower-attention\{[^}]*\}", f"lower-attention{{{given}}}", PRESETS["cpu"]) if given else "cpu"
    return graph_opt.compile(graph_opt.parse(text), pipeline=pipeline, threads=threads)


def reference(text: str, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """In float64 throughout."""
    module = load(text)
    (found,) = Interpreter(module, double=True).run(module.main, list(arrays))
    return np.asarray(found)


def check(form: Form, arrays: Sequence[np.ndarray], found: np.ndarray, scale: float | None = None) -> None:
    """The error is what the roundings of sums in this order can make: of a score its chain, of the weights that, exp and their sum."""
    exact = reference(form.text, arrays)
    q, k, v = (np.nan_to_num(a.astype(np.float64)) for a in arrays[:3])
    group = form.heads // form.key_heads
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scale = form.width**-0.5 if scale is None else abs(scale)
    size = (np.abs(q) @ np.abs(k).swapaxes(-1, -2)).max(initial=0) * scale
    bound = UNIT * (2 * (form.width + 4) * size + k.shape[2] + 40) * np.abs(v).max(initial=0)
    assert np.array_equal(np.isnan(exact), np.isnan(found))
    assert np.nanmax(np.abs(found - exact), initial=0.0) <= bound


SIZES = [(1, 1), (2, 5), (12, 13), (13, 12), (11, 11), (48, 48), (49, 130), (97, 128), (3, 257), (130, 129)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("steps", "total"), SIZES)
def test_sizes(steps: int, total: int, causal: bool) -> None:
    options = ", causal=true" if causal else ""
    found = []
    for written in ({}, {"S": steps, "T": total}, {"B": 2, "T": total}, {"S": steps}):
        form = Form(options=options, written=written)
        arrays = form.arrays(2, steps, total)
        found.append(native(form.text)(*arrays))
        check(form, arrays, found[-1])
    assert all(same_bits(found[0], other) for other in found), "sizes that are known change no bits"


@pytest.mark.parametrize(("batch", "steps", "total"), [(0, 3, 4), (2, 0, 130), (2, 3, 0), (1, 0, 0)])
def test_nothing(batch: int, steps: int, total: int) -> None:
    for options, more in (("", ""), (", causal=true", ""), (", causal=true, length=%n", ", %n: i64[]")):
        for written in ({}, {"S": steps, "T": total}):
            form = Form(options=options, more=more, written=written)
            found = native(form.text)(*form.arrays(batch, steps, total), *([np.array(total)] if more else []))
            assert found.shape == (batch, 4, steps, 16) and not found.any()


@pytest.mark.parametrize("heads", [(1, 1), (3, 1), (8, 1), (4, 4)])
@pytest.mark.parametrize("widths", [(16, 16), (20, 7), (1, 1), (80, 64), (33, 104)])
def test_heads_and_widths(heads: tuple[int, int], widths: tuple[int, int]) -> None:
    for written in ({}, {"S": 1}, {"S": 2, "T": 140}):
        form = Form(*heads, *widths, ", causal=true", written=written)
        steps = written.get("S", 14)
        arrays = form.arrays(1, steps, 140)
        check(form, arrays, native(form.text)(*arrays))


@pytest.mark.parametrize("scale", [0.0, -0.5, 3.0, 1e-3])
def test_scales(scale: float) -> None:
    form = Form(options=f", scale={scale}")
    arrays = form.arrays(1, 5, 140)
    check(form, arrays, native(form.text)(*arrays), scale)


@pytest.mark.parametrize("shape", [(2, 4, 14, 150), (1, 4, 14, 150), (2, 1, 14, 150), (2, 1, 1, 150), (1, 1, 14, 1), (1, 4, 1, 150), (14, 150), (1,)])
@pytest.mark.parametrize("dtype", ["f32", "bool"])
def test_masks(shape: tuple[int, ...], dtype: str) -> None:
    mask = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    mask[mask > 0.5] = -np.inf
    if mask.ndim == 4 and shape[3] > 1 and shape[2] > 1:
        mask[0, 0, 3] = -np.inf  # a query that sees nothing
    given = mask if dtype == "f32" else mask > -1
    for written in ({}, {"S": 14, "T": 150}):
        names = [str(d) if d in (1, 4) else str(written.get(n, n)) for d, n in zip(shape, "BHST"[-len(shape) :], strict=True)]
        form = Form(options=", mask=%mask", more=f", %mask: {dtype}[{', '.join(names)}]", written=written)
        arrays = [*form.arrays(2, 14, 150), given]
        check(form, arrays, native(form.text)(*arrays))


def test_masks_of_few_queries() -> None:
    for shape in ((2, 4, 2, 150), (1, 4, 1, 150), (1, 1, 2, 150), (2, 1, 1, 1)):
        mask = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
        names = ", ".join("B" if n == 0 and d == 2 else str(d) for n, d in enumerate(shape))
        form = Form(options=", mask=%mask, causal=true", more=f", %mask: f32[{names}]", written={"S": 2, "T": 150})
        arrays = [*form.arrays(2, 2, 150), mask]
        check(form, arrays, native(form.text)(*arrays))


@pytest.mark.parametrize("length", [-(2**62), -3, 0, 1, 17, 128, 129, 200, 2**62])
@pytest.mark.parametrize("written", [{}, {"S": 3}])
def test_lengths(length: int, written: dict[str, int]) -> None:
    for options in (", length=%n", ", length=%n, causal=true"):
        form = Form(options=options, more=", %n: i64[]", written=written)
        arrays = [*form.arrays(2, 3, 200), np.array(length)]
        for array in arrays[1:3]:
            array[:, :, max(min(length, 200), 0) :] = np.nan  # what is there does not matter
        found = native(form.text)(*arrays)
        assert np.isfinite(found).all()
        check(form, arrays, found)
        form.more = ", %n: i32[B]"
        arrays[3] = np.array([min(max(length, -9), 999), 5], np.int32)
        clean = [np.nan_to_num(a) for a in arrays[:3]]
        check(form, [*clean, arrays[3]], native(form.text)(*clean, arrays[3]))


def test_past_keys() -> None:
    past = ", %past_k: f32[B, 2, P, 16], %past_v: f32[B, 2, P, 16]"
    form = Form(options=", past_k=%past_k, past_v=%past_v, causal=true", more=past, written={"S": 1, "T": 1})
    whole = Form(options=", causal=true", written={"S": 1})
    q, k, v = whole.arrays(2, 1, 140)
    found = native(form.text)(q, k[:, :, 139:], v[:, :, 139:], k[:, :, :139], v[:, :, :139])
    assert same_bits(found, native(whole.text)(q, k, v))


def test_special_values() -> None:
    """NaN, infinities and large numbers are in the rows where the operation has them, and nowhere else."""
    form = Form(options=", mask=%mask", more=", %mask: f32[S, T]")
    q, k, v = form.arrays(1, 20, 140)
    q[0, 0, 3, 2] = np.nan
    q[0, 1, 4] = 1e30
    k[0, 1, 139, 5] = np.inf
    v[0, 0, 7, 1] = -np.inf
    v[0, 1, 9, 3] = np.nan
    mask = np.zeros((20, 140), np.float32)
    mask[5, 100:] = -np.inf
    mask[6, :130] = -1e9
    mask[7] = -np.inf
    mask[8] = -3.4e38
    with np.errstate(all="ignore"):
        want = graph_opt.compile(graph_opt.parse(form.text), device="reference")(q, k, v, mask)
    for text in (form.text, form.text.replace("S", "20")):
        found = native(text)(q, k, v, mask)
        assert np.array_equal(np.isnan(want), np.isnan(found)) and np.array_equal(np.isinf(want), np.isinf(found))
        good = np.isfinite(want)
        assert np.abs(want[good] - found[good]).max() < 1e-5
        assert same_bits(want[0, :, 7], np.where(np.isnan(want[0, :, 7]), np.nan, 0.0).astype(np.float32))


@pytest.mark.parametrize("causal", [False, True])
def test_the_same_bits(causal: bool) -> None:
    """However queries are tiled, for any number of threads, in any batch, and when the last queries come alone."""
    form = Form(6, 2, 32, 48, ", causal=true" if causal else "")
    q, k, v = form.arrays(3, 101, 300, seed=5)
    want = native(form.text)(q, k, v)
    ways = [{"rows": 1}, {"rows": 5, "columns": 16}, {"rows": 8, "columns": 128, "queries": 8}, {"queries": 1000}, {"rows": 6, "columns": 64}]
    ways += [{"values": 16}, {"columns": 16, "values": 32}, {"columns": 16, "values": 48, "queries": 24}]
    for options in ways:
        assert same_bits(native(form.text, **options)(q, k, v), want), options
    assert same_bits(native(form.text, threads=2)(q, k, v), want)
    for preset in ("cpu-avx2", "cpu-neon"):
        assert same_bits(graph_opt.compile(graph_opt.parse(form.text), pipeline=preset)(q, k, v), want), preset
    for b in range(3):
        assert same_bits(native(form.text)(q[b : b + 1], k[b : b + 1], v[b : b + 1]), want[b : b + 1])
    for steps in (1, 2, 4):
        few = Form(6, 2, 32, 48, form.options, written={"S": steps})
        last = np.ascontiguousarray(q[:, :, -steps:])
        for threads in (1, 2):
            assert same_bits(native(few.text, threads)(last, k, v), want[:, :, -steps:]), steps
    if causal:  # keys that come later change nothing
        part = native(form.text)(q[:, :, :50], k[:, :, :249], v[:, :, :249])
        assert same_bits(part, want[:, :, :50])


@pytest.mark.parametrize("heads", [(3, 1), (8, 2), (12, 1)])
def test_heads_of_a_tile(heads: tuple[int, int]) -> None:
    """Heads that share their keys share tiles, in numbers that do and don't divide a block of rows: each has the bits that it has alone."""

    def compiled(heads: tuple[int, int], steps: int | str = "S") -> Callable[..., np.ndarray]:
        written = {"S": steps, "T": 140} if isinstance(steps, int) else {}
        more = f", %m: f32[{heads[0]}, {steps}, {written.get('T', 'T')}], %n: i64[B]"
        return native(Form(*heads, 16, 20, ", causal=true, mask=%m, length=%n", more, written).text)

    together, alone, known = compiled(heads), compiled((1, 1)), {18: compiled(heads, 18)}
    for steps, length in ((5, 140), (18, 129), (18, 0), (50, 131), (50, 30)):
        q, k, v = Form(*heads, 16, 20).arrays(1, steps, 140, seed=steps)
        mask = np.random.default_rng(1).standard_normal((heads[0], steps, 140), dtype=np.float32)
        mask[:, steps // 2, :100] = -np.inf
        found = together(q, k, v, mask, np.array([length]))
        for head in range(heads[0]):
            at, own = slice(head, head + 1), slice(head * heads[1] // heads[0], head * heads[1] // heads[0] + 1)
            want = alone(*(np.ascontiguousarray(a) for a in (q[:, at], k[:, own], v[:, own], mask[at])), np.array([length]))
            assert same_bits(found[:, at], want), (steps, length, head)
        if steps in known:
            assert same_bits(known[steps](q, k, v, mask, np.array([length])), found)


@pytest.mark.parametrize("written", [{}, {"S": 1}, {"S": 5, "T": 20}])
def test_the_last_level_has_the_bits_of_machine_code(written: dict[str, int]) -> None:
    form = Form(2, 1, 4, 4, ", causal=true, length=%n", ", %n: i64[]", written)
    arrays = [*form.arrays(1, written.get("S", 5), 20), np.array(18)]
    module = load(form.text)
    apply(module, "cpu")
    (found,) = Interpreter(module).run(module.main, list(arrays))
    assert same_bits(np.asarray(found), native(form.text)(*arrays))


@pytest.mark.parametrize("options", ["", ", causal=true", ", mask=%mask", ", causal=true, length=%n"])
@pytest.mark.parametrize("written", [{}, {"S": 2, "T": 20}])
def test_values_in_the_interpreter(options: str, written: dict[str, int]) -> None:
    """The loops are the operation; rounding hides nothing when everything is computed in float64."""
    more = ", %mask: bool[B, 1, 1, T]" if "mask" in options else ", %n: i64[]" if "length" in options else ""
    form = Form(2, 1, 3, 2, options, more.replace("T", str(written.get("T", "T"))), written)
    before = load(form.text)
    after = optimize(form.text, "decompose{keep=[attention]},lower-attention{rows=4, columns=16, queries=8}")
    assert not any(op.name == "graph.attention" for op in after.walk())
    outcome = compare_modules(before, after, LowerAttention.preserves)
    assert outcome.mismatch is None and outcome.skipped is None


def lowered(text: str, pipeline: str) -> Module:
    module = load(text)
    apply(module, pipeline)
    return module


def test_what_is_lowered() -> None:
    """f32 of known widths; everything else is decomposed before."""
    kept = "decompose{keep=[attention]}"

    def stays(text: str) -> bool:
        return any(op.name == "graph.attention" for op in lowered(text, kept).walk())

    form = Form()
    assert stays(form.text) and stays(Form(2, 2).text)
    assert not stays(form.text.replace("f32", "f16")) and not stays(form.text.replace("f32", "f64"))
    assert not stays(form.text.replace("16]", "D]"))
    assert not stays(Form(width=1024).text)
    assert not stays(Form(written={"S": 0}).text)
    module = load(form.text.replace("f32", "f16"))
    assert not LowerAttention().run(module, PassContext())


def test_ranks() -> None:
    for rank in (2, 3):
        text = Form(1, 1, options=", causal=true").text
        text = text.replace("B, 1, ", "" if rank == 2 else "B, ")
        q, k, v = Form(1, 1).arrays(3, 14, 140)
        arrays = [a[0, 0] if rank == 2 else a[:, 0] for a in (q, k, v)]
        want = native(Form(1, 1, options=", causal=true").text)(q, k, v)
        assert same_bits(native(text)(*arrays), want[0, 0] if rank == 2 else want[:, 0])


def test_buffers_are_used_where_they_are() -> None:
    """Operands and results are not copied between the nests around."""
    text = """
graph @main(%x: f32[S, 32], %w: f32[32, 32]) -> f32[S, 32] {
  %q0 = matmul(%x, %w)
  %q1 = reshape(%q0, shape=[S, 2, 16])
  %q = transpose(%q1, perm=[1, 0, 2])
  %o = attention(%q, %q, %q)
  %t = transpose(%o, perm=[1, 0, 2])
  %j = reshape(%t, shape=[S, 32])
  return %j
}
"""
    module = lowered(text, PRESETS["cpu"].split(",plan-memory")[0])
    assert sum(op.name == "memref.from_tensor" for op in module.walk()) == 2, "the parameters"
    assert sum(op.name == "memref.to_tensor" for op in module.walk()) == 1, "the result"
    x, w = (np.random.default_rng(n).standard_normal(s).astype(np.float32) for n, s in ((0, (140, 32)), (1, (32, 32))))
    want = graph_opt.compile(graph_opt.parse(text), device="reference")(x, w)
    assert np.abs(graph_opt.compile(graph_opt.parse(text))(x, w) - want).max() < 1e-4


def test_buffers_that_were_written_since_are_not_used() -> None:
    text = """
graph @main(%A: memref<f32[1, 16]>, %x: f32[1, 16]) -> f32[1, 16] {
  %q = memref.to_tensor(%A) : f32[1, 16]
  %zero = arith.constant(0.0) : f32
  memref.store(%zero, %A[0, 0])
  %o = attention(%x, %x, %q)
  return %o
}
"""
    module = lowered(text, "lower-attention")
    a = np.arange(16, dtype=np.float32).reshape(1, 16) + 1
    (found,) = Interpreter(module).run(module.main, [a.copy(), a])
    assert np.array_equal(found, a)


@pytest.mark.parametrize("call", ["attention(%a, %a, %a)", "rope(%a, %n, interleaved=true)"])
def test_what_is_computed_once_is_not_lowered(call: str) -> None:
    """Graphs that run when a program is loaded have operations on tensors, with other ones beside them."""
    text = f"""
graph @main(%x: f32[4, 64], %a: f32[16, 64], %n: i64[16], %w: f32[64, 64]) -> (f32[4, 64], f32[16, 64]) {{
  %h = {call}
  %y = linear(%x, %w)
  return %y, %h
}}
"""
    x, a, w = (np.random.default_rng(n).standard_normal(s).astype(np.float32) for n, s in enumerate(((4, 64), (16, 64), (64, 64))))
    constants = {"a": a, "n": np.arange(16), "w": w}
    y, h = graph_opt.compile(graph_opt.parse(text), constants=constants)(x)
    wanted = graph_opt.compile(graph_opt.parse(text), device="reference")(x, *constants.values())
    assert np.allclose(y, wanted[0], atol=1e-4) and np.allclose(h, wanted[1], atol=1e-5)


@pytest.mark.parametrize(
    ("heads", "steps", "width", "value_width", "past"), [(6, "4", 64, 59, "194"), (3, "1", 48, 98, "89"), (9, "S", 128, 128, "P")]
)
def test_a_past_and_new_keys_of_which_one_number_is_open(heads: int, steps: str, width: int, value_width: int, past: str) -> None:
    """How much memory that may take is a sum of products, some divided: it is no larger than any."""
    new = "66" if past == "P" else "T"
    text = f"""graph @main(
  %q: f32[B, {heads}, {steps}, {width}], %k: f32[B, 1, {new}, {width}], %v: f32[B, 1, {new}, {value_width}],
  %pk: f32[B, 1, {past}, {width}], %pv: f32[B, 1, {past}, {value_width}]
) -> f32[B, {heads}, {steps}, {value_width}] {{
  %o = attention(%q, %k, %v, past_k=%pk, past_v=%pv)
  return %o
}}
"""
    sizes = {"S": 3, "T": 5, "P": 7}
    s, t, p = (sizes.get(n) or int(n) for n in (steps, new, past))
    shapes = ((heads, s, width), (1, t, width), (1, t, value_width), (1, p, width), (1, p, value_width))
    arrays = [np.random.default_rng(n).standard_normal((2, *shape), dtype=np.float32) for n, shape in enumerate(shapes)]
    assert np.allclose(native(text)(*arrays), reference(text, arrays), atol=1e-5)


def test_wrong_options() -> None:
    numbers = {"rows": [0], "queries": [0], "columns": [8, 48, 256], "values": [0, 24], "ahead": [8, -16]}
    for options in ({name: n} for name, wrong in numbers.items() for n in wrong):
        with pytest.raises(ValueError, match="expected"):
            LowerAttention(**options)


@pytest.mark.parametrize(("heads", "width"), [((1, 1), 16), ((9, 3), 64), ((4, 4), 48), ((6, 2), 80), ((8, 1), 128), ((9, 1), 64), ((2, 2), 20)])
def test_squares_that_are_turned_early(heads: tuple[int, int], width: int) -> None:
    """The same bits, whatever keys there are, and nothing is read behind the last one; queries of unknown number and many rows as ever."""
    for more, options in (("", ""), (", %n: i64[]", ", causal=true, length=%n")):
        for written in ({"S": 1}, {}, {"S": 1, "T": 160}):
            form = Form(*heads, width, 32, options, more, written)
            plain, early = native(form.text, ahead=32), native(form.text, ahead=32, early="true")
            for total in (160,) if "T" in written else (0, 1, 15, 16, 17, 127, 128, 131, 144, 145, 257, 300):
                arrays = form.arrays(1, 1, total)
                for n in (0, 1, total - 17, total) if more else (total,):
                    given = [*arrays, np.array(max(n, 0))] if more else arrays
                    assert same_bits(early(*given), plain(*given)), (written, total, n)
    text = Form(3, 1, 64, written={"S": 1}).text
    module = lowered(text, "lower-attention{early=true}")
    assert sum(op.name == "vector.transpose" for op in module.walk()) == 0
    for total in (1, 16, 130):
        arrays = Form(3, 1, 64).arrays(1, 1, total)
        (found,) = Interpreter(module).run(module.main, list(arrays))
        check(Form(3, 1, 64, written={"S": 1}), arrays, np.asarray(found))


@pytest.mark.parametrize("ahead", [0, 32])
@pytest.mark.parametrize("width", [64, 32, 20])
@pytest.mark.parametrize("total", [1, 127, 128, 129, 160, 191, 192, 257, 300])
def test_hints_of_few_queries_are_for_keys_that_come(monkeypatch: pytest.MonkeyPatch, total: int, width: int, ahead: int) -> None:
    """All are in the buffers, and the first block of each further head is asked for whole before its turn, or nearly so behind a short one.

    So many keys ahead they are for all keys but the first ones, and for no values.
    """
    form = Form(heads=3, key_heads=3, width=width, value_width=width, written={"B": 1, "S": 1})
    module = lowered(form.text, f"lower-attention{{ahead={ahead}}}")
    asked: dict[str, set[tuple[int, ...]]] = {}

    def record(_: object, __: object, op: Operation, operands: list[np.ndarray], environment: Environment) -> tuple[()]:
        (access,) = layout_of(op)
        assert isinstance(access, AccessArg)
        place = tuple(number(i.expr, operands, environment.names) for i in access.indices)
        assert all(0 <= at < size for at, size in zip(place, operands[access.position].shape, strict=True)), place
        asked.setdefault(op.operand_uses[access.position].value.name, set()).add(place[:3])
        return ()

    monkeypatch.setattr(type(REGISTRY["memref.prefetch"]), "execute", record)
    arrays = form.arrays(1, 1, total)
    Interpreter(module).run(module.main, list(arrays))
    if total < 16:
        return  # less than a square
    if ahead:
        (keys,) = asked.values()
        whole = {(0, h, row) for h in range(3) for row in range(total)}
        heads = range(3 if total % 16 else 1)  # a square at the end of the buffer that is not full asks for nothing
        assert whole - keys <= {(0, h, row) for h in heads for row in range(ahead)}
        return
    assert len(asked) == 2, "keys and values"
    for places in asked.values():
        for head in (1, 2):
            rows = {row for _, h, row in places if h == head and row < 128}
            assert len(rows) >= min(total, 128) * (1 if total % 128 < 64 else 0.5)
