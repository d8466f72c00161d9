"""The engines, by the names that reports give them."""

from __future__ import annotations

from importlib import import_module

from bench.engines.base import Engine

OURS = "graph-opt"
C = "C"
READ = "read"
LLAMA_CPP = "llama.cpp"
MACHINE = "machine"
ENGINES = {
    OURS: "ours.GraphOpt",
    "numpy": "with_numpy.Numpy",
    "torch": "with_torch.Torch",
    "torch.compile": "with_torch.TorchCompile",
    "onnxruntime": "with_onnxruntime.OnnxRuntime",
    "onnxruntime fused": "with_onnxruntime.OnnxRuntimeFused",
    "openvino": "with_openvino.OpenVino",
    "jax": "with_jax.Jax",
    LLAMA_CPP: "with_llama_cpp.LlamaCpp",
    C: "c_loop.CLoop",
    READ: "read.Read",
    MACHINE: "machine.Machine",
}
PEERS = tuple(name for name in ENGINES if name not in (OURS, C, READ, MACHINE))
"""Those that ours is compared with; the loops in C, the plain read and the machine are measures of their own."""
EXTRAS = {LLAMA_CPP: "bench-llm"}
"""The extra packages of an engine, where they are not in "bench"."""


def engine(name: str, threads: int) -> Engine:
    """The engine of that name, not started yet."""
    module, _, cls = ENGINES[name].rpartition(".")
    made = getattr(import_module(f"bench.engines.{module}"), cls)(threads)
    assert isinstance(made, Engine)
    return made
