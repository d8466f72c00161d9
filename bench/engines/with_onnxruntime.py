"""onnxruntime: plain operators, and its own fused ones."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from bench.case import Case
from bench.engines.base import Engine, Prepared, calls
from bench.onnx_model import model_of


class OnnxRuntime(Engine):
    """A session with all optimizations; inputs and results are bound to memory beforehand."""

    packages = ("onnx", "onnxruntime")
    fused = False
    onnx: Any
    runtime: Any

    def start(self) -> None:
        """Warnings are left out."""
        self.onnx, self.runtime = import_module("onnx"), import_module("onnxruntime")
        self.runtime.set_default_logger_severity(4)

    def prepare(self, case: Case) -> Prepared | None:
        """A session of the case's model."""
        data = case.data()
        model = model_of(case, self.onnx, data.inputs, data.weights, self.fused)
        if model is None:
            return None
        options = self.runtime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = self.threads, 1
        options.graph_optimization_level = self.runtime.GraphOptimizationLevel.ORT_ENABLE_ALL
        session = self.runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        binding = session.io_binding()
        for name, array in data.inputs.items():
            binding.bind_ortvalue_input(name, self.runtime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array)))
        for result in session.get_outputs():
            binding.bind_output(result.name, "cpu")
        session.run_with_iobinding(binding)
        for result, value in zip(session.get_outputs(), binding.get_outputs(), strict=True):
            binding.bind_ortvalue_output(result.name, value)
        work = partial(session.run_with_iobinding, binding)

        def results() -> list[Any]:
            work()
            return [value.numpy() for value in binding.get_outputs()]

        return Prepared(calls(work), results)


class OnnxRuntimeFused(OnnxRuntime):
    """The same with models of its contributed operators, as its own tools make them."""

    fused = True
