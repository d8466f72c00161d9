"""hoist-to-init: what depends on weights alone is computed when the program is loaded."""

from __future__ import annotations

import numpy as np
import pytest
from pass_checks import apply, assert_same_bits, check, load, operations, optimize

from ir.clone import clone_module
from ir.diagnostics import GraphError
from ir.interpreter import Interpreter
from ir.printer import print_module
from passes.pipelines import load_pipeline


def program(body: str, result: str = "%y: f32[B, 8]", returned: str = "%y") -> str:
    lines = "".join(f"  {line}\n" for line in body.strip().splitlines())
    type_ = result.partition(": ")[2]
    return f'file @f = "w.npz"\n\ngraph @main(%x: f32[B, 4]) -> {type_} {{\n{lines}  return {returned}\n}}\n'


def graphs(text: str, pipeline: str = "hoist-to-init") -> dict[str, list[str]]:
    """Operations of each graph after the pass, which is checked."""
    module = check(text, pipeline)
    return {n: [op.definition.text_name for op in g.block if not op.definition.is_terminator] for n, g in module.graphs.items()}


def test_layout_and_arithmetic_of_weights() -> None:
    body = """
%w = weight(@f, "w") : f32[8, 4]
%two = full(shape=[8, 4], value=2.0, dtype=f32)
%w2 = mul(%w, %two)
%t = transpose(%w2, perm=[1, 0])
%y = matmul(%x, %t)
"""
    assert graphs(program(body)) == {"main": ["initial", "matmul"], "main.init": ["weight", "full", "mul", "transpose"]}


def test_packing() -> None:
    """[N, K] to padded panels [panel, K, 3]."""
    body = """
%w = weight(@f, "w") : f32[8, 4]
%p = pad(%w, low=[0, 0], high=[1, 0])
%r = reshape(%p, shape=[3, 3, 4])
%t = transpose(%r, perm=[0, 2, 1])
%u = unsqueeze(%x, axes=[0])
%y = matmul(%u, %t)
"""
    found = graphs(program(body, "%y: f32[3, B, 3]"))
    assert found == {"main": ["initial", "unsqueeze", "matmul"], "main.init": ["weight", "pad", "reshape", "transpose"]}


@pytest.mark.parametrize(
    "body",
    [
        '%w = weight(@f, "w") : f32[4, 8]\n%y = matmul(%x, %w)',
        '%w = weight(@f, "w") : f32[32]\n%r = reshape(%w, shape=[4, 8])\n%y = matmul(%x, %r)',
        "%w = constant(1.5) : f32[4, 8]\n%y = matmul(%x, %w)",
        "%w = full(shape=[4, 8], value=1.5, dtype=f32)\n%y = matmul(%x, %w)",
        '%w = weight(@f, "b") : f32[8]\n%e = expand(%w, shape=[B, 8])\n%m = full(shape=[4, 8], value=1.0, dtype=f32)\n'
        "%d = matmul(%x, %m)\n%y = add(%d, %e)",
    ],
)
def test_not_worth_it(body: str) -> None:
    assert list(graphs(program(body))) == ["main"]


@pytest.mark.parametrize(
    ("uses", "stays"),
    [
        ("%y = matmul(%x, %c)", True),
        ("%y = linear(%x, %t)", False),  # what stands between them would be computed in every run
        ("%z = matmul(%x, %c)\n%v = matmul(%x, %c)\n%y = add(%z, %v)", True),
        ("%z = matmul(%x, %c)\n%s = slice(%c, starts=[0], ends=[1], axes=[0])\n%y = add(%z, %s)", False),  # something else reads it
        ("%s = matmul(%c, %t)\n%z = matmul(%x, %c)\n%u = sum(%s)\n%y = add(%z, %u)", False),
        ("%v = matmul(%x, %c, transpose_a=true, transpose_b=false)\n%y = relu(%v)", True),
    ],
)
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_products_widen_their_weights_themselves(uses: str, stays: bool, dtype: str) -> None:
    body = f'%w = weight(@f, "w") : {dtype}[4, 8]\n%c = cast(%w, dtype=f32)\n'
    body += "%t = transpose(%c, perm=[1, 0])\n" if "%t" in uses else ""
    text = program(body + uses)
    if "transpose_a" in uses:
        text = text.replace("%x: f32[B, 4]", "%x: f32[4, B]")
    found = graphs(text)
    assert ("cast" in found["main"]) == stays
    assert all("cast" not in ops for n, ops in found.items() if n != "main" and stays)


@pytest.mark.parametrize(
    "body",
    [
        "%y = matmul(%c, %x)",  # its elements are rows, which are read one by one
        "%v = matmul(%x, %c)\n%y = transpose(%v, perm=[1, 0])",  # one column
        "%y = matmul(%c, %c, transpose_a=true)",
    ],
)
def test_other_factors_are_widened_before(body: str) -> None:
    shape = {"%v": "4, 1", "%y = matmul(%c, %x)": "8, B"}.get(body[:2] if body.startswith("%v") else body, "4, 4")
    text = f'file @f = "w.npz"\n\ngraph @main(%x: f32[B, 4]) -> ? {{\n  %w = weight(@f, "w") : bf16[{shape}]\n  %c = cast(%w, dtype=f32)\n'
    text = text.replace("8, B", "8, 4").replace("%x: f32[B, 4]", "%x: f32[4, B]" if "%c, %x" in body else "%x: f32[B, 4]")
    module = load(text + "".join(f"  {line}\n" for line in body.splitlines()) + "  return %y\n}\n")
    apply(module, "hoist-to-init")
    assert "cast" not in [op.definition.text_name for op in module.main.block]


