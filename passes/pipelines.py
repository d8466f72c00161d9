"""The presets: the one place that says in which order passes run."""

from __future__ import annotations

from passes.infra.base import Pass
from passes.infra.pipeline import parse_pipeline

_LINALG = (
    "decompose{keep=[sigmoid, silu, gelu, softmax, log_softmax]}",
    "hoist-to-init",
    "lower-to-linalg",
    "fuse",
)

_LOOPS = (
    # products: blocks of 8 rows by 48 columns, or of 6 by 64 where there are many rows; factors arranged by columns
    "transpose-operands",
    "collapse",
    "lower-to-loops",
    "tile{loop=n, size=[48, 64, 48], outside=m, rounds=48}",
    "tile{loop=m, size=8, area=384}",
    "pack{stored_only=false, rows=32}",
    "hoist-to-init",
    "peel{loop=n.tile, sizes=[32, 16]}",
    "peel{loop=m.tile, sizes=[4, 2, 1]}",
    # what follows a product, row by row while the block is near
    "fission{loops=[m, n], after=k}",
    "vectorize{loops=[m, n]}",
    "vectorize{loops=[n.e]}",
    "vectorize{loops=[n]}",
    "prefetch{loop=k, ahead=8, across=n.tile}",
    # one loop of what goes through a row in the same order
    "fuse-loops{loop=[col, reduce], inside=row}",
    "forward-stores{loops=[reduce]}",
    # sums in order are exact to f32, those over neighbours are in 16 lanes; everything else in blocks of 64
    "widen-sums",
    "split-reduction",
    "tile{loop=col, size=64}",
    "peel{loop=col.tile, sizes=[16]}",
    "vectorize{loops=[col]}",
    # memory, threads, machine vectors
    "plan-memory",
    "parallelize",
    "expand-math",
    "unroll-vectors",
)

PRESETS: dict[str, str] = {
    # inferred and verified, otherwise as written
    "O0": "infer-types",
    # a clean graph: calls inlined, dead and repeated work removed, constants folded
    "O1": "infer-types,inline,canonicalize,constant-fold,cse,canonicalize,dce",
    # fused loop nests over buffers
    "O2": ",".join(("O1", *_LINALG)),
    # loops over machine vectors, ready for code generation
    "cpu": ",".join(("O1", *_LINALG, *_LOOPS)),
}


def load_pipeline(text: str) -> list[Pass]:
    """The passes of a pipeline string, presets expanded.  Raises GraphError located in the string."""
    return parse_pipeline(text, PRESETS)
