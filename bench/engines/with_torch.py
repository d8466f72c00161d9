"""torch: as it is, and compiled."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from bench.case import Array, Case
from bench.engines.base import Engine, Prepared, prepared


class Torch(Engine):
    """Operations one by one."""

    packages = ("torch",)
    torch: Any

    def start(self) -> None:
        """No gradients; threads as wanted."""
        self.torch = import_module("torch")
        self.torch.set_num_threads(self.threads)
        self.torch.set_num_interop_threads(1)
        self.torch.set_grad_enabled(False)

    def prepare(self, case: Case) -> Prepared | None:
        """The module of the case, called."""
        data = case.data()
        module = self.finish(module_of(self.torch, case.torch, data.weights))
        tensors = [self.torch.from_numpy(a) for a in data.inputs.values()]
        with self.torch.inference_mode():
            if module(*tensors) is None:
                return None

        def work() -> Any:
            return module(*tensors)

        return prepared(work)

    def finish(self, module: Any) -> Any:
        """What is done to a module before it is called."""
        return module


class TorchCompile(Torch):
    """``torch.compile``, weights frozen."""

    def start(self) -> None:
        """Its settings."""
        super().start()
        import_module("torch._dynamo").config.cache_size_limit = 256
        inductor: Any = import_module("torch._inductor.config")
        inductor.freezing = True

    def finish(self, module: Any) -> Any:
        """Compiled for the shapes that it is called with."""
        self.torch._dynamo.reset()
        return self.torch.compile(module, dynamic=False)


def module_of(torch: Any, function: Callable[..., Any], weights: dict[str, Array]) -> Any:
    """A module with the weights as its own, which calls ``function(torch, weights, *inputs)``."""

    class Module(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.names = {name: f"w{i}" for i, name in enumerate(weights)}
            for name, array in weights.items():
                self.register_buffer(self.names[name], torch.from_numpy(array))

        def forward(self, *inputs: Any) -> Any:
            return function(torch, {name: getattr(self, own) for name, own in self.names.items()}, *inputs)

    return Module().eval()
