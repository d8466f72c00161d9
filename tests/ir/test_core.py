"""Operations in blocks, values and their uses, names, and the rewriter."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dialects  # noqa: F401
from ir.builder import Builder
from ir.clone import clone_graph, clone_module, clone_operation
from ir.core import Graph, Module, Operation
from ir.diagnostics import GraphError
from ir.opdef import REGISTRY
from ir.parser import parse_module
from ir.printer import print_module
from ir.rewriter import erase_if_dead, move_before, replace_op, rewrite_greedily
from ir.types import TensorType, f32
from ir.verifier import verify_module

NEG, ABS, ADD, EXP = (REGISTRY[f"graph.{n}"] for n in ("neg", "abs", "add", "exp"))
TYPE = TensorType(f32, (4,))


def chain(count: int = 4) -> Graph:
    """%x, then ``count`` negations of each other."""
    graph = Graph("main")
    value = graph.add_parameter("x", TYPE)
    builder = Builder(graph.block)
    for i in range(count):
        value = builder.create(NEG, [value], name=f"v{i}").result
    graph.block.append(Operation(REGISTRY["graph.return"], [value]))
    graph.result_names, graph.result_types = [value.name], [TYPE]
    return graph


def ops(graph: Graph) -> list[Operation]:
    return [op for op in graph.block if not op.definition.is_terminator]


def names(graph: Graph) -> list[str]:
    return [r.name for op in graph.block for r in op.results]


def assert_linked(graph: Graph) -> None:
    """Both directions of the list agree, and every use is known to its value."""
    forward = list(graph.block)
    assert list(reversed(graph.block)) == forward[::-1]
    assert len(graph.block) == len(forward)
    for op in forward:
        assert op.block is graph.block
        for index, use in enumerate(op.operand_uses):
            assert use.owner is op and use.index == index and use in list(use.value.uses)
    values = [*graph.parameters, *(r for op in forward for r in op.results)]
    for value in values:
        assert all(use.value is value and use.owner.operand_uses[use.index] is use for use in value.uses)
    assert {v.name: v for v in values if v.name != "_"} == graph.names


# -- blocks ------------------------------------------------------------------------------------------------------------


def test_erasing_while_walking() -> None:
    graph = chain(6)
    for op in graph.block:
        if op.definition is NEG:
            replace_op(op, [op.operands[0]])
    assert ops(graph) == [] and graph.results == [graph.parameters[0]]
    assert_linked(graph)


def test_erasing_what_comes_next_while_walking() -> None:
    graph = chain(6)
    seen = []
    for op in graph.block:
        seen.append(op.results[0].name if op.results else "return")
        following = op.next
        if op.definition is NEG and following is not None and following.definition is NEG:
            replace_op(following, [op.result])
    assert seen == ["v0", "v2", "v4", "return"]
    assert_linked(graph)


def test_erasing_a_run_of_operations_while_walking() -> None:
    """The walk stands on an operation that is erased together with those behind it."""
    graph = chain(5)
    first, *rest = ops(graph)
    seen = []
    for op in graph.block:
        seen.append(op)
        if op is first:
            graph.return_op.set_operands([graph.parameters[0]])
            for dead in reversed([first, *rest[:3], rest[3]]):
                dead.erase()
    assert seen == [first, graph.return_op]
    assert_linked(graph)


def test_inserting_while_walking() -> None:
    graph = chain(3)
    seen = []
    for op in graph.block:
        seen.append(op.definition.name)
        if op.definition is NEG:
            Builder(graph.block, op).create(ABS, op.operands)  # in front: not visited
            Builder(graph.block, op.next).create(EXP, op.operands)  # behind: visited
    assert seen == ["neg", "exp"] * 3 + ["return"]
    assert_linked(graph)


def test_erasing_what_is_used_fails() -> None:
    graph = chain(2)
    with pytest.raises(ValueError, match="%v0 is still used"):
        ops(graph)[0].erase()
    assert_linked(graph)


@given(st.lists(st.tuples(st.sampled_from(["erase", "insert", "move", "replace", "operands"]), st.integers(0, 99), st.integers(0, 99)), max_size=30))
def test_lists_stay_sound(actions: list[tuple[str, int, int]]) -> None:
    graph = chain(5)
    for action, a, b in actions:
        body = ops(graph)
        if not body:
            break
        op, other = body[a % len(body)], body[b % len(body)]
        if action == "erase":
            replace_op(op, [graph.parameters[0]])
        elif action == "insert":
            Builder(graph.block, op).create(ADD, [graph.parameters[0], graph.parameters[0]], name=f"v{b % 4}")
        elif action == "move" and op is not other:
            move_before(op, other, graph.block)
        elif action == "replace":
            op.result.replace_all_uses_with(graph.parameters[0])
        elif action == "operands":
            op.set_operands([graph.parameters[0]] * len(op.operand_uses))
        assert_linked(graph)


def test_uses() -> None:
    graph = chain(0)
    x = graph.parameters[0]
    op = Builder(graph.block, graph.return_op).create(ADD, [x, x])
    assert len(list(x.uses)) == 3 and set(x.users) == {op, graph.return_op}
    assert not op.result.has_uses
    for use in x.uses:  # changed while they are walked
        if use.owner is graph.return_op:
            use.set(op.result)
    assert graph.results == [op.result] and len(list(op.result.uses)) == 1
    assert_linked(graph)


def test_erase_if_dead() -> None:
    module = parse_module("graph @main(%x: f32[4]) -> f32[4] {\n  %a = exp(%x)\n  print(%x)\n  return %x\n}\n")
    a, show, _ = module.main.block
    assert erase_if_dead(a) and not erase_if_dead(show)
    assert_linked(module.main)


# -- names -------------------------------------------------------------------------------------------------------------


def test_the_smallest_free_suffix() -> None:
    graph = chain(0)
    builder = Builder(graph.block, graph.return_op)
    x = graph.parameters[0]
    made = [builder.create(NEG, [x], name="x") for _ in range(4)]
    assert [op.result.name for op in made] == ["x.1", "x.2", "x.3", "x.4"]
    made[1].erase()
    assert builder.create(NEG, [x], name="x").result.name == "x.2"
    assert builder.create(NEG, [x], name="x").result.name == "x.5"
    made[0].erase()
    made[2].erase()
    assert [builder.create(NEG, [x], name="x").result.name for _ in range(3)] == ["x.1", "x.3", "x.6"]
    assert_linked(graph)


def test_a_name_with_a_suffix_is_a_name() -> None:
    graph = chain(0)
    builder = Builder(graph.block, graph.return_op)
    x = graph.parameters[0]
    found = [builder.create(NEG, [x], name=n).result.name for n in ("a.2", "a", "a", "a", "a", "a.2", "", "")]
    assert found == ["a.2", "a", "a.1", "a.3", "a.4", "a.2.1", "neg", "neg.1"]


@given(st.lists(st.tuples(st.booleans(), st.sampled_from(["a", "a.1", "a.2", "b"]), st.integers(0, 99)), max_size=40))
def test_names_are_the_smallest_free_ones(steps: list[tuple[bool, str, int]]) -> None:
    """Compared with a plain search."""
    graph = chain(0)
    builder = Builder(graph.block, graph.return_op)
    for remove, base, which in steps:
        body = ops(graph)
        if remove and body:
            body[which % len(body)].erase()
            continue
        taken = {"x", *names(graph)}
        wanted = base if base not in taken else next(f"{base}.{n}" for n in range(1, 99) if f"{base}.{n}" not in taken)
        assert builder.create(NEG, [graph.parameters[0]], name=base).result.name == wanted


def test_derived_names() -> None:
    graph = chain(1)
    (op,) = ops(graph)
    with Builder.before_op(op):
        first = EXP(graph.parameters[0])
        second = EXP(first)
    assert (first.name, second.name) == ("v0.exp", "v0.exp.1") and first.auto_named
    replace_op(op, [second])
    assert (first.name, second.name) == ("v0.exp", "v0") and not second.auto_named
    assert_linked(graph)


def test_a_written_name_is_not_given_up() -> None:
    module = parse_module("graph @main(%x: f32[4]) -> f32[4] {\n  %a = exp(%x)\n  %b = exp(%x)\n  return %b\n}\n")
    a, b, _ = module.main.block
    replace_op(b, [a.result])
    assert module.main.results[0].name == "a" and module.main.result_names == ["b"]
    assert print_module(module).startswith("graph @main(%x: f32[4]) -> (b: f32[4]) {")


# -- copies ------------------------------------------------------------------------------------------------------------


def test_clones_are_independent() -> None:
    text = "// top\ngraph @main(%x: f32[4]) -> f32[4] {\n  // first\n  %a = exp(%x)  // behind\n\n  %b = neg(%a)\n  return %b\n  // end\n}\n"
    module = parse_module(text)
    before = print_module(module)
    copy = clone_module(module)
    assert print_module(copy) == before
    first = next(iter(copy.main.block))
    replace_op(first, [copy.main.parameters[0]])
    copy.main.rename(copy.main.parameters[0], "other")
    assert print_module(module) == before != print_module(copy)
    assert_linked(module.main)
    assert_linked(copy.main)


def test_clone_operation_maps_operands_and_regions() -> None:
    text = """graph @main(%x: f32[4]) -> f32[4] {
  %s = scf.for(%i = 0 to 3, %acc = %x) {
    %t = add(%acc, %x) : f32[4]
    yield %t
  } : f32[4]
  return %s
}
"""
    module = parse_module(text)
    graph = module.main
    loop = next(iter(graph.block))
    mapping = {graph.parameters[0]: loop.result}
    copy = clone_operation(loop, mapping, lambda n: f"{n}2")
    graph.block.insert_before(graph.return_op, copy)
    graph.return_op.set_operands([copy.result])
    assert mapping[loop.result] is copy.result and copy.result.name == "s2"
    inner = next(iter(copy.regions[0].block))
    assert inner.operands == [copy.regions[0].block.arguments[1], loop.result]
    verify_module(module)
    assert print_module(parse_module(print_module(module))) == print_module(module)
    assert clone_graph(graph).names.keys() == graph.names.keys()


# -- rewriting ---------------------------------------------------------------------------------------------------------


def rewritten(text: str, rewrites: dict[str, Callable[[Operation], object]]) -> Module:
    module = parse_module(text)
    rewrite_greedily(module.main, {REGISTRY[f"graph.{n}"]: [f] for n, f in rewrites.items()})  # type: ignore[list-item]
    assert_linked(module.main)
    return module


TWICE = "graph @main(%x: f32[4]) -> f32[4] {\n  %a = neg(%x) : f32[4]\n  // kept\n  %b = neg(%a) : f32[4]\n  %c = exp(%b) : f32[4]\n  return %c\n}\n"


def double_negation(op: Operation) -> object:
    inner = op.operands[0].defining_op
    return inner.operands[0] if inner is not None and inner.definition is NEG else None


def test_rewrite_to_an_operand_and_dead_code() -> None:
    module = rewritten(TWICE, {"neg": double_negation})
    assert [op.definition.name for op in module.main.block] == ["exp", "return"]


def test_rewrite_to_new_operations_keeps_name_and_comment() -> None:
    module = rewritten(TWICE, {"exp": lambda op: ABS(NEG(op.operands[0]))})
    assert print_module(module) == TWICE.replace("  %c = exp(%b)", "  %c.neg = neg(%b) : f32[4]\n  %c = abs(%c.neg)")


def test_rewrite_that_builds_and_declines_leaves_nothing() -> None:
    def declines(op: Operation) -> None:
        ABS(op.operands[0])

    assert print_module(rewritten(TWICE, {"exp": declines})) == TWICE


def test_rewrites_without_end_are_a_fault() -> None:
    with pytest.raises(RuntimeError, match="do not come to an end"):
        rewritten(TWICE, {"exp": lambda op: EXP(op.operands[0])})


def test_rewrite_must_keep_the_type() -> None:
    with pytest.raises(RuntimeError, match="replaced"):
        rewritten(TWICE, {"exp": lambda op: REGISTRY["graph.reshape"](op.operands[0], shape=(2, 2))})


def test_moving_keeps_names() -> None:
    graph = chain(1)
    (op,) = ops(graph)
    other = Builder(graph.block, graph.return_op).create(NEG, [graph.parameters[0]], name="other")
    move_before(other, op, graph.block)
    assert names(graph) == ["other", "v0"] and list(graph.block).index(other) < list(graph.block).index(op)
    assert_linked(graph)


def test_builder_checks() -> None:
    graph = chain(0)
    builder = Builder(graph.block, graph.return_op)
    x = graph.parameters[0]
    for operands, attributes, message in (
        ([x], {}, "'add' takes 2 operands, found 1"),
        ([x, x, x], {}, "'add' takes 2 operands, found 3"),
        ([x, x], {"axis": 1}, "no attribute 'axis'"),
    ):
        with pytest.raises(GraphError, match=message):
            builder.create(ADD, operands, attributes)
    with pytest.raises(RuntimeError, match="outside a builder"):
        ADD(x, x)
    assert ops(graph) == []
    assert_linked(graph)
