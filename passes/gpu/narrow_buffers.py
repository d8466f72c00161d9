"""Pass ``narrow-buffers``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dialects.arith.cast import extf
from ir.builder import Builder
from ir.core import Module, Operation, Value
from ir.rewriter import walk_graphs
from ir.types import DType, MemRefType, ScalarType
from passes.infra.base import Pass, PassContext
from passes.loops._memory import stored_value


@dataclass(frozen=True)
class NarrowBuffers(Pass):
    """Keeps what is a widened f16 or bf16 in memory as it was before it was widened.

    Before::

        %h.wide = memref.alloc() : memref<f32[B, 512]>
        scf.parallel(%i = 0 to B, %j = 0 to 512) {
          ...
          %h = arith.truncf(%silu) : bf16
          %h.extf = arith.extf(%h) : f32
          memref.store(%h.extf, %h.wide[%i, %j])
          yield
        }
        ...
        %a = memref.load(%h.wide[%i, %k]) : f32

    After::

        %h.wide = memref.alloc() : memref<bf16[B, 512]>
        scf.parallel(%i = 0 to B, %j = 0 to 512) {
          ...
          %h = arith.truncf(%silu) : bf16
          memref.store(%h, %h.wide[%i, %j])
          yield
        }
        ...
        %a.narrow = memref.load(%h.wide[%i, %k]) : bf16
        %a = arith.extf(%a.narrow) : f32

    ``lower-to-linalg`` widens the rows of f16 and bf16 products once for all that read them, which is what a CPU wants; tensor cores
    multiply them as they are, and half the bytes are moved.  This is for buffers that all stores fill with widened values of one type, and
    that nothing but loads and stores of single elements touches.  Plain copies that widen are left to ``map-products``, which
    reads in front of them.
    """

    keeps_types: ClassVar[bool] = True

    def run(self, module: Module, context: PassContext) -> bool:
        narrowed = 0
        for graph in walk_graphs(module):
            for op in list(graph.walk()):
                if op.name == "memref.alloc":
                    found = _Uses(op.result)
                    narrow = found.narrow_type()
                    if narrow is not None:
                        found.rewrite(narrow)
                        narrowed += 1
        context.count("buffers narrowed", narrowed)
        return narrowed > 0


class _Uses:
    """A buffer, other forms of it (``memref.reshape``), and the operations that touch it."""

    def __init__(self, buffer: Value) -> None:
        self.forms = [buffer]
        self.loads: list[Operation] = []
        self.stores: list[Operation] = []
        self.plain = True
        for form in self.forms:
            for use in form.uses:
                self._add(use.owner, form)

    def _add(self, op: Operation, form: Value) -> None:
        if op.name == "memref.reshape":
            self.forms.append(op.result)
        elif op.name == "memref.load":
            self.loads.append(op)
        elif op.name == "memref.store" and stored_value(op) is not form:
            self.stores.append(op)
        else:
            self.plain = False

    def narrow_type(self) -> DType | None:
        """What was widened everywhere; None when the buffer has to stay."""
        type_ = self.forms[0].type
        if not self.plain or not self.stores or not isinstance(type_, MemRefType) or type_.dtype.name != "f32":
            return None
        sources = [_widened(stored_value(op)) for op in self.stores]
        dtypes = {v.type.dtype for v in sources if v is not None and isinstance(v.type, ScalarType)}
        computed = any(v is not None and v.defining_op is not None and v.defining_op.name != "memref.load" for v in sources)
        return dtypes.pop() if computed and None not in sources and len(dtypes) == 1 else None

    def rewrite(self, narrow: DType) -> None:
        """Changes the type of the buffer, of what is stored and of what is loaded."""
        for form in self.forms:
            type_ = form.type
            assert isinstance(type_, MemRefType)
            form.type = MemRefType(narrow, type_.shape, type_.space, type_.align)
        for op in self.stores:
            wide = stored_value(op)
            source = _widened(wide)
            assert source is not None
            op.operand_uses[0].set(source)
            if not list(wide.uses) and wide.defining_op is not None:
                wide.defining_op.erase()
        for op in self.loads:
            self._widen(op, narrow)

    def _widen(self, op: Operation, narrow: DType) -> None:
        """The loaded value has its name and users; what is in memory gets another name."""
        value, block = op.result, op.block
        assert block is not None and op.graph is not None
        users, wide_type, name = list(value.uses), value.type, value.name
        value.type = ScalarType(narrow)
        op.graph.rename(value, f"{name}.narrow")
        value.auto_named = True
        with Builder(block, op.next, origin=name, loc=op.loc):
            wide: Value = extf(value, result_type=wide_type)
        for use in users:
            use.set(wide)
        op.graph.rename(wide, name)
        wide.auto_named = True


def _widened(value: Value) -> Value | None:
    """The f16 or bf16 that a value is widened from."""
    op = value.defining_op
    if op is None or op.name != "arith.extf":
        return None
    source = op.operands[0]
    return source if isinstance(source.type, ScalarType) and source.type.dtype.name in ("f16", "bf16") else None
