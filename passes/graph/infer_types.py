"""Pass ``infer-types``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ir.core import Module
from ir.inference import infer_module
from passes.infra.base import Pass, PassContext


@dataclass(frozen=True)
class InferTypes(Pass):
    """Writes the type of every value into the program.

    Before::

        %h = matmul(%x, %w)

    After::

        %h = matmul(%x, %w) : f32[B, 256]

    Types that can't be inferred (from parameters without a type) stay open.  Raises GraphError with every type error.
    """

    needs_types: ClassVar[bool] = False

    def run(self, module: Module, context: PassContext) -> bool:
        written = infer_module(module, context.sources)
        context.count("types written", written)
        return written > 0
