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
