"""prefetch: hints for what later rounds read, and the same bits."""

from __future__ import annotations

import pytest
from loop_programs import assert_same_runs, matmul
from pass_checks import load, optimize

from ir.diagnostics import GraphError
from ir.printer import print_module
from passes.pipelines import load_pipeline

TILES = "tile{loop=n, size=48, outside=m},tile{loop=m, size=8},peel{loop=m.tile, sizes=[4, 2, 1]},vectorize{loops=[m, n]},"


def test_hints() -> None:
    text = matmul("M", "96", "5")
    after = optimize(text, TILES + "prefetch{ahead=3}")
    lines = [line.strip() for line in print_module(after).splitlines()]
    at = next(i for i, line in enumerate(lines) if "memref.prefetch" in line)
    assert lines[at : at + 3] == [f"memref.prefetch(%B[%k+3, {start}])" for start in ("%jt", "%jt+16", "%jt+32")]
    assert lines[at + 3].startswith("%y = vector.load(%B[%k, %jt:+48])")
    assert not any("prefetch(%A" in line for line in lines), "a line of A serves many rounds"
    assert_same_runs(load(text), after, [((m, 5), (5, 96), (96,)) for m in (0, 1, 9)])


def test_what_gets_none() -> None:
    """Scalar loads, loads along the loop, loops of other tags."""
    text = matmul("M", "96", "5")
    for pipeline in ("prefetch", TILES + "prefetch{loop=x}"):
        assert "prefetch" not in print_module(optimize(text, pipeline))
    with pytest.raises(GraphError, match="a hint is for a later round"):
        load_pipeline("prefetch{ahead=0}")


def panels(rows: str, steps: str = "5") -> str:
    """A product whose second factor lies in panels of 48 columns."""
    return f"""graph @main(%A: memref<f32[{rows}, {steps}]>, %P: memref<f32[2, {steps}, 48]>, %C: memref<f32[{rows}, 96]>) {{
  %zero = arith.constant(0.0) : f32
  scf.parallel(%jt = 0 to 96 step 48, tag="n.tile") {{
    scf.parallel(%it = 0 to {rows} step 8, tag="m.tile") {{
      scf.parallel(%i = %it to min(%it+8, {rows}), tag="m") {{
        scf.parallel(%j = %jt to %jt+48, tag="n") {{
          %s = scf.for(%k = 0 to {steps}, %acc = %zero, tag="k") {{
            %a = memref.load(%A[%i, %k]) : f32
            %b = memref.load(%P[%jt floordiv 48, %k, %j-%jt]) : f32
            %t = math.fma(%a, %b, %acc) : f32
            yield %t
          }} : f32
          memref.store(%s, %C[%i, %j])
          yield
        }}
        yield
      }}
      yield
    }}
    yield
  }}
  return
}}
"""


PANELS = "peel{loop=m.tile, sizes=[4, 2, 1]},vectorize{loops=[m, n]},prefetch{across=n.tile, far=20, near=0}"


def hints(text: str, pipeline: str = PANELS) -> list[str]:
    return [line.strip() for line in print_module(optimize(text, pipeline)).splitlines() if "prefetch" in line]


def test_the_next_panel() -> None:
    """Every step of every reader asks for its share: 48 elements in 4 shares of 12, in the order in which they lie."""
    found = hints(panels("32"))
    assert found[-1] == "memref.prefetch(%P[(%jt floordiv 48)+1, 0, 60*(%it floordiv 8)+12*%k], locality=2)"
    assert found[:-1] == [f"memref.prefetch(%P[%jt floordiv 48, %k+8, {start}])" for start in (0, 16, 32)]
    places = sorted(12 * k + 60 * reader for reader in range(4) for k in range(5))
    assert places == list(range(0, 5 * 48, 12))


