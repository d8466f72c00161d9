"""numpy, which has its BLAS."""

from __future__ import annotations

from bench.case import Case
from bench.engines.base import Engine, Prepared, prepared


class Numpy(Engine):
    """Programs written for speed, into arrays that are there."""

    packages = ("numpy",)

    def prepare(self, case: Case) -> Prepared | None:
        """The function of the case."""
        data = case.data()
        work = case.numpy(data.weights, *data.inputs.values())
        return None if work is None else prepared(work)
