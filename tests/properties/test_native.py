"""Machine code of the ``cpu`` preset: after each of its passes, at the edges of tiles, row by row, and the examples of all operations."""

from __future__ import annotations

import os
from functools import cache

import numpy as np
import pytest

from ir.clone import clone_module
from ir.core import Module
from ir.diagnostics import GraphError
from ir.inputs import Kind, generate_inputs
from passes.infra.manager import PassManager
from passes.infra.verify_exec import describe_difference, same_bits
from passes.pipelines import load_pipeline
from tests.checks import Baseline, Case, all_examples, apply_pass, baseline, execute, load
from tests.generators import random_module
from tests.native_checks import Native, check_native, check_outputs, check_printed, compile_checked

SIZES = (1, 7, 8, 9, 15, 16, 17, 47, 48, 49, 63, 64, 65, 95, 96, 97)
BATCHES = (1, 2, 3, 7, 8, 33, 64)

MLP = """graph @main(%x: f32[M, {K}], %w: f32[{K}, {N}], %b: f32[{N}]) -> f32[M, {N}] {{
  %t = matmul(%x, %w)
  %u = add(%t, %b)
  %y = {activation}(%u)
  return %y
}}"""
SOFTMAX = "graph @main(%x: f32[M, {N}]) -> f32[M, {N}] {{\n  %y = softmax(%x)\n  return %y\n}}"
LAYERNORM = """graph @main(%x: f32[M, {N}], %w: f32[{N}], %b: f32[{N}]) -> f32[M, {N}] {{
  %y = layernorm(%x, weight=%w, bias=%b)
  return %y
}}"""
ATTENTION = """graph @main(%q: f32[M, 2, {S}, {D}], %k: f32[M, 2, {S}, {D}], %v: f32[M, 2, {S}, {D}]) -> f32[M, 2, {S}, {D}] {{
  %y = attention(%q, %k, %v, causal=true)
  return %y
}}"""
MIXED = """file @w = "model.safetensors"
graph @main(%ids: i64[M], %x: f32[M, 10]) -> (y: f32[M, 20], p: f32[M, 10], i: i64[M], h: f16[10, M]) {{
  %table = weight(@w, "table") : f32[5, 10]
  %a = weight(@w, "a") : f32[20, 10]
  %at = transpose(%a, perm=[1, 0])
  %e = gather(%table, %ids)
  %s = add(%e, %x)
  %n = rmsnorm(%s)
  %t = matmul(%n, %at)
  %y = gelu(%t)
  %p = softmax(%x)
  %i = argmax(%x, axis=1)
  %xt = transpose(%x, perm=[1, 0])
  %h = cast(%xt, dtype=f16)
  return %y, %p, %i, %h
}}"""

PROGRAMS: dict[str, tuple[str, dict[str, int], Kind]] = {
    "mlp": (MLP.format(K=2, N=50, activation="relu"), {"M": 9}, "exact"),
    "mlp of any size": (MLP.format(K="K", N="N", activation="silu"), {"M": 9, "K": 3, "N": 17}, "real"),
    "layernorm": (LAYERNORM.format(N=19), {"M": 3}, "real"),
    "attention": (ATTENTION.format(S=3, D=4), {"M": 2}, "real"),
    "mixed": (MIXED.format(), {"M": 2}, "real"),
}
"""Small graphs for what is slow in the interpreter, with sizes and the kind of inputs."""


def runs_of(module: Module, sizes: dict[str, int], seed: int = 0, kinds: tuple[Kind, ...] = ("real", "exact")) -> Baseline:
    """What a program computes in the interpreter for tame inputs of these sizes."""
    cases = []
    for kind in kinds:
        inputs = generate_inputs(module, module.main, sizes, kind, seed, 1)
        cases.append(Case("main", sizes, kind, inputs, execute(module, "main", inputs, kind)))
    return Baseline(module, cases)


def after(module: Module, pipeline: str) -> Module:
    lowered = clone_module(module)
    PassManager(load_pipeline(pipeline)).run(lowered)
    return lowered