def test_a_matrix_by_a_vector_widens_the_matrix() -> None:
    """Its lines are what neighbouring elements of the result are made of."""
    text = 'file @f = "w.npz"\n\ngraph @main(%x: f32[4]) -> f32[8] {\n  %w = weight(@f, "w") : bf16[8, 4]\n'
    text += "  %c = cast(%w, dtype=f32)\n  %y = matmul(%c, %x)\n  return %y\n}\n"
    assert graphs(text) == {"main": ["weight", "cast", "matmul"]}


def test_large_values_that_are_not_kept() -> None:
    body = """
%w = weight(@f, "b") : f32[8]
%e = expand(%w, shape=[40, 8])
%s = slice(%e, starts=[0, 0], ends=[4, 8])
%y0 = matmul(%x, %s)
%k = sum(%e)
%y = add(%y0, %k)
"""
    assert graphs(program(body)) == {"main": ["initial", "matmul", "initial", "add"], "main.init": ["weight", "expand", "slice", "sum"]}


def test_growth() -> None:
    body = '%w = weight(@f, "b") : f32[8]\n%e = expand(%w, shape=[4, 8])\n%y = matmul(%x, %e)'
    assert list(graphs(program(body))) == ["main", "main.init"]  # four times as large
    assert list(graphs(program(body), "hoist-to-init{growth=3}")) == ["main"]
    with pytest.raises(GraphError, match="growth=-1 is out of range"):
        load_pipeline("hoist-to-init{growth=-1}")


def test_a_kept_value_stays_beside_a_moved_one() -> None:
    """%e is too large to be kept, but what is made of it isn't: it is computed at both times."""
    body = """
%b = weight(@f, "b") : f32[8]
%e = expand(%b, shape=[40, 8])
%t = sum(%e, axes=[0])
%m = matmul(%e, %t)
%n = sum(%m)
%u = unsqueeze(%t, axes=[0])
%z = sub(%e, %t)
%zs = slice(%z, starts=[0, 0], ends=[4, 8])
%s = sum(%x)
%zx = add(%z, %s)
%yx = slice(%zx, starts=[0, 0], ends=[4, 8])
%y0 = matmul(%x, %yx)
%y1 = add(%y0, %n)
%y = add(%y1, %u)
"""
    found = graphs(program(body))
    assert found["main"].count("expand") == 1 and found["main.init"].count("expand") == 1
    assert found["main"].count("initial") == 3  # %t, %n and %u; %z is larger than four times the weight


def test_effects_failures_and_inputs_stay() -> None:
    body = """
%a = constant([1, 2]) : i32[2]
%b = constant([0, 1]) : i32[2]
%q = floordiv(%a, %b)
%w = weight(@f, "w") : f32[4, 8]
%n = neg(%w)
print(%n)
%m = matmul(%x, %n)
%d = dim(%x, axis=0)
%c = cast(%d, dtype=f32)
%y = mul(%m, %c)
"""
    module = load(program(body))
    apply(module, "hoist-to-init")
    found = [op.definition.text_name for op in module.graphs["main"].block]
    assert found == ["constant", "constant", "floordiv", "initial", "print", "matmul", "dim", "cast", "mul", "return"]


def test_returned_and_shared_results() -> None:
    body = """
%w = weight(@f, "w") : f32[4, 8]
%n = neg(%w)
%p, %q = split(%n, axis=0, sizes=[1, 3])
%y = matmul(%x, %n)
"""
    text = program(body, "(%y, %n, %q): (f32[B, 8], f32[4, 8], f32[3, 8])", "%y, %n, %q")
    module = check(text, "hoist-to-init")
    assert operations(module).count("initial") == 2
    assert module.graphs["main.init"].result_names == ["n", "q"] and "%p, %q = split" in print_module(module)


def test_regions() -> None:
    body = """
%w = weight(@f, "w") : f32[4, 4]
%s = scf.for(%i = 0 to 3, %acc = %x) {
  %t = transpose(%w, perm=[1, 0])
  %m = matmul(%acc, %t)
  yield %m
} : f32[B, 4]
"""
    module = check(program(body, "%s: f32[B, 4]", "%s"), "hoist-to-init")
    assert operations(module) == ["scf.for", "initial", "matmul", "weight", "transpose"]


