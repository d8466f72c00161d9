"""Tiles: matrices that some processors hold in registers of their own (AMX of x86).

``vector.dot4`` of matrices that are loaded from buffers, whose result is stored to others, is a product of tiles when it is small
enough: at most 16 rows, 16 columns, and 16 words along the sum.  Passes keep such loads, products and stores whole.  They stand together in
one block of a loop; what is in a graph's own block may become functions that no tile can be handed to.  Products that share what they
read are of the same shape.
"""

from __future__ import annotations

from ir.core import Operation
from ir.layout import AccessArg, OperandArg, layout_of
from ir.types import VectorType

MOST = 16
"""Rows of a tile, and words of a row."""

_SHARING = 64
"""Products that share what they read are tiles up to so many: more are not looked at."""


def is_tile(op: Operation) -> bool:
    """Whether an operation is a product of tiles, or a load or store of nothing but tiles."""
    return tile_shape(op) is not None


def tile_shape(op: Operation) -> tuple[int, int, int] | None:
    """Rows, words along the sum, and columns of the products of tiles that an operation is part of; None where it is part of none."""
    name = op.definition.full_name
    product: Operation | None = None
    if name == "vector.dot4":
        product = op
    elif name == "vector.load":
        product = next(iter(op.results[0].users), None)
    elif name == "vector.store":
        stored = layout_of(op)[0]
        assert isinstance(stored, OperandArg)
        product = op.operand_uses[stored.position].value.defining_op
    if product is None or not _is_product(product) or not _are_tiles(product):
        return None
    return _shape(product)


def _is_product(op: Operation) -> bool:
    return op.definition.full_name == "vector.dot4"


def _shape(product: Operation) -> tuple[int, int, int] | None:
    a, b = (v.type for v in product.operands)
    assert isinstance(a, VectorType) and isinstance(b, VectorType)
    (rows, words), (_, columns) = a.shape, b.shape
    shape = rows, words, columns
    return shape if all(0 < size <= MOST for size in shape) else None


def _are_tiles(product: Operation) -> bool:
    """Whether a product, and all others that share what it reads, have operands and results that can be tiles of the same shapes.

    A matrix times itself is none: processors take two registers for the factors.
    """
    block, shape = product.block, _shape(product)
    if block is None or block.parent is None or block.parent.parent is None or shape is None:
        return False
    found, new = {product}, [product]
    for op in new:  # grows
        if op.block is not block or _shape(op) != shape or op.operands[0] is op.operands[1] or len(found) > _SHARING:
            return False
        if not all(user.block is block and _is_whole(user, "vector.store") for user in op.results[0].users):
            return False
        for operand in op.operands:
            load = operand.defining_op
            if load is None or load.block is not block or not _is_whole(load, "vector.load"):
                return False
            for user in operand.users:
                if not _is_product(user):
                    return False
                if user not in found:
                    found.add(user)
                    new.append(user)
    return True


def _is_whole(op: Operation, name: str) -> bool:
    """Whether an operation is an access of this name to all of some rows: two runs, one of them along the last axis."""
    if op.definition.full_name != name or op.definition.operand_position(op, "valid") is not None:
        return False
    access = layout_of(op)[-1]
    assert isinstance(access, AccessArg)
    runs = [n for n, index in enumerate(access.indices) if index.size is not None]
    return len(runs) == 2 and runs[-1] == len(access.indices) - 1
