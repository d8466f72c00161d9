"""Pass ``hoist-to-init``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from dialects.graph._blocks import unpacks_blocks
from dialects.graph.cast import cast
from dialects.graph.constant import constant, full, initial, iota, weight
from dialects.graph.matmul import matmul
from dialects.graph.shape import flatten, reshape, squeeze, unsqueeze
from ir.attributes import GraphRef, attribute_key
from ir.builder import Builder
from ir.builtin import return_
from ir.clone import clone_operation
from ir.core import DROPPED, Graph, Module, Operation, Value
from ir.references import INITIAL, load_time_graphs, referenced_graphs
from ir.rewriter import erase_if_dead, replace_op, walk_graphs
from ir.types import TensorType, bf16, f16, f32
from passes.infra.base import Pass, PassContext

_STORED = (constant, weight, initial)
"""Their data is there before the program runs."""
_SOURCES = (*_STORED, full, iota)
"""What needs no operands and costs nothing worth saving."""
_RESHAPES = (reshape, flatten, squeeze, unsqueeze)
"""The same memory under another shape."""


@dataclass(frozen=True)
class HoistToInit(Pass):
    """Moves what depends on weights and constants alone to the time when the program is loaded.

    Before::

        graph @main(%x: f32[B, 4]) -> f32[B, 8] {
          %w = weight(@f, "w") : f32[8, 4]
          %t = transpose(%w, perm=[1, 0]) : f32[4, 8]
          %y = matmul(%x, %t) : f32[B, 8]
          return %y
        }

    After::

        graph @main(%x: f32[B, 4]) -> f32[B, 8] {
          %t = initial(@main.init, result=0) : f32[4, 8]
          %y = matmul(%x, %t) : f32[B, 8]
          return %y
        }

        graph @main.init() -> f32[4, 8] {
          %w = weight(@f, "w") : f32[8, 4]
          %t = transpose(%w, perm=[1, 0]) : f32[4, 8]
          return %t
        }

    Operations on tensors move that have no effect, can't fail, and have results of known size; what they need moves with
    them.  A value stays where it is when it is only a weight, constant, ``full`` or ``iota`` (under another shape, too),
    and when it is more than ``growth`` times as large as the weights and constants that it is made of: broadcasting is
    cheaper when the program runs.  Values that only others need which have moved have no limit.  What makes floats of tensors of
    blocks (``dequantize``) always stays.

    So does the cast of a weight from f16 or bf16 to f32 that only products read, along whose columns it lies: they widen it in
    their loops (see ``fuse``), and have to read half as much.

    ``@main.init`` is extended when it is there already, and loses results that nothing takes any more.
    """

    keeps_types: ClassVar[bool] = True
    beside: ClassVar[bool] = True

    growth: int = 4
    """largest size of a result, as a multiple of what it is made of; 0 for any size"""

    def __post_init__(self) -> None:
        if not 0 <= self.growth <= 2**40:
            raise ValueError(f"growth={self.growth} is out of range, it is a number from 0 to 2**40")

    def run(self, module: Module, context: PassContext) -> bool:
        at_load_time = load_time_graphs(module)
        changed = False
        for graph in walk_graphs(module):
            if graph.name in at_load_time:
                continue
            moved = _moved(graph, module, self.growth)
            if moved:
                _Hoisting(graph, module, moved).run()
                context.count("operations moved", len(moved))
                context.count("bytes computed when the program is loaded", sum(_bytes(op.result) for op in graph.walk() if op.name == INITIAL))
                changed = True
        for graph in walk_graphs(module):
            changed |= _drop_results(graph, module)
        return changed


# -- what moves --------------------------------------------------------------------------------------------------------


def _may_move(op: Operation) -> bool:
    definition = op.definition
    if definition.dialect != "graph" or not definition.pure or definition.traps or op.regions or not op.results or unpacks_blocks(op):
        return False
    return all(isinstance(r.type, TensorType) and r.type.is_static for r in op.results)


def known_at_load_time(graph: Graph) -> dict[Operation, None]:
    """The operations that depend on weights and constants alone and could move, in order."""
    known: dict[Operation, None] = {}
    for op in graph.walk():
        if _may_move(op) and all(v.defining_op in known for v in op.operands):
            known[op] = None
    return known


def _moved(graph: Graph, module: Module, growth: int) -> dict[Operation, None]:
    """The operations that go to load time, in order; sources that they need are not among them."""
    known = known_at_load_time(graph)
    origins = _Origins(module)
    moved: dict[Operation, None] = {}
    for op in reversed(known):
        if op.definition in _SOURCES or not any(r.has_uses for r in op.results):
            continue
        needed = [r for r in op.results if any(u not in moved for u in r.users)]
        if needed and (_is_plain(op) or is_wide_factor(op) or (growth and any(origins.grows(r, growth) for r in needed))):
            continue
        moved[op] = None
    return dict.fromkeys(reversed(moved))


def _is_plain(op: Operation) -> bool:
    """Whether an operation gives a source as it is, maybe under another shape."""
    while op.definition in _RESHAPES:
        source = op.operands[0].defining_op
        assert source is not None
        op = source
    return op.definition in _SOURCES


def is_widening(op: Operation | None) -> bool:
    """Whether an operation is a cast from f16 or bf16 to f32."""
    if op is None or op.definition is not cast or op.attribute("dtype") != f32:
        return False
    type_ = op.operands[0].type
    return isinstance(type_, TensorType) and type_.dtype in (f16, bf16)


def is_wide_factor(op: Operation) -> bool:
    """Whether an operation only widens what products read, as the factor that has the columns of the result."""
    return is_widening(op) and op.result.has_uses and all(u.definition is matmul and _has_columns(op.result, u) for u in op.result.users)


def _has_columns(factor: Value, product: Operation) -> bool:
    """Whether neighbouring elements of a product are computed with different elements of a factor, which is no other one's."""
    a, b = product.operands
    if a is b or not isinstance(a.type, TensorType) or not isinstance(b.type, TensorType):
        return False
    single = b.type.rank < 2 or b.type.shape[-2 if product.attribute("transpose_b") else -1] == 1
    if not single:
        return factor is b
    return factor is a and a.type.rank >= 2


