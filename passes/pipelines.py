"""The presets: the one place that says in which order passes run."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from string import Template

from passes.infra.base import Pass
from passes.infra.pipeline import parse_pipeline

_LINALG = (
    "raise-attention",
    "quantize-products",
    "merge-products",
    "decompose{keep=[sigmoid, silu, gelu, softmax, log_softmax, attention, rope]}",
    "cse",
    "sink-casts",
    "hoist-to-init",
    "lower-to-linalg",
    "fuse",
)

_LOOPS = (
    # products: blocks of rows and columns that the registers hold, wider ones where there are many rows; factors arranged by columns
    "transpose-operands{near=8192}",
    "collapse",
    # pairs as vectors, and attention, while nests that split and join heads are seen: as many sums at a time as a block of products
    "lower-rope",
    "lower-attention{rows=$queries, columns=$keys$key_hints}",
    "lower-digits{rows=$digits, columns=$panel$tiles$packed_hints$pairs}",
    "lower-to-loops",
    "tile{loop=n, size=$columns, outside=m, rounds=48, few=$few, across=$lanes, versions=2048}",
    "tile{loop=m, size=8, area=$area}",
    "pack{stored_only=false, rows=32, front=600}",
    "hoist-to-init",
    "peel{loop=n.tile, sizes=$columns_left}",
    "peel{loop=m.tile, sizes=[4, 3, 2, 1], exact=true}",
    # what follows a product, row by row while the block is near
    "fission{loops=[m, n], after=k}",
    "vectorize{loops=[m, n]}",
    "vectorize{loops=[n.e]}",
    "vectorize{loops=[n]}",
    "block-sums{loop=n.tile, sums=k}",
    "block-steps{loop=k, size=$lanes}",
    "block-long-sums{loop=n.tile, rows=m.tile, sums=k}",
    "block-rows{loop=n.tile, rows=m.tile, size=128}",
    "prefetch{loop=k, ahead=8, across=n.tile$product_hints}",
    "widen-panels",
    # one loop of what goes through a row in the same order
    "fuse-loops{loop=[col, reduce], inside=row}",
    "forward-stores{loops=[reduce]}",
    # sums in order are exact to f32, those over neighbours are in 16 lanes; everything else in blocks of four registers
    "widen-sums",
    "split-reduction",
    "tile{loop=cross, size=$lanes}",
    "tile{loop=col, size=$row, outside=cross}",
    "peel{loop=cross.tile, sizes=[]}",
    "peel{loop=col.tile, sizes=[$lanes]}",
    "vectorize{loops=[cross, col]}",
    "vectorize{loops=[col]}",
    # memory, several rows at once, threads, machine vectors
    "plan-memory",
    "unroll-jam{by=$rows, carried=$carried}",
    "parallelize",
    "prefetch-rows$row_hints",
    "$past_caches",
    "expand-math",
    "unroll-vectors{lanes=$lanes}",
)


_CUDA = (
    "collapse",
    "share-checks",
    # what is more than one nest, while its operations are seen, and nests that split and join heads
    "map-rope",
    "map-attention$attention",
    "map-digits",
    "lower-to-loops",
    # sums in order are exact to f32, as on the CPU
    "widen-sums",
    # factors of products by tensor cores in their own type
    "narrow-buffers",
    # each nest becomes a kernel: the special forms first, then what is left, in the end a kernel of one thread
    "map-products$products",
    # what a row of a product is made of is computed by its kernel
    "fuse-into-launches",
    "map-rows",
    "map-sorts",
    "map-elements",
    "map-serial",
    # kernels that have nothing to do with each other run side by side
    "merge-launches",
    # memory of blocks, memory of the device
    "plan-shared",
    "plan-memory",
)


@dataclass(frozen=True)
class Target:
    """A kind of processor: what it is known by, how many f32 a vector register holds, and how many registers there are."""

    features: tuple[str, ...]
    lanes: int
    registers: int
    tiles: bool = False
    """whether there are registers for matrices of bytes (AMX)"""
    streams: bool = False
    """whether what is read from one end to the other arrives in time by itself, so that hints for it would be in the way"""
    pairs: bool = False
    """whether bytes are added while others are multiplied, so that fewer products for more sums are worth it"""

    def passes(self) -> list[str]:
        """The passes below the nests; blocks of products leave a quarter of the registers for what they are made of.

        A sum of 16 lanes is several registers, which do not wait for each other, where registers hold less: then fewer rows at once do.
        """
        vectors = 3 if self.registers >= 32 else 2
        area, keys = self.registers * 3 // 4 * self.lanes, max(16, 2 * self.lanes)
        shape = {
            "lanes": self.lanes,
            "row": 4 * self.lanes,
            "rows": max(2, self.lanes // 4),
            "columns": [n * self.lanes for n in (vectors, vectors + 1, vectors)],
            "columns_left": [n * self.lanes for n in range(vectors - 1, 0, -1)],
            "area": area,
            "carried": 4 * area,
            "few": area // ((vectors + 1) * self.lanes),
            "queries": area // keys,
            "digits": [self.registers * 3 // 8 // (n + 1) for n in (1, 2, 3)],
            "panel": 2 * self.lanes,
            "keys": keys,
            "tiles": ", tiles=true" if self.tiles else "",
            "packed_hints": ", ahead=0, near=0" if self.streams else "",
            "pairs": ", pairs=[8, 3, 3]" if self.pairs else "",
            "key_hints": ", ahead=32, early=true" if self.streams else "",
            "product_hints": ", far=96, stream=4, shared=2, results=524288" if self.streams else "",
            "row_hints": "{ahead=256}" if self.streams else "",
            "past_caches": "nontemporal-stores" if self.streams else "",
        }
        return [p for p in (Template(p).substitute(shape) for p in _LOOPS) if p]


TARGETS: dict[str, Target] = {
    "cpu-amx": Target(("avx512f", "amx-int8"), 16, 32, tiles=True),
    "cpu-zen": Target(("avx512f", "sse4a"), 16, 32, streams=True, pairs=True),
    "cpu": Target(("avx512f",), 16, 32),
    "cpu-avx2": Target(("avx2",), 8, 16),
    "cpu-neon": Target(("neon",), 4, 32),
}
"""The presets that end with machine vectors, each for a kind of processor, the best one first."""


def _cuda_passes(**options: str) -> str:
    passes = [Template(p).substitute(options) for p in _CUDA]
    # what map-sorts has kernels for is left as it is
    tensors = ("lower-to-linalg{keep=[sort, argsort, topk, top_p]}" if p == "lower-to-linalg" else p for p in _LINALG)
    return ",".join(("O1", *tensors, *passes))


PRESETS: dict[str, str] = {
    # inferred and verified, otherwise as written
    "O0": "infer-types",
    # a clean graph: calls inlined, dead and repeated work removed, constants folded
    "O1": "infer-types,inline,canonicalize,constant-fold,cse,canonicalize,dce",
    # fused loop nests over buffers
    "O2": ",".join(("O1", *_LINALG)),
    # loops over machine vectors, ready for code generation
    "cpu": ",".join(("O1", *_LINALG, *TARGETS["cpu"].passes())),
    # kernels for a GPU, ready for CUDA C
    "cuda": _cuda_passes(attention="", products=""),
}


OTHER_TARGETS: dict[str, str] = {name: ",".join(("O1", *_LINALG, *t.passes())) for name, t in TARGETS.items() if name not in PRESETS}
"""The preset ``cpu`` with the numbers of other processors."""

OTHER_GPUS: dict[str, str] = {
    # 99 KiB of shared memory for a block
    "cuda-sm86": _cuda_passes(attention="{shared=101376}", products=""),
    # 64 KiB of shared memory for a block; its tensor cores know no bf16, and have no cp.async to be fed by
    "cuda-sm75": _cuda_passes(attention="{shared=65536}", products="{tensor_cores=false}"),
}
"""The preset ``cuda`` for what older and smaller GPUs have."""


def preset_for(features: Collection[str]) -> str:
    """The preset for a processor with such features (``avx2``, ...); the one for the smallest registers when none is known."""
    return next((name for name, target in TARGETS.items() if {*target.features} <= {*features}), list(TARGETS)[-1])


def preset_for_gpu(capability: tuple[int, int]) -> str:
    """The preset for a GPU by its compute capability."""
    if capability < (8, 0):
        return "cuda-sm75"
    return "cuda-sm86" if capability in ((8, 6), (8, 9), (12, 0), (12, 1)) else "cuda"


def load_pipeline(text: str) -> list[Pass]:
    """The passes of a pipeline string, presets expanded.  Raises GraphError located in the string."""
    return parse_pipeline(text, {**PRESETS, **OTHER_TARGETS, **OTHER_GPUS})