def test_called_graphs_have_their_own() -> None:
    text = """file @f = "w.npz"

graph @layer(%x: f32[B, 4]) -> f32[B, 4] {
  %w = weight(@f, "w") : f32[4, 4]
  %t = transpose(%w, perm=[1, 0])
  %y = matmul(%x, %t)
  return %y
}

graph @main(%x: f32[B, 4]) -> f32[B, 4] {
  %a = call(@layer, %x)
  %b = call(@layer, %a)
  %w = weight(@f, "w") : f32[4, 4]
  %n = neg(%w)
  %y = matmul(%b, %n)
  return %y
}
"""
    module = check(text, "hoist-to-init")
    assert list(module.graphs) == ["layer", "layer.init", "main", "main.init"]
    inlined = check(print_module(module), "inline,cse,hoist-to-init,dce")
    assert list(inlined.graphs) == ["layer.init", "main", "main.init"]
    assert operations(inlined).count("initial") == 2


def test_extends_what_is_there() -> None:
    text = program('%w = weight(@f, "w") : f32[8, 4]\n%t = transpose(%w, perm=[1, 0])\n%y = matmul(%x, %t)')
    module = optimize(text, "hoist-to-init")
    more = print_module(module).replace("  %y = matmul(%x, %t)", '  %w = weight(@f, "w") : f32[8, 4]\n  %v = transpose(%w, perm=[1, 0])\n'
                                        "  %h = mul(%v, %v)\n  %k = add(%t, %h)\n  %y = matmul(%x, %k)")
    after = check(more, "hoist-to-init")
    init = after.graphs["main.init"]
    assert [op.definition.text_name for op in init.block] == ["weight", "transpose", "transpose", "mul", "add", "return"]
    assert init.result_names == ["k"]  # the first result is not taken any more
    assert [op.definition.text_name for op in after.graphs["main"].block] == ["initial", "matmul", "return"]


def test_a_graph_of_that_name_is_left_alone() -> None:
    text = program('%w = weight(@f, "w") : f32[8, 4]\n%t = transpose(%w, perm=[1, 0])\n%y = matmul(%x, %t)')
    text += "\ngraph @main.init(%x: f32[2]) -> f32[2] {\n  return %x\n}\n"
    module = check(text, "hoist-to-init")
    assert list(module.graphs) == ["main", "main.init.1", "main.init"]


def test_growth_counts_what_load_time_results_are_made_of() -> None:
    """%t is four times the weight, %u as large as %t times four: it must not go the second time."""
    body = """
%b = weight(@f, "b") : f32[2]
%t = expand(%b, shape=[4, 2])
%u = expand(%t, shape=[4, 4, 2])
%r = reshape(%u, shape=[4, 8])
%s = sum(%t)
%y0 = matmul(%x, %r)
%xs = sum(%x)
%tx = add(%t, %xs)
%txs = sum(%tx)
%y1 = add(%y0, %txs)
%y = add(%y1, %s)
"""
    found = graphs(program(body))
    assert found["main"].count("expand") == 1 and found["main.init"] == ["weight", "expand", "sum"]


def test_without_header() -> None:
    text = 'file @f = "w.npz"\n%x = input() : f32[B, 4]\n%w = weight(@f, "w") : f32[8, 4]\n%t = transpose(%w, perm=[1, 0])\n%y = matmul(%x, %t)\n'
    module = optimize(text, "hoist-to-init")
    assert list(module.graphs) == ["main.init", "main"]
    assert_same_bits(load(text), module)


def test_comments_and_names_stay() -> None:
    body = '%w = weight(@f, "w") : f32[8, 4]\n// turned for the product\n%t = transpose(%w, perm=[1, 0])  // once\n%y = matmul(%x, %t)'
    text = print_module(check(program(body), "hoist-to-init"))
    assert "  // turned for the product\n  %t = initial(@main.init, result=0) : f32[4, 8]  // once\n" in text


def test_dce_removes_the_graph_with_its_last_use() -> None:
    text = program('%w = weight(@f, "w") : f32[8, 4]\n%t = transpose(%w, perm=[1, 0])\n%u = matmul(%x, %t)\n%y = exp(%x)', "%y: f32[B, 4]")
    assert list(check(text, "hoist-to-init").graphs) == ["main", "main.init"]
    module = load(text)
    apply(module, "hoist-to-init,dce")
    assert list(module.graphs) == ["main"]


def test_works_once_per_load() -> None:
    text = program('%w = weight(@f, "w") : f32[8, 4]\n%t = transpose(%w, perm=[1, 0])\n%y = matmul(%x, %t)')
    module = optimize(text, "hoist-to-init")
    seen: list[str] = []

    class Source:
        def names(self) -> list[str]:
            return ["w"]

        def info(self, name: str):  # type: ignore[no-untyped-def]
            from ir.types import f32

            return f32, (8, 4)

        def read(self, name: str) -> np.ndarray:
            seen.append(name)
            return np.arange(32, dtype=np.float32).reshape(8, 4)

        def close(self) -> None:
            pass

    interpreter = Interpreter(clone_module(module), {"f": Source()})
    for _ in range(2):
        (y,) = interpreter.run(interpreter.module.graphs["main"], [np.ones((1, 4), np.float32)])
        assert y.tolist() == [[float(sum(range(4 * i, 4 * i + 4))) for i in range(8)]]
    assert seen == ["w"]
