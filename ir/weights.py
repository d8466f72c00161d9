"""Weights by name: what the IR knows of the files and arrays that a program's ``weight`` operations read.

The readers of real files live outside of ``ir`` and are handed in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ir.diagnostics import Diagnostic, GraphError, did_you_mean
from ir.types import DType, dtype_from_numpy, tensor_shape

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

_SEARCHED_NAMES = 5000  # for "did you mean": comparing is slow, and files may hold very many names


@runtime_checkable
class WeightSource(Protocol):
    """Named tensors.  Every method raises GraphError when the source is damaged, or has no such tensor."""

    def names(self) -> list[str]:
        """All names, in the order of the source."""
        ...

    def info(self, name: str) -> tuple[DType, tuple[int, ...]]:
        """Element type and shape, without reading the elements."""
        ...

    def read(self, name: str) -> NDArray[Any]:
        """The elements: a read-only, C-contiguous array in native byte order, with the dtype and shape of :meth:`info`.

        Blocks are records as their file has them, little-endian (see :mod:`ir.blocks`).
        """
        ...

    def close(self) -> None:
        """Frees what is held open.  Arrays that were read stay valid; may be called twice."""
        ...


def quoted(name: str, limit: int = 100) -> str:
    """A name from outside, safe and short enough for a message."""
    return repr(name if len(name) <= limit else name[: limit - 3] + "...")


def no_such_tensor(name: str, known: Iterable[str], where: str) -> GraphError:
    """The complaint about a name that a source lacks."""
    names = list(known)
    near = did_you_mean(name, (n for n in islice(names, _SEARCHED_NAMES) if n.isprintable()))
    count = f"{len(names)} tensor{'' if len(names) == 1 else 's'}"
    return GraphError(Diagnostic(f"{where} has no tensor {quoted(name)}", hint=near or f"it holds {count}"))


class ArraySource:
    """Weights that are already arrays.  They are copied, so that later changes of the caller's arrays don't matter."""

    def __init__(self, arrays: Mapping[str, ArrayLike], where: str = "the given arrays") -> None:
        import numpy as np

        self.where = where
        self._arrays: dict[str, tuple[DType, NDArray[Any]]] = {}
        for name, value in arrays.items():
            given = np.asarray(value)
            dtype = dtype_from_numpy(given.dtype)
            if dtype is None:
                raise GraphError(f"{where}: tensor {quoted(name)} has the numpy dtype {given.dtype}, which no element type matches")
            if dtype.is_block and not given.ndim:
                raise GraphError(f"{where}: tensor {quoted(name)} is a single block of {dtype}, not a tensor")
            stored = np.array(given, dtype=dtype.numpy, order="C")
            stored.setflags(write=False)
            self._arrays[name] = (dtype, stored)

    def _find(self, name: str) -> tuple[DType, NDArray[Any]]:
        found = self._arrays.get(name)
        if found is None:
            raise no_such_tensor(name, self._arrays, self.where)
        return found

    def names(self) -> list[str]:
        return list(self._arrays)

    def info(self, name: str) -> tuple[DType, tuple[int, ...]]:
        dtype, array = self._find(name)
        return dtype, tensor_shape(dtype, array.shape)

    def read(self, name: str) -> NDArray[Any]:
        return self._find(name)[1]

    def close(self) -> None:
        pass
