"""prefetch-rows: hints for what comes next in rows, and the same bits."""

from __future__ import annotations

import pytest
from loop_programs import assert_same_runs
from pass_checks import apply, load, optimize

from ir.diagnostics import GraphError
from ir.printer import print_module
from passes.pipelines import OTHER_TARGETS, PRESETS, TARGETS, load_pipeline

LARGE = "prefetch-rows{small=0}"


def hints(text: str, pipeline: str = LARGE) -> list[str]:
    return [line.strip() for line in print_module(optimize(text, pipeline)).splitlines() if "prefetch" in line]


def flat(n: str, dtype: str = "f32", out: str = "%Y", size: int = 32) -> str:
    """``y = -x`` over all elements."""
    return f"""graph @main(%X: memref<{dtype}[{n}]>, %Y: memref<{dtype}[{n}]>) {{
  scf.parallel(%i = 0 to {n} step {size}, tag="col.tile") {{
    %a = vector.load(%X[%i:+{size}]) : vector<{dtype}[{size}]>
    %b = arith.negf(%a) : vector<{dtype}[{size}]>
    vector.store(%b, {out}[%i:+{size}])
    yield
  }}
  return
}}
"""


def rows(r: str, c: str, function: str = "math.exp", step: int = 1) -> str:
    """A maximum of every row, then a function of the difference, scaled by a weight of the column."""
    return f"""graph @main(%X: memref<f32[{r}, {c}]>, %W: memref<f32[{c}]>, %Y: memref<f32[{r}, {c}]>) {{
  scf.parallel(%i = 0 to {r} step {step}, tag="row") {{
    %low = arith.constant(-inf) : vector<f32[1, 16]>
    %m = scf.for(%j = 0 to {c} step 16, %acc = %low, tag="reduce") {{
      %a = vector.load(%X[%i, %j:+16]) : vector<f32[1, 16]>
      %n = arith.maximumf(%a, %acc) : vector<f32[1, 16]>
      yield %n
    }} : vector<f32[1, 16]>
    scf.parallel(%k = 0 to {c} step 16, tag="col.tile") {{
      %b = vector.load(%X[%i, %k:+16]) : vector<f32[1, 16]>
      %w = vector.load(%W[%k:+16]) : vector<f32[16]>
      %d = arith.subf(%b, %m) : vector<f32[1, 16]>
      %e = {function}(%d) : vector<f32[1, 16]>
      %p = arith.mulf(%e, %w) : vector<f32[1, 16]>
      vector.store(%p, %Y[%i, %k:+16])
      yield
    }}
    yield
  }}
  return
}}
"""


@pytest.mark.parametrize(("dtype", "ahead", "starts"), [("f32", 256, (0, 16)), ("f64", 128, (0, 8, 16, 24)), ("f16", 512, (0,))])
def test_all_elements(dtype: str, ahead: int, starts: tuple[int, ...]) -> None:
    """A hint for every line, 1024 bytes ahead, of what is read and what is written, in their order."""
    read = [f"memref.prefetch(%X[%i+{ahead + s}])" for s in starts]
    written = [f"memref.prefetch(%Y[%i+{ahead + s}], write=true)" for s in starts]
    assert hints(flat("4096", dtype)) == read + written


def test_in_place() -> None:
    """What is read and written at one place is asked for once, to be written."""
    assert hints(flat("4096", out="%X")) == [f"memref.prefetch(%X[%i+{s}], write=true)" for s in (256, 272)]


def test_the_next_row_in_the_busy_loop() -> None:
    """The loop with functions has time to fetch the next row; the weight of columns stays near and gets no hint."""
    text = print_module(optimize(rows("64", "4096"), LARGE))
    assert hints(rows("64", "4096")) == ["memref.prefetch(%X[%i+1, %k])", "memref.prefetch(%Y[%i, %k+256], write=true)"]
    assert text.index("%k = 0") < text.index("memref.prefetch")
    assert hints(rows("64", "4096", step=2))[0] == "memref.prefetch(%X[%i+2, %k])"
    open_rows = hints(rows("64", "C", step=2))[0]
    assert open_rows == "memref.prefetch(%X[%i+2*min(1, max(-C+16384, 0)), %k])", "the same row, where rows turn out to be long"


@pytest.mark.parametrize(
    ("text", "pipeline"),
    [
        (rows("64", "4096", "math.absf"), LARGE),
        (rows("64", "4096"), "prefetch-rows{small=0, longest=16384}"),
        (rows("64", "4096", step=8), LARGE),
    ],
)
def test_further_along_the_row(text: str, pipeline: str) -> None:
    """Rows that are long, and loops that compute little: the first one asks for what is ahead."""
    assert hints(text, pipeline) == ["memref.prefetch(%X[%i, %j+256])", "memref.prefetch(%Y[%i, %k+256], write=true)"]


