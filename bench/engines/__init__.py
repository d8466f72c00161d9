"""The engines, by the names that reports give them."""

from __future__ import annotations

from importlib import import_module

from bench.engines.base import Engine

OURS = "graph-opt"
C = "C"
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
    C: "c_loop.CLoop",
    MACHINE: "machine.Machine",
}
PEERS = tuple(name for name in ENGINES if name not in (OURS, C, MACHINE))
"""Those that ours is compared with; the loops in C and the machine are measures of their own."""


def engine(name: str, threads: int) -> Engine:
    """The engine of that name, not started yet."""
    module, _, cls = ENGINES[name].rpartition(".")
    made = getattr(import_module(f"bench.engines.{module}"), cls)(threads)
    assert isinstance(made, Engine)
    return made
