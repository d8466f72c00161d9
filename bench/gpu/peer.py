"""torch beside us: the same memory, the same device, the same stream; its kernels are replayed as a CUDA graph, too."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any

from bench.gpu.work import COMPILED, Array, listed
from codegen.cuda.arrays import DeviceArray
from codegen.cuda.device import Device

WARM = 3
"""Calls before one is captured: libraries choose their kernels, take their memory."""


class Torch:
    """torch on a device of ours; on the emulated one it computes on the CPU.  Raises ImportError without torch."""

    def __init__(self, device: Device) -> None:
        self.torch: Any = import_module("torch")
        self.device = device
        self.emulated = device.driver.emulated
        self.torch.set_grad_enabled(False)
        self.torch.backends.cuda.matmul.allow_tf32 = False
        self.torch.backends.cudnn.allow_tf32 = False
        self.torch.set_float32_matmul_precision("highest")
        import_module("torch._dynamo").config.cache_size_limit = 64
        if not self.emulated:
            if not self.torch.cuda.is_available():
                raise ImportError("torch has no CUDA here")
            self.torch.cuda.set_device(device.driver.number)
            self._stream = self.torch.cuda.ExternalStream(device.stream)

    @property
    def version(self) -> str:
        """What it is."""
        return f"torch {self.torch.__version__}"

    @property
    def cache_bytes(self) -> int:
        """The size of the device's L2 cache; 0 where torch doesn't say it."""
        if self.emulated:
            return 0
        return int(getattr(self.torch.cuda.get_device_properties(self.device.driver.number), "L2_cache_size", 0))

    @contextlib.contextmanager
    def on_our_stream(self) -> Iterator[None]:
        """What torch does in here goes to our stream."""
        if self.emulated:
            yield
            return
        with self.torch.cuda.stream(self._stream):
            yield

    def view(self, array: DeviceArray) -> Any:
        """A tensor over the memory of an array of ours."""
        return self.torch.from_dlpack(array)

    def fill(self, array: DeviceArray, scale: float, mean: float, seed: int) -> None:
        """Random numbers, made where they are wanted."""
        tensor = self.view(array)
        generator = self.torch.Generator(device=tensor.device).manual_seed(seed)
        tensor.normal_(mean, scale, generator=generator)

    def prepared(self, function: Callable[..., Any], sets: Sequence[Sequence[DeviceArray]], how: str) -> tuple[list[Callable[[], None]], list[Any]]:
        """What computes ``function(torch, *tensors)`` for each set of arrays, and the results of the first.

        On a GPU it replays a captured graph: how long the host takes for torch's functions plays no part.
        """
        torch = self.torch

        def work(*tensors: Any) -> Any:
            return function(torch, *tensors)

        made = torch.compile(work, dynamic=False) if how == COMPILED else work
        calls, first = [], None
        for arrays in sets:
            tensors = [self.view(a) for a in arrays]
            call, results = (self._captured if not self.emulated else self._plain)(made, tensors)
            calls.append(call)
            first = results if first is None else first
        return calls, listed(first)

    def _plain(self, made: Callable[..., Any], tensors: Sequence[Any]) -> tuple[Callable[[], None], Any]:
        return lambda: made(*tensors), made(*tensors)

    def _captured(self, made: Callable[..., Any], tensors: Sequence[Any]) -> tuple[Callable[[], None], Any]:
        torch = self.torch
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM):
                made(*tensors)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = made(*tensors)
        graph.replay()
        torch.cuda.synchronize()
        return graph.replay, results

    def numpy(self, tensor: Any) -> Array:
        """A copy on the host; bf16 as float."""
        return tensor.detach().float().cpu().numpy()  # type: ignore[no-any-return]

    def distance(self, array: DeviceArray, tensor: Any) -> float:
        """How far our result is from torch's, as :func:`bench.gpu.work.distance` says; computed where both are."""
        torch = self.torch
        a, b = self.view(array).double(), tensor.double()
        if a.shape != b.shape or not bool((a.isfinite() == b.isfinite()).all()):
            return float("inf")
        kept = b.isfinite()
        a, b = torch.where(kept, a, 0.0), torch.where(kept, b, 0.0)
        if not a.numel():
            return 0.0
        return float((a - b).abs().max()) / (float(b.abs().max()) or 1.0)

    def forget(self) -> None:
        """Gives memory back that nobody uses any more."""
        self.torch._dynamo.reset()
        if not self.emulated:
            self.torch.cuda.synchronize()
            self.torch.cuda.empty_cache()
