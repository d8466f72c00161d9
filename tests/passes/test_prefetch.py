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