class _Origins:
    """Which weights and constants values are made of, looking through what is computed at load time already."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.known: dict[Value, Mapping[Any, int]] = {}

    def grows(self, value: Value, limit: int) -> bool:
        """Whether a value is more than ``limit`` times as large as what it is made of."""
        return _bytes(value) > limit * sum(self.of(value).values())

    def of(self, value: Value) -> Mapping[Any, int]:
        """Key and bytes of each weight and constant that a value is made of."""
        pending = [value]
        while pending:
            missing = [v for v in self._inputs(pending[-1]) if v not in self.known]
            if missing and pending[-1] not in self.known:
                pending += missing
                continue
            last = pending.pop()
            if last not in self.known:
                self.known[last] = self._combine(last)
        return self.known[value]

    def _inputs(self, value: Value) -> list[Value]:
        op = value.defining_op
        assert op is not None
        if op.name == INITIAL:
            source, number = op.attributes["source"], op.attributes["result"]
            assert isinstance(source, GraphRef) and isinstance(number, int)
            return [self.module.graphs[source.name].results[number]]
        return op.operands

    def _combine(self, value: Value) -> Mapping[Any, int]:
        op = value.defining_op
        assert op is not None
        if op.definition is constant or op.definition is weight:
            return {_source_key(op): _bytes(value)}
        inputs = [self.known[v] for v in self._inputs(value)]
        if len(inputs) == 1:
            return inputs[0]
        found: dict[Any, int] = {}
        for origins in inputs:
            found.update(origins)
        return found


def _source_key(op: Operation) -> tuple[Any, ...]:
    """Equal for two sources that hold the same."""
    return (op.name, tuple((n, attribute_key(a)) for n, a in sorted(op.attributes.items())), op.result.type)


def _bytes(value: Value) -> int:
    size = value.type.nbytes if isinstance(value.type, TensorType) else 0
    return size if isinstance(size, int) else 0


# -- moving ------------------------------------------------------------------------------------------------------------


@dataclass
class _Hoisting:
    """Moves operations of one graph into the graph that runs at load time."""

    graph: Graph
    module: Module
    moved: dict[Operation, None]
    mapping: dict[Value, Value] = field(default_factory=dict)
    there: dict[tuple[Any, ...], Value] = field(default_factory=dict)

    def run(self) -> None:
        target = _target(self.graph, self.module)
        self.there.update((_source_key(op), op.result) for op in target.block if op.definition in _SOURCES)
        for op in self.moved:
            for value in op.operands:
                self._bring(value, target)
            target.block.insert_before(target.return_op, clone_operation(op, self.mapping))
        sources = dict.fromkeys(s for op in self.moved for v in op.operands if (s := v.defining_op) is not None)
        for op in self.moved:
            for result in op.results:
                if any(u not in self.moved for u in result.users):
                    _result_number(target, self.mapping[result], result.name)
        for op in reversed(self.moved):
            self._replace(op, target)
        for source in sources:
            if source.block is not None:
                erase_if_dead(source)

    def _bring(self, value: Value, target: Graph) -> None:
        """Makes an operand known in the target: a result of it, or a copy of the source and what was made of it."""
        pending = [value]
        while pending:
            op = pending[-1].defining_op
            assert op is not None
            missing = [v for v in op.operands if v not in self.mapping]
            if missing and pending[-1] not in self.mapping:
                pending += missing
                continue
            here = pending.pop()
            if here in self.mapping:
                continue
            known = self._known(op, target)
            if known is None:
                target.block.insert_before(target.return_op, clone_operation(op, self.mapping))
            else:
                self.mapping[here] = known

    def _known(self, op: Operation, target: Graph) -> Value | None:
        """What a source is in the target already."""
        if op.name == INITIAL and referenced_graphs(op) == [target.name]:
            number = op.attributes["result"]
            assert isinstance(number, int)
            return target.results[number]
        return self.there.get(_source_key(op)) if op.definition in _SOURCES else None

    def _replace(self, op: Operation, target: Graph) -> None:
        """Takes the results of a moved operation that are still used from the target, and erases it."""
        builder = Builder.before_op(op)
        values = []
        for result in op.results:
            if result.has_uses:
                attributes: Any = {"source": GraphRef(target.name), "result": _result_number(target, self.mapping[result], result.name)}
                values.append(builder.create(initial, [], attributes, result_types=[result.type]).result)
            else:
                values.append(result)
        if all(v is r for v, r in zip(values, op.results, strict=True)):
            op.erase()
        else:
            _replace_used(op, values)


def _replace_used(op: Operation, values: list[Value]) -> None:
    """``replace_op`` for results of which some have no uses and no replacement."""
    if all(v is not r for v, r in zip(values, op.results, strict=True)):
        replace_op(op, values)
        return
    graph = op.graph
    assert graph is not None
    pairs = [(v, r.name) for v, r in zip(values, op.results, strict=True) if v is not r]
    for value, result in zip(values, op.results, strict=True):
        if value is not result:
            result.replace_all_uses_with(value)
    heir = pairs[0][0].defining_op
    assert heir is not None
    heir.trivia, op.trivia = op.trivia, None
    op.erase()
    for value, name in pairs:
        if name != DROPPED:
            graph.rename(value, name)


def _target(graph: Graph, module: Module) -> Graph:
    """The graph of results known at load time that belongs to a graph; a new one if there is none."""
    own = {n for op in graph.walk() if op.name == INITIAL for n in referenced_graphs(op)}
    called = {n for op in module.walk() if op.name != INITIAL for n in referenced_graphs(op)}
    name, number = f"{graph.name}.init", 0
    while name in module.graphs:
        if name in own and name not in called:
            return module.graphs[name]
        number += 1
        name = f"{graph.name}.init.{number}"
    target = Graph(name, loc=graph.loc)
    _insert(module, target, graph)
    with Builder(target.block) as builder:
        builder.create(return_, [], result_types=())
    return target


def _insert(module: Module, graph: Graph, owner: Graph) -> None:
    """Adds a graph behind its owner; in front of one without a header, which is the last of a text."""
    order = list(module.graphs.values())
    order.insert(order.index(owner) + (0 if owner.bare else 1), graph)
    module.graphs.clear()
    for each in order:
        module.add(each)


def _result_number(target: Graph, value: Value, name: str) -> int:
    """The number of the result that is ``value``, which is made one if it is none."""
    if value in target.results:
        return target.results.index(value)
    target.return_op.set_operands([*target.results, value])
    target.result_types.append(value.type)
    taken = set(target.result_names)
    names = _names(value.name if name == DROPPED else name)
    target.result_names.append(next(n for n in names if n not in taken))
    return len(target.result_types) - 1


def _names(base: str) -> Iterator[str]:
    yield base
    number = 1
    while True:
        yield f"{base}.{number}"
        number += 1


# -- cleaning up -------------------------------------------------------------------------------------------------------


def _drop_results(graph: Graph, module: Module) -> bool:
    """Removes results of ``@graph.init`` that nothing takes, and what only they needed; returns whether there were any."""
    if ".init" not in graph.name:
        return False
    users = [op for op in module.walk() if graph.name in referenced_graphs(op)]
    if not users or any(op.name != INITIAL for op in users):
        return False  # an entry, or called
    taken = {op.attributes["result"] for op in users}
    kept = [i for i in range(len(graph.result_types)) if i in taken]
    if len(kept) == len(graph.result_types):
        return False
    results = graph.results
    graph.return_op.set_operands([results[i] for i in kept])
    graph.result_names = [graph.result_names[i] for i in kept]
    graph.result_types = [graph.result_types[i] for i in kept]
    for op in users:
        op.set_attribute("result", kept.index(op.attributes["result"]))  # type: ignore[arg-type]
    for op in reversed(list(graph.block)):
        erase_if_dead(op)
    return True
