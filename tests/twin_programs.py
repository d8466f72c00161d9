"""Programs that do the same things again and again."""

from __future__ import annotations

from ir.clone import clone_module, clone_operation
from ir.core import Module, Value
from ir.inference import infer_module

LAYERS = """
graph @layer(%x: f32[B, S, 64], %w: f32[64, 64], %b: f32[64], %n: f32[64]) -> f32[B, S, 64] {
  %l = linear(%x, %w, bias=%b)
  %g = gelu(%l)
  %m = softmax(%g)
  %a = add(%x, %m)
  %y = layernorm(%a, weight=%n)
  return %y
}

graph @main(%x: f32[B, S, 64], %w: f32[3, 64, 64], %b: f32[3, 64], %n: f32[64], %c: f32[64, 96]) -> (f32[B, S, 64], f32[B, S, 96]) {
  %w0, %w1, %w2 = split(%w, sizes=[1, 1, 1], axis=0)
  %v0 = squeeze(%w0, axes=[0])
  %v1 = squeeze(%w1, axes=[0])
  %v2 = squeeze(%w2, axes=[0])
  %b0, %b1, %b2 = split(%b, sizes=[1, 1, 1], axis=0)
  %c0 = squeeze(%b0, axes=[0])
  %c1 = squeeze(%b1, axes=[0])
  %c2 = squeeze(%b2, axes=[0])
  %y0 = call(@layer, %x, %v0, %c0, %n)
  %y1 = call(@layer, %y0, %v1, %c1, %n)
  %y2 = call(@layer, %y1, %v2, %c2, %n)
  %z = matmul(%y2, %c)
  return %y2, %z
}
"""

_LAYER = """
graph @layer(%x: f32[S, 64], %length: i64[], %position: i64[], %keys: f32[1, T, 32] inout, %p: u8[2, 2, 640], %q: u8[2, 2, 640]) -> f32[S, 64] {
  %d, %s, %t = split_digits(%x)
  %a = digit_linear(%d, %s, %t, %p, rows=64)
  %b = digit_linear(%d, %s, %t, %q, rows=64)
  %split = reshape(%a, shape=[S, 2, 32])
  %heads = transpose(%split, perm=[1, 0, 2])
  %first = slice(%b, starts=[0], ends=[32], axes=[1])
  %k = reshape(%first, shape=[1, S, 32])
  %keys.new = cache_update(%keys, %k, %position)
  %seen = attention(%heads, %keys.new, %keys.new, length=%length, causal=true)
  %near = attention(%heads, %k, %k, causal=true)
  %both = add(%seen, %near)
  %back = transpose(%both, perm=[1, 0, 2])
  %o = reshape(%back, shape=[S, 64])
  %y = add(%x, %o)
  return %y
}
"""


def decoder(layers: int) -> str:
    """A program with layers that split activations, multiply them with packed weights, and attend, to a cache and to what is near."""
    names = range(layers)
    caches = ", ".join(f"%c{n}: f32[1, T, 32] inout" for n in names)
    weights = ", ".join(f"%p{n}: u8[2, 2, 640], %q{n}: u8[2, 2, 640]" for n in names)
    calls = "".join(f"  %x{n + 1}, %_ = call(@layer, %x{n}, %length, %position, %c{n}, %p{n}, %q{n})\n" for n in names)
    parameters = f"%x0: f32[S, 64], %length: i64[], %position: i64[], {caches}, {weights}"
    return f"{_LAYER}\ngraph @main({parameters}) -> f32[S, 64] {{\n{calls}  return %x{layers}\n}}\n"


def doubled(module: Module) -> Module | None:
    """A program that does everything twice; None for one that updates arrays."""
    graph = module.main
    if any(p.inout for p in graph.parameters) or any(op.definition.updates or op.name == "graph.call" for op in graph.walk()):
        return None
    copy = clone_module(module)
    main = copy.graphs[graph.name]
    results = list(main.results)
    last = main.return_op
    mapping: dict[Value, Value] = {}
    for op in [o for o in main.block if not o.definition.is_terminator]:
        main.block.insert_before(last, clone_operation(op, mapping, lambda name: f"{name}.again"))
    last.set_operands([*results, *(mapping.get(v, v) for v in results)])
    main.result_names += [""] * len(results)
    main.result_types += main.result_types
    main.bare = False
    main.result_names = [f"r{n}" for n in range(2 * len(results))]
    infer_module(copy)
    return copy
