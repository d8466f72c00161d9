"""Tiles: matrices that some processors hold in registers of their own (AMX of x86).

``vector.dot4`` of matrices that are loaded from buffers, whose result is stored to others, is a product of tiles when it is small
enough: at most 16 rows, 16 columns, and 16 words along the sum.  Passes keep such loads, products and stores whole.  They stand together in
one block of a loop; what is in a graph's own block may become functions that no tile can be handed to.
"""

from __future__ import annotations

from ir.core import Operation, Value
from ir.layout import AccessArg, OperandArg, layout_of
from ir.types import VectorType

MOST = 16
"""Rows of a tile, and words of a row."""


def is_tile(op: Operation) -> bool:
    """Whether an operation is a product of tiles, or a load or store of nothing but tiles."""
    name = op.definition.full_name
    if name == "vector.dot4":
        return _are_tiles(op)
    if name == "vector.load":
        users = op.results[0].users
        return bool(users) and _is_product(users[0]) and _are_tiles(users[0])
    if name == "vector.store":
        stored = layout_of(op)[0]
        assert isinstance(stored, OperandArg)
        source = op.operand_uses[stored.position].value.defining_op
        return source is not None and _is_product(source) and _are_tiles(source)
    return False


def _is_product(op: Operation) -> bool:
    return op.definition.full_name == "vector.dot4"


def _are_tiles(product: Operation) -> bool:
    """Whether a product, and all others that share what it reads, have operands and results that can be tiles."""
    if product.block is None or product.block.parent is None or product.block.parent.parent is None:
        return False
    found = [product]
    for op in found:  # grows
        if op.block is not product.block or not all(_fits(v) for v in (*op.operands, op.results[0])):
            return False
        if not all(user.block is op.block and _is_whole(user, "vector.store") for user in op.results[0].users):
            return False
        for operand in op.operands:
            load = operand.defining_op
            if load is None or load.block is not op.block or not _is_whole(load, "vector.load"):
                return False
            users = operand.users
            if not all(map(_is_product, users)):
                return False
            found.extend(user for user in users if user not in found)
    return True


def _fits(value: Value) -> bool:
    return isinstance(value.type, VectorType) and len(value.type.shape) == 2 and all(0 < size <= MOST for size in value.type.shape)


def _is_whole(op: Operation, name: str) -> bool:
    """Whether an operation is an access of this name to all of some rows: two runs, one of them along the last axis."""
    if op.definition.full_name != name or op.definition.operand_position(op, "valid") is not None:
        return False
    access = layout_of(op)[-1]
    assert isinstance(access, AccessArg)
    runs = [n for n, index in enumerate(access.indices) if index.size is not None]
    return len(runs) == 2 and runs[-1] == len(access.indices) - 1
