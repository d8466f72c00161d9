"""The kinds of kernels, and what their machine code must contain: a table that authors of passes add lines to.

A line is a program that has such a kernel, and patterns of instructions (:func:`codegen.cuda.cubin.count`) that stand together in one of
its kernels.  ``LDG.E.128`` matches ``LDG.E.128.CONSTANT``: the parts in this order, others between.  For all of them holds besides that they
compile for every target, and that no thread needs memory for spilled registers or local arrays.

What the instructions are: LDG, STG (global memory; ``.128``: 16 bytes at once), LDS, STS (shared), LDL, STL (local: spills), LDGSTS
(cp.async), LDSM (ldmatrix), HMMA (products by tensor cores), FFMA (fused multiply-add), SHFL (shuffle), BAR (barrier), IDP (products of bytes).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from codegen.cuda.targets import TARGETS, Target
from passes.pipelines import preset_for_gpu
from tests.digit_programs import product_text


@dataclass(frozen=True)
class Kind:
    """A kind of kernel.

    ``everywhere`` is expected on all targets, ``since`` on those from an architecture on, ``never`` on none.  ``pipeline`` makes the kernels,
    by default the preset for the target.  ``quick`` are the targets of the default run: kernels that take seconds to compile are compiled for
    one there.
    """

    name: str
    program: str
    everywhere: tuple[str, ...] = ()
    since: dict[str, tuple[str, ...]] = field(default_factory=dict)
    never: tuple[str, ...] = ()
    pipeline: str = ""
    quick: tuple[str, ...] = tuple(TARGETS)

    def passes(self, target: Target) -> str:
        """The pipeline for a target."""
        return self.pipeline or preset_for_gpu(target.capability)

    def expected(self, target: Target) -> tuple[str, ...]:
        """The patterns for a target."""
        later = [p for name, patterns in self.since.items() if Target(name).capability <= target.capability for p in patterns]
        return (*self.everywhere, *later)


def graph(parameters: str, result: str, *lines: str) -> str:
    """The text of a program with one graph; the first value of the last line is returned."""
    last = lines[-1].partition("=")[0].partition(",")[0].strip()
    return "\n".join([f"graph @main({parameters}) -> {result} {{", *(f"  {line}" for line in lines), f"  return {last}", "}", ""])


_PLANNED = "infer-types,plan-shared"
_ASYNCHRONOUS = """
graph @main(%A: memref<f32[N]>, %C: memref<f32[N]>) {
  gpu.launch(%b = 0 to N ceildiv 128, threads=32) {
    %t = gpu.thread_id() : index
    %s = gpu.alloc() : memref<f32[128], shared>
    %left = affine.apply(-128*%b-4*%t+N) : index
    gpu.cp_async(%A[128*%b+4*%t:+4], %s[4*%t:+4], valid=%left)
    gpu.cp_commit()
    gpu.cp_wait(pending=0)
    gpu.barrier()
    %a = vector.load(%s[-4*%t+124:+4]) : vector<f32[4]>
    vector.store(%a, %C[128*%b+4*%t:+4], valid=%left)
    yield
  }
  return
}
"""
_TENSOR_CORES = """
graph @main(%A: memref<bf16[16, 16]>, %B: memref<bf16[16, 8]>, %C: memref<f32[16, 8]>) {
  gpu.launch(%x = 0 to 1, threads=32) {
    %t = gpu.thread_id() : index
    %sa = gpu.alloc() : memref<bf16[16, 24], shared>
    %sb = gpu.alloc() : memref<bf16[16, 8], shared>
    gpu.cp_async(%A[%t floordiv 2, 8*(%t mod 2):+8], %sa[%t floordiv 2, 8*(%t mod 2):+8])
    gpu.cp_async(%B[%t floordiv 2, 4*(%t mod 2):+4], %sb[%t floordiv 2, 4*(%t mod 2):+4])
    gpu.cp_commit()
    gpu.cp_wait(pending=0)
    gpu.barrier()
    %a = gpu.ldmatrix(%sa[%t mod 16, 8*(%t floordiv 16):+8], count=4) : vector<bf16[8]>
    %b = gpu.ldmatrix(%sb[%t mod 16, 0:+8], count=2, transposed=true) : vector<bf16[4]>
    %zero = arith.constant(0.0) : vector<f32[4]>
    %c = gpu.mma(%a, %b, %zero) : vector<f32[4]>
    %low = vector.shuffle(%c, %c, mask=[0, 1]) : vector<f32[2]>
    %high = vector.shuffle(%c, %c, mask=[2, 3]) : vector<f32[2]>
    vector.store(%low, %C[%t floordiv 4, 2*(%t mod 4):+2])
    vector.store(%high, %C[(%t floordiv 4)+8, 2*(%t mod 4):+2])
    yield
  }
  return
}
"""
_TF32 = """
graph @main(%A: memref<f32[128]>, %B: memref<f32[64]>, %C: memref<f32[128]>) {
  gpu.launch(%x = 0 to 1, threads=32) {
    %t = gpu.thread_id() : index
    %a = vector.load(%A[4*%t:+4]) : vector<f32[4]>
    %b = vector.load(%B[2*%t:+2]) : vector<f32[2]>
    %c = vector.load(%C[4*%t:+4]) : vector<f32[4]>
    %r = gpu.mma(%a, %b, %c, precision="tf32") : vector<f32[4]>
    vector.store(%r, %C[4*%t:+4])
    yield
  }
  return
}
"""
_WARPS = """
graph @main(%A: memref<f32[M, 32]>, %C: memref<f32[M]>) {
  gpu.launch(%b = 0 to M ceildiv 4, threads=128) {
    %t = gpu.thread_id() : index
    %row = affine.apply(4*%b+%t floordiv 32) : index
    %m = memref.dim(%A, axis=0) : index
    %inside = arith.cmpi(%row, %m, predicate="lt") : bool
    scf.if(%inside) {
      %lane = affine.apply(%t mod 32) : index
      %a = memref.load(%A[%row, %lane]) : f32
      %s = gpu.warp_reduce(%a, kind="add") : f32
      %zero = arith.constant(0) : index
      %first = arith.cmpi(%lane, %zero, predicate="eq") : bool
      scf.if(%first) {
        memref.store(%s, %C[%row])
        yield
      }
      yield
    }
    yield
  }
  return
}
"""

ONE = ("sm_80",)

WRITTEN: tuple[Kind, ...] = (
    Kind("cp-async", _ASYNCHRONOUS, ("LDS.128", "STG.E.128"), {"sm_80": ("LDGSTS.128", "LDGDEPBAR", "DEPBAR*")}, pipeline=_PLANNED),
    Kind("tensor-cores", _TENSOR_CORES, ("LDSM.16.M88.4", "LDSM.16.MT88.2"), {"sm_80": ("HMMA.16816.F32.BF16",)}, pipeline=_PLANNED),
    Kind("tf32", _TF32, ("LDG.E.128", "LDG.E.64"), {"sm_80": ("HMMA.1688.F32.TF32",)}, pipeline=_PLANNED),
    Kind("warp-sums", _WARPS, ("SHFL.BFLY", "FADD"), pipeline=_PLANNED),
)
"""Kernels as they are written: what the words of the gpu dialect become."""

MADE: tuple[Kind, ...] = (
    # elementwise: 16 bytes for each thread and access
    Kind("elements", graph("%x: f32[B, 4096], %y: f32[B, 4096]", "f32[B, 4096]", "%s = add(%x, %y)", "%z = silu(%s)"), ("LDG.128", "STG.128")),
    Kind("elements-ragged", graph("%x: f32[N]", "f32[N]", "%y = exp(%x)"), ("STG",)),
    Kind("elements-bf16", graph("%x: bf16[B, 4096]", "bf16[B, 4096]", "%y = gelu(%x)"), ("LDG.128", "STG.128")),
    Kind("transposed", graph("%x: f32[M, N]", "f32[N, M]", "%y = transpose(%x, perm=[1, 0])"), ("LDG", "STS", "BAR.SYNC", "LDS", "STG")),
    # rows: sums of 16 lanes, each in a thread
    Kind("softmax", graph("%x: f32[M, 1024]", "f32[M, 1024]", "%y = softmax(%x)"), ("LDG", "SHFL.BFLY", "STG")),
    Kind("rmsnorm", graph("%x: f32[M, 576], %w: f32[576]", "f32[M, 576]", "%y = rmsnorm(%x, weight=%w)"), ("LDG", "SHFL.BFLY", "STG")),
    Kind(
        "layernorm",
        graph("%x: f32[M, 384], %w: f32[384], %b: f32[384]", "f32[M, 384]", "%y = layernorm(%x, weight=%w, bias=%b)"),
        ("LDG", "SHFL.BFLY", "STG"),
    ),
    Kind("sum", graph("%x: f32[M, N]", "f32[M]", "%y = sum(%x, axes=[1])"), ("LDG", "FADD", "SHFL.BFLY")),
    Kind("argmax", graph("%x: f32[M, N]", "i64[M]", "%y = argmax(%x, axis=1)"), ("LDG", "STG")),
    # products: tiles in shared memory that asynchronous copies fill; few rows; tensor cores
    Kind(
        "product-f32",
        graph("%a: f32[M, 512], %b: f32[512, 1024]", "f32[M, 1024]", "%h = matmul(%a, %b)", "%c = silu(%h)"),
        ("FFMA", "LDS.128", "BAR.SYNC", "STG.128"),
        {"sm_80": ("LDGSTS.128",)},
        quick=ONE,
    ),
    Kind(
        "product-ragged",
        graph("%a: f32[M, K], %b: f32[K, N]", "f32[M, N]", "%c = matmul(%a, %b)"),
        ("FFMA", "BAR.SYNC", "LDS.128"),
        {"sm_80": ("LDGSTS",)},
        quick=ONE,
    ),
    Kind(
        "product-bf16",
        graph("%a: bf16[M, 512], %b: bf16[512, 1024]", "bf16[M, 1024]", "%c = matmul(%a, %b)"),
        since={"sm_80": ("HMMA.16816.F32.BF16", "LDSM.M88.4", "LDSM.MT88.4", "LDGSTS.128", "LDGDEPBAR", "DEPBAR")},
        quick=ONE,
    ),
    Kind(
        "product-f16",
        graph("%a: f16[M, 512], %b: f16[1024, 512]", "f16[M, 1024]", "%c = linear(%a, %b)"),
        since={"sm_80": ("HMMA.16816.F32", "LDSM.M88.4", "LDGSTS.128", "LDGDEPBAR", "DEPBAR")},
        quick=ONE,
    ),
    Kind(
        "product-row",
        graph("%a: f32[1, 2048], %w: f32[1024, 2048]", "f32[1, 1024]", "%c = linear(%a, %w)"),
        ("LDS.128", "FFMA"),
        {"sm_80": ("LDGSTS.128",)},
    ),
    Kind(
        "product-digits",
        product_text("q4_1", 1536, 576, 3, 1),
        ("IDP*", "SHFL.BFLY"),
        {"sm_80": ("LDGSTS.128", "LDGDEPBAR", "DEPBAR")},
    ),
    Kind("product-digits-many", product_text("q4_1", 1536, 576, 3, 128), ("IDP*", "LDG.128"), quick=ONE),
    Kind("product-packed", product_text("q8_0", 1536, 576, 0, 1), ("FFMA", "LDG.128")),
    # attention
    Kind(
        "attention",
        graph("%q: f32[B, 8, S, 64], %k: f32[B, 2, S, 64], %v: f32[B, 2, S, 64]", "f32[B, 8, S, 64]", "%o = attention(%q, %k, %v, causal=true)"),
        ("FFMA", "LDS.128", "SHFL.BFLY", "STG"),
        {"sm_80": ("LDGSTS.128.ZFILL",)},
        quick=ONE,
    ),
    Kind(
        "attention-cache",
        graph(
            "%q: f32[9, 1, 64], %kv: f32[3, 1, 64], %k: f32[3, T, 64] inout, %v: f32[3, T, 64] inout, %p: i64[], %n: i64[]",
            "f32[9, 1, 64]",
            "%k1 = cache_update(%k, %kv, %p)",
            "%v1 = cache_update(%v, %kv, %p)",
            "%o = attention(%q, %k1, %v1, length=%n, causal=true)",
        ),
        ("FFMA", "SHFL.BFLY"),
        {"sm_80": ("LDGSTS.128.ZFILL",)},
        quick=ONE,
    ),
    # indices
    Kind("gather", graph("%w: f32[V, 576], %i: i64[B, S]", "f32[B, S, 576]", "%y = gather(%w, %i)"), ("LDG", "STG.128")),
    Kind("rope", graph("%x: f32[B, 4, S, 64], %p: i64[S]", "f32[B, 4, S, 64]", "%y = rope(%x, %p)"), ("LDG", "FMUL", "STG")),
    Kind(
        "rope-pairs",
        graph("%x: f32[B, 4, S, 64], %p: i64[S]", "f32[B, 4, S, 64]", "%y = rope(%x, %p, interleaved=true)"),
        ("LDG.128", "FMUL", "STG"),
        quick=ONE,
    ),
    Kind("top-k", graph("%x: f32[B, 1000]", "f32[B, 8]", "%y, %i = topk(%x, k=8)"), ("STG",), quick=ONE),
    Kind("sort", graph("%x: f32[B, 100]", "f32[B, 100]", "%y = sort(%x)"), ("STG",), quick=ONE),
    Kind("running-sum", graph("%x: f32[B, N]", "f32[B, N]", "%y = cumsum(%x, axis=1)"), ("DADD", "STG")),
)
"""Kernels that the preset ``cuda`` makes of operations on tensors."""

KINDS: dict[str, Kind] = {k.name: k for k in (*WRITTEN, *MADE)}