def test_what_gets_none() -> None:
    """What near caches hold; loops with other tags, scalars, columns that are not neighbours, nests that have hints."""
    assert hints(flat("32768"), "prefetch-rows") == [] and len(hints(flat("32800"), "prefetch-rows")) == 4
    assert len(hints(flat("N"), "prefetch-rows")) == 4, "the size is open"
    assert hints(flat("4096").replace("col.tile", "m.tile")) == []
    assert hints(flat("4096").replace("[%i:+32]", "[2*%i:+32]")) == []
    assert hints(flat("4096"), f"{LARGE},{LARGE}") == hints(flat("4096"))
    scalars = flat("4096", size=1).replace("vector.load(%X[%i:+1]) : vector<f32[1]>", "memref.load(%X[%i]) : f32")
    scalars = scalars.replace("vector<f32[1]>", "f32").replace("vector.store(%b, %Y[%i:+1])", "memref.store(%b, %Y[%i])")
    assert hints(scalars) == []


def test_options() -> None:
    assert hints(flat("4096"), "prefetch-rows{small=0, ahead=64}")[0] == "memref.prefetch(%X[%i+16])"
    for wrong in ("ahead=63", "longest=-1", "small=-1"):
        with pytest.raises(GraphError, match="a hint is for a later line"):
            load_pipeline(f"prefetch-rows{{{wrong}}}")


@pytest.mark.parametrize("r", [0, 1, 3])
@pytest.mark.parametrize("c", [0, 16, 48])
def test_same_bits(r: int, c: int) -> None:
    for text in (rows("R", "C"), rows("R", "C", "math.absf")):
        assert_same_runs(load(text), optimize(text, LARGE), [((r, c), (c,), (r, c))])


@pytest.mark.parametrize("target", list(TARGETS))
def test_whole_programs(target: str) -> None:
    """A softmax and a residual with its norm, sizes known and open: the interpreter's bits with hints and without."""
    text = """graph @main(%x: f32[R, C], %y: f32[R, C], %w: f32[C]) -> (f32[R, C], f32[R, C]) {
  %h = add(%x, %y)
  %n = rmsnorm(%h, weight=%w, eps=1e-5)
  %s = softmax(%n)
  return %s, %h
}
"""
    passes = {**PRESETS, **OTHER_TARGETS}[target]
    before, after = load(text), load(text)
    own = next(name for name in ("prefetch-rows{ahead=256}", "prefetch-rows") if name in passes)
    apply(before, passes.replace(f"{own},", ""))
    apply(after, passes.replace(own, LARGE))
    assert "prefetch" not in print_module(before) and "write=true" in print_module(after)
    assert_same_runs(before, after, [((r, c), (r, c), (c,)) for r in (0, 1, 5) for c in (1, 16, 63, 64, 65)])


def test_rows_that_are_looked_up_get_no_hints() -> None:
    text = """graph @main(%X: memref<f32[B, 64]>, %I: memref<index[N]>, %Y: memref<f32[N, 64]>) {
  scf.parallel(%i = 0 to N, tag="row") {
    %at = memref.load(%I[%i]) : index
    scf.parallel(%k = 0 to 64 step 16, tag="col.tile") {
      %x = vector.load(%X[%at, %k:+16]) : vector<f32[1, 16]>
      vector.store(%x, %Y[%i, %k:+16])
      yield
    }
    yield
  }
  return
}
"""
    found = hints(text)
    assert found and all("%Y[" in hint for hint in found)


@pytest.mark.parametrize(("columns", "found"), [(240, False), (256, True)])
@pytest.mark.parametrize("inside", [False, True])
def test_panels(columns: int, found: bool, inside: bool) -> None:
    """What copies a short part of each line asks for nothing of it, nor for memory that is made in a loop."""
    made = f"%P = memref.alloc() : memref<f32[64, {columns}]>"
    text = f"""graph @main(%X: memref<f32[64, 4096]>, %Y: memref<f32[64, 1]>) {{
  {"" if inside else made}
  scf.parallel(%jt = 0 to 960 step {columns}, tag="n.tile") {{
    {made if inside else ""}
    scf.parallel(%i = 0 to 64, tag="row") {{
      scf.parallel(%j = 0 to {columns} step 16, tag="col.tile") {{
        %a = vector.load(%X[%i, %j+%jt:+16]) : vector<f32[16]>
        vector.store(%a, %P[%i, %j:+16])
        yield
      }}
      yield
    }}
    yield
  }}
  return
}}
"""
    lines = hints(text)
    assert any("%X" in line for line in lines) == found
    assert any("%P" in line for line in lines) == (not inside)