# -- after each pass ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROGRAMS)
def test_prefixes(name: str) -> None:
    """Up to each pass of the preset: the interpreter gives what the graph computes, and machine code what it gives."""
    text, sizes, kind = PROGRAMS[name]
    module = load(text)
    runs = runs_of(module, sizes, kinds=(kind,))
    accepted = [[c.outputs] for c in runs.cases]
    lowered, loops = clone_module(module), False
    for pass_ in load_pipeline("cpu"):
        changed = apply_pass(pass_, lowered)
        loops |= type(pass_).__name__ == "LowerToLoops"
        if not changed:
            continue
        native = Native(after(lowered, "hoist-to-init,unroll-vectors"), {}) if loops else None
        for case, known in zip(runs.cases, accepted, strict=True):
            found = [execute(lowered, case.graph, case.inputs, case.kind), *([native.run(case)] if native is not None else [])]
            for outputs in found:
                if not any(all(map(same_bits, outputs, k)) for k in known):
                    check_outputs(module, case, outputs, f"{case} after {pass_}\n{lowered}")
                    known.append(outputs)
    assert loops


# -- sizes -------------------------------------------------------------------------------------------------------------


@cache
def compiled(text: str) -> tuple[Module, Native]:
    module = load(text)
    return module, compile_checked(module)


def check_sizes(text: str, sizes: dict[str, int], exact: bool = False) -> None:
    """Machine code against the interpreter on tame data; integers bit by bit where that is asked for."""
    module, native = compiled(text)
    for case in runs_of(module, sizes).cases:
        found = native.run(case)
        if exact and case.kind == "exact":
            for a, b in zip(case.outputs, found, strict=True):
                assert same_bits(a, b), f"{describe_difference(a, b)}; {case}\n{text}"
        check_outputs(module, case, found, f"{case}\n{text}")


@pytest.mark.parametrize("n", SIZES)
def test_matmul_of_fixed_width(n: int) -> None:
    """Products whose columns and sum are known: every tile and rest of columns and rows."""
    for rows in SIZES:
        check_sizes(MLP.format(K=SIZES[(n + rows) % len(SIZES)] if rows == 9 else 13, N=n, activation="relu"), {"M": rows}, exact=True)
    for rows in (7, 16, 97):
        check_sizes(MLP.format(K=5, N=n, activation="silu"), {"M": rows})


@pytest.mark.parametrize("k", SIZES)
def test_matmul_of_any_size(k: int) -> None:
    """Products whose sizes are found out when they run."""
    text = MLP.format(K="K", N="N", activation="relu")
    for m, n in [(m, n) for m in SIZES for n in SIZES if (m + n + k) % 11 == 0]:
        check_sizes(text, {"M": m, "N": n, "K": k}, exact=True)


@pytest.mark.parametrize("n", SIZES)
def test_matmul_of_fixed_sizes(n: int) -> None:
    for m in (SIZES[(n * 7) % 16], SIZES[(n * 5 + 3) % 16]):
        text = MLP.format(K=SIZES[(n + m) % 16], N=n, activation="relu").replace("[M", f"[{m}")
        check_sizes(text, {}, exact=True)


@pytest.mark.parametrize("text", [SOFTMAX, LAYERNORM], ids=["softmax", "layernorm"])
def test_rows(text: str) -> None:
    for n in SIZES:
        check_sizes(text.format(N="N"), {"M": 5, "N": n})
    for n in (7, 17, 48, 65, 97):
        check_sizes(text.format(N=n), {"M": 3})


def test_attention() -> None:
    for s in SIZES[:11]:
        check_sizes(ATTENTION.format(S="S", D="D"), {"M": 2, "S": s, "D": SIZES[s % 16]})
    for s, d in [(7, 16), (17, 9), (49, 64)]:
        check_sizes(ATTENTION.format(S=s, D=d), {"M": 2})


# -- the same bits -----------------------------------------------------------------------------------------------------

INVARIANT = {
    "mlp": MLP.format(K=33, N=49, activation="gelu"),
    "mlp of any size": MLP.format(K="K", N="N", activation="silu"),
    "softmax": SOFTMAX.format(N="N"),
    "layernorm": LAYERNORM.format(N=65),
    "attention": ATTENTION.format(S=9, D=8),
    "mixed": MIXED.format(),
}


