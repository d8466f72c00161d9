"""JAX."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

from bench.case import Case
from bench.engines.base import Engine, Prepared, prepared


class Jax(Engine):
    """A jitted function; weights and inputs are on its device beforehand."""

    packages = ("jax",)
    jax: Any

    def start(self) -> None:
        """On the CPU."""
        self.jax = import_module("jax")
        self.jax.config.update("jax_platforms", "cpu")

    def prepare(self, case: Case) -> Prepared | None:
        """The function of the case, compiled for its shapes."""
        data = case.data()
        weights = {name: self.jax.device_put(a) for name, a in case.jax_weights(data.weights).items()}
        inputs = [self.jax.device_put(a) for a in data.inputs.values()]
        function = self.jax.jit(partial(case.jax, self.jax))
        if function(weights, *inputs) is None:
            return None
        wait = self.jax.block_until_ready

        def work() -> Any:
            return wait(function(weights, *inputs))

        return prepared(work)
