"""Machine code made by this project."""

from __future__ import annotations

from functools import partial
from typing import Any

import graph_opt
from bench.case import Case, Work
from bench.engines.base import Engine, Prepared, as_arrays, calls, prepared
from bench.workloads.helpers import aligned
from bench.workloads.smollm2 import Step
from graph_opt.levels import preset_of


class GraphOpt(Engine):
    """The whole call from Python; every size is known beforehand."""

    packages = ("graph-opt", "llvmlite")

    def prepare(self, case: Case) -> Prepared:
        """Compiles the file of the case for the types of its inputs."""
        if isinstance(case, Step):
            return prepared(case.ours(self.threads))
        data = case.data()
        inputs = {**data.inputs, **data.more}
        types = ", ".join(f'"{name}={type_of(a)}"' for name, a in inputs.items())
        weights = {} if case.files else data.weights
        program = graph_opt.compile(
            case.path,
            pipeline=f"specialize{{types=[{types}]}},{preset_of('loops')}",
            threads=self.threads,
            constants=weights,
            files=case.files or None,
        )
        work = call_of(program, list(inputs.values()))
        return Prepared(calls(work), lambda: as_arrays(work())[case.results])


def type_of(array: Any) -> str:
    """The type of an array, as programs write it."""
    kind = {"f": "f", "i": "i"}[array.dtype.kind]
    return f"{kind}{8 * array.dtype.itemsize}[{', '.join(map(str, array.shape))}]"


def call_of(program: Any, arrays: list[Any]) -> Work:
    """The call that is measured, the one place that says how a user writes it: results go into arrays that are there."""
    made = program(*arrays)
    out = tuple(aligned(a) for a in made) if isinstance(made, tuple) else aligned(made)
    return partial(program, *arrays, out=out)