@pytest.mark.parametrize("name", INVARIANT)
def test_batches_and_threads(name: str) -> None:
    """A row has the same bits in every batch, and for every number of threads."""
    module, native = compiled(INVARIANT[name])
    sizes = {s: n for s, n in {"M": 64, "K": 65, "N": 50}.items() if s in native_symbols(module)}
    full = generate_inputs(module, module.main, sizes, "real", 3, 1)
    batched = [getattr(p.type, "shape", ())[:1] and str(p.type.shape[0]) == "M" for p in module.main.parameters]  # type: ignore[union-attr]
    wanted = native.run(Case("main", sizes, "real", full, []))
    for rows in BATCHES:
        for first in {0, 64 - rows, (64 - rows) // 2}:
            inputs = [a[first : first + rows] if b else a for a, b in zip(full, batched, strict=True)]
            for threads in (1, 2):
                found = native.run(Case("main", {**sizes, "M": rows}, "real", inputs, []), threads)
                for want, have, type_ in zip(wanted, found, module.main.result_types, strict=True):
                    axis = [str(d) for d in type_.shape].index("M")  # type: ignore[union-attr]
                    part = np.take(want, range(first, first + rows), axis=axis)
                    assert same_bits(part, have), f"{rows} rows from {first}, {threads} threads: {describe_difference(part, have)}"


def native_symbols(module: Module) -> set[str]:
    from ir.types import type_symbols

    return {s for p in module.main.parameters for s in type_symbols(p.type)}


# -- all operations ----------------------------------------------------------------------------------------------------

EXAMPLES = {f"{name}-{number}": text for name, number, text in all_examples() if name.startswith("graph.")}


@pytest.mark.parametrize("key", EXAMPLES)
def test_examples(key: str) -> None:
    """The example of every tensor operation on all kinds of inputs, as far as it has machine code."""
    module = load(EXAMPLES[key])
    runs = baseline(module, limit=None if os.environ.get("GRAPH_OPT_FUZZ") else 1)
    assert runs.cases
    check_native(runs, bits=True, threads=2)  # test_guarded.py runs them with one thread, too


def test_small_errors_are_noticed() -> None:
    """What the fuzzer allows for rounding hides no wrong number: results off by a ten-thousandth, integers by one bit."""
    caught = missed = 0
    for seed in range(20):
        runs = baseline(random_module(seed), seed, limit=1)
        for case in runs.cases:
            for position, output in enumerate(case.outputs):
                wrong = [np.array(o) for o in case.outputs]
                flat = wrong[position].reshape(-1)
                place = seed % max(flat.size, 1)
                if output.dtype not in (np.float32, np.int32, np.int64) or not flat.size or not 1e-30 < abs(float(flat[place])) < 1e30:
                    continue
                flat[place] = flat[place] * np.float32(1.0001) if output.dtype == np.float32 else flat[place] ^ 1
                try:
                    check_outputs(runs.module, case, wrong, "")
                    missed += 1
                except AssertionError:
                    caught += 1
    assert caught > 30 and missed <= caught / 20


def test_printed() -> None:
    """Tensors of any shape, named and fixed sizes, are printed as in the interpreter."""
    text = """graph @main(%p: bool[2, N], %q: f32[N, 1, M], %s: i64[]) -> f32[1, 4] {
  %c = constant(-0.0) : f32[1, 4]
  print(%c, label="c")
  print(%p, label="p")
  %r = add(%q, %q)
  print(%r, label="r")
  print(%s)
  return %c
}"""
    module, native = compiled(text)
    for sizes in ({"N": 3, "M": 5}, {"N": 0, "M": 1}):
        for case in runs_of(module, sizes).cases:
            native.run(case)
            assert native.printed.splitlines()[0] == "c: f32[1, 4]"
            check_printed(module, case, native.printed)


def test_failures_are_told() -> None:
    """The check of examples can fail: a program that stops in the interpreter stops as machine code, with the same words."""
    module = load("graph @main(%x: f32[4], %i: i64[2]) -> f32[2] {\n  %y = gather(%x, %i)\n  return %y\n}")
    native = compile_checked(module)
    inputs = [np.ones(4, np.float32), np.array([0, 9])]
    with pytest.raises(GraphError) as wanted:
        execute(module, "main", inputs)
    with pytest.raises(GraphError) as found:
        native.run(Case("main", {}, "real", inputs, []))
    assert str(found.value).partition("gather")[2] == str(wanted.value).partition("gather")[2]
