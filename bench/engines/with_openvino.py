"""OpenVINO."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from bench.case import Case, Data
from bench.engines.base import Engine, Prepared, Times, calls
from bench.engines.with_torch import module_of
from bench.onnx_model import model_of

TRIALS = 5
"""Runs of each form of a model, to find the faster one."""


class OpenVino(Engine):
    """One stream in f32 (by itself it may compute in bf16); inputs and results stay in its memory."""

    packages = ("onnx", "openvino")
    openvino: Any
    onnx: Any

    def start(self) -> None:
        """Its core."""
        self.openvino, self.onnx = import_module("openvino"), import_module("onnx")
        self.core = self.openvino.Core()

    def prepare(self, case: Case) -> Prepared | None:
        """A request of the case's model, or of the one converted from torch where there is one and it is faster."""
        data = case.data()
        ready = [self._request(model, data) for model in self._models(case, data)]
        return min(ready, key=lambda prepared: seconds(prepared.run), default=None)

    def _models(self, case: Case, data: Data) -> Iterator[Any]:
        made = model_of(case, self.onnx, data.inputs, data.weights, fused=False)
        if made is not None:
            yield self.core.read_model(made, b"")
        if case.openvino_from_torch and find_spec("torch"):
            torch = import_module("torch")
            module = module_of(torch, case.torch_for_openvino, data.weights)
            with torch.no_grad():
                model = self.openvino.convert_model(module, example_input=tuple(torch.from_numpy(a) for a in data.inputs.values()))
            model.reshape({i: list(a.shape) for i, a in enumerate(data.inputs.values())})
            yield model

    def _request(self, model: Any, data: Data) -> Prepared:
        settings = {
            "INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": self.threads, "NUM_STREAMS": 1,
            "ENABLE_CPU_PINNING": False, "KV_CACHE_PRECISION": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
        }  # fmt: skip
        compiled = self.core.compile_model(model, "CPU", settings)
        request = compiled.create_infer_request()
        kept = []
        for i, array in enumerate(data.inputs.values()):
            wanted = np.ascontiguousarray(array.astype(compiled.inputs[i].get_element_type().to_dtype()))
            kept.append(self.openvino.Tensor(wanted, shared_memory=True))
            request.set_input_tensor(i, kept[-1])
        run = calls(partial(request.infer, share_outputs=True))

        def times(count: int) -> object:
            run(count)
            return kept  # OpenVINO doesn't keep them

        def results() -> list[Any]:
            run(1)
            return [request.get_output_tensor(i).data.copy() for i in range(len(compiled.outputs))]

        return Prepared(times, results)


def seconds(run: Times) -> float:
    """The fastest of some runs."""
    found = []
    for _ in range(TRIALS):
        start = time.perf_counter()
        run(1)
        found.append(time.perf_counter() - start)
    return min(found)