@pytest.mark.parametrize(("rows", "distance", "next_"), [("8", 20, 0), ("16", 14, 1), ("24", 8, 1), ("7", 20, 0), ("25", 8, 1)])
def test_few_readers(rows: str, distance: int, next_: int) -> None:
    """One or two readers look further ahead; from two on they share the next panel, which remainders leave to them."""
    found = hints(panels(rows))
    assert sum("locality" in line for line in found) == next_
    assert all(f"+{distance}," in line for line in found if "locality" not in line)


@pytest.mark.parametrize(("lines", "near", "distance"), [("5", 1920, 8), ("5", 1919, 20), ("K", 1 << 40, 20)])
def test_what_a_cache_holds(lines: str, near: int, distance: int) -> None:
    """Panels that are so small together are near for few readers, too; what is open may be large."""
    found = hints(panels("8", lines), PANELS.replace("near=0", f"near={near}"))
    assert found == [f"memref.prefetch(%P[%jt floordiv 48, %k+{distance}, {start}])" for start in (0, 16, 32)]


@pytest.mark.parametrize(("rows", "distance"), [("1", 16), ("2", 32), ("8", 50)])
def test_what_comes_from_memory(rows: str, distance: int) -> None:
    """Panels that are too large for all caches go into the second one, further ahead for more rows, which take longer."""
    pipeline = PANELS.replace("far=20", "far=50, memory=1919")
    assert hints(panels(rows), pipeline) == [f"memref.prefetch(%P[%jt floordiv 48, %k+{distance}, {start}], locality=2)" for start in (0, 16, 32)]
    others = hints(panels(rows), pipeline.replace("1919", "1920"))
    assert len(others) == 3 and not any("locality" in line for line in others)
    assert_same_runs(load(panels(rows)), optimize(panels(rows), pipeline), [((int(rows), 5), (2, 5, 48), (int(rows), 96))])


@pytest.mark.parametrize("rows", ["16", "M"])
def test_what_is_read_again(rows: str) -> None:
    pipeline = PANELS.replace("far=20", "far=20, memory=1")
    assert hints(panels(rows), pipeline) == hints(panels(rows))


@pytest.mark.parametrize(("rows", "next_"), [("8", 0), ("16", 0), ("24", 1)])
def test_what_some_readers_share(rows: str, next_: int) -> None:
    """Panels from memory that two tiles of rows read are asked for like those of one, and no other before its turn."""
    found = hints(panels(rows), PANELS.replace("far=20", "far=50, memory=1, shared=2"))
    assert len(found) == 3 + next_
    if not next_:
        assert found == [f"memref.prefetch(%P[%jt floordiv 48, %k+50, {start}], locality=2)" for start in (0, 16, 32)]
    for wrong in ("shared=0", "stream=-1", "results=-1"):
        with pytest.raises(GraphError, match="a panel has a reader"):
            load_pipeline(f"prefetch{{{wrong}}}")


@pytest.mark.parametrize(("rows", "memory", "distance", "locality"), [("4", 1, 1, ", locality=2"), ("4", 1920, 1, ""), ("8", 1920, 20, "")])
def test_what_the_processor_brings_by_itself(rows: str, memory: int, distance: int, locality: str) -> None:
    """Few rows ask for the next round only."""
    found = hints(panels(rows), PANELS.replace("far=20", f"far=20, memory={memory}, stream=4"))
    assert found == [f"memref.prefetch(%P[%jt floordiv 48, %k+{distance}, {start}]{locality})" for start in (0, 16, 32)]


def test_readers_known_when_it_runs() -> None:
    after = optimize(panels("M", "K"), PANELS)
    text = print_module(after)
    assert text.count("locality=2") == 1 and "%k+max(8, min(-6*(M floordiv 8)+26, 20))" in text
    sizes = [((m, k), (2, k, 48), (m, 96)) for m in (0, 1, 7, 8, 33) for k in (0, 1, 5)]
    assert_same_runs(load(panels("M", "K")), after, sizes)


