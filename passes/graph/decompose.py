"""Pass ``decompose``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ir.core import Module, Operation, Value
from ir.diagnostics import did_you_mean
from ir.opdef import REGISTRY
from ir.rewriter import rewrite_greedily, walk_graphs
from passes.graph._attention import is_plain, is_tiled, plain
from passes.graph._decompositions import DECOMPOSITIONS, can_decompose
from passes.graph._rope import is_whole
from passes.infra.base import Pass, PassContext


@dataclass(frozen=True)
class Decompose(Pass):
    """Replaces composite operations by the primitives they are made of.

    Before::

        %h = linear(%x, %w, bias=%b)

    After::

        %h.matmul = matmul(%x, %w, transpose_b=true)
        %h = add(%h.matmul, %b)

    A composite rounds once where its parts round each, so results agree up to rounding.  Operations whose types are
    not known stay.

    Of attentions that should stay, only those do that ``lower-attention`` can lower: others are decomposed all the same, and from
    those the past keys and values are taken, which are put in front of the others.
    """

    preserves: ClassVar[Literal["bits", "values"]] = "values"

    ops: tuple[str, ...] = ()
    """which operations, as [softmax, gelu]; all composites when it is empty"""
    keep: tuple[str, ...] = ()
    """which operations stay, because a later pass does better with the whole of them"""

    def __post_init__(self) -> None:
        for name in (*_full_names(self.ops), *_full_names(self.keep)):
            if name not in DECOMPOSITIONS:
                known = [n.removeprefix("graph.") for n in DECOMPOSITIONS]
                hint = did_you_mean(name.removeprefix("graph."), known)
                raise ValueError(f"'{name.removeprefix('graph.')[:80]}' is no composite operation" + (f"; {hint}" if hint else ""))

    def _wanted(self) -> list[str]:
        kept = _full_names(self.keep)
        return [n for n in _full_names(self.ops) or DECOMPOSITIONS if n not in kept]

    def run(self, module: Module, context: PassContext) -> bool:
        def rewrite(op: Operation) -> list[Value] | None:
            return list(DECOMPOSITIONS[op.name](op)) if can_decompose(op) else None

        rewrites = {REGISTRY[n]: [rewrite] for n in self._wanted()}
        if "graph.attention" in _full_names(self.keep):
            rewrites[REGISTRY["graph.attention"]] = [_kept_attention]
        if "graph.rope" in _full_names(self.keep):
            rewrites[REGISTRY["graph.rope"]] = [_kept_rope]
        changed = False
        for graph in walk_graphs(module):
            changed |= rewrite_greedily(graph, rewrites, lambda op: context.count(f"{op.definition.text_name} decomposed"))
        return changed


def _kept_attention(op: Operation) -> list[Value] | None:
    if not can_decompose(op) or (is_tiled(op) and is_plain(op)):
        return None
    return list(plain(op) if is_tiled(op) else DECOMPOSITIONS[op.name](op))


def _kept_rope(op: Operation) -> list[Value] | None:
    return None if not can_decompose(op) or is_whole(op) else list(DECOMPOSITIONS[op.name](op))


def _full_names(names: tuple[str, ...]) -> list[str]:
    return [n if "." in n else f"graph.{n}" for n in names]
