"""Where operations of a kernel may stand."""

from __future__ import annotations

import math
from typing import Any

from ir.core import Operation
from ir.opdef import TypeProblem

SHARED_LIMIT = 227 * 1024
"""Bytes of shared memory that a block may have, at most (compute capability 9.0; 99 KiB are had by all from 8.0 on, 64 KiB by 7.5)."""
LOCAL_LIMIT = 128 * 1024
"""Bytes of local buffers that a thread may have; devices have 512 KiB, of which other things need some."""
SHARED_ALIGNMENT = 128
"""Bytes that the places of shared buffers are multiples of."""


def launch_around(op: Operation) -> Operation | None:
    """The launch that an operation stands in; None outside of one."""
    outer = op
    while outer.block is not None and outer.block.parent is not None and outer.block.parent.parent is not None:
        outer = outer.block.parent.parent
        if outer.definition.full_name == "gpu.launch":
            return outer
    return None


def require_launch(op: Operation) -> Operation:
    """The launch around an operation.  Raises TypeProblem when there is none."""
    launch = launch_around(op)
    if launch is None:
        raise TypeProblem("only the threads of a gpu.launch can do this", hint="put it into gpu.launch(%x = 0 to 1, threads=32) {...}")
    return launch


def check_groups(op: Operation, size: int) -> None:
    """Raises TypeProblem when the threads of the launch around ``op`` are no whole groups of ``size``."""
    threads: Any = require_launch(op).attribute("threads")
    if threads % size:
        raise TypeProblem(f"the {threads} threads of the launch are no whole groups of {size}", hint=f"give it a multiple of {size} threads")


def shared_size(launch: Operation) -> int:
    """The bytes of shared memory that the planned buffers of a launch take (see ``plan-shared``)."""
    found = 0
    for op in launch.regions[0].block:
        offset: Any = op.attribute("offset") if op.name == "gpu.alloc" else -1
        if offset >= 0:
            found = max(found, offset + byte_size(op))
    return found


def byte_size(alloc: Operation) -> int:
    """The bytes of a buffer on the chip, whose shape is static."""
    type_: Any = alloc.result.type
    return int(math.prod(type_.shape)) * int(type_.dtype.itemsize)
