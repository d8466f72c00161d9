"""initial: results of graphs that run when the program is loaded."""

from __future__ import annotations

import numpy as np
import pytest

import graph_opt
from graph_opt.api import find_graph, keep_reachable
from ir.diagnostics import GraphError
from ir.inference import infer_module
from ir.interpreter import Interpreter
from ir.parser import parse_module
from ir.printer import print_module
from ir.references import load_time_graphs
from ir.verifier import verify_module
from passes.infra.verify_exec import entry_graphs
from tests.passes.pass_checks import check, load, operations

TEXT = """graph @main.init() -> (t: f32[3, 2], s: f32[]) {
  %c = constant([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]) : f32[2, 3]
  %t = transpose(%c, perm=[1, 0]) : f32[3, 2]
  %s = sum(%c, axes=[0, 1]) : f32[]
  return %t, %s
}

graph @main(%x: f32[B, 3]) -> f32[B, 2] {
  %w = initial(@main.init, result=0) : f32[3, 2]
  %s = initial(@main.init, result=1) : f32[]
  %y = matmul(%x, %w) : f32[B, 2]
  %z = add(%y, %s) : f32[B, 2]
  return %z
}
"""


class Counting(Interpreter):
    """Counts how often an operation runs."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.counts: dict[str, int] = {}

    def run_operation(self, op, environment) -> None:  # type: ignore[no-untyped-def]
        self.counts[op.definition.name] = self.counts.get(op.definition.name, 0) + 1
        super().run_operation(op, environment)


def test_text_and_types() -> None:
    module = parse_module(TEXT)
    assert print_module(module) == TEXT
    bare = parse_module(TEXT.replace(" : f32[3, 2]", "").replace(" : f32[]\n  %y", "\n  %y"))
    infer_module(bare)
    assert print_module(bare) == TEXT


def test_runs_once() -> None:
    module = load(TEXT)
    interpreter = Counting(module)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for _ in range(3):
        (found,) = interpreter.run(module.graphs["main"], [x])
        assert found.tolist() == (x @ np.float32([[1, 4], [2, 5], [3, 6]]) + 21).tolist()
    assert interpreter.counts["transpose"] == interpreter.counts["constant"] == 1 and interpreter.counts["matmul"] == 3


def test_results_are_not_shared_with_the_caller() -> None:
    module = load("graph @i() -> f32[2] {\n  %c = constant([1.0, 2.0]) : f32[2]\n  return %c\n}\n\n"
                  "graph @main() -> f32[2] {\n  %a = initial(@i, result=0) : f32[2]\n  return %a\n}\n")
    interpreter = Interpreter(module)
    (first,) = interpreter.run(module.graphs["main"], [])
    first[...] = 7
    assert interpreter.run(module.graphs["main"], [])[0].tolist() == [1, 2]


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_weights(tmp_path, device) -> None:  # type: ignore[no-untyped-def]
    np.savez(tmp_path / "w.npz", a=np.arange(6, dtype=np.float32).reshape(2, 3))
    text = """file @f = "w.npz"

graph @main.init() -> (t: f32[3, 2]) {
  %a = weight(@f, "a") : f32[2, 3]
  %t = transpose(%a, perm=[1, 0]) : f32[3, 2]
  return %t
}

graph @main(%x: f32[B, 3]) -> f32[B, 2] {
  %w = initial(@main.init, result=0) : f32[3, 2]
  %y = matmul(%x, %w) : f32[B, 2]
  return %y
}
"""
    (tmp_path / "p.graph").write_text(text)
    program = graph_opt.compile(tmp_path / "p.graph", device=device)
    assert program(np.eye(3, dtype=np.float32)).tolist() == [[0, 3], [1, 4], [2, 5]]


def test_is_no_entry_and_is_kept() -> None:
    module = load(TEXT.replace("@main", "@f"))
    assert find_graph(module, None).name == "f"
    assert entry_graphs(module) == ["f"]
    assert list(load_time_graphs(module)) == ["f.init"]
    keep_reachable(module, module.graphs["f"])
    assert list(module.graphs) == ["f.init", "f"]
    keep_reachable(module, module.graphs["f.init"])
    assert list(module.graphs) == ["f.init"]


def test_load_time_graphs_in_load_time_graphs() -> None:
    text = """graph @a() -> (c: f32[2]) {
  %c = constant([1.0, 2.0]) : f32[2]
  return %c
}