def test_what_is_no_panel() -> None:
    """Other tags around, lines that are read in part, in another order, from another place."""
    text = panels("32")
    for old, new in [
        ('tag="n.tile"', 'tag="x.tile"'),
        ("%P[%jt floordiv 48, %k, %j-%jt]", "%P[1-%jt floordiv 48, %k, %j-%jt]"),
        ("%k = 0 to 5", "%k = 0 to 5 step 2"),
        ("%P[%jt floordiv 48, %k, %j-%jt]", "%P[%k floordiv 3, %jt floordiv 48, %j-%jt]"),
    ]:
        assert old in text
        assert not any("locality" in line for line in hints(text.replace(old, new)))
    with pytest.raises(GraphError, match="not for an earlier one"):
        load_pipeline("prefetch{ahead=8, far=7}")


def test_locality() -> None:
    text = "graph @main(%A: memref<f32[4]>) {{\n  memref.prefetch(%A[0], locality={})\n  return\n}}\n"
    assert "locality=1" in print_module(load(text.format(1))) and "locality" not in print_module(load(text.format(3)))
    with pytest.raises(GraphError, match="expected 0, 1, 2 or 3, found 4"):
        load(text.format(4))


def test_places_of_results() -> None:
    """Row by row: where sums will be stored, and what rows behind them read; not where all of a buffer is near."""
    text = panels("16").replace('%C: memref<f32[16, 96]>', '%R: memref<f32[16, 96]>, %C: memref<f32[16, 96]>')
    behind = """      scf.parallel(%e = %it to %it+8, tag="m.e") {
        scf.parallel(%f = %jt to %jt+48, tag="n.e") {
          %sum = memref.load(%C[%e, %f]) : f32
          %more = memref.load(%R[%e, %f]) : f32
          %both = arith.addf(%sum, %more) : f32
          memref.store(%both, %C[%e, %f])
          yield
        }
        yield
      }
      yield
    }
    yield
  }
  return
"""
    text = text.replace("      yield\n    }\n    yield\n  }\n  return\n", behind)
    pipeline = PANELS.replace("prefetch{", "vectorize{loops=[n.e]},prefetch{").replace("far=20", "far=20, results=6144")
    found = hints(text, pipeline)
    for start in ("", "+16", "+32"):
        assert f"memref.prefetch(%C[%it+%r, %jt{start}], write=true)" in found
        assert f"memref.prefetch(%R[%it+%r, %jt{start}])" in found
    assert sum("%r" in line for line in found) == 6
    assert not any("%r" in line for line in hints(text, pipeline.replace("6144", "6145")))
    assert_same_runs(load(text), optimize(text, pipeline), [((16, 5), (2, 5, 48), (16, 96), (16, 96))])


def test_the_next_block_of_rows() -> None:
    """Each panel asks for its share of every line of the rows of the next block, which together are all."""
    text = panels("144", "40")
    pipeline = PANELS.replace("prefetch{", "block-rows{size=48, bytes=1},prefetch{").replace("far=20", "far=20, results=1")
    found = [line for line in hints(text, pipeline) if "%A" in line]
    assert found == [f"memref.prefetch(%A[%it.1+%r+48, 32*(%jt.1 floordiv 48){start}], locality=2)" for start in ("", "+16")]


def test_places_that_are_known_too_late() -> None:
    """What the rows behind sums read may be found out only behind the sums: there is no hint for it then."""
    text = panels("16").replace("%C: memref<f32[16, 96]>", "%R: memref<f32[16, 96]>, %I: memref<index[16]>, %C: memref<f32[16, 96]>")
    behind = """      %at = memref.load(%I[%it]) : index
      scf.parallel(%e = %it to %it+8, tag="m.e") {
        %more = vector.load(%R[%at+%e, %jt:+48]) : vector<f32[48]>
        vector.store(%more, %C[%e, %jt:+48])
        yield
      }
      yield
    }
    yield
  }
  return
"""
    text = text.replace("      yield\n    }\n    yield\n  }\n  return\n", behind)
    found = hints(text, PANELS.replace("far=20", "far=20, results=1"))
    assert any("%C[%it+%r, %jt]" in line for line in found) and not any("%R" in line for line in found)
