"""ONNX models, built in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.case import Array, Case

OPSET = 20
FUSED = "com.microsoft"


class ModelBuilder:
    """Collects the nodes of a model."""

    def __init__(self, onnx: Any, fused: bool) -> None:
        self.onnx = onnx
        self.fused = fused
        self._nodes: list[Any] = []
        self._constants: list[Any] = []

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        """The name of a constant: an array, or numbers in ``dtype``."""
        array = value if isinstance(value, np.ndarray) else np.array(value, dtype)
        name = f"c{len(self._constants)}"
        self._constants.append(self.onnx.numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def integers(self, *values: int) -> str:
        """The name of a constant list of i64."""
        return self.constant(values, np.int64)

    def node(self, operator: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Adds a node with one result and gives the result's name."""
        return self.nodes(operator, *inputs, results=[True], domain=domain, **attributes)[0]

    def nodes(self, operator: str, *inputs: str, results: Sequence[bool], domain: str = "", **attributes: Any) -> list[str]:
        """Adds a node with several results, of which only those that are true are wanted, and gives the names of these."""
        names = [f"v{len(self._nodes)}.{i}" if wanted else "" for i, wanted in enumerate(results)]
        self._nodes.append(self.onnx.helper.make_node(operator, list(inputs), names, domain=domain, **attributes))
        return [name for name in names if name]

    def linear(self, x: str, weight: Array, bias: Array) -> str:
        """x @ weight + bias."""
        return self.node("Add", self.node("MatMul", x, self.constant(weight)), self.constant(bias))

    def silu(self, x: str) -> str:
        """x * sigmoid(x)."""
        if self.fused:
            return self.node("QuickGelu", x, domain=FUSED, alpha=1.0)
        return self.node("Mul", x, self.node("Sigmoid", x))

    def model(self, inputs: dict[str, Array], results: Sequence[str]) -> bytes:
        """The finished model."""
        helper, mapping = self.onnx.helper, self.onnx.helper.np_dtype_to_tensor_dtype
        places = [helper.make_tensor_value_info(name, mapping(a.dtype), a.shape) for name, a in inputs.items()]
        ends = [helper.make_tensor_value_info(f"result{i}", self.onnx.TensorProto.FLOAT, None) for i in range(len(results))]
        last = [helper.make_node("Identity", [name], [f"result{i}"]) for i, name in enumerate(results)]
        graph = helper.make_graph([*self._nodes, *last], "graph", places, ends, self._constants)
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(FUSED, 1)]
        made: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
        return made


def model_of(case: Case, onnx: Any, inputs: dict[str, Array], weights: dict[str, Array], fused: bool) -> bytes | None:
    """The model of a case, or None when it has none (or none of its own with fused operators)."""
    if fused and not case.fused_onnx:
        return None
    builder = ModelBuilder(onnx, fused)
    results = case.onnx(builder, weights, list(inputs))
    return None if results is None else builder.model(inputs, results)
