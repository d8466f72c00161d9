"""Structure that the verifier insists on: every way in which a pass could break a module is named."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import dialects  # noqa: F401
from ir.attributes import GraphRef
from ir.core import Graph, Module, Operation, Value
from ir.diagnostics import GraphError
from ir.inference import infer_module
from ir.opdef import REGISTRY
from ir.parser import parse_module
from ir.types import TensorType, f32, f64
from ir.verifier import verify_module

TEXT = """graph @other(%a: f32[N]) -> f32[N] {
  return %a
}

graph @main(%x: f32[B, 4], %c: f32[8] inout, %n: f32[2], %p: i64[]) -> f32[B, 4] {
  %a = neg(%x)
  %b = softmax(%a)
  %u = cache_update(%c, %n, %p, axis=0)
  %s = scf.for(%i = 0 to 3, %acc = %b) {
    %t = add(%acc, %x) : f32[B, 4]
    yield %t
  } : f32[B, 4]
  return %s
}
"""


def op(graph: Graph, name: str) -> Operation:
    return next(o for o in graph.walk() if any(r.name == name for r in o.results))


def drop_return(graph: Graph) -> None:
    graph.return_op.erase()


def return_twice(graph: Graph) -> None:
    graph.block.append(Operation(REGISTRY["graph.return"], graph.results))


def return_too_much(graph: Graph) -> None:
    graph.return_op.set_operands([graph.results[0], graph.results[0]])


def use_before_definition(graph: Graph) -> None:
    op(graph, "a").set_operands([op(graph, "b").result])


def use_of_an_inner_value(graph: Graph) -> None:
    graph.return_op.set_operands([op(graph, "t").result])


def use_of_another_graph(graph: Graph) -> None:
    other = Graph("elsewhere")
    op(graph, "a").set_operands([other.add_parameter("y", TensorType(f32, (4,)))])


def use_of_a_removed_operation(graph: Graph) -> None:
    op(graph, "a").remove()


def too_few_operands(graph: Graph) -> None:
    op(graph, "t").set_operands([graph.parameters[0]])


def no_operands_of_an_update(graph: Graph) -> None:
    op(graph, "u").set_operands([])


def too_many_operands(graph: Graph) -> None:
    op(graph, "a").set_operands([graph.parameters[0]] * 2)


def too_many_results(graph: Graph) -> None:
    first = op(graph, "a")
    extra = Value("extra", first.result.type, first, 1)
    first.results = (*first.results, extra)
    graph._claim(extra)


def same_name(graph: Graph) -> None:
    op(graph, "b").result.name = "a"


def name_not_registered(graph: Graph) -> None:
    op(graph, "b").result.name = "zz"


def use_of_a_dropped_value(graph: Graph) -> None:
    graph._release("a")
    op(graph, "a").result.name = "_"


def unknown_attribute(graph: Graph) -> None:
    op(graph, "b").set_attribute("axes", 1)


def ill_typed_attribute(graph: Graph) -> None:
    op(graph, "b").set_attribute("axis", 1.0)


def missing_attribute(graph: Graph) -> None:
    cast = Operation(REGISTRY["graph.cast"], [graph.parameters[0]], {}, result_types=[TensorType(f32, ())], result_names=["k"])
    graph.block.insert_before(graph.return_op, cast)


def wrong_declared_type(graph: Graph) -> None:
    op(graph, "b").result.type = TensorType(f64, (4,))


def wrong_signature(graph: Graph) -> None:
    graph.result_types = [TensorType(f64, (4,))]


def update_of_no_parameter(graph: Graph) -> None:
    first = op(graph, "u")
    first.set_operands([graph.parameters[2], *first.operands[1:]])


def update_twice(graph: Graph) -> None:
    first = op(graph, "u")
    second = Operation(first.definition, first.operands, first.attributes, result_types=[first.result.type], result_names=["u2"])
    graph.block.insert_before(graph.return_op, second)


def call_of_nothing(graph: Graph) -> None:
    call = Operation(REGISTRY["graph.call"], [], {"callee": GraphRef("othr")})
    graph.block.insert_before(graph.return_op, call)


def call_of_itself(graph: Graph) -> None:
    call = Operation(REGISTRY["graph.call"], graph.parameters, {"callee": GraphRef("main")})
    graph.block.insert_before(graph.return_op, call)


def unbound_symbol(graph: Graph) -> None:
    graph.parameters[0].type = TensorType(f32, (3, 4))


BROKEN: dict[Callable[[Graph], None], str] = {
    drop_return: "graph @main does not end in 'return'",
    return_twice: "'return' must be the last operation",
    return_too_much: "graph @main declares 1 results, but 2 are returned",
    use_before_definition: "%b is used where it is not defined",
    use_of_an_inner_value: "%t is used where it is not defined",
    use_of_another_graph: "%y is used where it is not defined",
    use_of_a_removed_operation: "%a is used where it is not defined",
    too_few_operands: "'add' takes 2 operands, found 1",
    no_operands_of_an_update: "'cache_update' takes 3 operands, found 0",
    too_many_operands: "'neg' takes 1 operands, found 2",
    too_many_results: "'neg' has 1 results, found 2",
    same_name: "two values are named %a",
    name_not_registered: "two values are named %zz",
    use_of_a_dropped_value: "%_ drops a result, it can't be used",
    unknown_attribute: "'softmax' has no attribute 'axes'",
    ill_typed_attribute: "attribute 'axis': expected an integer, found 1.0",
    missing_attribute: "'cast' needs attribute 'dtype'",
    wrong_declared_type: "%b is declared f64[4], but 'softmax' gives f32[B, 4]",
    wrong_signature: "the signature declares f64[4], but %s is f32[B, 4]",
    update_of_no_parameter: "%n can't be updated in place",
    update_twice: "%c was already updated; use the newer version",
    call_of_nothing: "graph @othr is not defined",
    call_of_itself: "graphs can't call themselves: @main -> @main",
    unbound_symbol: "dimension B is in no parameter's type",
}


def module() -> Module:
    return parse_module(TEXT)


def test_the_program_is_right() -> None:
    verify_module(module())


@pytest.mark.parametrize("damage", BROKEN, ids=lambda f: f.__name__)
def test_damage_is_named(damage: Callable[[Graph], None]) -> None:
    broken = module()
    if damage is not unbound_symbol:
        infer_module(broken)
    damage(broken.main)
    with pytest.raises(GraphError) as caught:
        verify_module(broken)
    assert BROKEN[damage] in str(caught.value)
