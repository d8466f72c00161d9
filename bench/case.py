"""What is measured: one piece of work, said in the words of every engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

if TYPE_CHECKING:
    from bench.onnx_model import ModelBuilder

Array = NDArray[Any]
Arrays = Mapping[str, Array]
Work = Callable[[], object]

ROOT = Path(__file__).resolve().parents[1]
GRAPHS = Path(__file__).parent / "workloads"


@dataclass(frozen=True)
class Target:
    """What is wanted of our time on one thread; None where nothing is.  On more threads ``peers`` alone counts."""

    share: float | None = None
    """Of the limit of the machine, at least."""
    c_loop: float | None = None
    """Speed beside the C loop, at least."""
    microseconds: float | None = None
    """Of a whole call, at most."""
    read: float | None = None
    """Speed beside a plain read of the same bytes, at least."""
    peers: float = 1.0
    """Speed beside the best of the other engines, at least."""


@dataclass(frozen=True)
class Data:
    """The arrays of a case: ``inputs`` come with a call, ``weights`` are known beforehand and may be rearranged.

    ``more`` are inputs of our program that the other engines don't have.
    """

    inputs: dict[str, Array]
    weights: dict[str, Array]
    more: dict[str, Array] = field(default_factory=dict)


class Case(ABC):
    """One piece of work.

    The methods named after engines say it in their words: functions of the weights and the inputs, by name and in the order of
    ``data``.  An engine that a case has no words for returns None and is left out.
    """

    target: Target
    tolerance = 1e-4
    """How far results may be apart, of the largest element."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What it is called: the work and its sizes."""

    @property
    @abstractmethod
    def graph(self) -> str:
        """The file in ``bench/workloads`` with our program; its parameters are called as the inputs and the weights."""

    @property
    @abstractmethod
    def flops(self) -> float:
        """Operations that have to be done; a multiply-add is two."""

    @property
    @abstractmethod
    def nbytes(self) -> float:
        """Bytes that have to be moved: inputs, weights and results once each."""

    @abstractmethod
    def data(self) -> Data:
        """The arrays, the same ones every time."""

    @property
    def path(self) -> Path:
        """The file of our program."""
        return GRAPHS / self.graph

    @property
    def files(self) -> Mapping[str, Path]:
        """Files of weights that our program names."""
        return {}

    engines: Collection[str] | None = None
    """Those that have words for it; None where each says so itself."""

    results: slice = slice(None)
    """Which results of our program the other engines compute, too."""

    def numpy(self, weights: Arrays, *inputs: Array) -> Callable[[], Any] | None:
        """Work that returns the results, written for speed: scratch memory is taken beforehand."""
        return None

    def torch(self, torch: Any, weights: Mapping[str, Any], *inputs: Any) -> Any:
        """The results on tensors."""
        return None

    def torch_for_openvino(self, torch: Any, weights: Mapping[str, Any], *inputs: Any) -> Any:
        """The same in the form that OpenVINO understands best, where ``openvino_from_torch``."""
        return self.torch(torch, weights, *inputs)

    def jax_weights(self, weights: Arrays) -> Arrays:
        """The weights as JAX takes them best."""
        return weights

    def jax(self, jax: Any, weights: Mapping[str, Any], *inputs: Any) -> Any:
        """The results on arrays of JAX."""
        return None

    def onnx(self, model: ModelBuilder, weights: Arrays, inputs: Sequence[str]) -> Sequence[str] | None:
        """Adds the nodes and gives the names of the results; ``model.fused`` asks for the fused operators of onnxruntime."""
        return None

    @property
    def fused_onnx(self) -> bool:
        """Whether fused operators make another model."""
        return False

    @property
    def openvino_from_torch(self) -> bool:
        """Whether OpenVINO may be faster with what it takes from torch, where the work is one operation, than with the ONNX model."""
        return False

    @property
    def c_function(self) -> str | None:
        """The function in ``rows.c``."""
        return None