graph @helper(%x: f32[N]) -> f32[N] {
  %y = add(%x, %x) : f32[N]
  return %y
}

graph @b() -> (d: f32[2]) {
  %c = initial(@a, result=0) : f32[2]
  %d = call(@helper, %c) : f32[2]
  return %d
}

graph @main(%x: f32[2]) -> f32[2] {
  %d = initial(@b, result=0) : f32[2]
  %y = mul(%x, %d) : f32[2]
  return %y
}
"""
    module = load(text)
    assert set(load_time_graphs(module)) == {"a", "b", "helper"}
    assert Interpreter(module).run(module.graphs["main"], [np.float32([1, 10])])[0].tolist() == [2, 40]
    keep_reachable(module, module.graphs["main"])
    assert set(module.graphs) == {"a", "b", "helper", "main"}
    inlined = check(text, "inline")
    assert "helper" not in inlined.graphs and set(inlined.graphs) == {"a", "b", "main"}


def test_passes_keep_it() -> None:
    module = check(TEXT, "O1")
    assert operations(module).count("initial") == 2
    twice = TEXT.replace("  %s = initial(@main.init, result=1) : f32[]\n", "  %w2 = initial(@main.init, result=0) : f32[3, 2]\n"
                         "  %s = initial(@main.init, result=1) : f32[]\n").replace("matmul(%x, %w)", "matmul(%x, %w2)")
    merged = check(twice, "cse,dce")
    assert operations(merged).count("initial") == 2


def test_specialize_takes_the_entry() -> None:
    module = graph_opt.compile(parse_module(TEXT.replace("@main", "@f")), pipeline='specialize{dims=["B=4"]}', device="reference").module
    assert "graph @f(%x: f32[4, 3])" in print_module(module)


def test_inlined_with_its_graph() -> None:
    text = TEXT.replace("@main", "@layer") + """
graph @main(%x: f32[B, 3]) -> f32[B, 2] {
  %a = call(@layer, %x) : f32[B, 2]
  return %a
}
"""
    module = check(text, "inline,cse")
    assert set(module.graphs) == {"layer.init", "main"}
    verify_module(module)


USE = "%s = initial(@main.init, result=1) : f32[]"
END = "  return %t, %s"
NOISY = """
graph @noisy(%x: f32[]) -> f32[] {
  print(%x)
  return %x
}
"""


def edited(old: str, new: str) -> str:
    assert old in TEXT
    return TEXT.replace(old, new)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (edited(USE, USE.replace("=1", "=2")), "graph @main.init has 2 results, counted from 0; there is no result 2"),
        (edited(USE, USE.replace("=1", "=-1")), "there is no result -1"),
        (edited(USE, USE.replace(", result=1", "")), "'initial' needs attribute 'result'"),
        (edited(USE, USE.replace("init,", "int,")), "graph @main.int is not defined"),
        (edited(USE, "%s = initial(@main, result=0)"), "graphs can't depend on themselves: @main -> @main"),
        (edited(USE, USE.replace("f32", "f64")), "%s is declared f64[], but 'initial' gives f32[]"),
        (edited(END, '  print(%s, label="s")\n' + END), "graph @main.init has an effect ('print')"),
        (edited(END, "  %y = call(@noisy, %s) : f32[]\n" + END) + NOISY, "has an effect ('print')"),
        (edited("@main.init()", "@main.init(%q: f32[2])"), "graph @main.init has parameters"),
        (edited(END, "  %u = initial(@main.init, result=0)\n" + END), "graphs can't depend on themselves: @main.init -> @main.init"),
    ],
)
def test_refused(text: str, message: str) -> None:
    with pytest.raises(GraphError) as caught:
        graph_opt.parse(text)
    assert message in str(caught.value), caught.value


def test_failure_is_the_programs() -> None:
    text = """graph @i() -> (q: i32[1]) {
  %a = constant([1]) : i32[1]
  %b = constant([0]) : i32[1]
  %q = floordiv(%a, %b) : i32[1]
  return %q
}

graph @main(%x: i32[1]) -> i32[1] {
  %q = initial(@i, result=0) : i32[1]
  %y = add(%x, %q) : i32[1]
  return %y
}
"""
    with pytest.raises(GraphError, match="division by zero"):
        graph_opt.compile(graph_opt.parse(text), pipeline="O0", device="reference")(np.int32([1]))
